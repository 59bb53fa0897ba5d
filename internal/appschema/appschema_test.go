package appschema_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/appschema"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// write makes a project's directory of files, each a name and its content.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func open(t *testing.T, dir string, settings appschema.Settings) (*appschema.Database, error) {
	t.Helper()
	d, err := appschema.Open(t.Context(), &appschema.Options{Dir: dir, Settings: settings})
	if err == nil {
		t.Cleanup(func() {
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	return d, err
}

// One directory with what the migration tools in use write, and statements that are hard to take apart.
func TestMigrationsOfEveryToolAreApplied(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"m/2_goose.sql": `-- A comment; with 'a quote.
-- +goose Up
CREATE TABLE public.jobs (id bigint PRIMARY KEY, note text DEFAULT 'semi;colon');
-- +goose StatementBegin
CREATE FUNCTION public.f() RETURNS int LANGUAGE plpgsql AS $body$ BEGIN RETURN 1; END $body$;
-- +goose StatementEnd
SELECT fencing.protect('public.jobs', mode => 'reentrant');
-- +goose Down
DROP TABLE public.jobs; THIS IS NOT RUN;
`,
		"m/10_goose.sql": `-- +goose NO TRANSACTION
-- +goose Up
CREATE INDEX CONCURRENTLY ON public.jobs (note);
`,
		"m/11_concurrently.up.sql":   "CREATE INDEX CONCURRENTLY \"odd;name\" ON public.jobs (id, note);\n",
		"m/11_concurrently.down.sql": "NOT RUN;",
		"m/12_dbmate.sql":            "-- migrate:up\nCREATE TYPE public.colour AS ENUM ('red');\n-- migrate:down\nNOT RUN;\n",
		"m/13_enum.sql":              "ALTER TYPE public.colour ADD VALUE 'blue'; CREATE TABLE public.things (c public.colour DEFAULT 'blue');",
		"m/14_atomic.sql": `CREATE FUNCTION public.g(a int) RETURNS int LANGUAGE sql
BEGIN ATOMIC
  SELECT CASE WHEN a > 1 THEN 1 ELSE 2 END; /* a /* nested; */ comment */
  SELECT 2;
END;
CREATE TABLE public.after_atomic (e text DEFAULT E'it\'s;', "a;b" int);`,
		"m/15_dump.sql": "\\restrict abc\nSELECT pg_catalog.set_config('search_path', '', false);\nCREATE TABLE public.copied (a int, b text);\n" +
			"COPY public.copied (a, b) FROM stdin;\n1\tone;two\n2\t$$\n\\.\n\nCOPY public.copied FROM stdin;\n\\.\nALTER TABLE public.copied ADD PRIMARY KEY (a);\n",
		"m/16_search_path.sql": "CREATE TABLE in_public (id int)", // the file before has emptied the search_path for itself alone
		"m/17_backfill.go":     "package m",
		"m/README.md":          "no migration",
		"later.sql":            "BEGIN; CREATE TABLE public.own_transaction (id int); COMMIT; CREATE EXTENSION IF NOT EXISTS citext; GRANT SELECT ON public.jobs TO app;",
	})
	d, err := open(t, dir, appschema.Settings{Migrations: []string{"m", "*.sql"}, Roles: []string{"app"}, Extensions: []string{"hstore"}})
	if err != nil {
		t.Fatal(err)
	}
	var applied []string
	for _, file := range d.Files {
		name, _ := filepath.Rel(dir, file)
		applied = append(applied, filepath.ToSlash(name))
	}
	want := []string{
		"m/2_goose.sql", "m/10_goose.sql", "m/11_concurrently.up.sql", "m/12_dbmate.sql", "m/13_enum.sql", "m/14_atomic.sql",
		"m/15_dump.sql", "m/16_search_path.sql", "later.sql",
	}
	if diff := cmp.Diff(want, applied); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	if len(d.Skipped) != 1 || filepath.Base(d.Skipped[0]) != "17_backfill.go" {
		t.Errorf("skipped: %q", d.Skipped)
	}
	for query, want := range map[string]string{
		"SELECT string_agg(table_name, ' ' ORDER BY table_name) FROM information_schema.tables WHERE table_schema = 'public'": "after_atomic copied in_public jobs own_transaction things",
		"SELECT mode FROM fencing.protection":                                                                      "reentrant",
		"SELECT count(*)::text FROM pg_indexes WHERE tablename = 'jobs'":                                           "3",
		"SELECT string_agg(b, '|' ORDER BY a) FROM public.copied":                                                  "one;two|$$",
		"SELECT string_agg(extname, ' ' ORDER BY extname) FROM pg_extension WHERE extname IN ('citext', 'hstore')": "citext hstore",
	} {
		if got := pgtest.Value[string](t, d.Pool, query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

func TestMigrationsThatBringTheFencingSchemaInstallItThemselves(t *testing.T) {
	t.Parallel()
	// What fencectl install --emit writes, in short: enough of it to be recognised. Were the schema installed first, this would fail.
	dir := write(t, map[string]string{"1.sql": `CREATE SCHEMA fencing; CREATE FUNCTION fencing.present(token bigint) RETURNS bigint LANGUAGE sql AS 'SELECT $1';`})
	if _, err := open(t, dir, appschema.Settings{Migrations: []string{"1.sql"}}); err != nil {
		t.Error(err)
	}
}

// Every fault is reported with its file and line, and the server's own words.
func TestAFaultIsReportedWhereItIs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content string
		line    int
		want    []string
	}{
		"an unknown table":    {"CREATE TABLE a (i int);\n\nALTER TABLE a\n  ADD COLUMN ä int,\n  ADD FOREIGN KEY (i) REFERENCES b;\n", 3, []string{`relation "b" does not exist`, "42P01"}},
		"a syntax error":      {"-- +goose Up\nCREATE TABLE a (\n  ü int,\n  b intt,\n);\n", 5, []string{"syntax error", `")"`}},
		"an unprotectable":    {"\n\nSELECT fencing.protect('pg_catalog.pg_class');\n", 3, []string{"SQLSTATE"}},
		"a role":              {"CREATE TABLE a (i int);\nGRANT SELECT ON a TO somebody;\n", 2, []string{`role "somebody" does not exist`, "schema: {roles: [somebody]}"}},
		"an extension":        {"CREATE EXTENSION no_such_extension;\n", 1, []string{"no_such_extension", "FENCECTL_PG_BIN"}},
		"a type":              {"CREATE TABLE a (i int,\n g geometry);\n", 2, []string{`type "geometry" does not exist`, "schema: {extensions:"}},
		"a late constraint":   {"CREATE TABLE a (i int PRIMARY KEY, j int REFERENCES a DEFERRABLE INITIALLY DEFERRED);\nINSERT INTO a VALUES (1, 2);\n", 2, []string{"violates foreign key", "(2)"}},
		"an endless string":   {"SELECT 1;\nSELECT 'abc;\n", 2, []string{"does not end"}},
		"an endless body":     {"\nDO $x$ BEGIN END;\n", 2, []string{"$x$", "does not end"}},
		"an endless comment":  {"/* /* */\n", 1, []string{"comment does not end"}},
		"a command of psql's": {"SELECT 1;\n\\i other.sql\n", 2, []string{`\i`, "schema.migrations"}},
		"bad data":            {"CREATE TABLE a (i int);\nCOPY a FROM stdin;\nx\n\\.\n", 2, []string{"invalid input syntax"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := write(t, map[string]string{"0_fine.sql": "SELECT 1;", "1_wrong.sql": test.content, "2_later.sql": "SELECT 1/0;"})
			_, err := open(t, dir, appschema.Settings{Migrations: []string{"."}})
			var wrong *appschema.Error
			if !errors.As(err, &wrong) {
				t.Fatalf("%v is no *appschema.Error", err)
			}
			if filepath.Base(wrong.File) != "1_wrong.sql" || wrong.Line != test.line {
				t.Errorf("%v, want 1_wrong.sql:%d", err, test.line)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v: want %q in it", err, want)
				}
			}
		})
	}
}

func TestPathsThatLeadNowhereAreErrors(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"empty/readme.txt": "", "m/1.sql": ""})
	for path, want := range map[string]string{
		"nowhere": "nowhere does not exist", "empty": "no SQL files", "m/*.psql": "no SQL files", "[": "pattern",
	} {
		if _, err := open(t, dir, appschema.Settings{Migrations: []string{path}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", path, err, want)
		}
	}
	if _, err := open(t, dir, appschema.Settings{}); !errors.Is(err, appschema.ErrNone) {
		t.Errorf("no path: %v", err)
	}
}

func TestADatabaseThatIsGivenIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id int)")
	d, err := appschema.Open(t.Context(), &appschema.Options{DSN: pgtest.DSN(t, pool), Settings: appschema.Settings{Migrations: []string{"not looked at"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	if !pgtest.Value[bool](t, d.Pool, "SELECT to_regclass('public.jobs') IS NOT NULL") || len(d.Files) > 0 {
		t.Errorf("%+v is another database", d)
	}

	fromEnvironment, err := appschema.Open(t.Context(), &appschema.Options{Getenv: func(name string) string {
		return map[string]string{"DATABASE_URL": pgtest.DSN(t, pool)}[name]
	}})
	if err != nil {
		t.Fatal(err)
	}
	_ = fromEnvironment.Close(t.Context())

	var wrong *connect.Error
	_, err = appschema.Open(t.Context(), &appschema.Options{DSN: pgtest.DSN(t, pgtest.NewEmpty(t))})
	if !errors.As(err, &wrong) || wrong.Kind != connect.NotInstalled {
		t.Errorf("a database without the fencing schema: %v", err)
	}
}

// The statement that waits is one that no server would ever finish, so only the end of the context can be what ended it.
func TestAnInterruptionEndsItAndLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"1.sql": "SELECT pg_sleep(1e6);"})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	reached := false
	_, err := appschema.Open(ctx, &appschema.Options{
		Dir: dir, Settings: appschema.Settings{Migrations: []string{"1.sql"}},
		Progress: func(what string) {
			if strings.HasPrefix(what, "applying") {
				reached = true
				cancel(stop)
			}
		},
	})
	if !errors.Is(err, stop) || !reached {
		t.Errorf("%v, want the cause of the context's end", err)
	}
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for range b.N {
		if err := os.WriteFile(filepath.Join(dir, "1.sql"), []byte("CREATE TABLE a (i int);"), 0o644); err != nil {
			b.Fatal(err)
		}
		d, err := appschema.Open(b.Context(), &appschema.Options{Dir: dir, Settings: appschema.Settings{Migrations: []string{"."}}})
		if err != nil {
			b.Fatal(err)
		}
		if err := d.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
