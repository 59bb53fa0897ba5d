-- Settles, for this transaction, what names and definitions are printed as and how the rules' statement is run, and finds out
-- what the role may read. Nothing is known about how many rows the shared facts have, and a nested loop over two of them, planned
-- for one row, takes minutes in a large database: without nested loops the same joins are hashed. Compiling the statement would
-- take longer than running it.
SELECT set_config('search_path', 'pg_catalog', true), set_config('quote_all_identifiers', 'off', true),
       set_config('standard_conforming_strings', 'on', true), set_config('enable_nestloop', 'off', true), set_config('work_mem', '64MB', true), set_config('jit', 'off', true),
       schema.oid IS NOT NULL AS installed,
       COALESCE(has_schema_privilege(schema.oid, 'USAGE') AND readable.violation, false) AS reads_violations,
       COALESCE(has_schema_privilege(schema.oid, 'USAGE') AND readable.fence AND readable.lease AND readable.source AND readable.token_seq, false) AS reads_tokens,
       -- pg_stat_statements: its schema; only a library that was preloaded has defined its settings
       COALESCE((SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_stat_statements'), '') AS statements,
       current_setting('pg_stat_statements.max', true) IS NOT NULL AS statements_loaded,
       COALESCE((SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                   FROM pg_extension e
                   JOIN pg_namespace n ON n.oid = e.extnamespace
                   JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'pg_stat_statements'
                  WHERE e.extname = 'pg_stat_statements'), false) AS statements_readable
  FROM (SELECT (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'fencing') AS oid) AS schema
 CROSS JOIN LATERAL (
     SELECT bool_or(has_table_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'violation') AS violation,
            bool_or(has_table_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'fence') AS fence,
            bool_or(has_table_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'lease') AS lease,
            bool_or(has_table_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'source') AS source,
            bool_or(has_sequence_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'token_seq') AS token_seq
       FROM pg_class c
      WHERE c.relnamespace = schema.oid AND c.relname IN ('violation', 'fence', 'lease', 'source', 'token_seq')) AS readable
