-- The statements of this database that may write, whoever ran them. The schema of the extension is filled in. Instead of the text of a
-- statement that the role may not see, pg_stat_statements has a text of its own.
SELECT s.query, count(*), sum(s.calls)::bigint, sum(s.rows)::bigint
  FROM %s.pg_stat_statements s
 WHERE s.dbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND s.query ~* '(update|delete|insert|merge|truncate|copy|<insufficient privilege>)'
 GROUP BY s.query
