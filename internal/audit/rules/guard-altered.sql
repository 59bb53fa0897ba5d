-- Guards that are not as fencing.protect makes them: another function, condition or event, or one too many.
SELECT f.label, NULL, NULL,
       concat_ws('; ',
           (SELECT format(CASE count(*) WHEN 1 THEN '%s is not as protect makes it (its function, condition, events or arguments)'
                          ELSE '%s are not as protect makes them (their functions, conditions, events or arguments)' END, string_agg(name, ', '))
              FROM (SELECT DISTINCT unnest(array_agg(d.name) FILTER (WHERE d.problem = 'altered')) AS name ORDER BY 1) AS altered
            HAVING count(*) > 0),
           (SELECT format(CASE count(*) WHEN 1 THEN '%s is a guard that protect does not make' ELSE '%s are guards that protect does not make' END,
                          string_agg(name, ', '))
              FROM (SELECT DISTINCT unnest(array_agg(d.name) FILTER (WHERE d.problem = 'surplus')) AS name ORDER BY 1) AS surplus
            HAVING count(*) > 0)),
       f.command, NULL, r.schema_name, r.table_name, 0
  FROM difference d
  JOIN fence f ON f.root = d.root
  JOIN relation r ON r.oid = d.root
 WHERE d.problem IN ('altered', 'surplus')
 GROUP BY f.root, f.label, f.command, r.schema_name, r.table_name
