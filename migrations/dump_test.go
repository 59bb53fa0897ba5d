package migrations_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

// acceptFoundBinaries are the client programs of this machine, oldest version first for each name.
var acceptFoundBinaries = sync.OnceValue(func() map[string]map[int]string {
	directories, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well-formed
	if dir := os.Getenv(pgserver.BinDirVariable); dir != "" {
		directories = append(directories, dir)
	}
	directories = append(directories, filepath.SplitList(os.Getenv("PATH"))...)
	found := map[string]map[int]string{}
	for _, name := range []string{"pg_dump", "pg_restore", "psql"} {
		found[name] = map[int]string{}
		for _, dir := range directories {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err != nil {
				continue
			}
			out, err := exec.Command(path, "--version").Output()
			if match := acceptVersion.FindSubmatch(out); err == nil && match != nil {
				major, _ := strconv.Atoi(string(match[1])) // the pattern is digits
				if found[name][major] == "" {
					found[name][major] = path
				}
			}
		}
	}
	return found
})

// acceptDumpBinary is the oldest client program of that name that is not older than the server: pg_dump refuses newer
// servers, and a newer pg_dump's output is for newer servers.
func acceptDumpBinary(t testing.TB, name string) (string, error) {
	t.Helper()
	server := pgtest.ServerVersion(t)
	best := 0
	for major := range acceptFoundBinaries()[name] {
		if major >= server && (best == 0 || major < best) {
			best = major
		}
	}
	if best == 0 {
		return "", fmt.Errorf("no %s of version %d or later on this machine: install PostgreSQL's client package of that version", name, server)
	}
	return acceptFoundBinaries()[name][best], nil
}

// acceptTool is a client program, or the test is skipped.
func acceptTool(t testing.TB, name string) string {
	t.Helper()
	binary, err := acceptDumpBinary(t, name)
	if err != nil {
		t.Skip(err)
	}
	return binary
}

// acceptDump runs pg_dump and returns what it prints.
func acceptDump(t testing.TB, binary, dsn string, arguments ...string) string {
	t.Helper()
	plain := !slices.ContainsFunc(arguments, func(a string) bool { return strings.HasPrefix(a, "--format=") })
	if plain && acceptKnowsRestrict(binary) {
		// Without a key of ours the dump begins and ends with a random one, and no two dumps are alike.
		arguments = append(arguments, "--restrict-key=acceptance")
	}
	return acceptCommand(t, "", binary, append([]string{"--dbname=" + dsn}, arguments...)...)
}

var acceptRestrict sync.Map // of binary to bool

func acceptKnowsRestrict(binary string) bool {
	known, ok := acceptRestrict.Load(binary)
	if !ok {
		out, err := exec.Command(binary, "--help").Output()
		known = err == nil && bytes.Contains(out, []byte("--restrict-key"))
		acceptRestrict.Store(binary, known)
	}
	return known.(bool)
}

// acceptCommand runs a program that must succeed without a word on standard error, and returns its standard output.
func acceptCommand(t testing.TB, stdin, program string, arguments ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, arguments...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments[1:], " "), err, stderr.Bytes())
	}
	return stdout.String()
}

// acceptApplication is an application's schema with something of everything, and rows in it.
const acceptApplication = `
	CREATE SCHEMA "App 1";
	CREATE TYPE "App 1".state AS ENUM ('new', 'done');
	CREATE FUNCTION "App 1".touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.note := 'touched'; RETURN NEW; END $$;
	CREATE TABLE "App 1"."Jobs" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state "App 1".state NOT NULL DEFAULT 'new', note text);
	CREATE TRIGGER touch BEFORE UPDATE ON "App 1"."Jobs" FOR EACH ROW EXECUTE FUNCTION "App 1".touch();
	CREATE TABLE "App 1".accounts ("Account Id" int PRIMARY KEY, state "App 1".state NOT NULL, balance numeric NOT NULL DEFAULT 0);
	CREATE TABLE "App 1".nightly (id int REFERENCES "App 1".accounts ON DELETE CASCADE, note text);
	CREATE TABLE "App 1".adopted (id int, last_fencing_token bigint DEFAULT length(E'it''s "x" \\\\ %s\n{y} $$'));
	CREATE TABLE "App 1".events (region text NOT NULL, at date NOT NULL, note text) PARTITION BY LIST (region);
	CREATE TABLE "App 1".events_eu PARTITION OF "App 1".events FOR VALUES IN ('eu') PARTITION BY RANGE (at);
	CREATE TABLE "App 1".events_eu_2026 PARTITION OF "App 1".events_eu FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
	CREATE TABLE "App 1".events_rest PARTITION OF "App 1".events DEFAULT;
	CREATE TABLE "App 1".logs (id int NOT NULL, note text) PARTITION BY HASH (id);
	CREATE TABLE "App 1".logs_0 PARTITION OF "App 1".logs FOR VALUES WITH (MODULUS 1, REMAINDER 0);
	CREATE TABLE "App 1".parent (id int);
	CREATE TABLE "App 1".child (note text) INHERITS ("App 1".parent);
	CREATE VIEW "App 1".open_jobs AS SELECT id, note FROM "App 1"."Jobs" WHERE state = 'new';
	INSERT INTO "App 1"."Jobs" (note) VALUES ('a'), ('b');
	INSERT INTO "App 1".accounts VALUES (1, 'new'), (2, 'done');
	INSERT INTO "App 1".nightly VALUES (1, 'x');
	INSERT INTO "App 1".adopted VALUES (1, 3);
	INSERT INTO "App 1".events VALUES ('eu', '2026-05-05', 'a'), ('us', '2026-05-05', 'b');
	INSERT INTO "App 1".logs VALUES (1, 'a');
	INSERT INTO "App 1".child VALUES (1, 'a')`

// acceptProtectApplication protects every table of it, each in another way, and writes under tokens.
const acceptProtectApplication = `
	SELECT fencing.protect('"App 1"."Jobs"', mode => 'reentrant', max_advance => 1000);
	SELECT fencing.protect('"App 1".accounts', fence => 'account "{Account Id}" \ {state}''s');
	SELECT fencing.protect('"App 1".nightly', fence => 'jobs/nightly', observe => true, max_advance => 50);
	SELECT fencing.protect('"App 1".adopted', inserts => 'require');
	SELECT fencing.protect('"App 1".events');
	SELECT fencing.protect('"App 1".logs', fence => 'logs');
	SELECT fencing.protect('"App 1".parent', observe => true);
	SELECT fencing.claim('jobs/nightly', 33);
	SELECT fencing.claim('logs', 41);
	SELECT fencing.lower_fence('logs', 40, 'a test');
	SELECT fencing.source_epoch('etcd', 'cluster-1');
	SELECT fencing.adopt_epoch('etcd', 'cluster-2');
	SELECT token FROM fencing.acquire_lease('lease', '5b1e0f62-6b1c-4b8c-9d0e-0242ac130003', '1 hour')`

// acceptWrites are writes under a token, in one transaction with what presents it.
const acceptWrites = `
	BEGIN;
	SELECT fencing.present(33);
	SELECT fencing.present(40, 'logs');
	UPDATE "App 1"."Jobs" SET state = 'done' WHERE id = 1;
	INSERT INTO "App 1".adopted (id) VALUES (2);
	UPDATE "App 1".events SET note = 'x';
	INSERT INTO "App 1".logs VALUES (2, 'b');
	DELETE FROM "App 1".nightly;
	COMMIT`

// acceptState is all that must be the same in a restored database: how everything is protected, and with which tokens.
func acceptState(t testing.TB, pool *pgxpool.Pool) map[string][]string {
	t.Helper()
	state := map[string][]string{
		"guards":  strings.Split(acceptGuards(t, pool), "\n"),
		"columns": strings.Split(acceptColumns(t, pool), "\n"),
		"catalog": acceptCatalog(t, pool),
		"protection": acceptLines(t, pool, `SELECT concat_ws(' ', schema_name, table_name, kind, mode, fence, inserts, enforcement, max_advance, guards, arguments)
			FROM fencing.protection ORDER BY 1`),
		"problems": acceptLines(t, pool, `SELECT g::text FROM fencing.protection p
			CROSS JOIN LATERAL fencing.guard_problems(p.relid, p.kind = 'named', p.arguments) g`),
		"fences":     acceptLines(t, pool, "SELECT f::text FROM fencing.fence f ORDER BY name"),
		"sources":    acceptLines(t, pool, "SELECT s::text FROM fencing.source s ORDER BY name"),
		"leases":     acceptLines(t, pool, "SELECT l::text FROM fencing.lease l ORDER BY name"),
		"violations": acceptLines(t, pool, "SELECT v::text FROM fencing.violation v ORDER BY id"),
		"bypasses":   acceptLines(t, pool, "SELECT b::text FROM fencing.bypass_log b ORDER BY id"),
		"sequence":   acceptLines(t, pool, "SELECT concat(last_value, ' ', is_called) FROM fencing.token_seq"),
		"version":    acceptLines(t, pool, "SELECT concat(max(version_id), ' ', fencing.version()) FROM fencing.goose_db_version"),
		"tokens": acceptLines(t, pool, `
			SELECT concat('Jobs ', id, ' ', last_fencing_token) FROM "App 1"."Jobs"
			UNION ALL SELECT concat('adopted ', id, ' ', last_fencing_token) FROM "App 1".adopted
			UNION ALL SELECT concat('events ', region, ' ', last_fencing_token) FROM "App 1".events
			UNION ALL SELECT concat('parent ', id, ' ', last_fencing_token) FROM "App 1".parent ORDER BY 1`),
	}
	return state
}

// acceptProtected is a database with the application, protected, and written to.
func acceptProtected(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, acceptApplication)
	pgtest.Exec(t, pool, acceptProtectApplication)
	pgtest.Exec(t, pool, acceptWrites)
	// Violations, to be found in the copy.
	pgtest.Exec(t, pool, `INSERT INTO "App 1".nightly VALUES (2, 'unfenced')`)
	return pool
}

// acceptFenced checks a restored database by writing to it: everything that was refused still is, the old tokens too, and
// a holder goes on where it was.
func acceptFenced(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, refused := range []struct{ state, sql string }{
		{"ZF002", `UPDATE "App 1"."Jobs" SET note = 'x'`},
		{"ZF002", `INSERT INTO "App 1".adopted (id) VALUES (9)`},
		{"ZF002", `DELETE FROM "App 1".events_eu_2026`},
		{"ZF002", `INSERT INTO "App 1".logs_0 VALUES (9)`},
		{"ZF002", `UPDATE "App 1".accounts SET balance = 1`},
		{"ZF005", `TRUNCATE "App 1".events_eu_2026`},
		{"ZF001", `BEGIN; SELECT fencing.present(32); UPDATE "App 1"."Jobs" SET note = 'x' WHERE id = 1`},
		{"ZF001", `BEGIN; SELECT fencing.present(33); UPDATE "App 1".events SET note = 'y' WHERE region = 'eu'`},
		{"ZF001", `BEGIN; SELECT fencing.present(39); INSERT INTO "App 1".logs VALUES (9)`},
		{"ZF004", `BEGIN; SELECT fencing.present(41); INSERT INTO "App 1".logs VALUES (9)`},
		{"ZF001", `SELECT fencing.claim('logs', 39)`},
		{"ZF003", `SELECT fencing.claim('jobs/nightly', 34 + 50)`},
		{"55000", `DELETE FROM fencing.fence`},
	} {
		conn := pgtest.Conn(t, pool)
		if _, err := conn.Exec(t.Context(), refused.sql); pgtest.SQLState(err) != refused.state {
			t.Errorf("%s: %v, want %s", refused.sql, err, refused.state)
		}
	}
	pgtest.Exec(t, pool, `BEGIN; SELECT fencing.present(40); UPDATE "App 1"."Jobs" SET note = 'z'; UPDATE "App 1".events SET note = 'z';
		INSERT INTO "App 1".logs VALUES (3); COMMIT`)
	if got := pgtest.Value[bool](t, pool, `SELECT fencing.renew_lease('lease', '5b1e0f62-6b1c-4b8c-9d0e-0242ac130003', token, '1 hour') FROM fencing.lease`); !got {
		t.Error("the lease's holder could not renew it")
	}
}

// acceptCarryPlain dumps one database as SQL and runs it in another.
func acceptCarryPlain(t *testing.T, from, to string) {
	t.Helper()
	acceptRunScript(t, to, acceptDump(t, acceptTool(t, "pg_dump"), from))
}

// acceptRunScript runs a dump with psql, which must not have anything to say about it.
func acceptRunScript(t *testing.T, dsn, script string) {
	t.Helper()
	acceptCommand(t, script, acceptTool(t, "psql"), "--dbname="+dsn, "--no-psqlrc", "--quiet", "--output=/dev/null", "--set=ON_ERROR_STOP=1")
}

// acceptFormats are the ways to carry a database from one place to another, each as a function from one DSN to the other.
var acceptFormats = map[string]func(t *testing.T, from, to string){
	"plain": acceptCarryPlain,
	"inserts": func(t *testing.T, from, to string) {
		dump := acceptDump(t, acceptTool(t, "pg_dump"), from, "--inserts", "--column-inserts", "--quote-all-identifiers", "--load-via-partition-root")
		acceptRunScript(t, to, dump)
	},
	"custom": func(t *testing.T, from, to string) {
		dump := acceptDump(t, acceptTool(t, "pg_dump"), from, "--format=custom")
		acceptCommand(t, dump, acceptTool(t, "pg_restore"), "--dbname="+to, "--exit-on-error")
	},
	"directory, in parallel": func(t *testing.T, from, to string) {
		dir := filepath.Join(t.TempDir(), "dump")
		acceptDump(t, acceptTool(t, "pg_dump"), from, "--format=directory", "--jobs=2", "--file="+dir)
		acceptCommand(t, "", acceptTool(t, "pg_restore"), "--dbname="+to, "--exit-on-error", "--jobs=2", dir)
	},
	"over an older copy": func(t *testing.T, from, to string) {
		acceptCarryPlain(t, from, to)
		dump := acceptDump(t, acceptTool(t, "pg_dump"), from, "--clean", "--if-exists")
		acceptRunScript(t, to, dump)
	},
	"in three sections": func(t *testing.T, from, to string) {
		file := filepath.Join(t.TempDir(), "dump")
		acceptDump(t, acceptTool(t, "pg_dump"), from, "--format=custom", "--file="+file)
		for _, section := range []string{"pre-data", "data", "post-data"} {
			acceptCommand(t, "", acceptTool(t, "pg_restore"), "--dbname="+to, "--exit-on-error", "--section="+section, file)
		}
	},
}

func TestARestoredDumpIsAProtectedDatabase(t *testing.T) {
	t.Parallel()
	acceptTool(t, "pg_dump")
	original := acceptProtected(t)
	want := acceptState(t, original)
	never := pgtest.NewEmpty(t)
	pgtest.Exec(t, never, acceptApplication)
	application := acceptSchemaDump(t, never)
	for name, carry := range acceptFormats {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			copied := pgtest.NewEmpty(t)
			carry(t, pgtest.DSN(t, original), pgtest.DSN(t, copied))
			if diff := cmp.Diff(want, acceptState(t, copied)); diff != "" {
				t.Errorf("the copy is not (-), but (+):\n%s", diff)
			}
			// The tokens go on where they were: the copy is in the same cluster, so in the same epoch.
			before := pgtest.Value[int64](t, original, "SELECT last_value FROM fencing.token_seq")
			if token := pgtest.Value[int64](t, copied, "SELECT fencing.next_token()"); token <= before {
				t.Errorf("the copy's next token is %d, the original's last was %d", token, before)
			}
			acceptFenced(t, copied)

			// And it can be taken off, as if it had been installed there.
			versions := acceptTriggerVersions(t, copied)
			pgtest.Exec(t, copied, `SELECT fencing.protect('"App 1".events'); SELECT fencing.protect('"App 1".logs', fence => 'logs')`)
			if diff := cmp.Diff(versions, acceptTriggerVersions(t, copied)); diff != "" {
				t.Errorf("protect found something to do in the copy:\n%s", diff)
			}
			acceptUninstall(t, copied)
			if diff := cmp.Diff(application, acceptSchemaDump(t, copied)); diff != "" {
				t.Errorf("the dump is not that of a database without fencing (-), but (+):\n%s", diff)
			}
		})
	}
}

// acceptUninstall takes everything off, as fencectl uninstall does.
func acceptUninstall(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Exec(t, pool, "SELECT fencing.unprotect(relid, drop_column => true) FROM fencing.protection")
	if err := migrations.Down(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}

// acceptSchemaDump is pg_dump --schema-only, line by line.
func acceptSchemaDump(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	return strings.Split(acceptDump(t, acceptTool(t, "pg_dump"), pgtest.DSN(t, pool), "--schema-only"), "\n")
}

func TestUninstallLeavesTheSchemaAsItWasBeforeInstall(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, acceptApplication)
	before := takeAcceptSnapshot(t, pool)
	// Twice: what an uninstall leaves behind, the next install could stumble over.
	for range 2 {
		if _, err := migrations.Up(t.Context(), pool, nil); err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, pool, acceptProtectApplication)
		if slices.Equal(acceptCatalog(t, pool), before.catalog) {
			t.Fatal("a protected database looks like an unprotected one")
		}
		acceptUninstall(t, pool)
		before.mustEqual(t, takeAcceptSnapshot(t, pool))
	}
}

// TestARestoreElsewhereRaisesTheEpoch restores into another cluster, whose sequence could have been left behind by tokens
// that were issued after the dump. Its tokens are greater than all of them.
func TestARestoreElsewhereRaisesTheEpoch(t *testing.T) {
	t.Parallel()
	acceptTool(t, "pg_dump")
	original := acceptProtected(t)
	elsewhere, err := pgserver.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := elsewhere.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	if major := elsewhere.Version(); major != pgtest.ServerVersion(t) {
		t.Skipf("the test server is PostgreSQL %d, the one to restore into would be %d", pgtest.ServerVersion(t), major)
	}
	acceptCarryPlain(t, pgtest.DSN(t, original), elsewhere.DSN("postgres"))

	var last int64
	for range 10 { // after the dump
		last = pgtest.Value[int64](t, original, "SELECT fencing.next_token()")
	}
	copied, err := pgxpool.New(t.Context(), elsewhere.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(copied.Close)
	token := pgtest.Value[int64](t, copied, "SELECT fencing.next_token()")
	if token <= last {
		t.Errorf("the copy's first token is %d, the original's last one %d", token, last)
	}
	if epoch := pgtest.Value[int](t, copied, "SELECT fencing.token_epoch($1)", token); epoch != 1 {
		t.Errorf("the copy's first token is in epoch %d, want 1", epoch)
	}
	if second := pgtest.Value[int64](t, copied, "SELECT fencing.next_token()"); second != token+1 {
		t.Errorf("the copy's second token is %d, want %d: the epoch rises once", second, token+1)
	}
	// The new holder takes over from whoever held the fence, max_advance or not: this database knows the epoch.
	pgtest.Exec(t, copied, "SELECT fencing.claim('jobs/nightly', fencing.next_token())")
	if _, err := copied.Exec(t.Context(), "SELECT fencing.claim('jobs/nightly', $1)", last); pgtest.SQLState(err) != "ZF001" {
		t.Errorf("a claim with a token of the old cluster: %v, want ZF001", err)
	}
}

// TestADumpWithoutCommentsCanBeUnprotected: the comment that marks the column is lost, the guards are not.
func TestADumpWithoutCommentsCanBeUnprotected(t *testing.T) {
	t.Parallel()
	binary := acceptTool(t, "pg_dump")
	original, copied := pgtest.New(t), pgtest.NewEmpty(t)
	pgtest.Exec(t, original, "CREATE TABLE public.jobs (id int); CREATE TABLE public.kept (id int); INSERT INTO public.jobs VALUES (1)")
	before := acceptCatalog(t, original)
	pgtest.Exec(t, original, "SELECT fencing.protect('public.jobs'); SELECT fencing.protect('public.kept')")
	dump := acceptDump(t, binary, pgtest.DSN(t, original), "--no-comments")
	acceptRunScript(t, pgtest.DSN(t, copied), dump)

	pgtest.Exec(t, copied, "SELECT fencing.unprotect('public.kept')")
	if _, err := copied.Exec(t.Context(), "INSERT INTO public.kept (id) VALUES (1)"); err != nil {
		t.Errorf("an insert that does not mention the column that is left: %v", err)
	}
	pgtest.Exec(t, copied, "ALTER TABLE public.kept DROP COLUMN last_fencing_token")
	pgtest.Exec(t, copied, "SELECT fencing.unprotect('public.jobs', drop_column => true)")
	if diff := cmp.Diff(before, acceptCatalog(t, copied)); diff != "" {
		t.Errorf("the schema is not what it was before protect (-), but (+):\n%s", diff)
	}
}

// TestDataOnlyRestoreMeetsTheGuards documents what a --data-only restore into a protected database does. The tables' guards
// see COPY as any insert: without inserts=require the rows go in, with the tokens they had; a named fence refuses them. The
// fences themselves cannot be emptied first. With --disable-triggers, a superuser's choice, everything goes in, and P2 is
// as void as anywhere triggers are disabled.
func TestDataOnlyRestoreMeetsTheGuards(t *testing.T) {
	t.Parallel()
	pgDump, psql := acceptTool(t, "pg_dump"), acceptTool(t, "psql")
	original := pgtest.New(t)
	const schema = `
		CREATE TABLE public.rows (id int); CREATE TABLE public.strictly (id int); CREATE TABLE public.named (id int);
		SELECT fencing.protect('public.rows'); SELECT fencing.protect('public.strictly', inserts => 'require'); SELECT fencing.protect('public.named', fence => 'named')`
	pgtest.Exec(t, original, schema)
	pgtest.Exec(t, original, `SELECT fencing.claim('named', 33)`)
	pgtest.Exec(t, original, `BEGIN; SELECT fencing.present(33); INSERT INTO public.rows VALUES (1); INSERT INTO public.strictly VALUES (1);
		INSERT INTO public.named VALUES (1); COMMIT; INSERT INTO public.rows VALUES (2)`)

	restore := func(t *testing.T, into *pgxpool.Pool, arguments ...string) error {
		t.Helper()
		dump := acceptDump(t, pgDump, pgtest.DSN(t, original), append([]string{"--data-only", "--schema=public"}, arguments...)...)
		cmd := exec.CommandContext(t.Context(), psql, "--dbname="+pgtest.DSN(t, into), "--no-psqlrc", "--quiet", "--output=/dev/null", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=sqlstate")
		cmd.Stdin = strings.NewReader(dump)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s", bytes.TrimSpace(out))
		}
		return nil
	}
	count := func(pool *pgxpool.Pool, table string) string {
		return strings.Join(acceptLines(t, pool, "SELECT concat_ws(' ', to_jsonb(r)) FROM public."+table+" r ORDER BY id"), ", ")
	}

	t.Run("row fences keep their tokens", func(t *testing.T) {
		into := pgtest.New(t)
		pgtest.Exec(t, into, schema)
		for _, table := range []string{"rows", "strictly"} {
			if err := restore(t, into, "--table=public."+table); err != nil {
				t.Errorf("%s: %v", table, err)
			}
			if got, want := count(into, table), count(original, table); got != want {
				t.Errorf("%s has %s, want %s", table, got, want)
			}
		}
	})
	t.Run("a named fence refuses", func(t *testing.T) {
		into := pgtest.New(t)
		pgtest.Exec(t, into, schema)
		if err := restore(t, into, "--table=public.named"); err == nil || !strings.Contains(err.Error(), "ZF002") {
			t.Errorf("restore: %v, want ZF002", err)
		}
		if got := count(into, "named"); got != "" {
			t.Errorf("there are rows: %s", got)
		}
	})
	t.Run("a named fence accepts who presents its token", func(t *testing.T) {
		into := pgtest.New(t)
		pgtest.Exec(t, into, schema)
		pgtest.Exec(t, into, "SELECT fencing.claim('named', 50)")
		dump := acceptDump(t, pgDump, pgtest.DSN(t, original), "--data-only", "--table=public.named")
		// What PGOPTIONS='-c fencing.token=50' does for any client.
		acceptRunScript(t, pgtest.DSN(t, into), "SET fencing.token = 50;\n"+dump)
		if got, want := count(into, "named"), count(original, "named"); got != want {
			t.Errorf("there are %s, want %s", got, want)
		}
	})
	t.Run("disabled triggers let everything in and are enabled again", func(t *testing.T) {
		into := pgtest.New(t)
		pgtest.Exec(t, into, schema)
		guards := acceptGuards(t, into)
		if err := restore(t, into, "--disable-triggers"); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"rows", "strictly", "named"} {
			if got, want := count(into, table), count(original, table); got != want {
				t.Errorf("%s has %s, want %s", table, got, want)
			}
		}
		if diff := cmp.Diff(guards, acceptGuards(t, into)); diff != "" {
			t.Errorf("the guards are not what they were:\n%s", diff)
		}
	})
	t.Run("the fences are merged by claiming, not by restoring", func(t *testing.T) {
		into := pgtest.New(t)
		pgtest.Exec(t, into, schema)
		pgtest.Exec(t, into, "SELECT fencing.claim('named', 50)")
		for _, sql := range []string{"TRUNCATE fencing.fence", "DELETE FROM fencing.fence", "UPDATE fencing.fence SET token = 33"} {
			if _, err := into.Exec(t.Context(), sql); pgtest.SQLState(err) != "55000" {
				t.Errorf("%s: %v, want 55000", sql, err)
			}
		}
	})
}
