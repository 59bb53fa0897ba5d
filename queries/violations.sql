-- name: ViolationsByTable :many
SELECT v.schema_name::text AS schema_name, v.table_name::text AS table_name, pg_catalog.count(*)::bigint AS violations
  FROM fencing.violation v
 WHERE v.at >= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => sqlc.arg(window_seconds)::float8)
 GROUP BY 1, 2;

-- The distinct sources of violations, the most frequent first. Empty schema_name and table_name mean every table.
-- name: GroupViolations :many
SELECT v.schema_name::text             AS schema_name,
       v.table_name::text              AS table_name,
       v.kind::text                    AS kind,
       v.application_name::text        AS application_name,
       v.role_name::text               AS role_name,
       v.query::text                   AS query,
       COALESCE(v.fence, '')::text     AS fence,
       pg_catalog.count(*)::bigint     AS violations,
       pg_catalog.min(v.at)::timestamptz AS first_seen,
       pg_catalog.max(v.at)::timestamptz AS last_seen
  FROM fencing.violation v
 WHERE v.at >= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => sqlc.arg(window_seconds)::float8)
   AND (sqlc.arg(any_table)::boolean
        OR pg_catalog.format('%I.%I', v.schema_name, v.table_name) = ANY (sqlc.arg(tables)::text[]))
 GROUP BY 1, 2, 3, 4, 5, 6, 7
 ORDER BY 8 DESC, 10 DESC, 1, 2, 3, 4, 5, 6;
