-- No rule, but what statements are compared with: every protected table and all below it. In the place of the severity is whether it
-- enforces, in that of the message its kind, and whether anybody may insert.
SELECT f.label, NULL, f.enforcement, f.kind || CASE WHEN f.kind = 'row' AND f.inserts IS DISTINCT FROM 'require' THEN ', inserts allowed' ELSE '' END,
       NULL::text[], NULL, r.schema_name, r.table_name, 0
  FROM member m
  JOIN fence f ON f.root = m.root
  JOIN relation r ON r.oid = m.relid
