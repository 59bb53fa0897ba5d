package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// needsServer are command lines, one of each command that connects.
var needsServer = [][]string{
	{"install"},
	{"uninstall"},
	{"protect", "public.jobs"},
	{"protect", "public.jobs", "--dry-run"},
	{"unprotect", "public.jobs"},
	{"enforce", "public.jobs"},
	{"observe", "public.jobs"},
	{"status"},
	{"violations"},
	{"fence", "list"},
	{"fence", "show", "x"},
	{"fence", "claim", "x"},
	{"fence", "lower", "x", "1", "--reason", "r"},
	{"token", "next"},
	{"epoch", "show"},
	{"epoch", "adopt", "etcd", "x"},
	{"grant", "postgres"},
}

func TestEveryCommandNamesAServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	fencectl := newCLI(t, "postgres://app:s3cret@"+address+"/shop")
	for _, args := range needsServer {
		if line := fencectl.fails(2, []string{address, "refused", "FENCECTL_DSN"}, args...); strings.Contains(line, "s3cret") {
			t.Errorf("%v tells the password: %s", args, line)
		}
	}
	fencectl.env = nil
	for _, args := range needsServer {
		line := fencectl.fails(2, []string{"--dsn", "cannot be read"}, append(args, "--dsn", "postgres://app:s3cr%zzet@h/d")...)
		if strings.Contains(line, "s3cr") {
			t.Errorf("%v tells the password: %s", args, line)
		}
	}
}

func TestAWrongPasswordIsOneLineWithoutIt(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), &pgserver.Options{Password: "right"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(server.TCPDSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("postgres", "wr0ng")
	fencectl := newCLI(t, u.String())
	if line := fencectl.fails(2, []string{"password of user postgres", u.Host, "FENCECTL_DSN"}, "status"); strings.Contains(line, "wr0ng") {
		t.Errorf("the error tells the password: %s", line)
	}
	u.User = url.UserPassword("postgres", "right")
	fencectl.env["FENCECTL_DSN"] = u.String()
	fencectl.ok("install")
}

func TestADatabaseWithoutTheSchemaSaysHowToGetIt(t *testing.T) {
	t.Parallel()
	fencectl := newCLI(t, pgtest.DSN(t, pgtest.NewEmpty(t)))
	for _, args := range needsServer {
		if args[0] == "install" || args[0] == "uninstall" {
			continue
		}
		fencectl.fails(2, []string{"not installed", "fencectl install"}, args...)
	}
}

func TestAStandbyIsReadAndNotWritten(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	fencectl := newCLI(t, server.DSN("postgres"))
	fencectl.ok("install")
	fencectl.ok("fence", "claim", "x")
	if err := os.WriteFile(filepath.Join(server.DataDir(), "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"status"}, {"violations"}, {"fence", "list"}, {"fence", "show", "x"}, {"epoch", "show"}, {"grant", "postgres", "--dry-run"}} {
		fencectl.ok(args...)
	}
	for _, args := range [][]string{
		{"install"},
		{"uninstall"},
		{"protect", "public.jobs"},
		{"unprotect", "public.jobs"},
		{"enforce", "public.jobs"},
		{"observe", "public.jobs"},
		{"fence", "claim", "x"},
		{"fence", "lower", "x", "1", "--reason", "r"},
		{"token", "next"},
		{"epoch", "adopt", "etcd", "x"},
		{"grant", "postgres"},
	} {
		fencectl.fails(2, []string{"standby", "primary"}, args...)
	}
}

func TestMissingPrivilegesSayWhoCanHelp(t *testing.T) {
	t.Parallel()
	pool, _ := shop(t)
	role := pgtest.Role(t, pool)
	fencectl := newCLI(t, role.DSN)
	for _, tt := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"token", "next"}, []string{"permission denied for function next_token", "fencectl grant"}},
		{[]string{"fence", "claim", "x", "--token", "1"}, []string{"permission denied for function claim", "fencectl grant"}},
		{[]string{"fence", "list"}, []string{"permission denied for", "fence", "fencectl grant"}},
		{[]string{"status"}, []string{"permission denied", "fencectl grant"}},
		{[]string{"violations"}, []string{"permission denied", "violation", "fencectl grant"}},
		{[]string{"protect", "public.jobs"}, []string{"permission denied", "fencectl grant"}},
		{[]string{"uninstall"}, []string{"permission denied"}},
		{[]string{"epoch", "adopt", "etcd", "x"}, []string{"permission denied for function adopt_epoch", "fencectl grant"}},
	} {
		fencectl.fails(2, tt.parts, tt.args...)
	}

	empty := pgtest.NewEmpty(t)
	nobody := pgtest.Role(t, empty)
	newCLI(t, nobody.DSN).fails(2, []string{"permission denied for database", "GRANT CREATE ON DATABASE"}, "install")
}

func TestATableOfAnotherOwnerIsNamedWithItsOwner(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	role := pgtest.Role(t, pool)
	fencectl.ok("grant", role.Name, "--for", "migrate")
	newCLI(t, role.DSN).fails(2, []string{"does not own table public.jobs", "run it as"}, "protect", "public.jobs")
}

func TestWhatIsNoTableToProtectIsOneLine(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, `CREATE FOREIGN DATA WRAPPER nowhere;
		CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
		CREATE FOREIGN TABLE billing.remote (id bigint) SERVER elsewhere`)
	pgtest.Exec(t, pgtest.Conn(t, pool), "CREATE TEMPORARY TABLE scratch (id bigint)")
	for _, tt := range []struct {
		table string
		parts []string
	}{
		{"public.job", []string{"public.job does not exist", "did you mean public.jobs"}},
		{"invoices", []string{"invoices does not exist"}},
		{"billing.rich", []string{"billing.rich is a view", "table below"}},
		{"billing.remote", []string{"billing.remote is a foreign table"}},
		{"billing.events_2026", []string{"is a partition", "billing.events"}},
		{"scratch", []string{"temporary"}},
		{"pg_catalog.pg_class", []string{"belongs to PostgreSQL"}},
		{"fencing.fence", []string{"belongs to fencectl"}},
		{"nothing.*", []string{"matches nothing.*"}},
		{`"jobs`, []string{"never closed"}},
	} {
		for _, command := range []string{"protect", "unprotect", "enforce", "observe"} {
			parts := tt.parts
			fencectl.fails(2, parts, command, tt.table)
		}
	}
	if got := protection(t, pool); got != "" {
		t.Errorf("protected all the same: %s", got)
	}
}

func TestATableInAStateThatCannotBeFencedIsARefusal(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, `ALTER TABLE public.orders ADD COLUMN last_fencing_token text;
		CREATE TABLE public.nulls (id bigint, last_fencing_token bigint, kind text);
		INSERT INTO public.nulls VALUES (1, NULL);
		CREATE TABLE public.negative (id bigint, last_fencing_token bigint NOT NULL);
		INSERT INTO public.negative VALUES (1, -5)`)
	fencectl.fails(1, []string{"public.orders is text, not a plain bigint", "rename it"}, "protect", "public.orders")
	fencectl.fails(1, []string{"public.nulls has NULLs", "UPDATE public.nulls SET last_fencing_token = 0"}, "protect", "public.nulls")
	fencectl.fails(1, []string{"public.negative has negative numbers", "UPDATE public.negative SET last_fencing_token = 0"}, "protect", "public.negative")
	fencectl.fails(1, []string{"kind", "may be NULL", "SET NOT NULL"}, "protect", "public.nulls", "--fence", "kind/{kind}")
	fencectl.fails(2, []string{"no_such", "does not have"}, "protect", "public.jobs", "--fence", "job/{no_such}")
	fencectl.fails(2, []string{"unbalanced braces"}, "protect", "public.jobs", "--fence", "job/{id")
}

func TestATableInUseByALongTransactionNamesThatTransaction(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	holder := pgtest.Conn(t, pool)
	pgtest.Exec(t, holder, "SET application_name = 'month-end report'")
	pgtest.Exec(t, holder, "BEGIN")
	pgtest.Exec(t, holder, "SELECT count(*) FROM public.jobs")
	pid := pgtest.Value[int32](t, holder, "SELECT pg_backend_pid()")
	parts := []string{"public.jobs is in use", fmt.Sprintf("pid %d", pid), "month-end report", "idle in transaction for", "pg_terminate_backend", "--retries"}
	fencectl.fails(2, parts, "protect", "public.jobs", "--lock-timeout", "200ms", "--retries", "0")

	o := fencectl.run("protect", "public.jobs", "--lock-timeout", "100ms", "--retries", "1")
	if o.status != 2 || !strings.Contains(o.stderr, fmt.Sprintf("fencectl: table public.jobs is in use by pid %d (month-end report", pid)) ||
		!strings.Contains(o.stderr, "attempt 2 of 2 follows in") || !strings.Contains(o.stderr, "2 attempts of 100ms") {
		t.Errorf("with a retry: %+v", o)
	}
	if o := fencectl.run("protect", "public.jobs", "billing.accounts", "--lock-timeout", "200ms", "--retries", "0"); o.status != 2 ||
		o.stdout != "protected billing.accounts (row, strict)\n" || !strings.Contains(o.stderr, "1 of 2 tables done, 1 failed") {
		t.Errorf("with another table: %+v", o)
	}
}

func TestAWrongCommandLineIsToldWhatWasMeant(t *testing.T) {
	t.Parallel()
	fencectl := newCLI(t, "postgres://127.0.0.1:1/never-connected")
	for _, tt := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"protct", "jobs"}, []string{`no command "protct"`, "did you mean protect"}},
		{[]string{"frobnicate"}, []string{`no command "frobnicate"`, "fencectl --help"}},
		{[]string{"fence", "lst"}, []string{`fence has no command "lst"`, "did you mean list"}},
		{[]string{"protect"}, []string{"at least one table", "fencectl protect --help"}},
		{[]string{"protect", "jobs", "--mdoe", "strict"}, []string{"--mdoe", "did you mean --mode"}},
		{[]string{"protect", "jobs", "--mode", "lax"}, []string{`"lax"`, "strict or reentrant"}},
		{[]string{"protect", "jobs", "--fence", "x", "--mode", "strict"}, []string{"--mode", "--fence"}},
		{[]string{"protect", "jobs", "--fence", "x", "--inserts", "require"}, []string{"--inserts", "--fence"}},
		{[]string{"protect", "jobs", "--fence", ""}, []string{"--fence needs a name"}},
		{[]string{"protect", "jobs", "--max-advance", "-1"}, []string{"--max-advance"}},
		{[]string{"protect", "jobs", "--lock-timeout", "0"}, []string{"--lock-timeout"}},
		{[]string{"protect", "jobs", "--retries", "-1"}, []string{"--retries"}},
		{[]string{"protect", "jobs", "--emit", "goose"}, []string{"--emit needs --dir"}},
		{[]string{"protect", "jobs", "--dir", "x"}, []string{"--emit"}},
		{[]string{"install", "--emit", "flyway", "--dir", "x"}, []string{`"flyway"`, "goose or sql"}},
		{[]string{"install", "now"}, []string{"no arguments"}},
		{[]string{"status", "--format", "xml"}, []string{`"xml"`, "table or json"}},
		{[]string{"violations", "--since", "yesterday"}, []string{`"yesterday"`, "7d"}},
		{[]string{"violations", "--since", "-1d"}, []string{"7d"}},
		{[]string{"fence", "list", "--limit", "0"}, []string{"--limit"}},
		{[]string{"fence", "show"}, []string{"the name of one fence"}},
		{[]string{"fence", "claim", "x", "--token", "minus one"}, []string{`"minus one"`, "not a token"}},
		{[]string{"fence", "lower", "x", "1:2:3", "--reason", "r"}, []string{"1:2:3"}},
		{[]string{"epoch", "adopt", "etcd"}, []string{"a source and its incarnation"}},
		{[]string{"grant", "app", "--for", "everything"}, []string{`"everything"`, "monitor"}},
		{[]string{"token", "next", "5"}, []string{"no arguments"}},
	} {
		fencectl.fails(2, tt.parts, tt.args...)
	}
}

func TestHelpIsNoError(t *testing.T) {
	t.Parallel()
	fencectl := newCLI(t, "")
	for _, args := range [][]string{{}, {"--help"}, {"fence"}, {"token"}, {"epoch"}, {"help", "protect"}, {"protect", "--help"}} {
		if out := fencectl.ok(args...); !strings.Contains(out, "Exit status: 0 fine;") || !strings.Contains(out, "Examples:") {
			t.Errorf("fencectl %s: no help:\n%s", strings.Join(args, " "), out)
		}
	}
}
