-- The functions of the schema fencing, to be compared with those of this program's own migrations. The body of one that was
-- written as RETURN is kept parsed, and printed.
SELECT p.proname::text, COALESCE(pg_get_function_sqlbody(p.oid), replace(p.prosrc, E'\r', '')), p.prosecdef, COALESCE(cardinality(p.proconfig), 0)
  FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'fencing'
 ORDER BY p.proname, p.pronargs, p.oid
