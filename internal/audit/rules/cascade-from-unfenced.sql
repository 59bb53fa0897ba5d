-- Foreign keys whose action lets a write of an unfenced table write into a fenced one.
SELECT m.label, con.conname::text, NULL,
       format('a write of %s, which has no fence, changes it through %I (%s)', parent.label, con.conname,
              concat_ws(', ', CASE con.confdeltype WHEN 'c' THEN 'ON DELETE CASCADE' WHEN 'n' THEN 'ON DELETE SET NULL' WHEN 'd' THEN 'ON DELETE SET DEFAULT' END,
                              CASE con.confupdtype WHEN 'c' THEN 'ON UPDATE CASCADE' WHEN 'n' THEN 'ON UPDATE SET NULL' WHEN 'd' THEN 'ON UPDATE SET DEFAULT' END)),
       ARRAY['protect', parent.label], NULL, r.schema_name, r.table_name, 0
  FROM pg_constraint con
  JOIN member m ON m.relid = con.conrelid
  JOIN relation r ON r.oid = m.relid
  -- a key that refers to a partition is mended at the partitioned table
  JOIN tree t ON t.relid = con.confrelid
  JOIN relation parent ON parent.oid = t.root AND (parent.oid = con.confrelid OR (SELECT referred.part FROM relation referred WHERE referred.oid = con.confrelid))
 WHERE con.contype = 'f' AND con.conparentid = 0 AND (con.confdeltype IN ('c', 'n', 'd') OR con.confupdtype IN ('c', 'n', 'd'))
   AND NOT EXISTS (SELECT FROM member fenced WHERE fenced.relid = con.confrelid)
