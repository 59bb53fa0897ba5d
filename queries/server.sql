-- What fencectl must know about the server and the role before it says anything else. Plain SQL that an old server
-- understands too, so that it can be told apart by its number instead of by a syntax error.
-- name: ServerFacts :one
SELECT pg_catalog.current_setting('server_version_num')::integer          AS version_num,
       pg_catalog.current_setting('server_version')::text                 AS version_text,
       pg_catalog.pg_is_in_recovery()::boolean                            AS in_recovery,
       (pg_catalog.current_setting('transaction_read_only') = 'on')::boolean AS read_only,
       pg_catalog.current_database()::text                                AS database_name,
       CURRENT_USER::text                                                 AS role_name,
       EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = 'fencing')::boolean AS schema_exists,
       EXISTS (SELECT FROM pg_catalog.pg_namespace n
                WHERE n.nspname = 'fencing' AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'))::boolean AS schema_usable,
       EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
                WHERE n.nspname = 'fencing' AND p.proname = 'version' AND p.pronargs = 0)::boolean AS schema_installed,
       EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
                WHERE n.nspname = 'fencing' AND p.proname = 'version' AND p.pronargs = 0
                  AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))::boolean AS version_callable;

-- name: InstalledVersion :one
SELECT fencing.version()::text AS version;

-- name: BackendPID :one
SELECT pg_catalog.pg_backend_pid()::integer AS pid;

-- A role by its name as PostgreSQL spells it, and how it must be written in a statement.
-- name: FindRole :many
SELECT r.rolname::text AS name, pg_catalog.quote_ident(r.rolname)::text AS quoted
  FROM pg_catalog.pg_roles r
 WHERE r.rolname = sqlc.arg(name)::text;

-- name: ListRoleNames :many
SELECT r.rolname::text AS name
  FROM pg_catalog.pg_roles r
 WHERE r.rolname !~ '^pg_'
 ORDER BY 1;

-- The fencing schema's functions by name, with the signature that GRANT wants; with invoker also all that run with the
-- rights of whoever calls them, and all that only a trigger can call.
-- name: FencingFunctions :many
SELECT p.proname::text AS name,
       pg_catalog.format('fencing.%I(%s)', p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid))::text AS signature
  FROM pg_catalog.pg_proc p
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'fencing'
   AND (p.proname = ANY (sqlc.arg(names)::text[])
        OR (sqlc.arg(invoker)::boolean AND (NOT p.prosecdef OR p.prorettype = 'pg_catalog.trigger'::pg_catalog.regtype)))
 ORDER BY 1, 2;

-- The transaction's own id: after a COMMIT whose answer was lost, TransactionStatus tells what became of it.
-- name: CurrentTransactionID :one
SELECT pg_catalog.pg_current_xact_id()::text AS id;

-- name: TransactionStatus :one
SELECT COALESCE(pg_catalog.pg_xact_status(sqlc.arg(id)::text::xid8), 'unknown')::text AS status;
