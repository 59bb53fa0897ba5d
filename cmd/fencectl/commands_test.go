package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/lockwait"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/internal/protect"
)

// protection is how the tables are protected, one line each.
func protection(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, `SELECT COALESCE(string_agg(concat_ws(' ', format('%I.%I', schema_name, table_name), kind, mode, fence, inserts, enforcement, max_advance), E'\n'
		ORDER BY schema_name, table_name), '') FROM fencing.protection`)
}

func TestProtectPassesEveryOptionOn(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"public.jobs"}, "public.jobs row strict allow enforce"},
		{[]string{"public.jobs", "--mode", "reentrant"}, "public.jobs row reentrant allow enforce"},
		{[]string{"public.jobs", "--inserts", "require", "--observe"}, "public.jobs row strict require observe"},
		{[]string{"public.jobs", "--max-advance", "1000"}, "public.jobs row strict allow enforce 1000"},
		{[]string{"public.jobs", "--fence", "jobs/nightly"}, "public.jobs named jobs/nightly enforce"},
		{[]string{"public.jobs", "--fence", "job/{id}", "--observe", "--max-advance", "5"}, "public.jobs named job/{id} observe 5"},
		{[]string{"public.jobs"}, "public.jobs row strict allow enforce"},
	} {
		fencectl.ok(append([]string{"protect"}, tt.args...)...)
		if got := protection(t, pool); got != tt.want {
			t.Errorf("protect %s: %s, want %s", strings.Join(tt.args, " "), got, tt.want)
		}
	}
	if out := fencectl.ok("protect", "billing.*", "Order Items"); out != "protected billing.accounts (row, strict)\nprotected billing.events (row, strict)\nprotected public.\"Order Items\" (row, strict)\n" {
		t.Errorf("output:\n%s", out)
	}
}

func TestEnforceObserveAndUnprotectChangeWhatTheyName(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "*.*", "--observe")
	fencectl.ok("enforce", "billing.*")
	fencectl.ok("observe", "billing.events")
	want := `billing.accounts row strict allow enforce
billing.events row strict allow observe
public."Order Items" row strict allow observe
public.jobs row strict allow observe
public.orders row strict allow observe`
	if diff := cmp.Diff(want, protection(t, pool)); diff != "" {
		t.Error(diff)
	}
	fencectl.ok("unprotect", "public.*", "billing.events")
	if got := protection(t, pool); got != "billing.accounts row strict allow enforce" {
		t.Errorf("after unprotect: %s", got)
	}
	columns := "SELECT count(*) FROM pg_attribute WHERE attname = 'last_fencing_token' AND attrelid IN ('public.jobs'::regclass, 'public.orders'::regclass)"
	if got := pgtest.Value[int](t, pool, columns); got != 2 {
		t.Errorf("unprotect keeps the columns unless told otherwise, %d are left", got)
	}
	// The column of a table that is not protected any more can still be dropped.
	fencectl.ok("unprotect", "public.jobs", "public.orders", "--drop-column")
	if got := pgtest.Value[int](t, pool, columns); got != 0 {
		t.Errorf("%d columns are left", got)
	}
	if o := fencectl.run("unprotect", "public.jobs"); o.status != 0 || !strings.Contains(o.stderr, "public.jobs is not protected") {
		t.Errorf("unprotecting twice: %+v", o)
	}
	fencectl.fails(1, []string{"public.jobs is not protected", "fencectl protect public.jobs"}, "enforce", "public.jobs")
	fencectl.fails(2, []string{"no protected table matches public.*"}, "observe", "public.*")
}

func TestDryRunPrintsWhatRunsAndChangesNothing(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "billing.accounts")
	fencectl.ok("fence", "claim", "jobs/nightly", "--token", "7")
	before := protection(t, pool)
	for _, tt := range []struct {
		args  []string
		check string // what must be true once the printed SQL has run
	}{
		{[]string{"protect", "public.jobs", `"Order Items"`, "--observe"}, "SELECT count(*) = 3 FROM fencing.protection"},
		{[]string{"observe", "billing.accounts"}, "SELECT enforcement = 'observe' FROM fencing.protection WHERE table_name = 'accounts'"},
		{[]string{"enforce", "billing.accounts"}, "SELECT enforcement = 'enforce' FROM fencing.protection WHERE table_name = 'accounts'"},
		{[]string{"fence", "claim", "jobs/nightly", "--token", "9"}, "SELECT token = 9 FROM fencing.fence"},
		{[]string{"fence", "claim", "it's"}, `SELECT count(*) = 1 FROM fencing.fence WHERE name = 'it''s'`},
		{[]string{"fence", "lower", "jobs/nightly", "0:3", "--reason", "it's a test"}, "SELECT token = 3 FROM fencing.fence WHERE name = 'jobs/nightly'"},
		{[]string{"epoch", "adopt", "etcd", "abc"}, "SELECT incarnation = 'abc' FROM fencing.source WHERE name = 'etcd'"},
		{[]string{"unprotect", "billing.accounts", "--drop-column"}, "SELECT count(*) = 2 FROM fencing.protection"},
	} {
		was := protection(t, pool) + pgtest.Value[string](t, pool, "SELECT string_agg(name || token, ' ') FROM fencing.fence")
		sql := fencectl.ok(append(tt.args, "--dry-run")...)
		if is := protection(t, pool) + pgtest.Value[string](t, pool, "SELECT string_agg(name || token, ' ') FROM fencing.fence"); is != was {
			t.Fatalf("%s --dry-run changed something: %s", strings.Join(tt.args, " "), is)
		}
		pgtest.Exec(t, pool, sql)
		if !pgtest.Value[bool](t, pool, tt.check) {
			t.Errorf("%s: the printed SQL does not do it:\n%s", strings.Join(tt.args, " "), sql)
		}
	}
	if before == protection(t, pool) {
		t.Error("the printed SQL changed nothing")
	}
}

func TestInstallIsIdempotentAndUninstallTakesItBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, tables)
	fencectl := newCLI(t, pgtest.DSN(t, pool))

	if out := fencectl.ok("uninstall"); !strings.Contains(out, "not installed") {
		t.Errorf("uninstall of nothing: %s", out)
	}
	sql := fencectl.ok("install", "--dry-run")
	if pgtest.Value[bool](t, pool, "SELECT to_regnamespace('fencing') IS NOT NULL") {
		t.Fatal("install --dry-run installed")
	}
	if out := fencectl.ok("install"); !strings.Contains(out, "installed the fencing schema") {
		t.Errorf("install: %s", out)
	}
	if o := fencectl.run("install"); o.status != 0 || !strings.Contains(o.stdout, "up to date") || o.stderr != "" {
		t.Errorf("install again: %+v", o)
	}
	if out := fencectl.ok("install", "--dry-run"); !strings.Contains(out, "up to date") {
		t.Errorf("install --dry-run again: %s", out)
	}
	fencectl.ok("install", "--transaction-pooler")

	fencectl.ok("protect", "public.jobs", "Order Items")
	fencectl.fails(1, []string{`public."Order Items", public.jobs are still protected`, `fencectl unprotect 'public."Order Items"' public.jobs`}, "uninstall")
	fencectl.fails(1, []string{"still protected"}, "uninstall", "--dry-run")
	fencectl.ok("unprotect", "*.*", "--drop-column")

	undo := fencectl.ok("uninstall", "--dry-run")
	if o := fencectl.run("uninstall"); o.status != 0 || !strings.Contains(o.stderr, "token sequence") {
		t.Errorf("uninstall must say what is lost: %+v", o)
	}
	if pgtest.Value[bool](t, pool, "SELECT to_regnamespace('fencing') IS NOT NULL") {
		t.Error("the schema is still there")
	}

	// What --dry-run printed does the same by hand.
	pgtest.Exec(t, pool, sql)
	fencectl.ok("protect", "public.jobs")
	fencectl.ok("unprotect", "public.jobs")
	pgtest.Exec(t, pool, undo)
	if pgtest.Value[bool](t, pool, "SELECT to_regnamespace('fencing') IS NOT NULL") {
		t.Error("the printed SQL leaves the schema")
	}
}

func TestUninstallDropsNothingThatIsBuiltOnTheSchema(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, "CREATE VIEW public.my_fences AS SELECT name FROM fencing.fence")
	o := fencectl.run("uninstall")
	if o.status != 1 || !strings.Contains(o.stderr, "view public.my_fences depends on") {
		t.Errorf("uninstall: %+v", o)
	}
	if !pgtest.Value[bool](t, pool, "SELECT to_regclass('fencing.fence') IS NOT NULL") {
		t.Error("uninstall dropped something all the same")
	}
}

func TestStatusShowsWhatIsProtectedAndWhatIsNot(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "--observe")
	fencectl.ok("protect", "billing.accounts", "--fence", "account/{account_id}")
	pgtest.Exec(t, pool, "UPDATE public.jobs SET state = 'running'")

	var report statusReport
	fencectl.decode(&report, "status")
	want := statusReport{
		Version: 1, Database: pool.Config().ConnConfig.Database, SchemaVersion: connect.SchemaVersion,
		Tables: []statusTable{
			{Protection: protect.Protection{Schema: "billing", Table: "accounts", Kind: "named", Fence: "account/{account_id}", Enforcement: "enforce"}},
			{Protection: protect.Protection{Schema: "public", Table: "jobs", Kind: "row", Mode: "strict", Inserts: "allow", Enforcement: "observe"}, Violations24h: 1},
		},
		Summary: statusSummary{Protected: 2, Enforcing: 1, Observing: 1, Unprotected: 3, Violations24h: 1},
	}
	ignore := cmp.Options{cmpopts.IgnoreFields(statusReport{}, "ServerVersion"), cmpopts.IgnoreFields(protect.Protection{}, "Guards")}
	if diff := cmp.Diff(want, report, ignore); diff != "" {
		t.Errorf("status --format json (-want +got):\n%s", diff)
	}
	if report.ServerVersion == "" || report.Tables[0].Guards == 0 {
		t.Errorf("server version %q, guards %d", report.ServerVersion, report.Tables[0].Guards)
	}
	out := fencectl.ok("status")
	for _, part := range []string{"billing.accounts", "named account/{account_id}", "public.jobs", "row, strict", "observe", "2 tables protected, 3 not", "fencectl violations"} {
		if !strings.Contains(out, part) {
			t.Errorf("status does not show %q:\n%s", part, out)
		}
	}
}

func TestListingsFitIntoEightyColumns(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	long := strings.Repeat("a_long_name_", 6)[:63]
	pgtest.Exec(t, pool, "CREATE TABLE public."+long+" (id bigint PRIMARY KEY)")
	fencectl.ok("protect", long, "--fence", "service/"+strings.Repeat("component/", 8)+"{id}", "--observe")
	fencectl.ok("fence", "claim", strings.Repeat("a/very/long/fence/", 10))
	pgtest.Exec(t, pool, "INSERT INTO public."+long+" SELECT 1 WHERE 'a rather long statement that goes on for a while' <> 'until it no longer fits into a line of a terminal'")
	for _, args := range [][]string{{"status"}, {"fence", "list"}, {"violations"}, {"epoch", "show"}} {
		for line := range strings.Lines(fencectl.ok(args...)) {
			if width := len([]rune(strings.TrimRight(line, "\n"))); width > 80 && !strings.Contains(line, "database ") {
				t.Errorf("%s: a line of %d columns: %s", strings.Join(args, " "), width, line)
			}
		}
	}
	// Where there is more room it is used.
	fencectl.env["COLUMNS"] = "300"
	if out := fencectl.ok("fence", "list"); !strings.Contains(out, strings.Repeat("a/very/long/fence/", 10)) {
		t.Errorf("fence list with 300 columns:\n%s", out)
	}
}

func TestViolationsAreGroupedByWhereTheyComeFrom(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "billing.accounts", "--observe")
	role := pgtest.Role(t, pool, "SELECT, UPDATE ON public.jobs")
	for range 3 {
		pgtest.Exec(t, role.Pool, "UPDATE public.jobs SET state = 'running' WHERE id = 1")
	}
	pgtest.Exec(t, pool, "INSERT INTO billing.accounts VALUES (1, 0)") // allowed without a token
	pgtest.Exec(t, pool, "DELETE FROM billing.accounts")
	pgtest.Exec(t, pool, "UPDATE fencing.violation SET at = at - interval '3 days' WHERE table_name = 'accounts'")

	var report violationsReport
	fencectl.decode(&report, "violations", "--since", "1d")
	if report.Total != 3 || len(report.Violations) != 1 || report.SinceSeconds != 86400 {
		t.Fatalf("--since 1d: %+v", report)
	}
	got := report.Violations[0]
	if got.Schema != "public" || got.Table != "jobs" || got.Kind != "unfenced" || got.Role != role.Name || got.Count != 3 ||
		!strings.Contains(got.Query, "UPDATE public.jobs SET state") || got.LastSeen.Before(got.FirstSeen) {
		t.Errorf("group: %+v", got)
	}
	fencectl.decode(&report, "violations")
	if report.Total != 4 || len(report.Violations) != 2 || report.Violations[0].Table != "jobs" {
		t.Errorf("without --since, the most frequent first: %+v", report)
	}
	fencectl.decode(&report, "violations", "--table", "billing.*")
	if report.Total != 1 || report.Violations[0].Table != "accounts" {
		t.Errorf("--table billing.*: %+v", report)
	}
	if out := fencectl.ok("violations", "--since", "1d"); !strings.Contains(out, "3x unfenced on public.jobs by role "+role.Name) || !strings.Contains(out, "3 violations from 1 place in the last 1d") {
		t.Errorf("violations:\n%s", out)
	}
	if o := fencectl.run("violations", "--exit-code"); o.status != 1 || o.stderr != "" {
		t.Errorf("--exit-code with violations: %+v", o)
	}
	if out := fencectl.ok("violations", "--exit-code", "--table", "Order Items"); !strings.Contains(out, "no violations") {
		t.Errorf("--exit-code without violations: %s", out)
	}
}

func TestFenceCommandsShowClaimAndLower(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "--fence", "jobs/nightly")
	fencectl.ok("protect", "billing.accounts", "--fence", "account/{account_id}")
	if out := fencectl.ok("fence", "list"); !strings.Contains(out, "no fence has been claimed yet") {
		t.Errorf("fence list: %s", out)
	}

	var claimed claimReport
	fencectl.decode(&claimed, "fence", "claim", "jobs/nightly")
	if diff := cmp.Diff(claimReport{Version: 1, Name: "jobs/nightly", Token: 1, Evicted: []lockwait.Session{}}, claimed); diff != "" {
		t.Errorf("the first claim draws the first token (-want +got):\n%s", diff)
	}
	fencectl.decode(&claimed, "fence", "claim", "jobs/nightly", "--token", "1:34")
	token, err := fenced.NewToken(1, 34)
	if err != nil {
		t.Fatal(err)
	}
	if claimed.Token != int64(token) || claimed.Previous != 1 {
		t.Errorf("claim with epoch: %+v", claimed)
	}
	fencectl.ok("fence", "claim", "jobs/nightly", "--token", strconv.FormatInt(int64(token), 10)) // a retry
	fencectl.fails(1, []string{"stale fencing token 33", "jobs/nightly", "1:34", "ZF001"}, "fence", "claim", "jobs/nightly", "--token", "33")

	var list fenceListReport
	fencectl.decode(&list, "fence", "list", "jobs/*")
	if len(list.Fences) != 1 || list.More || list.Fences[0].Token != int64(token) || list.Fences[0].Epoch != 1 || list.Fences[0].Seq != 34 {
		t.Errorf("fence list: %+v", list)
	}
	if out := fencectl.ok("fence", "list"); !regexp.MustCompile(`jobs/nightly +1:34 `).MatchString(out) {
		t.Errorf("fence list:\n%s", out)
	}

	pgtest.Exec(t, pool, "SELECT fencing.acquire_lease('jobs/nightly', gen_random_uuid(), '10 min')")
	var show fenceShowReport
	fencectl.decode(&show, "fence", "show", "jobs/nightly")
	if len(show.Tables) != 1 || show.Tables[0].Table != "jobs" || show.Lease == nil || show.Lease.Token != 2 || show.Lease.ExpiresInMS <= 0 || show.Lease.ExpiresInMS > 600000 {
		t.Errorf("fence show: %+v", show)
	}
	fencectl.ok("fence", "claim", "account/4711", "--token", "5")
	var account fenceShowReport
	fencectl.decode(&account, "fence", "show", "account/4711")
	if len(account.Tables) != 1 || account.Tables[0].Table != "accounts" || account.Lease != nil {
		t.Errorf("a fence of a template: %+v", account)
	}
	for _, part := range []string{"jobs/nightly", "1:34", "public.jobs", "lease    token 2"} {
		if out := fencectl.ok("fence", "show", "jobs/nightly"); !strings.Contains(out, part) {
			t.Errorf("fence show does not say %q:\n%s", part, out)
		}
	}
	fencectl.fails(2, []string{"jobs/nightli has never been claimed", "did you mean jobs/nightly"}, "fence", "show", "jobs/nightli")

	var lowered lowerReport
	fencectl.decode(&lowered, "fence", "lower", "jobs/nightly", "34", "--reason", "an absurd epoch")
	if lowered != (lowerReport{Version: 1, Name: "jobs/nightly", Token: 34, Previous: int64(token)}) {
		t.Errorf("fence lower: %+v", lowered)
	}
	if got := pgtest.Value[string](t, pool, "SELECT reason FROM fencing.bypass_log"); !strings.Contains(got, "an absurd epoch") {
		t.Errorf("the reason was logged as %q", got)
	}
	fencectl.fails(2, []string{"stands at 34", "below 35"}, "fence", "lower", "jobs/nightly", "35", "--reason", "x")
	fencectl.fails(2, []string{"--reason"}, "fence", "lower", "jobs/nightly", "3")
	fencectl.fails(2, []string{"--reason"}, "fence", "lower", "jobs/nightly", "3", "--reason", "  ")
}

func TestFenceListStopsAtItsLimit(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, "SELECT fencing.claim('f_' || n, 1) FROM generate_series(1, 5) n")
	var list fenceListReport
	fencectl.decode(&list, "fence", "list", "--limit", "3")
	if len(list.Fences) != 3 || !list.More {
		t.Errorf("--limit 3 of 5: %+v", list)
	}
	fencectl.decode(&list, "fence", "list", "--limit", "5")
	if len(list.Fences) != 5 || list.More {
		t.Errorf("--limit 5 of 5: %+v", list)
	}
	// The underscore is a letter like others, not LIKE's wildcard.
	pgtest.Exec(t, pool, "SELECT fencing.claim('fx1', 1)")
	fencectl.decode(&list, "fence", "list", "f_?")
	if len(list.Fences) != 5 {
		t.Errorf("f_?: %+v", list)
	}
}

func TestClaimWithEvictionSaysWhomItEnded(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "--fence", "jobs/nightly")
	fencectl.ok("fence", "claim", "jobs/nightly", "--token", "10")
	conn := pgtest.Conn(t, pool)
	pgtest.Exec(t, conn, "SET application_name = 'zombie'")
	pgtest.Exec(t, conn, "BEGIN")
	pgtest.Exec(t, conn, "SELECT fencing.present(10)")
	pgtest.Exec(t, conn, "UPDATE public.jobs SET state = 'done'")
	pid := pgtest.Value[int32](t, conn, "SELECT pg_backend_pid()")

	o := fencectl.run("fence", "claim", "jobs/nightly", "--token", "11", "--evict", "1ms")
	if o.status != 0 || !strings.Contains(o.stderr, fmt.Sprintf("ended pid %d (zombie", pid)) {
		t.Errorf("claim --evict: %+v", o)
	}
	if got := pgtest.Value[int](t, pool, "SELECT count(*) FROM public.jobs WHERE state = 'done'"); got != 0 {
		t.Error("the ended session's write is there")
	}
	fencectl.fails(2, []string{"--evict"}, "fence", "claim", "x", "--evict", "0s")
}

func TestTokenNextPrintsTheTokenAlone(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	if first, second := fencectl.ok("token", "next"), fencectl.ok("token", "next"); first != "1\n" || second != "2\n" {
		t.Errorf("tokens %q and %q", first, second)
	}
	pgtest.Exec(t, pool, "UPDATE fencing.source SET epoch = 2 WHERE name = 'postgres'")
	var report tokenReport
	fencectl.decode(&report, "token", "next")
	if report != (tokenReport{Version: 1, Token: 2<<48 + 3, Epoch: 2, Seq: 3}) {
		t.Errorf("token next: %+v", report)
	}
}

func TestEpochsAreShownAndAdopted(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, "SELECT fencing.source_epoch('etcd', 'cluster a')")
	var adopted epochAdoptReport
	fencectl.decode(&adopted, "epoch", "adopt", "etcd", "cluster b")
	if adopted != (epochAdoptReport{Version: 1, Source: "etcd", Incarnation: "cluster b", Epoch: 1}) {
		t.Errorf("epoch adopt: %+v", adopted)
	}
	var report epochShowReport
	fencectl.decode(&report, "epoch", "show")
	if len(report.Sources) != 2 || report.Sources[0].Name != "etcd" || report.Sources[0].Epoch != 1 || report.Sources[1].Name != "postgres" || report.Sources[1].Incarnation != "" {
		t.Errorf("epoch show: %+v", report)
	}
	if out := fencectl.ok("epoch", "show"); !regexp.MustCompile(`etcd +1 +cluster b`).MatchString(out) {
		t.Errorf("epoch show:\n%s", out)
	}
	fencectl.fails(2, []string{"this database"}, "epoch", "adopt", "postgres", "x")
	fencectl.fails(2, []string{"must not be empty"}, "epoch", "adopt", "etcd", "")
}

func TestVersionKnowsTheSchema(t *testing.T) {
	t.Parallel()
	var report versionReport
	fencectl := newCLI(t, "")
	fencectl.decode(&report, "version")
	if report.SchemaVersion != connect.SchemaVersion || report.Go == "" || report.Fencectl == "" {
		t.Errorf("version: %+v", report)
	}
}

func TestChangesAreReportedInJSON(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, "ALTER TABLE public.orders ADD COLUMN last_fencing_token text")
	o := fencectl.run("protect", "public.jobs", "public.orders", "--format", "json")
	if o.status != 1 {
		t.Errorf("exit status %d", o.status)
	}
	for _, part := range []string{
		`"version": 1`, `"table": "jobs"`, `"sql": "SELECT fencing.protect('public.jobs'::regclass)"`, `"table": "orders"`,
		`"error": "column last_fencing_token of public.orders is text, not a plain bigint`, `"outcome_unknown": false`, `"blocking": []`, `"not_tried": []`,
	} {
		if !strings.Contains(o.stdout, part) {
			t.Errorf("the report has no %s:\n%s", part, o.stdout)
		}
	}
}

func TestAnInterruptedProtectSaysWhatIsDoneAndExitsLikeASignal(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	holder, err := pgtest.Conn(t, pool).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, holder, "LOCK TABLE public.jobs IN ACCESS SHARE MODE")
	pid := pgtest.Value[int32](t, holder, "SELECT pg_backend_pid()")

	for signal, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		ctx, cancel := context.WithCancelCause(t.Context())
		interruptible := &cli{t: t, ctx: ctx, env: fencectl.env}
		done := make(chan outcome, 1)
		go func() {
			done <- interruptible.run("protect", "billing.accounts", "public.jobs", "public.orders", "--lock-timeout", "1h")
		}()
		pgtest.WaitBlockedBy(t, pool, uint32(pid))
		cancel(interrupted{signal})
		o := <-done
		if o.status != status || o.stdout != "protected billing.accounts (row, strict)\n" ||
			o.stderr != "fencectl: interrupted after 1 of 3 tables; left as they were: public.jobs, public.orders\n" {
			t.Errorf("%v: %+v", signal, o)
		}
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := protection(t, pool); got != "billing.accounts row strict allow enforce" {
		t.Errorf("protected: %s", got)
	}
}

func TestSignalsCancelTheContextOnce(t *testing.T) {
	status := withSignals(func(ctx context.Context) int {
		process, err := os.FindProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Fatal("the context did not end")
		}
		return statusOf(ctx, errors.New("whatever the command makes of it"))
	})
	if status != 128+int(syscall.SIGTERM) {
		t.Errorf("exit status %d", status)
	}
}

func TestOutputThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	reader, writer := io.Pipe()
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	if status := run(t.Context(), []string{"version"}, strings.NewReader(""), writer, &stderr, func(string) string { return "" }); status != 2 ||
		!strings.Contains(stderr.String(), "cannot write the output") {
		t.Errorf("status %d, stderr %s", status, stderr.String())
	}
}

func TestWarningsOfTheServerReachTheUser(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	pgtest.Exec(t, pool, "CREATE UNLOGGED TABLE public.cache (id bigint PRIMARY KEY)")
	if o := fencectl.run("protect", "public.cache"); o.status != 0 || !strings.Contains(o.stderr, "fencectl: warning: public.cache is unlogged") {
		t.Errorf("%+v", o)
	}
}

func TestCompletionOffersTablesAndChoices(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	if out := fencectl.ok("__complete", "protect", "billing.a"); !strings.Contains(out, "billing.accounts\n") {
		t.Errorf("tables: %s", out)
	}
	if out := fencectl.ok("__complete", "protect", "--mode", ""); !strings.Contains(out, "strict\nreentrant\n") {
		t.Errorf("choices: %s", out)
	}
	if out := fencectl.ok("completion", "bash"); !strings.Contains(out, "fencectl") {
		t.Error("no completion script")
	}
	fencectl.env["FENCECTL_DSN"] = "postgres://127.0.0.1:1/none"
	fencectl.ok("__complete", "protect", "b") // no connection, no candidates, no error
}
