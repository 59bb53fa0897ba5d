package generate_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/generate"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/internal/project"
)

// settings are the fixture's.
func settings(t testing.TB) generate.Settings {
	t.Helper()
	s, err := project.Read("fixture/fencectl.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return s.Generate
}

// fixtureCopy is a copy of the fixture that a test may change.
func fixtureCopy(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("fixture")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func generated(t *testing.T, dir string, pool *pgxpool.Pool, s generate.Settings, write bool) *generate.Result {
	t.Helper()
	result, err := generate.Run(t.Context(), &generate.Options{Settings: s, Dir: dir, Pool: pool, Write: write})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// changed are the paths of the changes, each with what happens to it.
func changed(t *testing.T, dir string, result *generate.Result) []string {
	t.Helper()
	var paths []string
	for _, c := range result.Changes {
		path, err := filepath.Rel(dir, c.Path)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, c.Kind()+" "+filepath.ToSlash(path))
	}
	return paths
}

// What is committed is what would be generated, from sqlc's Go as it is committed; and once more, in another database.
func TestTheSameInputGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	for range 2 {
		for _, c := range generated(t, "fixture", database(t), settings(t), false).Changes {
			t.Errorf("%s is out of date; run make generate\n%s", c.Path, c.Diff())
		}
	}
}

func TestAnotherColumnChangesOnlyWhatItMust(t *testing.T) {
	t.Parallel()
	pool := database(t)
	pgtest.Exec(t, pool, "ALTER TABLE public.tenant_file ADD COLUMN size_of_it bigint NOT NULL DEFAULT 0")
	result := generated(t, "fixture", pool, settings(t), false)
	if diff := cmp.Diff([]string{"changed queries/fenced_tenant_file.sql"}, changed(t, "fixture", result)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if result.Pending == nil || !strings.Contains(result.Pending.Error(), "run sqlc") {
		t.Errorf("sqlc has not seen the column, and nobody says so: %v", result.Pending)
	}
	for line := range strings.Lines(result.Changes[0].Diff()) {
		if strings.HasPrefix(line, "+") && !strings.HasPrefix(line, "+++") && !strings.Contains(line, "size_of_it") && !strings.Contains(line, "path") {
			t.Errorf("a line that has nothing to do with it: %s", line)
		}
	}
}

func TestWhatIsNoLongerWantedIsRemoved(t *testing.T) {
	t.Parallel()
	dir, pool := fixtureCopy(t), database(t)
	mine := filepath.Join(dir, "queries", "fenced_by_hand.sql")
	if err := os.WriteFile(mine, []byte("-- name: Mine :exec\nSELECT 1;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := settings(t)
	s.Tables = slices.DeleteFunc(s.Tables, func(table generate.Table) bool { return table.Pattern == "*.*" || table.Pattern == "settings" })
	before := changed(t, dir, generated(t, dir, pool, s, false))
	result := generated(t, dir, pool, s, true)
	if diff := cmp.Diff(before, changed(t, dir, result)); diff != "" {
		t.Errorf("a dry run says something else (-dry +wet):\n%s", diff)
	}
	for _, want := range []string{
		"removed queries/fenced_settings.sql", "removed pgxdb/fenced_settings.go", "removed pgxdb/fenced_settings.sql.go",
		"removed pgxoptions/fenced_odd_windows_table.sql_made.go", "removed sqldb/fenced_readings.go",
	} {
		if !slices.Contains(before, want) {
			t.Errorf("not among the changes: %s", want)
		}
	}
	for _, kept := range []string{mine, filepath.Join(dir, "queries/fenced_jobs.sql"), filepath.Join(dir, "pgxdb/fenced_jobs.sql.go"), filepath.Join(dir, "pgxdb/models.go")} {
		if _, err := os.Stat(kept); err != nil {
			t.Error(err)
		}
	}
	if again := generated(t, dir, pool, s, true); len(again.Changes) > 0 {
		t.Errorf("once more, and it changes %q", changed(t, dir, again))
	}
}

func TestAFileThatIsNotOursIsNotOverwritten(t *testing.T) {
	t.Parallel()
	dir, pool := fixtureCopy(t), database(t)
	path := filepath.Join(dir, "queries", "fenced_jobs.sql")
	if err := os.WriteFile(path, []byte("-- by hand\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := generate.Run(t.Context(), &generate.Options{Settings: settings(t), Dir: dir, Pool: pool, Write: true})
	if err == nil || !strings.Contains(err.Error(), "was not written by fencectl generate") {
		t.Errorf("%v", err)
	}
	if content, _ := os.ReadFile(path); string(content) != "-- by hand\n" {
		t.Errorf("it was overwritten: %s", content)
	}
}

// Every setting that does not fit the database is an error that names the setting, what is wrong and what may be meant.
func TestSettingsThatDoNotFitAreErrors(t *testing.T) {
	t.Parallel()
	pool := database(t)
	table := func(pattern string, change func(*generate.Table)) generate.Settings {
		table := generate.Table{Pattern: pattern}
		if change != nil {
			change(&table)
		}
		return generate.Settings{Tables: []generate.Table{table}}
	}
	update := func(set, where string) func(*generate.Table) {
		return func(t *generate.Table) {
			t.Updates = []generate.Update{{Name: "Do", Set: []generate.Assignment{{Column: set}}, Where: where}}
		}
	}
	for name, test := range map[string]struct {
		settings generate.Settings
		want     []string
	}{
		"a misspelled table":    {table("job", nil), []string{"no protected table is called job", "did you mean jobs?"}},
		"an unknown table":      {table("somewhere.else", nil), []string{"fencectl protect somewhere.else"}},
		"a misspelled column":   {table("jobs", update("statsu", "")), []string{"jobs.updates.Do.set", "no column statsu", "did you mean status?"}},
		"the token":             {table("jobs", update("last_fencing_token", "")), []string{"set by every statement"}},
		"a generated column":    {table("jobs", update("shouted", "")), []string{"generated column"}},
		"a column of the key":   {table("jobs", update("id", "")), []string{"part of the key"}},
		"a column of the fence": {table("tenant_file", update("tenant", "")), []string{"tenant/{tenant}/in/{region}!", "both grants"}},
		"an update without key": {table("odd.no_key", update("n", "")), []string{"no key"}},
		"a method that is there": {table("jobs", func(t *generate.Table) {
			t.Updates = []generate.Update{{Name: "Delete", Set: []generate.Assignment{{Column: "note"}}}}
		}), []string{"Delete", "call it otherwise"}},
		"an update twice": {table("jobs", func(t *generate.Table) {
			u := generate.Update{Name: "Do", Set: []generate.Assignment{{Column: "note"}}}
			t.Updates = []generate.Update{u, u}
		}), []string{"is there twice"}},
		"an insert without fence":  {table("tenant_file", func(t *generate.Table) { t.Insert = []string{"path"} }), []string{"an insert needs it"}},
		"a name for two tables":    {table("odd.*", func(t *generate.Table) { t.Name = "Odd" }), []string{"means 5 tables"}},
		"a name that is taken":     {generate.Settings{Tables: []generate.Table{{Pattern: "jobs"}, {Pattern: "account", Name: "Jobs"}}}, []string{"same name in Go", "FencedJobs"}},
		"sqlc's file is not there": {generate.Settings{SQLC: "nowhere.yaml"}, []string{"nowhere.yaml"}},
		"sqlc reads elsewhere":     {generate.Settings{Queries: "elsewhere"}, []string{"does not read the queries in", "elsewhere"}},
	} {
		_, err := generate.Run(t.Context(), &generate.Options{Settings: test.settings, Dir: "fixture", Pool: pool})
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v: want %q in it", name, err, want)
			}
		}
	}
}

// What fencing.protect has added is no business of sqlc's, unless it is told.
func TestSQLCHasToKnowTheColumn(t *testing.T) {
	t.Parallel()
	dir, pool := fixtureCopy(t), pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.plain (id int PRIMARY KEY); SELECT fencing.protect('public.plain')")
	config := filepath.Join(dir, "sqlc.yaml")
	if err := os.WriteFile(config, []byte(`{version: "2", sql: [{engine: postgresql, schema: elsewhere.sql, queries: queries, gen: {go: {package: x, out: x}}}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := generate.Run(t.Context(), &generate.Options{Dir: dir, Pool: pool, Write: true})
	var wrong *generate.SettingError
	if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "schema: [elsewhere.sql, fenced_schema.sql]") {
		t.Errorf("%v", err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "fenced_schema.sql")); err != nil || !strings.Contains(string(content), "ALTER TABLE public.plain ADD COLUMN") {
		t.Errorf("%s, %v", content, err)
	}
}

// Go in which somebody has declared what is to be declared is left alone.
func TestANameThatIsDeclaredAlreadyIsAnError(t *testing.T) {
	t.Parallel()
	dir, pool := fixtureCopy(t), database(t)
	if err := os.WriteFile(filepath.Join(dir, "pgxdb", "mine.go"), []byte("package pgxdb\n\ntype FencedJobs int\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := generate.Run(t.Context(), &generate.Options{Settings: settings(t), Dir: dir, Pool: pool})
	if err == nil || !strings.Contains(err.Error(), "FencedJobs is declared in") || !strings.Contains(err.Error(), "mine.go") {
		t.Errorf("%v", err)
	}
}

// Reading hundreds of tables and writing their queries takes a fraction of a second: 300 here.
func BenchmarkHundredsOfTables(b *testing.B) {
	pool := pgtest.New(b)
	var schema strings.Builder
	for i := range 300 {
		fmt.Fprintf(&schema, "CREATE TABLE public.t%d (id bigint PRIMARY KEY, a text, b int NOT NULL, c jsonb, d timestamptz DEFAULT now());\nSELECT fencing.protect('public.t%d');\n", i, i)
	}
	pgtest.Exec(b, pool, schema.String())
	dir := b.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "queries"), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sqlc.yaml"), []byte(`{version: "2", sql: [{engine: postgresql, schema: fenced_schema.sql, queries: queries, gen: {go: {package: x, out: x}}}]}`), 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := generate.Run(b.Context(), &generate.Options{Dir: dir, Pool: pool, Write: true}); err != nil {
			b.Fatal(err)
		}
	}
}
