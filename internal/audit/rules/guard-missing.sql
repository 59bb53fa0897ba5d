-- Some of a table's guards are gone. (Partitions and inheritance children without theirs have rules of their own.)
SELECT d.label, NULL, NULL,
       format(CASE count(*) WHEN 1 THEN 'one of its guards is gone: %2$s' ELSE '%1$s of its guards are gone: %2$s' END,
              count(*), string_agg(d.name, ', ' ORDER BY d.name)),
       f.command, NULL, r.schema_name, r.table_name, 0
  FROM difference d
  JOIN fence f ON f.root = d.root
  JOIN relation r ON r.oid = d.relid
 WHERE d.problem = 'missing' AND NOT d.part
   AND NOT EXISTS (SELECT FROM unguarded u WHERE u.relid = d.relid)
 GROUP BY d.relid, d.label, f.command, r.schema_name, r.table_name
UNION ALL
SELECT b.label, NULL, NULL,
       'has the token column of a row fence and no guard: its guards were dropped, or it is a copy made with LIKE, or a detached partition',
       ARRAY['protect', b.label], NULL, r.schema_name, r.table_name, 0
  FROM bereft b JOIN relation r ON r.oid = b.relid
