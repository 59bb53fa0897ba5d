-- Inheritance children of a protected table without a guard. A write through the parent reaches them unchecked.
SELECT u.label, NULL, NULL, format('inherits from %s, which is protected, and has no guard', f.label),
       f.command, NULL, r.schema_name, r.table_name, 0
  FROM unguarded u
  JOIN fence f ON f.root = u.root
  JOIN relation r ON r.oid = u.relid
 WHERE u.kind = 'child'
