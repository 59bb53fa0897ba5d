-- The statements of this database that may write, and those by which a role may present a token. The schema of the extension is filled
-- in. In the place of a text that the role may not see, pg_stat_statements has one of its own.
SELECT s.userid, COALESCE(r.rolname, s.userid::text), s.dbid, COALESCE(s.queryid, 0), s.query, s.calls, s.rows
  FROM %s.pg_stat_statements s
  LEFT JOIN pg_roles r ON r.oid = s.userid
 WHERE s.dbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND s.query ~* '(update|delete|insert|merge|truncate|copy|fencing|set_config|<insufficient privilege>)'
 ORDER BY s.calls DESC, s.queryid, s.userid
