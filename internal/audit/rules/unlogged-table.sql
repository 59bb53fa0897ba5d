-- Fences that a crash of the server empties.
SELECT m.label, NULL, NULL, 'is unlogged: a crash empties it, and the fences in its rows with it', NULL,
       format('ALTER TABLE %s SET LOGGED;', m.label), r.schema_name, r.table_name, 0
  FROM member m
  JOIN fence f ON f.root = m.root AND f.kind = 'row'
  JOIN relation r ON r.oid = m.relid
 WHERE m.persistence = 'u' AND NOT m.partitioned
UNION ALL
SELECT format('%I.%I', n.nspname, c.relname), NULL, NULL, 'is unlogged: a crash empties it, and every old token is accepted again', NULL,
       format('ALTER TABLE %I.%I SET LOGGED;', n.nspname, c.relname), NULL, NULL, 0
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'fencing' AND c.relname IN ('fence', 'lease', 'source') AND c.relkind = 'r' AND c.relpersistence = 'u'
