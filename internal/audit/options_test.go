package audit_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// severities are the keys of the findings with their severities.
func severities(r *audit.Report) map[string]audit.Severity {
	all := map[string]audit.Severity{}
	for _, f := range r.Findings {
		all[f.Key] = f.Severity
	}
	return all
}

func TestAnExemptionHoldsThroughItsLastDay(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.cache (id bigint)")
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint)")
	lastDay := time.Date(2027, 3, 31, 0, 0, 0, 0, time.UTC)
	exempt := []audit.Exemption{
		{Table: "cache", Reason: "rebuilt every night", Until: lastDay},
		{Key: "unfenced-table:public.jobs", Reason: "goes away in April", Until: lastDay},
	}
	for _, now := range []time.Time{
		time.Date(2027, 3, 31, 23, 59, 59, 0, time.UTC),
		// By then it is April in this place, but exemptions end at the same moment for everybody.
		time.Date(2027, 4, 1, 8, 0, 0, 0, time.FixedZone("", 14*3600)),
	} {
		report := run(t, pool, &audit.Options{Exempt: exempt, Now: now})
		if len(report.Findings) != 0 || report.Summary.Exempt != 1 || report.Ended != nil {
			t.Errorf("at %v: %+v", now, report)
		}
	}
	report := run(t, pool, &audit.Options{Exempt: exempt, Now: time.Date(2027, 4, 1, 0, 0, 0, 0, time.UTC)})
	want := []audit.Ended{
		{Table: "cache", Until: "2027-03-31", Reason: "rebuilt every night"},
		{Key: "unfenced-table:public.jobs", Until: "2027-03-31", Reason: "goes away in April"},
	}
	if diff := cmp.Diff(want, report.Ended); diff != "" {
		t.Error(diff)
	}
	if len(report.Findings) != 2 || report.Summary.Exempt != 0 {
		t.Errorf("the findings are not back: %+v", report)
	}
}

func TestAProjectSetsSeverities(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	pgtest.Exec(t, pool, "CREATE TABLE public.orders (id bigint PRIMARY KEY)")
	pgtest.Exec(t, pool, "CREATE TABLE public.cache (id bigint PRIMARY KEY)")
	pgtest.Exec(t, pool, "SELECT fencing.protect('public.orders', observe => true)")
	set := func(unfenced, observing audit.Severity, required ...string) map[string]audit.Severity {
		return severities(run(t, pool, &audit.Options{
			Required: required, Severities: map[string]audit.Severity{"unfenced-table": unfenced, "observing": observing},
		}))
	}
	for name, tt := range map[string]struct{ got, want map[string]audit.Severity }{
		"info and error": {set(audit.Info, audit.Error), map[string]audit.Severity{
			"unfenced-table:public.jobs": "info", "unfenced-table:public.cache": "info", "observing:public.orders": "error",
		}},
		"off":                             {set(audit.Off, audit.Off), map[string]audit.Severity{}},
		"what is required stays an error": {set(audit.Off, audit.Off, "jobs"), map[string]audit.Severity{"unfenced-table:public.jobs": "error"}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for option, wrong := range map[string]map[string]audit.Severity{
		"no-such-rule": {"no-such-rule": audit.Info},
		"observing":    {"observing": "fatal"},
	} {
		_, err := audit.Run(t.Context(), pool, &audit.Options{Severities: wrong})
		var refused *audit.OptionError
		if !errors.As(err, &refused) || refused.Option != option {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

// What is switched off is not missed, either.
func TestARuleThatIsOffIsNotListedAsNotChecked(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	role := pgtest.Role(t, pool)
	skipped := func(severities map[string]audit.Severity) int {
		n := 0
		for _, s := range run(t, role.Pool, &audit.Options{Severities: severities}).Skipped {
			if s.Rule == "token-ahead-of-source" {
				n++
			}
		}
		return n
	}
	if n := skipped(nil); n != 1 {
		t.Fatalf("listed %d times as not checked", n)
	}
	if n := skipped(map[string]audit.Severity{"token-ahead-of-source": audit.Off}); n != 0 {
		t.Errorf("listed %d times as not checked, although it is off", n)
	}
}

func TestTablesAreListedWithTheirWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	runSQL(t, pool, `CREATE SCHEMA billing;
		CREATE TABLE public.jobs (id bigint PRIMARY KEY);
		CREATE TABLE public."Order Items" (id bigint, day date) PARTITION BY RANGE (day);
		CREATE TABLE public.items_2026 PARTITION OF public."Order Items" FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
		CREATE TABLE billing.cache (id bigint);
		SELECT fencing.protect('public.jobs');
		INSERT INTO public."Order Items" SELECT n, '2026-02-01' FROM generate_series(1, 5) n;
		UPDATE public."Order Items" SET id = id + 10 WHERE id < 4;
		DELETE FROM public."Order Items" WHERE id < 10`)
	await(t, pool, "pg_catalog.pg_stat_get_tuples_deleted('public.items_2026'::regclass) > 0")

	report := run(t, pool, &audit.Options{Exempt: []audit.Exemption{{Table: "cache", Reason: "rebuilt every night"}}})
	want := []audit.Table{
		{Schema: "billing", Name: "cache", Label: "billing.cache", Exempt: true},
		{Schema: "public", Name: "Order Items", Label: `public."Order Items"`, Inserted: 5, Updated: 3, Deleted: 2},
		{Schema: "public", Name: "jobs", Label: "public.jobs", Fenced: true},
	}
	if diff := cmp.Diff(want, report.Tables); diff != "" {
		t.Error(diff)
	}
	if report.Tables[1].Written() != 10 {
		t.Errorf("%d rows written", report.Tables[1].Written())
	}
}

func TestRequiredTablesOfAnotherDatabaseAreListedWhereThatIsAllowed(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	report := run(t, pool, &audit.Options{Required: []string{"jobs", "elsewhere.*", "invoices"}, AllowUnmatched: true})
	if diff := cmp.Diff([]string{"elsewhere.*", "invoices"}, report.Unmatched); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]audit.Severity{"unfenced-table:public.jobs": "error"}, severities(report)); diff != "" {
		t.Error(diff)
	}
}
