-- Tables whose guards record and refuse nothing.
SELECT f.label, NULL, NULL,
       CASE WHEN v.violations IS NULL THEN 'is only observed'
            WHEN v.violations = 0 THEN 'is only observed; no violation was recorded in the last 24 hours'
            WHEN v.violations = 1 THEN 'is only observed; 1 violation was recorded in the last 24 hours'
            ELSE format('is only observed; %s violations were recorded in the last 24 hours', to_char(v.violations, 'FM999,999,999,999,999,990')) END,
       ARRAY['enforce', f.label], NULL, r.schema_name, r.table_name, COALESCE(v.violations, 0)
  FROM fence f
  JOIN relation r ON r.oid = f.root
  LEFT JOIN recent_violation v ON v.root = f.root
 WHERE f.enforcement = 'observe'
