package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// nowhere is a database that cannot be reached, with a password that must not be told.
const nowhere = "postgres://app:hunter2@127.0.0.1:1/gone"

func settingsFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fencectl.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// databaseName is the name that a test's database has.
func databaseName(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, "SELECT current_database()")
}

func TestAuditPrintsEachFormatAndExitsTheSame(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "*.*")
	pgtest.Exec(t, pool, "ALTER TABLE public.jobs DISABLE TRIGGER zzz_fencing_update")
	for format, begins := range map[string]string{
		"table": "ERROR\n\nguard-disabled: ", "json": "{\n  \"version\": 1,", "sarif": "{\n  \"$schema\": ",
		"github": "::notice title=fencectl audit::5 tables, 5 fenced; 1 error\n::error title=guard-disabled%3A public.jobs::", "html": "<!DOCTYPE html>\n",
	} {
		o := fencectl.run("audit", "--format", format)
		if o.status != 1 || o.stderr != "" || !strings.HasPrefix(o.stdout, begins) || !strings.Contains(o.stdout, "fencectl protect public.jobs") {
			t.Errorf("%s: exit status %d, stderr %q, stdout:\n%s", format, o.status, o.stderr, o.stdout)
		}
		file := filepath.Join(t.TempDir(), "report")
		written := fencectl.run("audit", "--format", format, "--output", file, "--fail-on", "never")
		if want := "5 tables, 5 fenced; 1 error (" + file + ")\n"; written.status != 0 || written.stdout != want || written.stderr != "" {
			t.Errorf("%s: exit status %d, printed %q, want %q; stderr %q", format, written.status, written.stdout, want, written.stderr)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(content), begins) {
			t.Errorf("%s: wrote\n%s", format, content)
		}
	}
	fencectl.fails(2, []string{"no such file or directory"}, "audit", "--output", filepath.Join(t.TempDir(), "none", "report"))
	fencectl.fails(2, []string{"--format", "use table or json or sarif or github or html"}, "audit", "--format", "xml")
	if o := fencectl.run("audit", "--format", "json", "--output", filepath.Join(t.TempDir(), "report")); o.status != 1 {
		t.Errorf("with --output: exit status %d", o.status)
	}
}

// One that cannot be audited is named, with why, and the others are reported all the same.
func TestAuditOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	clean, fencectl := shop(t)
	fencectl.ok("protect", "*.*")
	bare := pgtest.NewEmpty(t)
	pgtest.Exec(t, bare, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	cleanName, bareName := databaseName(t, clean), databaseName(t, bare)
	three := []string{"--dsn", pgtest.DSN(t, clean), "--dsn", nowhere, "--dsn", pgtest.DSN(t, bare)}

	o := fencectl.run(append([]string{"audit"}, three...)...)
	_, address := connect.Target(&connect.Options{DSN: pgtest.DSN(t, clean)})
	at := " on " + address
	want := fmt.Sprintf(`DATABASE %s%s

nothing found: 5 tables, 5 fenced

DATABASE gone on 127.0.0.1:1

could not be audited: nothing is listening at 127.0.0.1:1 (connection refused);
check the host and the port in --dsn number 2, and that PostgreSQL is running
there

DATABASE %s%s

WARNING

unfenced-table: A lock holder that was paused past its time limit can still
write here, over what its successor has written.
https://github.com/fencectl/fencectl/blob/main/docs/rules/unfenced-table.md

  public.jobs has no fence; no write was seen since its statistics began
    fencectl install && fencectl protect public.jobs

1 table, 0 fenced; 1 warning

3 databases: 6 tables, 5 fenced; 1 warning; 1 could not be audited
`, cleanName, at, bareName, at)
	if diff := cmp.Diff(want, checked(o.stdout)); diff != "" {
		t.Error(diff)
	}
	if o.status != 2 || strings.Count(o.stderr, "\n") != 1 || !strings.HasPrefix(o.stderr, "fencectl: gone on 127.0.0.1:1: nothing is listening") {
		t.Errorf("exit status %d, stderr %q", o.status, o.stderr)
	}

	file := filepath.Join(t.TempDir(), "databases")
	lines := "# the shop's\n" + pgtest.DSN(t, clean) + "\n\n  " + pgtest.DSN(t, bare) + "\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	var document struct {
		Version   int
		Databases []struct {
			Database, Address, Error string
			Report                   *audit.Report
		}
		Summary struct{ Databases, Failed, Tables, Fenced, Exempt, Findings int }
	}
	fencectl.decode(&document, "audit", "--dsn-file", file, "--fail-on", "error")
	if len(document.Databases) != 2 || document.Databases[0].Database != cleanName || document.Databases[1].Database != bareName ||
		document.Databases[1].Report.Summary.Findings != 1 || document.Summary.Databases != 2 || document.Summary.Tables != 6 || document.Summary.Failed != 0 {
		t.Errorf("%+v", document)
	}
	if o := fencectl.run("audit", "--dsn-file", file, "--fail-on", "warning"); o.status != 1 || o.stderr != "" {
		t.Errorf("exit status %d, stderr %q", o.status, o.stderr)
	}
	// One more, to those of the file.
	if o := fencectl.run("audit", "--dsn-file", file, "--dsn", nowhere); o.status != 2 || !strings.HasSuffix(checked(o.stdout), "3 databases: 6 tables, 5 fenced; 1 warning; 1 could not be audited\n") {
		t.Errorf("exit status %d:\n%s", o.status, o.stdout)
	}
	for _, format := range []string{"table", "json", "sarif", "github", "html"} {
		o := fencectl.run(append([]string{"audit", "--format", format}, three...)...)
		for _, want := range []string{cleanName, bareName, "gone", "nothing is listening at 127.0.0.1:1"} {
			if !strings.Contains(o.stdout, want) {
				t.Errorf("%s does not name %q:\n%s", format, want, o.stdout)
			}
		}
		if o.status != 2 || strings.Contains(o.stdout+o.stderr, "hunter2") {
			t.Errorf("%s: exit status %d, or the password is told:\n%s%s", format, o.status, o.stdout, o.stderr)
		}
	}
}

func TestAuditReadsConnectionStringsFromAFileOrTheStandardInput(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "*.*")
	dir := t.TempDir()
	write := func(text string) string {
		t.Helper()
		file := filepath.Join(dir, "databases")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	fencectl.fails(2, []string{"has no connection string"}, "audit", "--dsn-file", write("# none\n\n"))
	fencectl.fails(2, []string{"no such file"}, "audit", "--dsn-file", filepath.Join(dir, "none"))
	fencectl.fails(2, []string{"--dsn number 2 is empty"}, "audit", "--dsn", pgtest.DSN(t, pool), "--dsn", "")
	file := write("# one\njust-a-word-with-hunter2\n")
	line := fencectl.fails(2, []string{"fencectl: " + file + ":2: the connection string of " + file + ":2 cannot be read"}, "audit", "--dsn-file", file)
	if strings.Contains(line, "hunter2") {
		t.Errorf("the connection string is told: %s", line)
	}

	var stdout, stderr strings.Builder
	status := run(t.Context(), []string{"audit", "--dsn-file", "-"}, strings.NewReader(pgtest.DSN(t, pool)), &stdout, &stderr, func(string) string { return "" })
	if status != 0 || !strings.Contains(stdout.String(), "1 database: nothing found: 5 tables, 5 fenced\n") {
		t.Errorf("exit status %d: %s%s", status, stdout.String(), stderr.String())
	}
	// The global flag may stand before the command, too.
	fencectl.env = nil
	if out := checked(fencectl.ok("--dsn", pgtest.DSN(t, pool), "audit")); out != "nothing found: 5 tables, 5 fenced\n" {
		t.Errorf("printed %q", out)
	}
}

// A table that must be fenced may be in any of the databases, but must be in one.
func TestAuditLooksForRequiredTablesInAllDatabases(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	other := pgtest.NewEmpty(t)
	pgtest.Exec(t, other, "CREATE TABLE public.invoices (id bigint PRIMARY KEY)")
	both := []string{"audit", "--format", "json", "--dsn", pgtest.DSN(t, pool), "--dsn", pgtest.DSN(t, other)}

	o := fencectl.run(append(both, "--config", settingsFile(t, "audit: {required: [jobs, invoices]}"))...)
	if o.status != 1 || strings.Count(o.stdout, `"severity": "error"`) != 2 || o.stderr != "" {
		t.Errorf("exit status %d, stderr %q:\n%s", o.status, o.stderr, o.stdout)
	}
	file := settingsFile(t, "audit: {required: [jobs, payments]}")
	o = fencectl.run(append(both, "--config", file)...)
	if o.status != 2 || o.stderr != "fencectl: "+file+": payments: no table matches it, although it is required to be fenced\n" || !json.Valid([]byte(o.stdout)) {
		t.Errorf("exit status %d, stderr %q:\n%s", o.status, o.stderr, o.stdout)
	}
	// Where one database is not known, neither is whether the table is there.
	o = fencectl.run(append(both, "--config", file, "--dsn", nowhere)...)
	if o.status != 2 || strings.Contains(o.stderr, "payments") || !strings.Contains(o.stderr, "gone on 127.0.0.1:1") {
		t.Errorf("exit status %d, stderr %q", o.status, o.stderr)
	}
}

func TestAuditFollowsTheEnvironmentOfTheProjectsFile(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	fencectl.ok("protect", "public.orders", "--observe")
	file := settingsFile(t, `
audit:
  exempt: [{table: 'billing.*', reason: none of ours}, {table: '"Order Items"', reason: append-only}]
  severities: {observing: info}
environments:
  production:
    audit:
      required: [jobs]
      severities: {observing: error}
  staging:
    audit: {severities: {observing: off, unfenced-table: off}}
`)
	for environment, want := range map[string]string{
		"":           "5 tables, 1 fenced, 3 exempt; 1 warning, 1 note\n",
		"production": "5 tables, 1 fenced, 3 exempt; 2 errors\n",
		"staging":    "nothing found: 5 tables, 1 fenced, 3 exempt\n",
	} {
		args := []string{"audit", "--fail-on", "never", "--config", file}
		if environment != "" {
			args = append(args, "--env", environment)
		}
		if out := checked(fencectl.ok(args...)); !strings.HasSuffix(out, want) {
			t.Errorf("%q: want %q at the end of:\n%s", environment, want, out)
		}
	}
	fencectl.fails(2, []string{file + ": there is no environment prod; there are: production, staging"}, "audit", "--config", file, "--env", "prod")
}

func TestAuditSaysWhichExemptionsHaveEnded(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	fencectl.ok("protect", "*.*")
	fencectl.ok("unprotect", "public.orders")
	file := settingsFile(t, "audit: {exempt: [{table: orders, reason: written by one process, until: 2020-02-29}]}")
	out := checked(fencectl.ok("audit", "--config", file))
	if !strings.Contains(out, "    fencectl protect public.orders\n") ||
		!strings.HasSuffix(out, "5 tables, 4 fenced; 1 warning\n\nthe exemption of orders ended on 2020-02-29 (written by one process): renew or\nremove it\n") {
		t.Errorf("printed:\n%s", out)
	}
	var document audit.Report
	fencectl.decode(&document, "audit", "--config", file)
	if diff := cmp.Diff([]audit.Ended{{Table: "orders", Until: "2020-02-29", Reason: "written by one process"}}, document.Ended); diff != "" {
		t.Error(diff)
	}
	for format, want := range map[string]string{
		"github": "::warning file=fencectl.yaml,title=exemption ended::the exemption of orders ended", "sarif": "the exemption of orders ended", "html": "Exemptions that have ended",
	} {
		if out := fencectl.ok("audit", "--config", file, "--format", format); !strings.Contains(out, want) {
			t.Errorf("%s: want %q in:\n%s", format, want, out)
		}
	}
}
