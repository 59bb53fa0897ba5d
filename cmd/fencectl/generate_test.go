package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// aProject is a directory with migrations and sqlc's configuration. In the place of sqlc there is a script that says what it was asked.
func aProject(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range map[string]string{
		"migrations/1.sql": "CREATE TABLE jobs (id bigint PRIMARY KEY, note text, last_fencing_token bigint NOT NULL DEFAULT 0);\nSELECT fencing.protect('jobs');\n",
		"sqlc.yaml":        "version: '2'\nsql: [{engine: postgresql, schema: migrations, queries: queries, gen: {go: {package: db, out: db}}}]\n",
		"queries/own.sql":  "-- name: One :one\nSELECT 1;\n",
		"fencectl.yaml":    "schema: {migrations: [migrations]}\ngenerate: {command: [sh, -c, 'echo $0 in $(basename $(pwd)) >&2; exit 3']}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestGenerateWritesQueriesAndSaysWhatIsNext(t *testing.T) {
	t.Parallel()
	dir := aProject(t)
	config := filepath.Join(dir, "fencectl.yaml")
	c := newCLI(t, "") // neither a database nor a variable: the migrations it is

	o := c.run("generate", "--config", config, "--sqlc=false", "--dry-run")
	if o.status != 0 || !strings.Contains(o.stdout, "+++ b/") || !strings.Contains(o.stdout, "+-- name: FencedJobsUpdate :execrows") {
		t.Errorf("dry run: %+v", o)
	}
	if _, err := os.Stat(filepath.Join(dir, "queries", "fenced_jobs.sql")); err == nil {
		t.Error("a dry run has written")
	}
	o = c.run("generate", "--config", config, "--sqlc=false", "--check")
	if o.status != 1 || !strings.Contains(o.stdout, "+++ b/") || !strings.Contains(o.stderr, "1 file is not as generated; run fencectl generate") {
		t.Errorf("check: %+v", o)
	}
	o = c.run("generate", "--config", config, "--sqlc=false")
	if o.status != 0 || !strings.HasSuffix(o.stdout, "queries/fenced_jobs.sql\n") || !strings.HasPrefix(o.stdout, "written ") || !strings.Contains(o.stderr, "run sqlc, then fencectl generate again") {
		t.Errorf("write: %+v", o)
	}

	// sqlc has not been run: that is what a check finds next.
	c.fails(2, []string{"db", "run sqlc"}, "generate", "--config", config, "--check")

	// The command of the file is run, and its failure is shown.
	o = c.run("generate", "--config", config)
	if o.status != 2 || !strings.Contains(o.stderr, "sh in "+filepath.Base(dir)) || !strings.Contains(o.stderr, "exit status 3; what it says is above") {
		t.Errorf("sqlc fails: %+v", o)
	}
}

func TestGenerateReadsTheDatabaseThatIsGiven(t *testing.T) {
	t.Parallel()
	dir := aProject(t)
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.other (id int PRIMARY KEY, v text); SELECT fencing.protect('public.other', fence => 'other')")
	o := newCLI(t, "").run("generate", "--config", filepath.Join(dir, "fencectl.yaml"), "--sqlc=false", "--dsn", pgtest.DSN(t, pool))
	if o.status != 0 || !strings.HasSuffix(o.stdout, "queries/fenced_other.sql\n") {
		t.Errorf("%+v", o)
	}
}

func TestGenerateRefusesWithTheNextStep(t *testing.T) {
	t.Parallel()
	dir := aProject(t)
	config := filepath.Join(dir, "fencectl.yaml")
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newCLI(t, "")
	c.fails(2, []string{"--check and --dry-run", "fencectl generate --help"}, "generate", "--check", "--dry-run")
	c.fails(2, []string{"no arguments", "fencectl.yaml"}, "generate", "jobs")
	c.fails(2, []string{"--chek", "did you mean --check?"}, "generate", "--chek")
	c.fails(2, []string{"nowhere.yaml"}, "generate", "--config", filepath.Join(dir, "nowhere.yaml"))

	put("migrations/2.sql", "SELECT 1;\n\nALTER TABLE nowhere ADD COLUMN x int;\n")
	c.fails(2, []string{"2.sql:3: relation \"nowhere\" does not exist"}, "generate", "--config", config, "--sqlc=false")
	put("migrations/2.sql", "")

	put("fencectl.yaml", "schema: {migrations: [migrations]}\ngenerate: {tables: {job: }}\n")
	c.fails(2, []string{"fencectl.yaml", "did you mean jobs?"}, "generate", "--config", config, "--sqlc=false")
	put("fencectl.yaml", "generate: {tabels: }\n")
	c.fails(2, []string{"fencectl.yaml:1", "did you mean tables?"}, "generate", "--config", config)

	put("fencectl.yaml", "schema: {migrations: [migrations]}\n")
	put("sqlc.yaml", "version: '2'\nsql: [{engine: mysql}]\n")
	c.fails(2, []string{"no queries for the engine postgresql"}, "generate", "--config", config)
	if err := os.Remove(filepath.Join(dir, "sqlc.yaml")); err != nil {
		t.Fatal(err)
	}
	c.fails(2, []string{"there is no sqlc.yaml", "generate: {sqlc: PATH}"}, "generate", "--config", config)
	put("fencectl.yaml", "")
	c.fails(2, []string{"--dsn", "schema: {migrations: [migrations]}"}, "generate", "--config", config)

	ctx, stop := context.WithCancelCause(t.Context())
	stop(interrupted{os.Interrupt})
	c.ctx = ctx
	put("fencectl.yaml", "schema: {migrations: [migrations]}\n")
	if o := c.run("generate", "--config", config); o.status != 130 {
		t.Errorf("interrupted: %+v", o)
	}
}

func TestGenerateFindsTheMigrationsThatSQLCReads(t *testing.T) {
	t.Parallel()
	dir := aProject(t)
	config := filepath.Join(dir, "fencectl.yaml")
	if err := os.WriteFile(config, []byte("generate: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o := newCLI(t, "").run("generate", "--config", config, "--sqlc=false"); o.status != 0 || !strings.HasSuffix(o.stdout, "queries/fenced_jobs.sql\n") {
		t.Errorf("%+v", o)
	}
}
