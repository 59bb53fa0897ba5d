-- Roles that can log in and own protected tables which nobody else may write: whoever writes them is their owner. Where others may
-- write, the catalogs do not say who does. (A superuser is above every guard, whatever it owns.)
SELECT 'role ' || quote_ident(o.rolname), NULL, CASE WHEN now_in.sessions > 0 THEN 'warning' END,
       format(CASE WHEN own.roots = 1 THEN 'owns %2$s, can log in, and is the only one who may write it: who writes there can switch the guards off%4$s'
                   ELSE 'owns %1$s protected tables (%2$s%3$s), can log in, and is the only one who may write them: who writes there can switch the guards off%4$s' END,
              own.roots, array_to_string(own.names[1:3], ', '), CASE WHEN own.roots > 3 THEN format(' and %s more', own.roots - 3) ELSE '' END,
              CASE WHEN now_in.sessions = 1 THEN '; 1 session of it is in this database now'
                   WHEN now_in.sessions > 1 THEN format('; %s sessions of it are in this database now', now_in.sessions) ELSE '' END),
       NULL,
       format('BEGIN; CREATE ROLE %1$I NOLOGIN; GRANT USAGE ON SCHEMA %2$s TO %1$I; %3$s; GRANT SELECT, INSERT, UPDATE, DELETE ON %4$s TO %5$I;%6$s COMMIT;',
              heir.name, own.schemas, (SELECT string_agg(format('ALTER TABLE %s OWNER TO %I', label, heir.name), '; ' ORDER BY label) FROM unnest(own.labels) AS label),
              array_to_string(own.labels, ', '), o.rolname,
              (SELECT format(' GRANT USAGE ON SEQUENCE %s TO %I;', string_agg(DISTINCT format('%I.%I', n.nspname, s.relname), ', '), o.rolname)
                 FROM pg_depend d
                 JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
                 JOIN pg_namespace n ON n.oid = s.relnamespace
                WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'a' AND d.refobjid = ANY (own.relids)
               HAVING count(*) > 0)),
       NULL, NULL, own.roots
  FROM (SELECT m.owner, count(*) FILTER (WHERE m.relid = m.root) AS roots, array_agg(m.label ORDER BY m.label) FILTER (WHERE m.relid = m.root) AS names,
               array_agg(m.label ORDER BY m.label) AS labels, array_agg(m.relid) AS relids, string_agg(DISTINCT quote_ident(r.schema_name), ', ') AS schemas
          FROM fence f
          JOIN pg_class c ON c.oid = f.root
          JOIN member m ON m.root = f.root AND m.owner = c.relowner
          JOIN relation r ON r.oid = m.relid
         WHERE NOT EXISTS (SELECT FROM aclexplode(c.relacl) AS a WHERE a.grantee <> c.relowner AND a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE'))
           AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL)
         GROUP BY m.owner) AS own
  JOIN pg_roles o ON o.oid = own.owner AND o.rolcanlogin AND NOT o.rolsuper
 CROSS JOIN LATERAL (SELECT count(*) AS sessions FROM pg_stat_activity s
                      WHERE s.usesysid = own.owner AND s.datname = current_database() AND s.pid <> pg_backend_pid()) AS now_in
 -- a name that no role has
 CROSS JOIN LATERAL (SELECT candidate.name
                       FROM generate_series(1, 100) AS n
                      CROSS JOIN LATERAL (SELECT left(o.rolname, 50) || '_owner' || CASE WHEN n > 1 THEN n::text ELSE '' END) AS candidate (name)
                      WHERE NOT EXISTS (SELECT FROM pg_roles taken WHERE taken.rolname = candidate.name)
                      ORDER BY n LIMIT 1) AS heir
