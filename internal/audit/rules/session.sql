-- Settles, for this transaction, what names and definitions are printed as, and finds out what the role may read. Compiling the
-- rules' statement would take longer than running it, so that is switched off.
SELECT set_config('search_path', 'pg_catalog', true), set_config('quote_all_identifiers', 'off', true),
       set_config('standard_conforming_strings', 'on', true), set_config('jit', 'off', true),
       schema.oid IS NOT NULL AS installed,
       COALESCE(has_schema_privilege(schema.oid, 'USAGE') AND readable.violation, false) AS reads_violations,
       COALESCE(has_schema_privilege(schema.oid, 'USAGE') AND readable.fence AND readable.lease AND readable.source AND readable.token_seq, false) AS reads_tokens
  FROM (SELECT (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'fencing') AS oid) AS schema
 CROSS JOIN LATERAL (
     SELECT bool_or(has_table_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'violation') AS violation,
            bool_or(has_table_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'fence') AS fence,
            bool_or(has_table_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'lease') AS lease,
            bool_or(has_table_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'source') AS source,
            bool_or(has_sequence_privilege(c.oid, 'SELECT')) FILTER (WHERE c.relname = 'token_seq') AS token_seq
       FROM pg_class c
      WHERE c.relnamespace = schema.oid AND c.relname IN ('violation', 'fence', 'lease', 'source', 'token_seq')) AS readable
