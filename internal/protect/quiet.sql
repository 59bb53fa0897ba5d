-- How quiet observed tables were. $1: the tables; $2: the window, in seconds; $3: since when they are said to be observed, or NULL.
--
-- PostgreSQL keeps no time for a trigger. What there is: the transaction that made it (xmin), whose time of commit the server knows
-- where track_commit_timestamp is on; and the log of violations, whose rows have both a time and a transaction. A violation by a
-- transaction after the one that made a guard says: by then the guard was there. One before it says: by then it was not.
WITH RECURSIVE
below AS (
    SELECT wanted.relid AS root, wanted.relid FROM unnest($1::oid[]) AS wanted (relid)
    UNION
    SELECT b.root, i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.relid
),
-- Violations carry the name of the table that was written, which may be a partition.
recorded AS (
    SELECT b.root, count(v.at) AS violations, max(v.at) AS last_at
      FROM below b
      JOIN pg_catalog.pg_class c ON c.oid = b.relid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      JOIN fencing.violation v ON v.schema_name = n.nspname AND v.table_name = c.relname
                              AND v.at >= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2::float8)
     GROUP BY b.root
),
-- The newest of a table's own guards counts. (A partition's come with the partition: before, there was nothing to write to.)
-- xmin has 32 bits of the transaction's number. The greatest number with these bits that was issued is the one, or a later one:
-- an error makes the guard younger than it is.
guards AS (
    SELECT g.relid,
           max(CASE WHEN low.xid <= top.xid & 4294967295 THEN (top.xid >> 32 << 32) | low.xid ELSE ((top.xid >> 32) - 1 << 32) | low.xid END) AS made_by,
           CASE WHEN count(*) = count(known.at) THEN max(known.at) END AS made_at
      FROM fencing.guard g
      JOIN pg_catalog.pg_trigger t ON t.oid = g.trigger_oid
     CROSS JOIN LATERAL (SELECT t.xmin::text::bigint) AS low (xid)
     CROSS JOIN (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint) AS top (xid)
     CROSS JOIN LATERAL (SELECT CASE WHEN pg_catalog.current_setting('track_commit_timestamp') = 'on' AND low.xid > 2
                                     THEN pg_catalog.pg_xact_commit_timestamp(t.xmin) END) AS known (at)
     WHERE g.relid = ANY ($1::oid[])
     GROUP BY g.relid
),
timed AS (
    SELECT g.relid, g.made_at,
           (SELECT min(v.at) FROM fencing.violation v WHERE v.xact::text::bigint > g.made_by) AS seen_by,
           (SELECT max(v.at) FROM fencing.violation v WHERE v.xact::text::bigint < g.made_by) AS not_before
      FROM guards g
)
SELECT p.relid::bigint,
       COALESCE(r.violations, 0) AS violations,
       r.last_at,
       -- What is not watched is not recorded. A partition that was added since lacks the guard against TRUNCATE alone: enforce adds it.
       (SELECT pg_catalog.string_agg(pg_catalog.format('%s on %s is %s', problem.name, problem.label, problem.problem), ', ' ORDER BY problem.label, problem.name)
          FROM fencing.guard_problems(p.relid, p.kind = 'named', p.arguments) AS problem
          JOIN pg_catalog.pg_class c ON c.oid = problem.relid
         WHERE NOT (c.relispartition AND problem.problem = 'missing')) AS problems,
       since.at AS observed_since,
       COALESCE(since.at <= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2::float8), false) AS long_enough
  FROM fencing.protection p
  JOIN timed t ON t.relid = p.relid
  LEFT JOIN recorded r ON r.root = p.relid
 CROSS JOIN LATERAL (SELECT COALESCE(t.made_at, LEAST(t.seen_by, GREATEST($3::timestamptz, CASE WHEN $3 IS NOT NULL THEN t.not_before END)))) AS since (at)
 WHERE p.enforcement = 'observe' AND p.relid = ANY ($1::oid[])
