-- Guards that are switched off: on the table, or on one of its partitions or children alone.
SELECT f.label, NULL, NULL,
       format(CASE WHEN count(DISTINCT d.name) = 1 THEN 'its guard %s is switched off%s' ELSE 'its guards %s are switched off%s' END,
              string_agg(DISTINCT d.name, ', '),
              CASE WHEN bool_and(d.relid <> d.root) THEN ' on ' || array_to_string((array_agg(DISTINCT d.label))[1:3], ', ')
                   || CASE WHEN count(DISTINCT d.relid) > 3 THEN format(' and %s more', count(DISTINCT d.relid) - 3) ELSE '' END
                   ELSE '' END),
       f.command, NULL, r.schema_name, r.table_name, 0
  FROM difference d
  JOIN fence f ON f.root = d.root
  JOIN relation r ON r.oid = d.root
 WHERE d.problem = 'disabled'
 GROUP BY f.root, f.label, f.command, r.schema_name, r.table_name
