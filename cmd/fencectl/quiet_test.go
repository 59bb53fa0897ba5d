package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

// violate has an observing table written without a token, and dates what is recorded of it.
func violate(t *testing.T, pool *pgxpool.Pool, write, ago string) {
	t.Helper()
	pgtest.Exec(t, pool, write)
	pgtest.Exec(t, pool, "UPDATE fencing.violation SET at = clock_timestamp() - $1::interval WHERE id = (SELECT max(id) FROM fencing.violation)", ago)
}

const (
	writeJobs     = "UPDATE public.jobs SET state = 'done' WHERE id = 1"
	writeAccounts = "UPDATE billing.accounts SET balance = 1"
)

func TestQuietTablesAreEnforcedAndTheOthersNamed(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "billing.*", "--observe")
	fencectl.ok("protect", "public.orders")
	violate(t, pool, writeJobs, "8 days")
	violate(t, pool, "INSERT INTO billing.events VALUES (1, '2026-05-01'); UPDATE billing.events_2026 SET id = 2", "6 days")
	violate(t, pool, "UPDATE billing.events_2026 SET id = 3", "3 hours")
	last := at(pgtest.Value[time.Time](t, pool, "SELECT max(at) FROM fencing.violation"))

	// A dry run says the same.
	args := []string{"enforce", "public.jobs", "billing.*", "public.orders", "--if-quiet", "7d"}
	o := fencectl.run(append(args, "--dry-run")...)
	if o.status != 1 || strings.Count(o.stdout, "fencing.enforce(") != 2 || !strings.Contains(o.stderr, "billing.events is not quiet") {
		t.Errorf("dry run: %+v", o)
	}
	o = fencectl.run(args...)
	want := outcome{
		1, "enforcing public.jobs\nenforcing billing.accounts\n",
		"fencectl: table billing.events is not quiet, and left as it is: 2 violations in the last 7d, the last one at " + last + "\n" +
			"fencectl: table public.orders enforces already: nothing to do\n",
	}
	if diff := cmp.Diff(want, o, cmp.AllowUnexported(outcome{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(`billing.accounts row strict allow enforce
billing.events row strict allow observe
public.jobs row strict allow enforce
public.orders row strict allow enforce`, protection(t, pool)); diff != "" {
		t.Error(diff)
	}

	var report changeReport
	o = fencectl.run("enforce", "billing.events", "--if-quiet", "4h", "--format", "json")
	if err := json.Unmarshal([]byte(o.stdout), &report); err != nil || o.status != 1 {
		t.Fatalf("%v: %+v", err, o)
	}
	if len(report.Applied) > 0 || len(report.NotQuiet) != 1 {
		t.Fatalf("report: %s", o.stdout)
	}
	if noisy := report.NotQuiet[0]; noisy.Table != "events" || noisy.Violations != 1 || at(*noisy.LastViolation) != last || noisy.ObservedSince == nil {
		t.Errorf("report: %s", o.stdout)
	}
	if out := fencectl.ok("enforce", "billing.events", "--if-quiet", "2h"); out != "enforcing billing.events\n" {
		t.Errorf("output: %s", out)
	}
	if out := fencectl.ok("enforce", "billing.events", "--format", "json"); strings.Contains(out, "not_quiet") {
		t.Errorf("without --if-quiet: %s", out)
	}
}

func TestATableIsNotQuietUntilItIsKnownHowLongItWasObserved(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "--observe")
	enforce := []string{"enforce", "public.jobs", "--if-quiet", "7d", "--dry-run"}
	fencectl.fails(1, []string{"public.jobs", "since when it is observed is not known", "--observed-since"}, enforce...)
	day := func(ago int) string { return time.Now().AddDate(0, 0, -ago).Format(time.DateOnly) }
	fencectl.ok(append(enforce, "--observed-since", day(8))...)
	fencectl.fails(1, []string{"only known to observe as they do since " + day(3)}, append(enforce, "--observed-since", day(3))...)

	// What anybody's violation shows: jobs was observed by then.
	pgtest.Exec(t, pool, "INSERT INTO billing.accounts VALUES (1, 1)")
	fencectl.ok("protect", "billing.accounts", "--observe")
	violate(t, pool, writeAccounts, "3 days")
	fencectl.fails(1, []string{"only known to observe as they do since"}, enforce...)
	violate(t, pool, writeAccounts, "9 days")
	fencectl.ok(enforce...)

	// And what a changed guard shows: the violations from before it say nothing of it, and nobody is believed who says otherwise.
	violate(t, pool, writeAccounts, "2 days")
	fencectl.ok("protect", "public.jobs", "--observe", "--mode", "reentrant")
	fencectl.fails(1, []string{"since when it is observed is not known"}, enforce...)
	fencectl.fails(1, []string{"only known to observe as they do since"}, append(enforce, "--observed-since", day(30))...)
}

func TestAGuardThatIsSwitchedOffHearsNothing(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	fencectl.ok("protect", "public.jobs", "billing.events", "--observe")
	pgtest.Exec(t, pool, "ALTER TABLE public.jobs DISABLE TRIGGER zzz_fencing_update")
	pgtest.Exec(t, pool, "ALTER TABLE billing.events_2026 DISABLE TRIGGER zzz_fencing_delete")
	pgtest.Exec(t, pool, "CREATE TABLE billing.events_2027 PARTITION OF billing.events FOR VALUES FROM ('2027-01-01') TO ('2028-01-01')")
	for table, want := range map[string]string{
		"public.jobs":    "zzz_fencing_update on public.jobs is disabled (see",
		"billing.events": "not everything is observed: zzz_fencing_delete on billing.events_2026 is disabled (see",
	} {
		fencectl.fails(1, []string{want}, "enforce", table, "--if-quiet", "7d", "--observed-since", "2020-01-01")
	}
	pgtest.Exec(t, pool, "ALTER TABLE billing.events_2026 ENABLE TRIGGER zzz_fencing_delete")
	fencectl.ok("enforce", "billing.events", "--if-quiet", "7d", "--observed-since", "2020-01-01")
}

func TestCommitTimestampsTellSinceWhenATableIsObserved(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), &pgserver.Options{Settings: map[string]string{"track_commit_timestamp": "on"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := migrations.Up(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, pool, tables)
	fencectl := newCLI(t, server.DSN("postgres"))
	fencectl.ok("protect", "public.jobs", "--observe")
	violate(t, pool, writeJobs, "30 days") // the clock was wrong then, say
	fencectl.fails(1, []string{"only known to observe as they do since " + time.Now().Format(time.DateOnly)},
		"enforce", "public.jobs", "--if-quiet", "7d", "--observed-since", "2020-01-01")
	fencectl.ok("enforce", "public.jobs", "--if-quiet", "1ms")
}

func TestObservedSinceNeedsAQuestionThatItAnswers(t *testing.T) {
	t.Parallel()
	fencectl := newCLI(t, "")
	fencectl.fails(2, []string{"--observed-since goes with --if-quiet"}, "enforce", "jobs", "--observed-since", "2026-01-31")
	fencectl.fails(2, []string{"use a day such as 2026-01-31"}, "enforce", "jobs", "--if-quiet", "7d", "--observed-since", "yesterday")
	fencectl.fails(2, []string{"use a period such as"}, "enforce", "jobs", "--if-quiet", "-7d")
}
