-- No rule, but what all findings are counted against: every table that could have a fence, and whether it has one. It has no
-- command: in that place are the rows that were inserted, updated and deleted.
SELECT r.label, CASE WHEN m.relid IS NOT NULL AND own.relid IS NOT NULL THEN 'fenced' END, NULL, '',
       ARRAY[a.inserted, a.updated, a.deleted]::bigint[]::text[], NULL, r.schema_name, r.table_name, 0
  FROM relation r
  JOIN activity a ON a.relid = r.oid
  LEFT JOIN member m ON m.relid = r.oid
  LEFT JOIN (SELECT DISTINCT g.relid FROM guard g) AS own ON own.relid = r.oid
 WHERE NOT r.part AND (NOT r.of_extension OR m.relid IS NOT NULL)
