-- How many violations each observed table had in the last day. Partitions' count for their table.
recent_violation AS MATERIALIZED (
    SELECT f.root, count(v.table_name) AS violations
      FROM fence f
      LEFT JOIN (SELECT m.root, v.table_name
                   FROM fencing.violation v
                   JOIN relation r ON r.schema_name = v.schema_name AND r.table_name = v.table_name
                   JOIN member m ON m.relid = r.oid
                  WHERE v.at >= now() - interval '24 hours') AS v ON v.root = f.root
     WHERE f.enforcement = 'observe'
     GROUP BY f.root
)
