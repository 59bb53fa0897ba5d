package main

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

// application is an application's migration directory with one migration of its own, and a provider of goose as the
// application would make it.
func application(t *testing.T, pool *pgxpool.Pool) (dir string, provider func() *goose.Provider) {
	t.Helper()
	dir = t.TempDir()
	const first = `-- +goose Up
CREATE TABLE public.jobs (id bigint PRIMARY KEY);
-- +goose StatementBegin
CREATE TABLE public."Order -- Items" (id bigint PRIMARY KEY);
-- +goose StatementEnd

-- +goose Down
DROP TABLE public.jobs;
-- +goose StatementBegin
DROP TABLE public."Order -- Items";
-- +goose StatementEnd
`
	if err := os.WriteFile(filepath.Join(dir, "00001_tables.sql"), []byte(first), 0o644); err != nil {
		t.Fatal(err)
	}
	var db *sql.DB = stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	return dir, func() *goose.Provider {
		p, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(dir), goose.WithTableName("public.goose_db_version"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

func up(t *testing.T, p *goose.Provider) {
	t.Helper()
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }

func TestGooseAppliesWhatEmitWritesBesideTheApplicationsMigrations(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	dir, provider := application(t, pool)
	up(t, provider())
	fencectl := newCLI(t, pgtest.DSN(t, pool))

	paths := lines(fencectl.ok("install", "--emit", "goose", "--dir", dir))
	if len(paths) != len(migrations.Files()) || filepath.Base(paths[0]) != "00002_fencing_presentation.sql" {
		t.Errorf("install wrote %v", paths)
	}
	if o := fencectl.run("install", "--emit", "goose", "--dir", dir); o.status != 0 || o.stdout != "" || !strings.Contains(o.stderr, "already") {
		t.Errorf("install --emit again: %+v", o)
	}
	// The tables can be protected in a migration before the schema is there.
	path := lines(fencectl.ok("protect", "public.*", "--inserts", "require", "--emit", "goose", "--dir", dir))
	if len(path) != 1 || !strings.HasPrefix(filepath.Base(path[0]), "000") {
		t.Fatalf("protect wrote %v", path)
	}
	if pgtest.Value[bool](t, pool, "SELECT to_regnamespace('fencing') IS NOT NULL") {
		t.Fatal("--emit changed the database")
	}

	up(t, provider())
	want := "public.\"Order -- Items\" row strict require enforce\npublic.jobs row strict require enforce"
	if diff := cmp.Diff(want, protection(t, pool)); diff != "" {
		t.Fatal(diff)
	}
}

func TestGooseTakesBackWhatEmitWrote(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	dir, provider := application(t, pool)
	up(t, provider())
	fencectl := newCLI(t, pgtest.DSN(t, pool))
	schema := func() string {
		return pgtest.Value[string](t, pool, `SELECT string_agg(concat_ws(' ', n.nspname, c.relname, a.attname, pg_get_expr(d.adbin, d.adrelid)), E'\n' ORDER BY n.nspname, c.relname, a.attnum)
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
			WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND a.attnum > 0 AND NOT a.attisdropped`) +
			pgtest.Value[string](t, pool, "SELECT count(*)::text || ' triggers' FROM pg_trigger WHERE NOT tgisinternal")
	}
	before := schema()

	fencectl.ok("install", "--emit", "goose", "--dir", dir)
	fencectl.ok("protect", "public.jobs", `public."Order -- Items"`, "--emit", "goose", "--dir", dir, "--name", "Fence the jobs")
	if matches, err := filepath.Glob(filepath.Join(dir, "*_fence_the_jobs.sql")); err != nil || len(matches) != 1 {
		t.Errorf("--name: %v %v", matches, err)
	}
	up(t, provider())
	// A later change of what is protected: its Down goes back to the earlier protection, not to none.
	fencectl.ok("protect", "public.jobs", "--fence", "it's; -- a lock", "--observe", "--emit", "goose", "--dir", dir)
	up(t, provider())
	if got := protection(t, pool); !strings.Contains(got, "public.jobs named it's; -- a lock observe") {
		t.Errorf("after the change: %s", got)
	}
	// fencectl leaves a schema that the application's migrations own alone.
	if out := fencectl.ok("install"); !strings.Contains(out, "application's own migrations") {
		t.Errorf("install: %s", out)
	}
	if out := fencectl.ok("install", "--dry-run"); !strings.Contains(out, "nothing to run") {
		t.Errorf("install --dry-run: %s", out)
	}
	fencectl.ok("status")

	down := func(steps int) {
		for range steps {
			if _, err := provider().Down(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	down(1)
	if diff := cmp.Diff("public.\"Order -- Items\" row strict allow enforce\npublic.jobs row strict allow enforce", protection(t, pool)); diff != "" {
		t.Error(diff)
	}
	down(1 + len(migrations.Files()))
	if diff := cmp.Diff(before, schema()); diff != "" {
		t.Errorf("after all Downs (-before +after):\n%s", diff)
	}
	up(t, provider()) // and once more from the start
}

func TestPlainSQLFilesDoTheSame(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	dir := t.TempDir()
	fencectl := newCLI(t, pgtest.DSN(t, pool))
	paths := lines(fencectl.ok("install", "--emit", "sql", "--dir", dir))
	paths = append(paths, lines(fencectl.ok("protect", "public.jobs", "--emit", "sql", "--dir", dir))...)
	if len(paths) != 2*len(migrations.Files())+2 {
		t.Fatalf("files: %v", paths)
	}
	run := func(suffix string, backwards bool) {
		for i := range paths {
			path := paths[i]
			if backwards {
				path = paths[len(paths)-1-i]
			}
			if !strings.HasSuffix(path, suffix) {
				continue
			}
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(content), "+goose") {
				t.Errorf("%s has annotations of goose", path)
			}
			// As golang-migrate does it: the whole file in one simple query.
			if _, err := pool.Exec(t.Context(), string(content), pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
	}
	run(".up.sql", false)
	if got := protection(t, pool); got != "public.jobs row strict allow enforce" {
		t.Errorf("protected: %s", got)
	}
	run(".down.sql", true)
	if pgtest.Value[bool](t, pool, "SELECT to_regnamespace('fencing') IS NOT NULL OR EXISTS (SELECT FROM pg_attribute WHERE attname = 'last_fencing_token')") {
		t.Error("something is left")
	}
}

func TestAnAdoptedColumnIsNotDroppedByTheDownMigration(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.mine (id bigint, last_fencing_token bigint NOT NULL DEFAULT 5)")
	path := lines(fencectl.ok("protect", "public.mine", "--emit", "goose", "--dir", t.TempDir()))[0]
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(content), "drop_column") {
		t.Errorf("the Down part drops a column that was there before:\n%s", content)
	}
}

func TestEmitNamesTheDirectoryThatIsNotThere(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	missing := filepath.Join(t.TempDir(), "db")
	fencectl.fails(2, []string{missing}, "protect", "public.jobs", "--emit", "goose", "--dir", missing)
	fencectl.fails(2, []string{missing}, "install", "--emit", "goose", "--dir", missing)
}

func TestANameThatGooseWouldObeyIsRefused(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.\"x\n-- +goose Down\n\" (id bigint PRIMARY KEY)")
	dir := t.TempDir()
	fencectl.fails(1, []string{"annotation of goose"}, "protect", "public.x*", "--emit", "goose", "--dir", dir)
	fencectl.ok("protect", "public.x*") // but for a migration file nothing is wrong with it
}

func TestEmitDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	dir := t.TempDir()
	if out := fencectl.ok("protect", "public.jobs", "--emit", "goose", "--dir", dir, "--dry-run"); !strings.Contains(out, "SELECT fencing.protect('public.jobs'::regclass);") {
		t.Errorf("output: %s", out)
	}
	if out := fencectl.ok("install", "--emit", "sql", "--dir", dir, "--dry-run"); !strings.Contains(out, "CREATE FUNCTION fencing.protect") {
		t.Error("no SQL printed")
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 0 {
		t.Errorf("files: %v", files)
	}
}
