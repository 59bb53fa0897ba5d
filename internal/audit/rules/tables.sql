-- No rule, but what all findings are counted against: every table that could have a fence, and whether it has one.
SELECT r.label, CASE WHEN m.relid IS NOT NULL AND own.relid IS NOT NULL THEN 'fenced' END, NULL, '', NULL::text[], NULL, r.schema_name, r.table_name, 0
  FROM relation r
  LEFT JOIN member m ON m.relid = r.oid
  LEFT JOIN (SELECT DISTINCT g.relid FROM guard g) AS own ON own.relid = r.oid
 WHERE NOT r.part AND (NOT r.of_extension OR m.relid IS NOT NULL)
