-- Everything a table argument on the command line could name, system catalogs included, so that a wrong one can be told
-- what it is. path_position is 0 when the schema is not on the search_path (or may not be used).
-- name: ListRelations :many
SELECT c.oid::bigint                                                    AS oid,
       n.nspname::text                                                  AS schema_name,
       c.relname::text                                                  AS name,
       pg_catalog.format('%I.%I', n.nspname, c.relname)::text           AS quoted,
       c.relkind::text                                                  AS kind,
       c.relpersistence::text                                           AS persistence,
       COALESCE(pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname), 0)::integer AS path_position,
       COALESCE(e.extname, '')::text                                    AS extension,
       COALESCE((SELECT pg_catalog.format('%I.%I', rn.nspname, rc.relname)
                   FROM pg_catalog.pg_class rc JOIN pg_catalog.pg_namespace rn ON rn.oid = rc.relnamespace
                  WHERE c.relispartition AND rc.oid = pg_catalog.pg_partition_root(c.oid)), '')::text AS partition_of,
       EXISTS (SELECT FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attname = sqlc.arg(column_name)::text AND NOT a.attisdropped)::boolean AS has_column
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_depend d
         ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.objsubid = 0 AND d.deptype = 'e'
  LEFT JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
   AND n.nspname !~ '^pg_toast'
 ORDER BY 2, 3;

-- name: ListProtection :many
SELECT p.relid::bigint                                          AS oid,
       p.schema_name::text                                      AS schema_name,
       p.table_name::text                                       AS table_name,
       pg_catalog.format('%I.%I', p.schema_name, p.table_name)::text AS quoted,
       p.kind::text                                             AS kind,
       COALESCE(p.mode, '')::text                               AS mode,
       COALESCE(p.fence, '')::text                              AS fence,
       COALESCE(p.inserts, '')::text                            AS inserts,
       p.enforcement::text                                      AS enforcement,
       COALESCE(p.max_advance, 0)::bigint                       AS max_advance,
       p.guards::integer                                        AS guards
  FROM fencing.protection p
 ORDER BY 2, 3;
