-- Rewrite rules on protected tables. What a rule redirects does not reach the guards.
SELECT m.label, w.rulename::text, NULL,
       format('its rule %I rewrites %s', w.rulename, CASE w.ev_type WHEN '2' THEN 'UPDATE' WHEN '3' THEN 'INSERT' ELSE 'DELETE' END),
       NULL, format('DROP RULE %I ON %s;', w.rulename, m.label), r.schema_name, r.table_name, 0
  FROM member m
  JOIN relation r ON r.oid = m.relid
  JOIN pg_rewrite w ON w.ev_class = m.relid AND w.ev_type IN ('2', '3', '4') AND w.ev_enabled <> 'D'
