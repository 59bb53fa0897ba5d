package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"

	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/pgtest"
)

const (
	lintTables = `-- +goose Up
CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text);
CREATE TABLE public.runs (id bigint PRIMARY KEY);
SELECT fencing.protect('public.jobs');
-- +goose Down
DROP TABLE public.jobs;
`
	lintQueries = `-- name: Mark :exec
UPDATE jobs SET state = 'ä' WHERE id = $1;

-- name: Remove :execrows
DELETE FROM jobs WHERE id = $1 AND last_fencing_token < fencing.present($2);
`
)

// repository is a project with a migration and queries, and fencectl without a database.
func repository(t *testing.T, settings string) (dir string, fencectl *cli) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"db/migrations/1_tables.sql": lintTables, "db/queries/jobs.sql": lintQueries, "fencectl.yaml": settings,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, &cli{t: t, ctx: t.Context(), env: map[string]string{"FENCECTL_DSN": nowhere}}
}

const lintSettings = "schema: {migrations: [db/migrations]}\nlint: {paths: [db]}\n"

func TestLintSaysWhereAndWhatToDo(t *testing.T) {
	t.Parallel()
	dir, fencectl := repository(t, lintSettings)
	// DATABASE_URL and its like alone change nothing: no server is asked.
	o := fencectl.run("lint", "--config", filepath.Join(dir, "fencectl.yaml"), dir)
	here := filepath.ToSlash(dir)
	want := here + `/db/queries/jobs.sql:2:8: error: unfenced-write
    UPDATE jobs SET state = 'ä' WHERE id = $1;
           ^
    UPDATE of public.jobs presents no token.
    Fix: Run it in a transaction of fenced.Run, or present the token in the
    statement: SET last_fencing_token = fencing.present(sqlc.arg(token)). Where
    it does run in one, lint the Go source as well (fencectl lint ./...), which
    shows it, or say so: -- fencectl:presented REASON, or lint.presented in
    fencectl.yaml.

unfenced-write: A write that presents no token is refused by the guard, or gets
through where the guard only observes: then a holder that has lost its lock
writes over its successor.
https://github.com/fencectl/fencectl/blob/main/docs/lint/unfenced-write.md

1 error: 6 statements in 2 files, 1 protected table
`
	if diff := cmp.Diff(want, o.stdout); diff != "" || o.status != 1 || o.stderr != "" {
		t.Errorf("exit status %d, stderr %q (-want +got):\n%s", o.status, o.stderr, diff)
	}
	if o := fencectl.run("lint", "--config", filepath.Join(dir, "fencectl.yaml"), "--fail-on", "never", dir); o.status != 0 {
		t.Errorf("exit status %d", o.status)
	}
}

func TestLintWithoutArgumentsLintsThePathsOfTheProject(t *testing.T) {
	t.Parallel()
	dir, fencectl := repository(t, lintSettings)
	var document lint.Report
	fencectl.decode(&document, "lint", "--config", filepath.Join(dir, "fencectl.yaml"), "--fail-on", "never")
	if len(document.Findings) != 1 || document.Version != 1 || document.Schema != "1 migration file" {
		t.Errorf("%+v", document)
	}
	f := document.Findings[0]
	f.Why, f.Fix, f.Docs = "", "", ""
	if !strings.HasSuffix(f.File, "/db/queries/jobs.sql") || !strings.HasPrefix(f.Key, "unfenced-write:"+f.File+":") {
		t.Errorf("%+v", f)
	}
	f.File, f.Key = "", ""
	if diff := cmp.Diff(lint.Finding{Rule: "unfenced-write", Severity: "error", Line: 2, Column: 8, Object: "public.jobs", Message: "UPDATE of public.jobs presents no token"}, f); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(lint.Summary{Files: 2, Statements: 6, Tables: 1, Findings: 1}, document.Summary); diff != "" {
		t.Error(diff)
	}
}

func TestLintFollowsWhatTheProjectSettles(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		lintSettings + "  severities: {unfenced-write: off}":                                                        "nothing found: ",
		"schema: {migrations: [db/migrations]}\nlint: {exclude: ['**/queries']}":                                    "nothing found: 4 statements in 1 file, ",
		"schema: {migrations: [db/migrations]}\nlint: {presented: [{paths: [db/queries], reason: the store does}]}": "nothing found: 6 statements in 2 files, 1 protected table; 1 write under a token",
		"schema: {migrations: [db/migrations]}\nlint: {severities: {unfenced-write: info}}":                         "1 note: ",
	} {
		settings = strings.Replace(settings, "lint: {paths: [db]}\n  severities: {unfenced-write: off}", "lint: {paths: [db], severities: {unfenced-write: off}}", 1)
		dir, fencectl := repository(t, settings)
		if out := fencectl.ok("lint", "--config", filepath.Join(dir, "fencectl.yaml"), dir); !strings.Contains(out, want) {
			t.Errorf("%s: want %q in:\n%s", settings, want, out)
		}
	}
}

func TestLintAsksADatabaseOrAThrowawayServer(t *testing.T) {
	t.Parallel()
	dir, fencectl := repository(t, lintSettings)
	config := filepath.Join(dir, "fencectl.yaml")
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text)")
	pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', fence => 'jobs')")
	queries := filepath.Join(dir, "db/queries")

	// There the table has another fence than in the migration.
	for _, args := range [][]string{{"--dsn", pgtest.DSN(t, pool)}, {"--tables", "database"}} {
		fencectl.env["FENCECTL_DSN"] = pgtest.DSN(t, pool)
		var document lint.Report
		fencectl.decode(&document, append([]string{"lint", queries, "--config", config, "--fail-on", "never"}, args...)...)
		if len(document.Findings) != 2 || !strings.Contains(document.Findings[1].Message, "too late") || !strings.HasPrefix(document.Schema, "database ") {
			t.Errorf("%q: %+v", args, document)
		}
	}
	var document lint.Report
	fencectl.decode(&document, "lint", queries, "--config", config, "--fail-on", "never", "--tables", "server")
	if len(document.Findings) != 1 || !strings.HasPrefix(document.Schema, "a throwaway PostgreSQL ") {
		t.Errorf("%+v", document)
	}
	fencectl.env["FENCECTL_DSN"] = nowhere
	fencectl.fails(2, []string{"nothing is listening"}, "lint", queries, "--config", config, "--tables", "database")
	bare := pgtest.NewEmpty(t)
	fencectl.fails(2, []string{"fencectl install"}, "lint", queries, "--config", config, "--dsn", pgtest.DSN(t, bare))
}

func TestLintWritesSARIFThatIsValid(t *testing.T) {
	t.Parallel()
	dir, fencectl := repository(t, lintSettings)
	parsed, err := sarif.FromString(fencectl.ok("lint", dir, "--config", filepath.Join(dir, "fencectl.yaml"), "--format", "sarif", "--fail-on", "never"))
	if err != nil {
		t.Fatal(err)
	}
	run := parsed.Runs[0]
	// Left out they are empty in this type, where the schema has a default.
	run.Language, run.Tool.Driver.Language, run.NewlineSequences = "en-US", "en-US", []string{"\n"}
	if err := parsed.Validate(); err != nil {
		t.Error(err)
	}
	if len(run.Results) != 1 || len(run.Tool.Driver.Rules) != len(lint.Rules()) {
		t.Fatalf("%d results, %d rules", len(run.Results), len(run.Tool.Driver.Rules))
	}
	result := run.Results[0]
	place := result.Locations[0].PhysicalLocation
	if *result.RuleID != "unfenced-write" || *run.Tool.Driver.Rules[result.RuleIndex].ID != "unfenced-write" || result.Level != "error" ||
		!strings.HasSuffix(*place.ArtifactLocation.URI, "/db/queries/jobs.sql") || *place.Region.StartLine != 2 || *place.Region.StartColumn != 8 ||
		!strings.Contains(*result.Message.Text, "presents no token") || result.PartialFingerprints["fencectlKey/v1"] == "" {
		t.Errorf("%+v at %+v", result, place)
	}
	if *run.ColumnKind != "unicodeCodePoints" || *run.AutomationDetails.ID != "fencectl/lint/" {
		t.Errorf("%+v", run)
	}
}

func TestLintAnnotatesTheFilesOfAWorkflow(t *testing.T) {
	t.Parallel()
	dir, fencectl := repository(t, lintSettings)
	out := fencectl.ok("lint", dir, "--config", filepath.Join(dir, "fencectl.yaml"), "--format", "github", "--fail-on", "never")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 || lines[0] != "::notice title=fencectl lint::1 error: 6 statements in 2 files, 1 protected table" ||
		!strings.HasPrefix(lines[1], "::error file="+filepath.ToSlash(dir)+"/db/queries/jobs.sql,line=2,col=8,title=unfenced-write::UPDATE of public.jobs presents no token%0A") {
		t.Errorf("printed:\n%s", out)
	}
}

func TestLintWritesToAFile(t *testing.T) {
	t.Parallel()
	dir, fencectl := repository(t, lintSettings)
	file := filepath.Join(dir, "lint.json")
	o := fencectl.run("lint", dir, "--config", filepath.Join(dir, "fencectl.yaml"), "--format", "json", "--output", file)
	content, err := os.ReadFile(file)
	if err != nil || !json.Valid(content) || o.status != 1 || o.stdout != "1 error: 6 statements in 2 files, 1 protected table ("+file+")\n" {
		t.Errorf("exit status %d, %v, printed %q:\n%s", o.status, err, o.stdout, content)
	}
}

func TestLintRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	dir, fencectl := repository(t, "")
	config := []string{"--config", filepath.Join(dir, "fencectl.yaml")}
	for _, test := range []struct {
		parts []string
		args  []string
	}{
		{[]string{"name what to lint"}, nil},
		{[]string{"there is no such file or directory"}, []string{filepath.Join(dir, "nothing")}},
		{[]string{"there is no .sql file below", "/..."}, []string{t.TempDir()}},
		{[]string{"no protected table is known", "--schema"}, []string{filepath.Join(dir, "db/queries")}},
		{[]string{"--tables server needs migrations"}, []string{dir, "--tables", "server"}},
		{[]string{"--dsn names a database", "--tables files asks none"}, []string{dir, "--dsn", nowhere, "--tables", "files"}},
		{[]string{"--schema names migrations"}, []string{dir, "--dsn", nowhere, "--schema", dir}},
		{[]string{"--limit must not be negative"}, []string{dir, "--limit", "-1"}},
		{[]string{"--format", "use table or json or sarif or github"}, []string{dir, "--format", "html"}},
		{[]string{"unknown flag", "did you mean --schema?"}, []string{dir, "--shema", "x"}},
		{[]string{"does not exist"}, []string{dir, "--schema", filepath.Join(dir, "none")}},
	} {
		fencectl.fails(2, test.parts, append(append([]string{"lint"}, config...), test.args...)...)
	}
	if help := fencectl.ok("lint", "--help"); !strings.Contains(help, "fencectl:ignore RULE REASON") || !strings.Contains(help, "Exit status:") {
		t.Errorf("the help is:\n%s", help)
	}
	wrong, _ := repository(t, "lint: {severities: {unfenced-writes: off}}")
	fencectl.fails(2, []string{"unknown key unfenced-writes in lint.severities; did you mean unfenced-write?"}, "lint", dir, "--config", filepath.Join(wrong, "fencectl.yaml"))
}

// Their statements present no token, and their transactions do: in the one by fenced.Run, in the other by what started the session.
func TestLintSeesThatTheExamplesAreFenced(t *testing.T) {
	t.Parallel()
	fencectl := &cli{t: t, ctx: t.Context()}
	for _, args := range [][]string{
		{"../../examples/sqletcd/..."},
		{"../../examples/nightly"},
		{"--config", "../../examples/worker/fencectl.yaml", "../../examples/worker/..."},
	} {
		if out := fencectl.ok(append([]string{"lint", "--fail-on", "info"}, args...)...); !strings.HasPrefix(out, "nothing found: ") {
			t.Errorf("%q:\n%s", args, out)
		}
	}
}

func TestLintIsInterrupted(t *testing.T) {
	t.Parallel()
	dir, fencectl := repository(t, lintSettings)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("told to stop"))
	fencectl.ctx = ctx
	if o := fencectl.run("lint", dir, "--config", filepath.Join(dir, "fencectl.yaml")); o.status != 2 || !strings.Contains(o.stderr, "told to stop") || o.stdout != "" {
		t.Errorf("exit status %d, printed %q, %q", o.status, o.stdout, o.stderr)
	}
}
