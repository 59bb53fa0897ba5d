package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

var acceptDatabases atomic.Int64

// acceptCreateDatabase is pgtest.New with a database of other properties, such as ENCODING or LOCALE, which a clone of the
// template cannot have.
func acceptCreateDatabase(t *testing.T, properties string) *pgxpool.Pool {
	t.Helper()
	maintenance := pgtest.NewEmpty(t)
	base := pgtest.Value[string](t, maintenance, "SELECT current_database()::text")
	// pgtest drops what it finds abandoned by the form of its names, and counts from 1: a 0 keeps ours apart.
	cut := strings.LastIndex(base, "_")
	name := fmt.Sprintf("%s_0%d", base[:cut], acceptDatabases.Add(1))
	pgtest.Exec(t, maintenance, fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 %s", name, properties))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := maintenance.Exec(ctx, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)); err != nil {
			t.Error(err)
		}
	})
	pgtest.Exec(t, maintenance, fmt.Sprintf("ALTER DATABASE %s SET search_path = ''", name))
	config, err := pgxpool.ParseConfig(strings.ReplaceAll(pgtest.DSN(t, maintenance), base, name))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := migrations.Up(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	return pool
}

// acceptTx begins a transaction that the test's end rolls back, if the test has not ended it.
func acceptTx(t *testing.T, pool *pgxpool.Pool, level string) *pgx.Conn {
	t.Helper()
	conn := pgtest.Conn(t, pool)
	pgtest.Exec(t, conn, "BEGIN ISOLATION LEVEL "+level)
	return conn
}

// acceptRefused fails the test unless the statement is refused for want of a token.
func acceptRefused(t *testing.T, q pgtest.Querier, sql string) {
	t.Helper()
	if _, err := q.Exec(t.Context(), sql); pgtest.SQLState(err) != "ZF002" {
		t.Errorf("%s: %v, want ZF002", sql, err)
	}
}

func TestErrorFieldsNameTheTable(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `
		CREATE SCHEMA "a.b";
		CREATE TABLE "a.b"."c.d" (last_fencing_token text);
		CREATE TABLE "a.b"."e.f" (last_fencing_token bigint);
		INSERT INTO "a.b"."e.f" VALUES (NULL)`)
	for _, table := range []string{"c.d", "e.f"} {
		_, err := pool.Exec(t.Context(), fmt.Sprintf(`SELECT fencing.protect('"a.b".%q')`, table))
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) {
			t.Fatalf("%s: %v", table, err)
		}
		got := [3]string{pgErr.SchemaName, pgErr.TableName, pgErr.ColumnName}
		if want := [3]string{"a.b", table, "last_fencing_token"}; got != want {
			t.Errorf("the error's schema, table and column are %q, want %q", got, want)
		}
	}
}

// Privileges ------------------------------------------------------------------------------------

// acceptCreated matches the functions that a migration creates.
var acceptCreated = regexp.MustCompile(`(?m)^CREATE FUNCTION fencing\.(\w+)\(`)

// acceptProtectorGrants gives a role what it needs, besides owning its tables, to protect them: the functions of the
// migration that has protect, the guards to be put on tables, and the views.
func acceptProtectorGrants(t *testing.T, pool *pgxpool.Pool, role string) {
	t.Helper()
	names := []string{"guard_arguments", "guard_option", "guard_row", "stamp_row", "mark_move", "guard_named", "bypass"}
	up, _, err := migrations.Sections("00005_protection.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range acceptCreated.FindAllStringSubmatch(up, -1) {
		names = append(names, match[1])
	}
	pgtest.Exec(t, pool, pgtest.Value[string](t, pool, `
		SELECT string_agg(format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, $2::text), '; ')
		  FROM pg_proc p WHERE p.pronamespace = 'fencing'::regnamespace AND p.proname = ANY ($1)`, names, role))
	pgtest.Exec(t, pool, "GRANT SELECT ON fencing.guard, fencing.protection TO "+role)
}

func TestAnOwnerWhoIsNoSuperuserProtects(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	owner := pgtest.Role(t, pool)
	acceptProtectorGrants(t, pool, owner.Name)
	pgtest.Exec(t, pool, "CREATE SCHEMA app AUTHORIZATION "+owner.Name)
	pgtest.Exec(t, owner.Pool, `
		CREATE TABLE app.jobs (id int PRIMARY KEY, state text);
		CREATE TABLE app.accounts (id int PRIMARY KEY);
		CREATE TABLE app.events (id int) PARTITION BY LIST (id);
		CREATE TABLE app.events_1 PARTITION OF app.events DEFAULT;
		INSERT INTO app.jobs VALUES (1), (2)`)
	application := pgtest.Role(t, pool, "USAGE ON SCHEMA app", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA app")
	before := takeAcceptSnapshot(t, pool)

	pgtest.Exec(t, owner.Pool, `
		SELECT fencing.protect('app.jobs', mode => 'reentrant');
		SELECT fencing.protect('app.accounts', fence => 'account/{id}');
		SELECT fencing.protect('app.events', fence => 'events');
		SELECT fencing.protect('app.events');
		SELECT fencing.observe('app.events');
		SELECT fencing.enforce('app.events')`)
	if got := pgtest.Value[int](t, owner.Pool, "SELECT count(*) FROM fencing.protection"); got != 3 {
		t.Errorf("%d tables are protected, want 3", got)
	}
	// The guards read fences and log on behalf of whoever writes: a role that may read neither.
	acceptRefused(t, application.Pool, "UPDATE app.jobs SET state = 'x'")
	acceptRefused(t, application.Pool, "INSERT INTO app.accounts VALUES (1)")
	pgtest.Exec(t, application.Pool, "BEGIN; SELECT fencing.present(33); UPDATE app.jobs SET state = 'x' WHERE id = 1; INSERT INTO app.events VALUES (1); COMMIT")
	if got := pgtest.Value[int64](t, pool, "SELECT sum(last_fencing_token) FROM (TABLE app.events) AS e"); got != 33 {
		t.Errorf("the inserted row is stamped with %d, want 33", got)
	}
	// The owner is fenced like anybody else, unless it says why not.
	acceptRefused(t, owner.Pool, "UPDATE app.jobs SET state = 'y'")
	pgtest.Exec(t, owner.Pool, "BEGIN; SELECT fencing.bypass('repair'); UPDATE app.jobs SET state = 'y'; COMMIT")

	pgtest.Exec(t, owner.Pool, `
		SELECT fencing.unprotect('app.jobs', true);
		SELECT fencing.unprotect('app.accounts', true);
		SELECT fencing.unprotect('app.events', true)`)
	before.mustEqual(t, takeAcceptSnapshot(t, pool))
}

func TestOnlyTheOwnerProtects(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	owner, other := pgtest.Role(t, pool), pgtest.Role(t, pool)
	acceptProtectorGrants(t, pool, other.Name)
	pgtest.Exec(t, pool, "CREATE SCHEMA app AUTHORIZATION "+owner.Name)
	pgtest.Exec(t, owner.Pool, "CREATE TABLE app.jobs (id int)")
	pgtest.Exec(t, pool, "GRANT USAGE ON SCHEMA app TO "+other.Name+"; GRANT ALL ON app.jobs TO "+other.Name)

	wants := "ERROR: 42501: role " + other.Name + " does not own table app.jobs\n" +
		"HINT: Run it as " + owner.Name + ", or as a member of that role."
	for _, call := range []string{"protect('app.jobs')", "protect('app.jobs', fence => 'jobs')", "enforce('app.jobs')", "observe('app.jobs')", "unprotect('app.jobs')"} {
		_, err := other.Pool.Exec(t.Context(), "SELECT fencing."+call)
		if got := acceptError(err); got != wants {
			t.Errorf("%s:\n%s\nwant\n%s", call, got, wants)
		}
	}
	// Without EXECUTE not even the owner: it is the operator who decides who protects.
	if _, err := owner.Pool.Exec(t.Context(), "SELECT fencing.protect('app.jobs')"); pgtest.SQLState(err) != "42501" {
		t.Errorf("protect without EXECUTE: %v, want 42501", err)
	}
	if guards := acceptGuards(t, pool); guards != "" {
		t.Errorf("there are guards:\n%s", guards)
	}

	// A member of the owner's role may do what the owner may.
	pgtest.Exec(t, pool, "GRANT "+owner.Name+" TO "+other.Name)
	pgtest.Exec(t, other.Pool, "SELECT fencing.protect('app.jobs')")
	acceptRefused(t, owner.Pool, "INSERT INTO app.jobs VALUES (1); UPDATE app.jobs SET id = 2")
}

// Row security may hide from the owner himself the NULLs that protect looks for in an adopted column.
func TestRowSecurityDoesNotHideNullsFromProtect(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	owner := pgtest.Role(t, pool)
	acceptProtectorGrants(t, pool, owner.Name)
	pgtest.Exec(t, pool, "CREATE SCHEMA app AUTHORIZATION "+owner.Name)
	pgtest.Exec(t, owner.Pool, `
		CREATE TABLE app.jobs (id int, last_fencing_token bigint);
		INSERT INTO app.jobs VALUES (1, NULL);
		ALTER TABLE app.jobs ENABLE ROW LEVEL SECURITY;
		ALTER TABLE app.jobs FORCE ROW LEVEL SECURITY`)
	before := takeAcceptSnapshot(t, pool)
	_, err := owner.Pool.Exec(t.Context(), "SELECT fencing.protect('app.jobs')")
	if pgtest.SQLState(err) != "23502" {
		t.Errorf("protect: %v, want 23502", err)
	}
	before.mustEqual(t, takeAcceptSnapshot(t, pool))
}

// Locks -----------------------------------------------------------------------------------------

// acceptTable makes a table with two rows, partitioned or not.
func acceptTable(t *testing.T, pool *pgxpool.Pool, name string, partitioned bool) {
	t.Helper()
	if partitioned {
		pgtest.Exec(t, pool, strings.ReplaceAll(`
			CREATE TABLE public.NAME (id int NOT NULL, state text) PARTITION BY LIST (id);
			CREATE TABLE public.NAME_1 PARTITION OF public.NAME FOR VALUES IN (1);
			CREATE TABLE public.NAME_2 PARTITION OF public.NAME DEFAULT PARTITION BY HASH (id);
			CREATE TABLE public.NAME_2_0 PARTITION OF public.NAME_2 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
			INSERT INTO public.NAME VALUES (1, 'new'), (2, 'new')`, "NAME", name))
		return
	}
	pgtest.Exec(t, pool, strings.ReplaceAll(`
		CREATE TABLE public.NAME (id int NOT NULL, state text);
		INSERT INTO public.NAME VALUES (1, 'new'), (2, 'new')`, "NAME", name))
}

// acceptKinds are the ways to protect a table, by name, as further arguments of protect.
var acceptKinds = map[string]string{
	"strict":    "",
	"reentrant": ", mode => 'reentrant', inserts => 'require', max_advance => 1000",
	"constant":  ", fence => 'jobs'",
	"template":  ", fence => 'job/{id}', observe => true",
}

func acceptProtect(t *testing.T, q pgtest.Querier, table, options string) {
	t.Helper()
	pgtest.Exec(t, q, "SELECT fencing.protect('public."+table+"'"+options+")")
}

// acceptLocks are the modes of the locks that a session holds on tables and indexes outside of the catalogs and fencing.
func acceptLocks(t *testing.T, pool *pgxpool.Pool, session *pgx.Conn) []string {
	t.Helper()
	return acceptLines(t, pool, `
		SELECT DISTINCT l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
		 WHERE l.pid = $1 AND l.granted AND c.relnamespace = 'public'::regnamespace ORDER BY 1`, session.PgConn().PID())
}

func TestASecondProtectLocksNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, partitioned := range []bool{false, true} {
		for kind, options := range acceptKinds {
			t.Run(fmt.Sprintf("%s/partitioned=%t", kind, partitioned), func(t *testing.T) {
				t.Parallel()
				table := fmt.Sprintf("%s_%t", kind, partitioned)
				acceptTable(t, pool, table, partitioned)
				acceptProtect(t, pool, table, options)
				before := acceptAbout(strings.Join(acceptTriggerVersions(t, pool), "\n"), table)

				tx := acceptTx(t, pool, "READ COMMITTED")
				acceptProtect(t, tx, table, options)
				for _, mode := range acceptLocks(t, pool, tx) {
					if mode != "AccessShareLock" {
						t.Errorf("it holds a %s on the table", mode)
					}
				}
				pgtest.Exec(t, tx, "COMMIT")
				after := acceptAbout(strings.Join(acceptTriggerVersions(t, pool), "\n"), table)
				if diff := cmp.Diff(before, after); diff != "" || len(before) == 0 {
					t.Errorf("it changed triggers:\n%s", diff)
				}
			})
		}
	}
}

func TestARowFenceWaitsForReadersAndANamedFenceDoesNot(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, partitioned := range []bool{false, true} {
		for kind, options := range acceptKinds {
			t.Run(fmt.Sprintf("%s/partitioned=%t", kind, partitioned), func(t *testing.T) {
				t.Parallel()
				table := fmt.Sprintf("%s_%t", kind, partitioned)
				acceptTable(t, pool, table, partitioned)
				reader := acceptTx(t, pool, "READ COMMITTED")
				pgtest.Exec(t, reader, "SELECT FROM public."+table)

				session := pgtest.Conn(t, pool)
				protect := pgtest.Go(t, session, "SELECT fencing.protect('public."+table+"'"+options+")")
				if strings.Contains(options, "fence") {
					if acceptSettled(t, pool, protect) {
						t.Error("a named fence waits for a reader")
					}
				} else {
					protect.Blocked()
					if locks := acceptLocks(t, pool, session); len(locks) > 0 {
						t.Errorf("while it waits it holds %s: whoever waits for those could deadlock with it", locks)
					}
				}
				pgtest.Exec(t, reader, "COMMIT")
				if err := protect.Wait(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// acceptSettled returns when a statement waits for another session's lock on a table (true), or has ended (false). Other
// locks, such as the one under which a catalog grows, are waited for only for a moment.
func acceptSettled(t *testing.T, pool *pgxpool.Pool, statement *pgtest.Statement) bool {
	t.Helper()
	for {
		select {
		case <-statement.Done():
			return false
		default:
		}
		if pgtest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted AND locktype = 'relation')", statement.PID()) {
			return true
		}
	}
}

// TestAChangeOfOptionsTakesItsStrongestLockFirst goes through every change there is, while somebody reads. Whatever waits
// for the reader must hold nothing yet that the reader's next write would wait for.
func TestAChangeOfOptionsTakesItsStrongestLockFirst(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for from, fromOptions := range acceptKinds {
		for to, toOptions := range acceptKinds {
			t.Run(from+" to "+to, func(t *testing.T) {
				t.Parallel()
				table := from + "_" + to
				acceptTable(t, pool, table, true)
				acceptProtect(t, pool, table, fromOptions)
				reader := acceptTx(t, pool, "READ COMMITTED")
				pgtest.Exec(t, reader, "SELECT FROM public."+table)

				protect := pgtest.Conn(t, pool)
				change := pgtest.Go(t, protect, "SELECT fencing.protect('public."+table+"'"+toOptions+")")
				if acceptSettled(t, pool, change) {
					if locks := acceptLocks(t, pool, protect); len(locks) > 0 {
						t.Errorf("while it waits for a reader it holds %s", locks)
					}
				}
				_, err := reader.Exec(t.Context(), "SAVEPOINT s; DELETE FROM public."+table+"_1")
				if state := pgtest.SQLState(err); err != nil && !strings.HasPrefix(state, "ZF") {
					t.Errorf("the reader's write: %v", err)
				}
				pgtest.Exec(t, reader, "ROLLBACK")
				if err := change.Wait(); err != nil {
					t.Errorf("the change: %v", err)
				}
			})
		}
	}
}

func TestConcurrentProtectsOfOneTableBothSucceed(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for kind, options := range acceptKinds {
		for _, ending := range []string{"commit", "rollback"} {
			t.Run(kind+"/"+ending, func(t *testing.T) {
				t.Parallel()
				table, twin := kind+"_"+ending, "twin_"+kind+"_"+ending
				acceptTable(t, pool, table, true)
				acceptTable(t, pool, twin, true)
				first, second := acceptTx(t, pool, "READ COMMITTED"), pgtest.Conn(t, pool)
				acceptProtect(t, first, table, options)
				waiting := pgtest.Go(t, second, "SELECT fencing.protect('public."+table+"'"+options+")").Blocked()
				pgtest.Exec(t, first, ending)
				if err := waiting.Wait(); err != nil {
					t.Fatalf("the second protect: %v", err)
				}
				acceptProtect(t, pool, twin, options)
				if diff := cmp.Diff(acceptGuardsOf(t, pool, twin), acceptGuardsOf(t, pool, table)); diff != "" {
					t.Errorf("the guards are not those of a single protect (-), but (+):\n%s", diff)
				}
			})
		}
	}
}

func TestConcurrentChangesEndAsTheLastOneSays(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]string{
		"reentrant": "protect('public.TABLE', mode => 'reentrant')",
		"template":  "protect('public.TABLE', fence => 'x/{id}')",
		"observe":   "observe('public.TABLE')",
		"unprotect": "unprotect('public.TABLE', true)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t) // its own: the guards of another case's table must not go while this one's are read
			call := func(table string) string { return "SELECT fencing." + strings.ReplaceAll(last, "TABLE", table) }
			table, twin := "t_"+name, "twin_"+name
			acceptTable(t, pool, table, true)
			acceptTable(t, pool, twin, true)
			acceptProtect(t, pool, twin, ", max_advance => 5")
			pgtest.Exec(t, pool, call(twin))

			first, second := acceptTx(t, pool, "READ COMMITTED"), pgtest.Conn(t, pool)
			acceptProtect(t, first, table, ", max_advance => 5")
			waiting := pgtest.Go(t, second, call(table)).Blocked()
			pgtest.Exec(t, first, "COMMIT")
			if err := waiting.Wait(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(acceptGuardsOf(t, pool, twin), acceptGuardsOf(t, pool, table)); diff != "" {
				t.Errorf("not as one after the other (-), but (+):\n%s", diff)
			}
		})
	}
}

// TestProtectInsideATransactionWithAnOldSnapshot: a transaction that reads the catalog as it was may say so, but it may not
// return as if it had protected the table when it has not, nor break what somebody else has done since.
func TestProtectInsideATransactionWithAnOldSnapshot(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
		t.Run(level+"/undisturbed", func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			acceptTable(t, pool, "jobs", true)
			tx := acceptTx(t, pool, level)
			pgtest.Exec(t, tx, "SELECT FROM public.jobs")
			acceptProtect(t, tx, "jobs", "")
			acceptProtect(t, tx, "jobs", ", mode => 'reentrant'")
			acceptProtect(t, tx, "jobs", ", fence => 'x/{id}'")
			acceptProtect(t, tx, "jobs", ", inserts => 'require'")
			pgtest.Exec(t, tx, "COMMIT")
			acceptRefused(t, pool, "DELETE FROM public.jobs_1")
		})
		t.Run(level+"/somebody protected meanwhile", func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			acceptTable(t, pool, "jobs", false)
			tx := acceptTx(t, pool, level)
			pgtest.Exec(t, tx, "SELECT 1")
			acceptProtect(t, pool, "jobs", "")
			before := acceptGuards(t, pool)
			_, err := tx.Exec(t.Context(), "SELECT fencing.protect('public.jobs')")
			acceptRetriable(t, err)
			pgtest.Exec(t, tx, "COMMIT")
			if diff := cmp.Diff(before, acceptGuards(t, pool)); diff != "" {
				t.Error(diff)
			}
		})
		t.Run(level+"/somebody unprotected meanwhile", func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			acceptTable(t, pool, "jobs", false)
			acceptProtect(t, pool, "jobs", "")
			tx := acceptTx(t, pool, level)
			pgtest.Exec(t, tx, "SELECT 1")
			pgtest.Exec(t, pool, "SELECT fencing.unprotect('public.jobs')")
			_, err := tx.Exec(t.Context(), "SELECT fencing.protect('public.jobs')")
			acceptRetriable(t, err)
			pgtest.Exec(t, tx, "COMMIT")
			if err == nil {
				acceptRefused(t, pool, "DELETE FROM public.jobs")
			}
		})
	}
}

// acceptRetriable fails the test unless there is no error, or one that tells the caller to run the transaction again.
func acceptRetriable(t *testing.T, err error) {
	t.Helper()
	if state := pgtest.SQLState(err); err != nil && state != "40001" {
		t.Errorf("%v (SQLSTATE %s), want none, or 40001", err, state)
	}
}

// Changing ----------------------------------------------------------------------------------------

// acceptOptions are sets of options that differ in everything that options can differ in.
var acceptOptions = []string{
	"", ", mode => 'reentrant'", ", observe => true", ", max_advance => 281474976710655", ", inserts => 'require'",
	", fence => 'jobs'", ", fence => 'job/{id}'", ", fence => '{id}', observe => true, max_advance => 7",
	", mode => 'reentrant', inserts => 'require', observe => true, max_advance => 9",
}

// acceptTour visits every ordered pair of the numbers below n as two steps in a row.
func acceptTour(n int) []int {
	var tour []int
	for i := range n {
		for j := i + 1; j < n; j++ {
			tour = append(tour, i, j)
		}
	}
	return tour
}

// acceptAbout leaves only the lines about a table and its partitions.
func acceptAbout(text, table string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, " public."+table) || strings.HasPrefix(line, "public."+table) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// acceptGuardsOf are a table's guards, and its partitions', as they would be if its name were jobs.
func acceptGuardsOf(t *testing.T, pool *pgxpool.Pool, table string) []string {
	t.Helper()
	return strings.Split(strings.ReplaceAll(strings.Join(acceptAbout(acceptGuards(t, pool), table), "\n"), table, "jobs"), "\n")
}

// TestEveryChangeOfOptionsLeavesExactlyTheExpectedGuards goes from every set of options to every other, and compares with
// a table that never had other ones.
func TestEveryChangeOfOptionsLeavesExactlyTheExpectedGuards(t *testing.T) {
	t.Parallel()
	for _, partitioned := range []bool{false, true} {
		t.Run(fmt.Sprintf("partitioned=%t", partitioned), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			// One has a column of its own, to be adopted and given back each time.
			tables := []string{"jobs", "owns"}
			for _, table := range tables {
				acceptTable(t, pool, table, partitioned)
			}
			pgtest.Exec(t, pool, "ALTER TABLE public.owns ADD last_fencing_token bigint NOT NULL DEFAULT 3")
			type state struct{ Guards, Columns []string }
			current := func(table string) state {
				return state{acceptAbout(acceptGuards(t, pool), table), acceptAbout(acceptColumns(t, pool), table)}
			}
			expected := map[string]state{}
			for i, options := range acceptOptions {
				for _, table := range tables {
					acceptProtect(t, pool, table, options)
					expected[fmt.Sprint(table, i)] = current(table)
					pgtest.Exec(t, pool, "SELECT fencing.unprotect('public."+table+"', true)")
				}
			}
			previous := "nothing"
			for _, step := range acceptTour(len(acceptOptions)) {
				for _, table := range tables {
					acceptProtect(t, pool, table, acceptOptions[step])
					want, got := expected[fmt.Sprint(table, step)], current(table)
					if table == "jobs" && strings.Contains(acceptOptions[step], "fence") {
						// The column of an earlier row fence stays until it is asked away: without a default of ours.
						for _, column := range got.Columns {
							if !strings.HasSuffix(column, " bigint NOT NULL DEFAULT 0") {
								t.Errorf("the column that is left over is %s", column)
							}
						}
						want.Columns, got.Columns = nil, nil
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Fatalf("%s: from %q to %q: not (-), but (+):\n%s", table, previous, acceptOptions[step], diff)
					}
				}
				previous = acceptOptions[step]
			}
		})
	}
}

// TestAChangeOfOptionsLeavesNoUnguardedMoment: a session that tries to write without a token, over and over, is refused
// every time while every change there is goes by.
func TestAChangeOfOptionsLeavesNoUnguardedMoment(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	acceptTable(t, pool, "jobs", true)
	acceptProtect(t, pool, "jobs", "")
	var enforcing []string
	for _, options := range acceptOptions {
		if !strings.Contains(options, "observe") {
			enforcing = append(enforcing, options)
		}
	}
	writes := []string{
		"DELETE FROM public.jobs", "DELETE FROM public.jobs_1", "UPDATE public.jobs_2_0 SET state = 'x'", "TRUNCATE public.jobs_1",
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	rounds := make([]atomic.Int64, len(writes))
	for i, sql := range writes {
		conn := pgtest.Conn(t, pool)
		writers.Go(func() {
			for ctx.Err() == nil {
				_, err := conn.Exec(context.WithoutCancel(ctx), sql)
				if !strings.HasPrefix(pgtest.SQLState(err), "ZF") {
					t.Errorf("%s: %v, want a refusal", sql, err)
					stop()
				}
				rounds[i].Add(1)
			}
		})
	}
	for _, step := range acceptTour(len(enforcing)) {
		if ctx.Err() != nil {
			break
		}
		acceptProtect(t, pool, "jobs", enforcing[step])
	}
	stop()
	writers.Wait()
	for i := range rounds {
		t.Logf("%s was refused %d times", writes[i], rounds[i].Load())
	}
	if got := pgtest.Value[int](t, pool, "SELECT count(*) FROM public.jobs"); got != 2 {
		t.Errorf("%d rows are left of 2", got)
	}
}

// TestAChangeIsSeenByNobodyBeforeItIsCommitted forces the moment in the middle: the change is made, and not committed.
func TestAChangeIsSeenByNobodyBeforeItIsCommitted(t *testing.T) {
	t.Parallel()
	for _, to := range []string{", fence => 'jobs'", ", fence => 'job/{id}'", ", mode => 'reentrant'", ", observe => true"} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			acceptTable(t, pool, "jobs", true)
			acceptProtect(t, pool, "jobs", "")
			change := acceptTx(t, pool, "READ COMMITTED")
			acceptProtect(t, change, "jobs", to)
			write := pgtest.Go(t, pgtest.Conn(t, pool), "DELETE FROM public.jobs_2_0").Blocked()
			pgtest.Exec(t, change, "ROLLBACK")
			if err := write.Wait(); pgtest.SQLState(err) != "ZF002" {
				t.Errorf("a write that waited for a change which did not happen: %v, want ZF002", err)
			}
		})
	}
}

// Repairing ---------------------------------------------------------------------------------------

// TestProtectAgainMendsEveryDamage damages each guard, in each way, and protects again with the same options.
func TestProtectAgainMendsEveryDamage(t *testing.T) {
	t.Parallel()
	damages := map[string]string{
		"disabled":           "ALTER TABLE RELATION DISABLE TRIGGER NAME",
		"replicas only":      "ALTER TABLE RELATION ENABLE REPLICA TRIGGER NAME",
		"dropped":            "DROP TRIGGER NAME ON RELATION",
		"never fires":        "CREATE OR REPLACE TRIGGER NAME BEFORE DELETE ON RELATION FOR EACH LEVEL WHEN (false) EXECUTE FUNCTION FUNCTION",
		"other arguments":    "CREATE OR REPLACE TRIGGER NAME BEFORE DELETE ON RELATION FOR EACH LEVEL EXECUTE FUNCTION fencing.guard_row('strict', 'observe')",
		"another's function": "CREATE OR REPLACE TRIGGER NAME BEFORE DELETE ON RELATION FOR EACH LEVEL EXECUTE FUNCTION public.nothing()",
	}
	for _, partitioned := range []bool{false, true} {
		for kind, options := range acceptKinds {
			t.Run(fmt.Sprintf("%s/partitioned=%t", kind, partitioned), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.New(t)
				pgtest.Exec(t, pool, "CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
				acceptTable(t, pool, "jobs", partitioned)
				acceptProtect(t, pool, "jobs", options)
				intact := acceptGuards(t, pool)

				guards := acceptLines(t, pool, `
					SELECT concat_ws(' ', t.tgrelid::regclass, t.tgname, CASE t.tgtype & 1 WHEN 1 THEN 'ROW' ELSE 'STATEMENT' END,
					                 CASE WHEN t.tgparentid = 0 THEN 'own' ELSE 'clone' END)
					  FROM pg_trigger t WHERE t.tgname LIKE E'zzz\\_fencing\\_%' ORDER BY 1`)
				for _, guard := range guards {
					field := strings.Fields(guard)
					for damage, sql := range damages {
						if field[3] == "clone" && damage != "disabled" {
							continue // PostgreSQL itself refuses to drop or replace a clone
						}
						pgtest.Exec(t, pool, strings.NewReplacer("RELATION", field[0], "NAME", field[1], "LEVEL", field[2],
							"FUNCTION FUNCTION", "FUNCTION fencing.guard_named('x', 'enforce')").Replace(sql))
						if acceptGuards(t, pool) == intact {
							t.Fatalf("%s: %s changed nothing", guard, damage)
						}
						if damage == "another's function" && len(guards) == 1 {
							// Nothing is left by which to know that the table was protected, or the trigger ours.
							if _, err := pool.Exec(t.Context(), "SELECT fencing.protect('public.jobs'"+options+")"); pgtest.SQLState(err) != "42710" {
								t.Errorf("%s: %s: %v, want 42710", guard, damage, err)
							}
							pgtest.Exec(t, pool, "DROP TRIGGER "+field[1]+" ON "+field[0])
						}
						acceptProtect(t, pool, "jobs", options)
						if diff := cmp.Diff(strings.Split(intact, "\n"), strings.Split(acceptGuards(t, pool), "\n")); diff != "" {
							t.Fatalf("%s: %s: after protect not (-), but (+):\n%s", guard, damage, diff)
						}
					}
				}

				// All at once.
				for _, table := range acceptLines(t, pool, "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE tgname ^@ 'zzz_fencing'") {
					pgtest.Exec(t, pool, "ALTER TABLE "+table+" DISABLE TRIGGER ALL")
				}
				acceptProtect(t, pool, "jobs", options)
				if diff := cmp.Diff(intact, acceptGuards(t, pool)); diff != "" {
					t.Errorf("after DISABLE TRIGGER ALL and protect not (-), but (+):\n%s", diff)
				}
			})
		}
	}
}

// ENABLE ALWAYS makes a guard fire under session_replication_role = replica too: somebody wanted more, and keeps it.
func TestProtectAgainKeepsGuardsThatAlwaysFire(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	acceptTable(t, pool, "jobs", false)
	acceptProtect(t, pool, "jobs", "")
	pgtest.Exec(t, pool, "ALTER TABLE public.jobs ENABLE ALWAYS TRIGGER zzz_fencing_delete")
	before := acceptGuards(t, pool)
	acceptProtect(t, pool, "jobs", "")
	if diff := cmp.Diff(before, acceptGuards(t, pool)); diff != "" {
		t.Error(diff)
	}
	pgtest.Exec(t, pool, "SELECT fencing.observe('public.jobs'); SELECT fencing.enforce('public.jobs')")
	if diff := cmp.Diff(before, acceptGuards(t, pool)); diff != "" {
		t.Errorf("observe and enforce: %s", diff)
	}
}

// Locales -----------------------------------------------------------------------------------------

// TestADatabaseOfAnotherLocale sorts names in another order than the C locale does: Turkish, on top of that, folds the
// letter i in its own way.
func TestADatabaseOfAnotherLocale(t *testing.T) {
	t.Parallel()
	if pgtest.ServerVersion(t) < 15 {
		t.Skip("a database's own ICU locale needs PostgreSQL 15")
	}
	pool := acceptCreateDatabase(t, "ENCODING 'UTF8' LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'")
	pgtest.Exec(t, pool, `
		CREATE TABLE public.jobs ("Ib" int NOT NULL, ia text NOT NULL, "İ" int, a_b int, "aB" int, note text) PARTITION BY RANGE ("aB", "Ib", a_b, "İ");
		CREATE TABLE public.jobs_1 PARTITION OF public.jobs DEFAULT;
		CREATE TABLE public."İş" (id int NOT NULL)`)
	before := takeAcceptSnapshot(t, pool)
	for _, options := range acceptOptions {
		options = strings.ReplaceAll(options, "{id}", "{ia}")
		acceptProtect(t, pool, "jobs", options)
		versions := acceptTriggerVersions(t, pool)
		acceptProtect(t, pool, "jobs", options)
		if diff := cmp.Diff(versions, acceptTriggerVersions(t, pool)); diff != "" {
			t.Errorf("%s: a second protect changed triggers:\n%s", options, diff)
		}
	}
	pgtest.Exec(t, pool, `SELECT fencing.protect('public."İş"', fence => 'iş/{id}')`)
	acceptRefused(t, pool, `INSERT INTO public."İş" VALUES (1)`)
	pgtest.Exec(t, pool, `SELECT fencing.claim('iş/1', 5)`)
	pgtest.Exec(t, pool, `BEGIN; SELECT fencing.present(5); INSERT INTO public."İş" VALUES (1); COMMIT`)
	pgtest.Exec(t, pool, `SELECT fencing.unprotect('public.jobs', true); SELECT fencing.unprotect('public."İş"', true)`)
	before.mustEqual(t, takeAcceptSnapshot(t, pool))
}

// TestTheOrderOfNamesIsNotTheLocales: the guards are the same text in a database of any locale, or else a dump restored
// into another one would look as if somebody had altered them.
func TestTheOrderOfNamesIsNotTheLocales(t *testing.T) {
	t.Parallel()
	if pgtest.ServerVersion(t) < 15 {
		t.Skip("a database's own ICU locale needs PostgreSQL 15")
	}
	var guards []string
	for _, pool := range []*pgxpool.Pool{pgtest.New(t), acceptCreateDatabase(t, "ENCODING 'UTF8' LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'de-DE'")} {
		pgtest.Exec(t, pool, `CREATE TABLE public.jobs ("B" int, a int, "Ä" int, _c int) PARTITION BY RANGE (a, "Ä", _c, "B")`)
		acceptProtect(t, pool, "jobs", "")
		guards = append(guards, acceptGuards(t, pool))
	}
	if diff := cmp.Diff(guards[0], guards[1]); diff != "" {
		t.Error(diff)
	}
}

// A guard in observe refuses nothing, not even when its template has lost its column.
func TestObserveRefusesNothingAfterATemplateColumnIsRenamed(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	acceptTable(t, pool, "jobs", false)
	acceptProtect(t, pool, "jobs", ", fence => 'job/{id}', observe => true")
	pgtest.Exec(t, pool, "ALTER TABLE public.jobs RENAME COLUMN id TO job_id")
	for _, sql := range []string{
		"INSERT INTO public.jobs VALUES (3, 'new')", "UPDATE public.jobs SET state = 'x'", "DELETE FROM public.jobs",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if got := pgtest.Value[int](t, pool, "SELECT count(*) FROM fencing.violation WHERE kind = 'unfenced'"); got != 3 {
		t.Errorf("%d violations are recorded, want 3", got)
	}
}
