package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// What everybody may do with the schema, read from the catalog: presenting, and nothing that changes or shows a fence.
func TestPublicMayPresentAndNothingElse(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	finds(t, pool, []string{
		"function fencing.accepted(text) EXECUTE",
		"function fencing.acquire_lease(text,uuid,bigint,bigint,bigint) EXECUTE",
		"function fencing.limit_transaction(bigint,bigint) EXECUTE",
		"function fencing.present(bigint) EXECUTE",
		"function fencing.present(bigint,bigint,bigint) EXECUTE",
		"function fencing.present(bigint,text) EXECUTE",
		"function fencing.presented() EXECUTE",
		"function fencing.presented(text) EXECUTE",
		"function fencing.release_lease(text,uuid,bigint,boolean) EXECUTE",
		"function fencing.to_be_checked(text,boolean) EXECUTE",
		"schema fencing USAGE",
	}, `
		SELECT array_agg(kind || ' ' || object || ' ' || privilege_type ORDER BY kind, object, privilege_type) FROM (
			SELECT 'function' AS kind, p.oid::regprocedure::text AS object, a.privilege_type, a.grantee
			  FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE p.pronamespace = 'fencing'::regnamespace
			UNION ALL
			SELECT 'relation', c.oid::regclass::text, a.privilege_type, a.grantee
			  FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 'S' ELSE 'r' END::"char", c.relowner))) a
			 WHERE c.relnamespace = 'fencing'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
			UNION ALL
			SELECT 'column', c.oid::regclass || '.' || t.attname, a.privilege_type, a.grantee
			  FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a WHERE c.relnamespace = 'fencing'::regnamespace
			UNION ALL
			SELECT 'schema', n.nspname, a.privilege_type, a.grantee
			  FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a WHERE n.nspname = 'fencing') AS granted
		 WHERE grantee = 0`)
	// Who runs as the schema's owner pins where names are looked up.
	finds(t, pool, 0, `SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencing'::regnamespace AND prosecdef
		AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)`)
}

// An application that may read and write its own tables, and claim.
func TestAnApplicationRoleIsFencedAndCannotChangeAFenceButThroughClaim(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"'strict'", "fence => 'nightly'", "fence => 'job/{id}'"} {
		t.Run(arguments, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, arguments)
			app := pgtest.Role(t, pool, "SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON public.jobs", "EXECUTE ON FUNCTION fencing.claim(text, bigint), fencing.next_token()").Pool
			for _, fence := range []string{"nightly", "job/1", "job/9"} {
				finds(t, app, int64(0), "SELECT fencing.claim($1, 34)", fence)
			}
			for _, sql := range []string{
				"UPDATE public.jobs SET state = 'app' WHERE id = 1",
				"INSERT INTO public.jobs (id, state) VALUES (9, 'app')",
				"DELETE FROM public.jobs WHERE id = 9",
			} {
				if arguments != "'strict'" || sql[0] != 'I' {
					ends(t, try(t, app, sql), unfenced)
				}
				ends(t, try(t, app, under(34, sql)), map[bool]string{true: stale, false: accepted}[arguments == "'strict'" && sql[0] == 'D'])
			}
			ends(t, try(t, app, under(33, "UPDATE public.jobs SET state = 'zombie' WHERE id = 1")), stale)
			if err := try(t, app, "TRUNCATE public.jobs"); err == nil {
				t.Error("TRUNCATE went through")
			}
			finds(t, app, int64(34), "SELECT fencing.claim('nightly', 35)")
			ends(t, try(t, app, "SELECT fencing.claim('nightly', 34)"), stale)

			for _, sql := range []string{
				"SELECT FROM fencing.fence", "UPDATE fencing.fence SET token = 1", "INSERT INTO fencing.fence VALUES ('x', 1, now(), 'x')",
				"DELETE FROM fencing.fence", "TRUNCATE fencing.fence", "SELECT FROM fencing.fence FOR UPDATE",
				"SELECT FROM fencing.violation", "DELETE FROM fencing.violation", "INSERT INTO fencing.violation (schema_name) VALUES ('x')",
				"SELECT FROM fencing.bypass_log", "DELETE FROM fencing.bypass_log",
				"SELECT FROM fencing.lease", "UPDATE fencing.lease SET token = 1", "SELECT FROM fencing.source", "UPDATE fencing.source SET epoch = 9",
				"SELECT nextval('fencing.token_seq')", "SELECT setval('fencing.token_seq', 1)", "SELECT last_value FROM fencing.token_seq",
				"SELECT fencing.lower_fence('nightly', 1, 'x')", "SELECT fencing.bypass('x')", "SELECT fencing.adopt_epoch('x', 'y')",
				"SELECT fencing.set_accepted('nightly', true)", "SELECT fencing.protect('public.jobs')", "SELECT fencing.unprotect('public.jobs')",
				"SELECT fencing.observe('public.jobs')", "CREATE TABLE fencing.x ()", "DROP FUNCTION fencing.guard_row()",
				"ALTER TABLE public.jobs DISABLE TRIGGER zzz_fencing_update", "SELECT fencing.acquire_lease('x', gen_random_uuid(), '1s')",
			} {
				ends(t, try(t, app, sql), noPrivilege)
			}
			finds(t, pool, "35 34 34", "SELECT string_agg(token::text, ' ' ORDER BY token DESC) FROM fencing.fence")
		})
	}
}

func TestColumnPrivilegesSuffice(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	// The application may not touch the token's column: presenting stamps it all the same.
	app := pgtest.Role(t, pool, "SELECT (id), UPDATE (state), INSERT (id, state) ON public.jobs").Pool
	ends(t, try(t, app, "UPDATE public.jobs SET state = 'x' WHERE id = 1"), unfenced)
	ends(t, try(t, app, under(34, "UPDATE public.jobs SET state = 'x' WHERE id = 1")), accepted)
	ends(t, try(t, app, under(34, "INSERT INTO public.jobs (id, state) VALUES (9, 'x')")), accepted)
	ends(t, try(t, app, "UPDATE public.jobs SET last_fencing_token = 99"), noPrivilege)
	finds(t, pool, []int64{34, 34}, "SELECT array_agg(last_fencing_token) FROM public.jobs WHERE id IN (1, 9)")
}

// An administrator may close the schema to everybody; the guards go on.
func TestGuardsWorkWhereTheSchemaIsClosed(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"'strict'", "'reentrant'", "fence => 'nightly'", "fence => 'job/{id}'"} {
		t.Run(arguments, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, arguments)
			pgtest.Exec(t, pool, "REVOKE USAGE ON SCHEMA fencing FROM PUBLIC; SELECT fencing.claim('nightly', 34), fencing.claim('job/1', 34), fencing.claim('job/9', 34)")
			app := pgtest.Role(t, pool, "SELECT, INSERT, UPDATE, DELETE ON public.jobs").Pool
			ends(t, try(t, app, "UPDATE public.jobs SET state = 'x' WHERE id = 1"), unfenced)
			ends(t, try(t, app, "SET LOCAL fencing.token = 34; UPDATE public.jobs SET state = 'x' WHERE id = 1"), accepted)
			ends(t, try(t, app, "SET LOCAL fencing.token = 33; UPDATE public.jobs SET state = 'x' WHERE id = 1"), stale)
			ends(t, try(t, app, "SET LOCAL fencing.token = 34; INSERT INTO public.jobs (id, state) VALUES (9, 'x')"), accepted)
			ends(t, try(t, app, "DELETE FROM public.jobs WHERE id = 1"), unfenced)
		})
	}
}

// What is logged is who acted, whichever way the role was taken on.
func TestTheLogsNameTheRoleThatActed(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "observe => true")
	owner, worker := pgtest.Role(t, pool), pgtest.Role(t, pool, "UPDATE, SELECT ON public.jobs")
	pgtest.Exec(t, pool, fmt.Sprintf("GRANT %s TO %s; CREATE FUNCTION public.by_definer() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'UPDATE public.jobs SET state = ''x'' WHERE id = 1'", owner.Name, worker.Name))
	pgtest.Exec(t, pool, fmt.Sprintf("GRANT SELECT, UPDATE ON public.jobs TO %s", owner.Name))
	for want, c := range map[string]string{
		worker.Name: "UPDATE public.jobs SET state = 'x' WHERE id = 1",
		owner.Name:  fmt.Sprintf("SET LOCAL ROLE %s; UPDATE public.jobs SET state = 'x' WHERE id = 1", owner.Name),
	} {
		pgtest.Exec(t, pool, "DELETE FROM fencing.violation")
		pgtest.Exec(t, worker.Pool, c)
		finds(t, pool, want, "SELECT role_name FROM fencing.violation")
	}
	pgtest.Exec(t, pool, "DELETE FROM fencing.violation")
	pgtest.Exec(t, worker.Pool, "SELECT public.by_definer()")
	finds(t, pool, worker.Name, "SELECT role_name FROM fencing.violation")
}

func TestABypassIsHonouredForTheOwnersMembersAndLogged(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"'strict'", "'strict', observe => true", "fence => 'nightly'", "fence => 'job/{id}'"} {
		t.Run(arguments, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, arguments)
			const grant = "EXECUTE ON FUNCTION fencing.bypass(text)"
			owner := pgtest.Role(t, pool, grant, "USAGE, CREATE ON SCHEMA public")
			member := pgtest.Role(t, pool, grant, owner.Name, "SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON public.jobs")
			stranger := pgtest.Role(t, pool, grant, "SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON public.jobs")
			pgtest.Exec(t, pool, "ALTER TABLE public.jobs OWNER TO "+owner.Name)

			const repair = "SELECT fencing.bypass('restoring job 1'); UPDATE public.jobs SET state = 'repaired' WHERE id = 1; UPDATE public.jobs SET state = 'repaired' WHERE id = 2; DELETE FROM public.jobs WHERE id = 2; INSERT INTO public.jobs VALUES (2, 'back')"
			for name, role := range map[string]pgtest.Querier{"owner": owner.Pool, "member": member.Pool, "superuser": pool} {
				pgtest.Exec(t, pool, "DELETE FROM fencing.bypass_log")
				ends(t, try(t, role, repair), accepted)
				who := map[string]string{"owner": owner.Name, "member": member.Name, "superuser": pool.Config().ConnConfig.User}[name]
				finds(t, pool, "public jobs restoring job 1 "+who, "SELECT string_agg(concat_ws(' ', schema_name, table_name, reason, role_name), '; ') FROM fencing.bypass_log")
				finds(t, pool, 0, "SELECT count(*) FROM fencing.violation")
			}
			// A write that needed no bypass is none.
			pgtest.Exec(t, pool, "DELETE FROM fencing.bypass_log; SELECT fencing.claim('nightly', 34), fencing.claim('job/1', 34)")
			ends(t, try(t, owner.Pool, under(34, "SELECT fencing.bypass('just in case'); UPDATE public.jobs SET state = 'fenced' WHERE id = 1")), accepted)
			finds(t, pool, 0, "SELECT count(*) FROM fencing.bypass_log")
			// It ends with its transaction.
			if arguments != "'strict', observe => true" {
				ends(t, try(t, owner.Pool, "UPDATE public.jobs SET state = 'x' WHERE id = 1"), unfenced)
				refusal := ends(t, try(t, stranger.Pool, "SELECT fencing.bypass('let me'); UPDATE public.jobs SET state = 'x' WHERE id = 1"), unfenced)
				if want := "The bypass was not honoured: role " + stranger.Name; !strings.Contains(refusal.Hint, want) {
					t.Errorf("HINT %q does not say %q", refusal.Hint, want)
				}
			}
			finds(t, pool, 0, "SELECT count(*) FROM fencing.bypass_log")
			for _, reason := range []string{"''", "'  '", "NULL"} {
				ends(t, try(t, owner.Pool, "SELECT fencing.bypass("+reason+")"), "22023")
			}
		})
	}
}

func TestABypassMayRepairATokenAndTruncate(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	pgtest.Exec(t, pool, under(9999, "UPDATE public.jobs SET state = 'absurd'"))
	ends(t, try(t, pool, "SELECT fencing.bypass('absurd token'); UPDATE public.jobs SET last_fencing_token = 34"), accepted)
	ends(t, try(t, pool, under(35, "UPDATE public.jobs SET state = 'next holder'")), accepted)
	ends(t, try(t, pool, "SELECT fencing.bypass('reload'); TRUNCATE public.jobs"), accepted)
	finds(t, pool, []string{"absurd token", "reload"}, "SELECT array_agg(reason ORDER BY id) FROM fencing.bypass_log")
}

func TestRowLevelSecurityAndGuardsGoTogether(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"'reentrant'", "fence => 'nightly'", "fence => 'job/{id}'"} {
		t.Run(arguments, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, arguments)
			app := pgtest.Role(t, pool, "SELECT, INSERT, UPDATE, DELETE ON public.jobs").Pool
			pgtest.Exec(t, pool, `ALTER TABLE public.jobs ENABLE ROW LEVEL SECURITY; ALTER TABLE public.jobs FORCE ROW LEVEL SECURITY;
				CREATE POLICY own ON public.jobs USING (id = 1) WITH CHECK (id = 1);
				SELECT fencing.claim('nightly', 34), fencing.claim('job/1', 34), fencing.claim('job/2', 34)`)
			ends(t, try(t, app, "UPDATE public.jobs SET state = 'x' WHERE id = 1"), unfenced)
			ends(t, try(t, app, under(34, "UPDATE public.jobs SET state = 'x'")), accepted)
			ends(t, try(t, app, under(33, "UPDATE public.jobs SET state = 'x'")), stale)
			ends(t, try(t, app, under(34, "UPDATE public.jobs SET id = 2")), noPrivilege)
			finds(t, pool, "x new", "SELECT string_agg(state, ' ' ORDER BY id) FROM public.jobs")
		})
	}
}

// The guards belong to whoever installed the schema, who need not be a superuser.
func TestAnOrdinaryOwnerInstallsProtectsAndFences(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	database := pgtest.Value[string](t, pool, "SELECT current_database()::text")
	owner := pgtest.Role(t, pool, "CREATE ON DATABASE "+database)
	up(t, owner.Pool)
	pgtest.Exec(t, owner.Pool, `CREATE SCHEMA app; CREATE TABLE app.jobs (id int PRIMARY KEY, state text); INSERT INTO app.jobs VALUES (1, 'new');
		SELECT fencing.protect('app.jobs'); CREATE TABLE app.runs (id int); SELECT fencing.protect('app.runs', fence => 'runs', observe => true);
		SELECT fencing.claim('runs', fencing.next_token())`)
	app := pgtest.Role(t, pool)
	pgtest.Exec(t, owner.Pool, fmt.Sprintf("GRANT USAGE ON SCHEMA app TO %s; GRANT ALL ON ALL TABLES IN SCHEMA app TO %[1]s", app.Name))
	ends(t, try(t, app.Pool, "UPDATE app.jobs SET state = 'x'"), unfenced)
	ends(t, try(t, app.Pool, under(34, "UPDATE app.jobs SET state = 'x'")), accepted)
	ends(t, try(t, app.Pool, "INSERT INTO app.runs VALUES (1)"), accepted)
	finds(t, pool, app.Name, "SELECT role_name FROM fencing.violation")
	finds(t, pool, owner.Name, "SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = 'fencing'")
	pgtest.Exec(t, owner.Pool, "SELECT fencing.acquire_lease('x', gen_random_uuid(), '1s'); SELECT fencing.source_epoch('etcd', 'a'); SELECT fencing.lower_fence('runs', 0, 'x')")
	finds(t, pool, "0.1.0", "SELECT fencing.version()")
	if diff := cmp.Diff([]string{"app.jobs row", "app.runs named"}, pgtest.Value[[]string](t, owner.Pool, "SELECT array_agg(schema_name || '.' || table_name || ' ' || kind ORDER BY table_name) FROM fencing.protection")); diff != "" {
		t.Error(diff)
	}
}
