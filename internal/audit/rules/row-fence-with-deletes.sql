-- Row fences on tables whose rows are deleted: the fence goes with the row, and an old holder may insert the row again.
SELECT f.label, NULL, NULL,
       format('fences each row in itself, and %s deleted since its statistics began%s: a deleted row leaves no fence behind',
              CASE WHEN a.deleted = 1 THEN '1 row was' ELSE to_char(a.deleted, 'FM999,999,999,999,999,990') || ' rows were' END,
              CASE WHEN m.partitioned THEN ' (or moved to another partition)' ELSE '' END),
       ARRAY['protect', f.label, '--fence', COALESCE(named.template, translate(f.label, '{}', '()'))]
           || CASE WHEN f.max_advance IS NOT NULL THEN ARRAY['--max-advance', f.max_advance] END
           || CASE WHEN f.enforcement = 'observe' THEN '{--observe}'::text[] END,
       NULL, r.schema_name, r.table_name, a.deleted
  FROM fence f
  JOIN member m ON m.relid = f.root
  JOIN relation r ON r.oid = f.root
  JOIN activity a ON a.relid = f.root
  -- by primary key, where its columns may name a fence
  LEFT JOIN LATERAL (
      SELECT translate(f.label, '{}', '()') || '/' || string_agg(format('{%s}', c.attname), '/' ORDER BY key.position) AS template
        FROM pg_index i
       CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS key (attnum, position)
        JOIN pg_attribute c ON c.attrelid = i.indrelid AND c.attnum = key.attnum
        JOIN pg_type t ON t.oid = c.atttypid
       WHERE i.indrelid = f.root AND i.indisprimary AND key.position <= i.indnkeyatts
      HAVING bool_and((t.typtype = 'e' OR t.typname IN ('int2', 'int4', 'int8', 'text', 'varchar', 'uuid')) AND c.attgenerated = '' AND c.attname !~ '[{}]')
  ) AS named ON true
 WHERE f.kind = 'row' AND a.deleted > 0
