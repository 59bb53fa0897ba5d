-- Settles, for this transaction, what names are printed as, and how the other statements are run: without nested loops the joins over
-- the tree of partitions are hashed, however many there are. And what there is to look at.
SELECT set_config('search_path', 'pg_catalog', true), set_config('quote_all_identifiers', 'off', true),
       set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true),
       EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = 'fencing') AS installed,
       pg_is_in_recovery() AS standby,
       current_setting('track_counts') = 'on' AS counts,
       pg_stat_get_db_stat_reset_time(d.oid) AS counted_since,
       -- the schema of pg_stat_statements, where it is installed
       COALESCE((SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_stat_statements'), '') AS statements,
       -- only a library that was preloaded has defined its settings
       current_setting('pg_stat_statements.max', true) IS NOT NULL AS statements_loaded,
       COALESCE((SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                   FROM pg_extension e
                   JOIN pg_namespace n ON n.oid = e.extnamespace
                   JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'pg_stat_statements'
                  WHERE e.extname = 'pg_stat_statements'), false) AS statements_readable,
       pg_has_role('pg_read_all_stats', 'USAGE') AS reads_all_statements
  FROM pg_database d
 WHERE d.datname = current_database()
