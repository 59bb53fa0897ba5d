-- Every table and view of the application: what it is a partition of, which table a view that takes writes is of, and how it is protected.
SELECT c.oid,
       n.nspname,
       c.relname,
       c.relkind IN ('v', 'm'),
       EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'last_fencing_token' AND NOT a.attisdropped),
       CASE WHEN c.relispartition THEN (SELECT i.inhparent FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid) END,
       -- 4, 8 and 16: UPDATE, INSERT and DELETE go through to the one relation that the view reads.
       CASE WHEN c.relkind = 'v' AND pg_catalog.pg_relation_is_updatable(c.oid, false) & 28 > 0 THEN (
           SELECT pg_catalog.min(d.refobjid)
             FROM pg_catalog.pg_rewrite r
             JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND d.objid = r.oid
                                        AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid <> c.oid
            WHERE r.ev_class = c.oid AND r.rulename = '_RETURN'
           HAVING pg_catalog.count(DISTINCT d.refobjid) = 1) END,
       p.kind,
       p.mode,
       p.fence,
       COALESCE(p.inserts = 'require', false)
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN fencing.protection p ON p.relid = c.oid
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'fencing')
   AND n.nspname NOT LIKE 'pg\_t%';
