-- Partitions that were added to a protected table, or detached from one, and not protected since.
SELECT f.label, NULL, 'warning',
       format(CASE count(*) WHEN 1 THEN 'a partition was added and not protected since, so that a TRUNCATE of it is not checked: %2$s'
                   ELSE '%1$s partitions were added and not protected since, so that a TRUNCATE of them is not checked: %2$s' END,
              count(*), array_to_string((array_agg(u.label ORDER BY u.label))[1:3], ', ')
                        || CASE WHEN count(*) > 3 THEN format(' and %s more', count(*) - 3) ELSE '' END),
       f.command, NULL, r.schema_name, r.table_name, 0
  FROM unguarded u
  JOIN fence f ON f.root = u.root
  JOIN relation r ON r.oid = u.root
 WHERE u.kind = 'added'
 GROUP BY f.root, f.label, f.command, r.schema_name, r.table_name
UNION ALL
SELECT f.label, NULL, NULL, 'has lost all its row guards, as a partition does when it is detached: only TRUNCATE is still checked',
       f.command, NULL, r.schema_name, r.table_name, 0
  FROM unguarded u
  JOIN fence f ON f.root = u.root
  JOIN relation r ON r.oid = u.root
 WHERE u.kind = 'detached'
