package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// checked is what an audit printed, but for what it says of statements where the test server does not have pg_stat_statements.
func checked(out string) string {
	return regexp.MustCompile(`\nnot checked: unfenced-statement: (?:.+\n)+`).ReplaceAllString(out, "")
}

func TestAuditOfACleanDatabaseFindsNothing(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	fencectl.ok("protect", "*.*")
	if got, want := checked(fencectl.ok("audit", "--fail-on", "info")), "nothing found: 5 tables, 5 fenced\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	var document map[string]any
	fencectl.decode(&document, "audit")
	if _, ok := document["skipped"].([]any); !ok {
		t.Errorf("skipped is %v", document["skipped"])
	}
	delete(document, "skipped") // not every test server has pg_stat_statements
	want := map[string]any{
		"version": 1.0, "findings": []any{},
		"summary": map[string]any{"tables": 5.0, "fenced": 5.0, "exempt": 0.0, "findings": 0.0},
	}
	if diff := cmp.Diff(want, document); diff != "" {
		t.Error(diff)
	}
}

func TestAuditExitStatusFollowsFailOn(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	status := func(want map[string]int) {
		t.Helper()
		for _, failOn := range []string{"", "error", "warning", "info", "never"} {
			for _, format := range []string{"table", "json"} {
				args := []string{"audit", "--format", format}
				if failOn != "" {
					args = append(args, "--fail-on", failOn)
				}
				if o := fencectl.run(args...); o.status != want[failOn] || o.stderr != "" || o.stdout == "" {
					t.Errorf("%s: exit status %d, want %d; stderr %q", strings.Join(args, " "), o.status, want[failOn], o.stderr)
				}
			}
		}
	}
	status(map[string]int{"warning": 1, "info": 1}) // tables without a fence are warnings
	fencectl.ok("protect", "*.*")
	status(nil)
	pgtest.Exec(t, pool, "ALTER TABLE public.jobs DISABLE TRIGGER zzz_fencing_update")
	status(map[string]int{"": 1, "error": 1, "warning": 1, "info": 1})

	fencectl.fails(2, []string{"--fail-on", "use error or warning or info or never"}, "audit", "--fail-on", "sometimes")
	fencectl.fails(2, []string{"--limit must not be negative"}, "audit", "--limit", "-1")
	fencectl.fails(2, []string{"expected no arguments"}, "audit", "public.jobs")
	fencectl.fails(2, []string{"127.0.0.1:1"}, "audit", "--dsn", "postgres://postgres@127.0.0.1:1/x")
}

// The whole of what a person reads: by severity, then by rule, each rule explained once, in 80 columns.
func TestAuditTable(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "public.orders", "billing.*")
	fencectl.ok("observe", "public.orders")
	pgtest.Exec(t, pool, "ALTER TABLE public.jobs DISABLE TRIGGER zzz_fencing_update")
	pgtest.Exec(t, pool, "CREATE TABLE billing.events_2027 PARTITION OF billing.events FOR VALUES FROM ('2027-01-01') TO ('2028-01-01')")
	o := fencectl.run("audit")
	want := `ERROR

guard-disabled: A trigger that is switched off checks nothing: every write gets
through, with an old token or with none.
https://github.com/fencectl/fencectl/blob/main/docs/rules/guard-disabled.md

  public.jobs its guard zzz_fencing_update is switched off
    fencectl protect public.jobs

WARNING

partition-unguarded: PostgreSQL copies row triggers to new partitions, but not
statement triggers, and takes the copies away from a partition that is detached.
https://github.com/fencectl/fencectl/blob/main/docs/rules/partition-unguarded.md

  billing.events a partition was added and not protected since, so that a
  TRUNCATE of it is not checked: billing.events_2027
    fencectl protect billing.events

unfenced-table: A lock holder that was paused past its time limit can still
write here, over what its successor has written.
https://github.com/fencectl/fencectl/blob/main/docs/rules/unfenced-table.md

  public."Order Items" has no fence; no write was seen since its statistics
  began
    fencectl protect 'public."Order Items"'

observing: A guard that observes records what it would refuse, and lets it
through.
https://github.com/fencectl/fencectl/blob/main/docs/rules/observing.md

  public.orders is only observed; no violation was recorded in the last 24 hours
    fencectl enforce public.orders

5 tables, 4 fenced; 1 error, 3 warnings
`
	if diff := cmp.Diff(want, checked(o.stdout)); diff != "" || o.status != 1 {
		t.Errorf("exit status %d (-want +got):\n%s", o.status, diff)
	}
	for line := range strings.Lines(o.stdout) {
		if w := text.StringWidthWithoutEscSequences(strings.TrimSuffix(line, "\n")); w > 80 {
			t.Errorf("%d columns: %s", w, line)
		}
	}
}

// A database full of tables without a fence is no reason to print thousands of lines, but JSON has all.
func TestAuditTableIsLimited(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "*.*")
	pgtest.Exec(t, pool, "DO $$ BEGIN FOR i IN 1..25 LOOP EXECUTE format('CREATE TABLE public.t%s (id bigint)', i); END LOOP; END $$")
	for _, tt := range []struct {
		args  []string
		shown int
		more  string
	}{
		{nil, 20, "and 5 more"},
		{[]string{"--limit", "3"}, 3, "and 22 more"},
		{[]string{"--limit", "25"}, 25, ""},
		{[]string{"--limit", "0"}, 25, ""},
	} {
		out := fencectl.ok(append([]string{"audit"}, tt.args...)...)
		if got := strings.Count(out, "    fencectl protect public.t"); got != tt.shown {
			t.Errorf("%q: %d findings shown, want %d", tt.args, got, tt.shown)
		}
		if strings.Contains(out, " more: fencectl audit --limit 0") != (tt.more != "") || !strings.Contains(out, tt.more) {
			t.Errorf("%q: want %q in:\n%s", tt.args, tt.more, out)
		}
		if !strings.Contains(out, "30 tables, 5 fenced; 25 warnings\n") {
			t.Errorf("%q: the summary counts all:\n%s", tt.args, out)
		}
	}
	var report audit.Report
	fencectl.decode(&report, "audit")
	if len(report.Findings) != 25 {
		t.Errorf("%d findings in JSON, want 25", len(report.Findings))
	}
}

// A database that knows nothing of fencing, and a role that may do nothing, are where an audit begins.
func TestAuditNeedsNeitherTheSchemaNorPrivileges(t *testing.T) {
	t.Parallel()
	bare := pgtest.NewEmpty(t)
	pgtest.Exec(t, bare, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	if out := checked(newCLI(t, pgtest.DSN(t, bare)).ok("audit")); !strings.Contains(out, "    fencectl install && fencectl protect public.jobs\n") ||
		!strings.HasSuffix(out, "\n1 table, 0 fenced; 1 warning\n") {
		t.Errorf("before install:\n%s", out)
	}

	pool, owner := shop(t)
	owner.ok("protect", "*.*")
	role := pgtest.Role(t, pool)
	out := checked(newCLI(t, role.DSN).ok("audit"))
	if !strings.HasPrefix(out, "nothing found: 5 tables, 5 fenced\n") || strings.Count(out, "\nnot checked: ") != 3 ||
		!strings.Contains(strings.Join(strings.Fields(out), " "), "fencectl grant ROLE --for monitor") {
		t.Errorf("as a role without privileges:\n%s", out)
	}
	owner.ok("grant", role.Name, "--for", "monitor")
	if out := checked(newCLI(t, role.DSN).ok("audit")); out != "nothing found: 5 tables, 5 fenced\n" {
		t.Errorf("as a monitor:\n%s", out)
	}
}

// Names out of the database must not speak to the terminal.
func TestAuditPrintsNoControlCharacters(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "*.*")
	pgtest.Exec(t, pool, "CREATE TABLE public.\"red \x1b[31m\nfencectl uninstall\" (id bigint)")
	out := fencectl.ok("audit")
	if strings.ContainsRune(out, '\x1b') || strings.Contains(out, "\nfencectl uninstall") {
		t.Errorf("printed %q", out)
	}
	var report audit.Report
	if err := json.Unmarshal([]byte(fencectl.ok("audit", "--format", "json")), &report); err != nil || len(report.Findings) != 1 ||
		report.Findings[0].Fix != "fencectl protect 'public.\"red \x1b[31m\nfencectl uninstall\"'" {
		t.Errorf("%v, %+v", err, report.Findings)
	}
}

func TestAuditFollowsTheProjectsFile(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "--observe")
	file := filepath.Join(t.TempDir(), "settings.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`audit:
  required: ['billing.a*']
  exempt:
    - {table: '"Order Items"', reason: append-only}
    - {table: orders, reason: written by one process}
    - {key: 'unfenced-table:billing.events', reason: append-only}
`)
	o := fencectl.run("audit", "--config", file)
	if o.status != 1 || !strings.Contains(o.stdout, "ERROR\n\nunfenced-table: ") || !strings.Contains(o.stdout, "fencectl protect billing.accounts") ||
		!strings.HasSuffix(checked(o.stdout), "5 tables, 1 fenced, 2 exempt; 1 error, 1 warning\n") {
		t.Errorf("exit status %d:\n%s", o.status, o.stdout)
	}
	write("audit: {requires: []}")
	fencectl.fails(2, []string{file + ":1: unknown key requires in audit; did you mean required?"}, "audit", "--config", file)
	write("audit: {required: [invoices]}")
	fencectl.fails(2, []string{file + ": invoices: no table matches it"}, "audit", "--config", file)
	fencectl.fails(2, []string{"no such file"}, "audit", "--config", file+".none")
}
