package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// The audit works out for all tables at once, and from the catalogs alone, what the SQL layer works out table by table with
// functions of its own. Where they disagree, one of them has changed without the other: rules/facts.sql, or
// fencing.expected_guards.
func TestGuardsAreJudgedAsTheSQLLayerJudgesThem(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	n := 0
	for _, shape := range []string{
		"CREATE TABLE %s (id bigint PRIMARY KEY, code varchar(9) NOT NULL, note text NOT NULL)",
		"CREATE TABLE %s (id bigint NOT NULL, code varchar(9) NOT NULL, note text NOT NULL) PARTITION BY LIST (id)",
		`CREATE TABLE %[1]s (id bigint NOT NULL, code varchar(9) NOT NULL, note text NOT NULL) PARTITION BY LIST (note, lower(code));
			CREATE TABLE "x%[2]d" PARTITION OF %[1]s DEFAULT`,
		`CREATE TABLE %[1]s (id bigint NOT NULL, code varchar(9) NOT NULL, note text NOT NULL) PARTITION BY RANGE (id, "code");
			CREATE TABLE "x %[2]d" PARTITION OF %[1]s DEFAULT PARTITION BY LIST (note);
			CREATE TABLE "y %[2]d" PARTITION OF "x %[2]d" FOR VALUES IN ('a')`,
		`CREATE TABLE %[1]s (id bigint NOT NULL, code varchar(9) NOT NULL, note text NOT NULL); CREATE TABLE "Child %[2]d" (more text) INHERITS (%[1]s);
			CREATE TABLE "Grand'child %[2]d" (even_more text) INHERITS ("Child %[2]d")`,
	} {
		if strings.Contains(shape, "LIST (note, lower") {
			shape = strings.Replace(shape, "LIST (note, lower(code))", "RANGE (note, lower(code))", 1)
		}
		for _, options := range []string{
			"", ", 'reentrant'", ", inserts => 'require'", ", observe => true", ", max_advance => 1000", ", 'reentrant', inserts => 'require', observe => true, max_advance => 281474976710655",
			", fence => 'it''s \\a fence'", ", fence => 'x', observe => true, max_advance => 7",
			", fence => 'job/{id}'", ", fence => '{note}'", ", fence => '{code}{note}', observe => true", ", fence => 'a''\\{id}b{note}c{code}d'",
		} {
			n++
			name := fmt.Sprintf(`public."T %d's"`, n)
			sql := fmt.Sprintf("SET search_path = public; "+shape+"; SELECT fencing.protect(%[3]s%[4]s)", name, n, "'"+strings.ReplaceAll(name, "'", "''")+"'", options)
			if strings.Count(shape, "%[") == 0 {
				sql = fmt.Sprintf("SET search_path = public; "+shape, name) + fmt.Sprintf("; SELECT fencing.protect('%s'%s)", strings.ReplaceAll(name, "'", "''"), options)
			}
			runSQL(t, pool, sql)
		}
	}
	problems := func() int64 {
		return pgtest.Value[int64](t, pool, `SELECT count(DISTINCT p.relid) FROM fencing.protection p
			JOIN pg_catalog.pg_class c ON c.oid = p.relid AND c.oid NOT IN (SELECT inhrelid FROM pg_catalog.pg_inherits)
			CROSS JOIN LATERAL fencing.guard_problems(p.relid, p.kind = 'named', p.arguments)`)
	}
	guardFindings := func() (n int64) {
		objects := map[string]bool{}
		for _, f := range run(t, pool, nil).Findings {
			if strings.HasPrefix(f.Rule, "guard-") || strings.HasSuffix(f.Rule, "-unguarded") {
				objects[f.Fix] = true // of one tree
				t.Logf("%s: %s", f.Key, f.Message)
			}
		}
		return int64(len(objects))
	}
	if theirs, ours := problems(), guardFindings(); theirs != 0 || ours != 0 {
		t.Fatalf("just protected, and guard_problems has problems with %d tables, the audit with %d", theirs, ours)
	}
	// And both see the same of a table whose guards are then changed.
	for i, change := range []string{
		`DROP TRIGGER zzz_fencing_truncate ON public."T 1's"`,
		`ALTER TABLE public."T 2's" DISABLE TRIGGER zzz_fencing_stamp`,
		`CREATE OR REPLACE TRIGGER zzz_fencing_insert AFTER INSERT ON public."T 3's" FOR EACH ROW WHEN (new.last_fencing_token < 0) EXECUTE FUNCTION fencing.guard_row('strict', 'enforce', 'inserts=require')`,
		`CREATE OR REPLACE TRIGGER zzz_fencing_delete BEFORE DELETE ON public."T 9's" FOR EACH ROW WHEN (fencing.accepted('job/' || old.id) IS NULL) EXECUTE FUNCTION fencing.guard_named('job/{id}', 'enforce')`,
		`DROP TRIGGER zzz_fencing_statement ON public."Child 55"`,
	} {
		runSQL(t, pool, change)
		if theirs, ours := problems(), guardFindings(); theirs != int64(i+1) || ours != int64(i+1) {
			t.Errorf("after %s: guard_problems sees %d tables with problems, the audit %d, want %d", change, theirs, ours, i+1)
		}
	}
}

// An audit is the first thing that somebody tries.
func TestBeforeInstallTheFixInstallsFirst(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	runSQL(t, pool, `CREATE TABLE public."Order Items" (id bigint PRIMARY KEY)`)
	report := run(t, pool, nil)
	want := []audit.Finding{{
		Rule: "unfenced-table", Severity: audit.Warning, Object: `public."Order Items"`, Message: "has no fence; no write was seen since its statistics began",
		Why:  "A lock holder that was paused past its time limit can still write here, over what its successor has written.",
		Fix:  `fencectl install && fencectl protect 'public."Order Items"'`,
		Docs: "https://github.com/fencectl/fencectl/blob/main/docs/rules/unfenced-table.md", Key: `unfenced-table:public."Order Items"`,
	}}
	if diff := cmp.Diff(want, report.Findings); diff != "" {
		t.Error(diff)
	}
	if len(report.Skipped) > 0 {
		t.Errorf("without the schema nothing more could be found, yet skipped are %+v", report.Skipped)
	}
	runFix(t, pool, report.Findings[0].Fix)
	if diff := cmp.Diff(&audit.Report{
		Version: 1, Findings: []audit.Finding{}, Skipped: []audit.Skipped{}, Summary: audit.Summary{Tables: 1, Fenced: 1},
		Tables: []audit.Table{{Schema: "public", Name: "Order Items", Label: `public."Order Items"`, Fenced: true}},
	}, run(t, pool, nil)); diff != "" {
		t.Error(diff)
	}
}

func TestUnfencedTablesAreRankedByTheirWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	runSQL(t, pool, partitionedEvents+`
		CREATE TABLE public.quiet (id bigint); CREATE TABLE public.busy (id bigint); CREATE TABLE public.busier (id bigint);
		INSERT INTO public.busy VALUES (1); UPDATE public.busy SET id = 2; DELETE FROM public.busy;
		INSERT INTO public.busier SELECT generate_series(1, 1234); CREATE TABLE public.once (id bigint); INSERT INTO public.once VALUES (1)`)
	await(t, pool, `pg_catalog.pg_stat_get_tuples_inserted('public.once'::regclass) > 0`)
	want := []string{
		"warning unfenced-table public.busier: has no fence; 1,234 rows were written (1,234 inserted, 0 updated, 0 deleted) since its statistics began",
		"warning unfenced-table public.busy: has no fence; 3 rows were written (1 inserted, 1 updated, 1 deleted) since its statistics began",
		"warning unfenced-table public.events: has no fence; 2 rows were written (2 inserted, 0 updated, 0 deleted) since its statistics began",
		"warning unfenced-table public.once: has no fence; 1 row was written (1 inserted, 0 updated, 0 deleted) since its statistics began",
		"warning unfenced-table public.quiet: has no fence; no write was seen since its statistics began",
	}
	if diff := cmp.Diff(want, found(run(t, pool, nil))); diff != "" {
		t.Error(diff)
	}
}

// What no fence can be put on, or need be, is no finding, and nothing of it makes the audit fail.
func TestWhatCannotBeFencedIsNotReported(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	conn := pgtest.Conn(t, pool)
	pgtest.Exec(t, conn, `CREATE TEMPORARY TABLE scratch (id bigint)`)
	runSQL(t, pool, `
		CREATE TABLE public.jobs (id bigint); SELECT fencing.protect('public.jobs');
		CREATE VIEW public.v AS SELECT * FROM public.jobs; CREATE MATERIALIZED VIEW public.m AS SELECT * FROM public.jobs;
		CREATE SEQUENCE public.s; CREATE TYPE public.composite AS (a int); CREATE INDEX ON public.jobs (id);
		CREATE FOREIGN DATA WRAPPER w; CREATE SERVER elsewhere FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE public.f (id bigint) SERVER elsewhere;
		CREATE TABLE public.parts (id bigint NOT NULL) PARTITION BY LIST (id);
		CREATE TABLE public.parts_1 PARTITION OF public.parts FOR VALUES IN (1);
		CREATE FOREIGN TABLE public.parts_2 PARTITION OF public.parts FOR VALUES IN (2) SERVER elsewhere;
		SELECT fencing.protect('public.parts', fence => 'parts')`)
	for _, extension := range []string{"hstore", "pg_trgm", "pg_stat_statements"} {
		pgtest.Exec(t, pool, "CREATE EXTENSION "+extension+" SCHEMA public")
	}
	// A table that an extension brings along.
	runSQL(t, pool, `CREATE TABLE public.spatial_ref_sys (id bigint); ALTER EXTENSION hstore ADD TABLE public.spatial_ref_sys`)
	report := run(t, pool, nil)
	if got := found(report); len(got) > 0 {
		t.Errorf("found:\n%s", strings.Join(got, "\n"))
	}
	if diff := cmp.Diff(audit.Summary{Tables: 2, Fenced: 2}, report.Summary); diff != "" {
		t.Error(diff)
	}
}

// Shapes that are legal and odd: the audit says something or nothing, but it does not fail.
func TestOddShapesDoNotMakeTheAuditFail(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"two protected parents": `CREATE TABLE public.a (id bigint); CREATE TABLE public.b (id bigint); SELECT fencing.protect('public.a', fence => 'a'); SELECT fencing.protect('public.b', fence => 'b');
			CREATE TABLE public.c () INHERITS (public.a, public.b)`,
		"guards without arguments": `CREATE TABLE public.a (id bigint); CREATE TRIGGER g BEFORE UPDATE ON public.a FOR EACH ROW EXECUTE FUNCTION fencing.guard_row()`,
		"guards with wrong arguments": `CREATE TABLE public.a (id bigint); CREATE TRIGGER zzz_fencing_update BEFORE UPDATE ON public.a FOR EACH ROW
			EXECUTE FUNCTION fencing.guard_row('', 'what', 'max_advance=many', '{', 'a\000b', 'inserts=')`,
		"one argument": `CREATE TABLE public.a (id bigint); CREATE TRIGGER zzz_fencing_update BEFORE UPDATE ON public.a FOR EACH ROW EXECUTE FUNCTION fencing.guard_named('{id}')`,
		"a guard on a view": `CREATE TABLE public.a (id bigint); CREATE VIEW public.v AS SELECT * FROM public.a;
			CREATE TRIGGER g INSTEAD OF UPDATE ON public.v FOR EACH ROW EXECUTE FUNCTION fencing.guard_row('strict', 'enforce')`,
		"a protected table attached to one that is not": protectedJobs + `CREATE TABLE public.all_jobs (LIKE public.jobs) PARTITION BY RANGE (id);
			ALTER TABLE public.all_jobs ATTACH PARTITION public.jobs DEFAULT`,
		"a template whose column is renamed": `CREATE TABLE public.a (id bigint NOT NULL); SELECT fencing.protect('public.a', fence => 'a/{id}'); ALTER TABLE public.a RENAME id TO "new id"`,
		"a constraint trigger that calls a guard": `CREATE TABLE public.a (id bigint);
			CREATE CONSTRAINT TRIGGER g AFTER UPDATE ON public.a FOR EACH ROW EXECUTE FUNCTION fencing.guard_row('strict', 'enforce')`,
		"the schema half removed":            `DROP TABLE fencing.violation, fencing.lease; DROP SEQUENCE fencing.token_seq`,
		"somebody else's schema of the name": `DROP SCHEMA fencing CASCADE; CREATE SCHEMA fencing; CREATE TABLE fencing.fence (height numeric); CREATE TABLE public.a (id bigint)`,
		"standard_conforming_strings off":    `ALTER DATABASE :database SET standard_conforming_strings = off; ALTER DATABASE :database SET quote_all_identifiers = on`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			runSQL(t, pool, strings.ReplaceAll(sql, ":database", pgtest.Value[string](t, pool, "SELECT quote_ident(current_database())")))
			conn := pgtest.Conn(t, pool) // with the settings that the database has now
			report, err := audit.Run(t.Context(), conn, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s", strings.Join(found(report), "\n"))
		})
	}
}

func TestRequiredAndExemptTables(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	runSQL(t, pool, protectedJobs+`CREATE SCHEMA billing; CREATE TABLE billing.accounts (id bigint); CREATE TABLE billing."Audit.Log" (id bigint);
		CREATE TABLE public.other (id bigint); CREATE TABLE public.cache (id bigint); CREATE TABLE public.copy (LIKE public.jobs INCLUDING ALL);
		ALTER TABLE public.jobs DISABLE TRIGGER zzz_fencing_update`)
	report := run(t, pool, &audit.Options{
		Required: []string{"billing.*", "jobs"},
		Exempt: []audit.Exemption{
			{Table: `billing."Audit.Log"`, Reason: "append-only"},
			{Table: "cache", Reason: "rebuilt every night"},
			{Table: "copy", Reason: "a backup"},
			{Table: "jobs", Reason: "does not count, for it has a fence"},
			{Key: "unfenced-table:public.other", Reason: "one writer"},
		},
	})
	want := []string{
		"error guard-disabled public.jobs: its guard zzz_fencing_update is switched off",
		"error unfenced-table billing.accounts: has no fence; no write was seen since its statistics began",
	}
	if diff := cmp.Diff(want, found(report)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(audit.Summary{Tables: 6, Fenced: 1, Exempt: 3, Findings: 2}, report.Summary); diff != "" {
		t.Error(diff)
	}
	if report.Worst() != audit.Error {
		t.Errorf("worst %q", report.Worst())
	}

	for name, options := range map[string]*audit.Options{
		"invoices: no table matches it":                {Required: []string{"jobs", "invoices"}},
		`"x: "x is not a table name`:                   {Required: []string{`"x`}},
		"jobs: an exemption needs a reason":            {Exempt: []audit.Exemption{{Table: "jobs", Reason: " "}}},
		"jobs: an exemption names either a table or a": {Exempt: []audit.Exemption{{Table: "jobs", Key: "k", Reason: "r"}}},
		"an exemption: an exemption names either":      {Exempt: []audit.Exemption{{Reason: "r"}}},
	} {
		_, err := audit.Run(t.Context(), pool, options)
		var wrong *audit.OptionError
		if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("got %v, want an OptionError that begins with %s", err, name)
		}
	}
}

// A role that may do nothing at all can audit; what it may not read is said to be left out, and is there for one with the
// privileges of a monitor.
func TestAnyRoleCanAudit(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	runSQL(t, pool, protectedJobs+`
		SELECT fencing.acquire_lease('nightly', gen_random_uuid(), '1h'); SELECT fencing.claim('nightly', 99);
		SELECT fencing.observe('public.jobs'); UPDATE public.jobs SET state = 'done'; ALTER TABLE public.jobs DISABLE TRIGGER zzz_fencing_delete;
		CREATE SCHEMA hidden; CREATE TABLE hidden.t (id bigint)`)
	nobody, monitor := pgtest.Role(t, pool), pgtest.Role(t, pool)
	runFix(t, pool, "fencectl grant "+monitor.Name+" --for monitor")

	shared := []string{
		"error guard-disabled public.jobs: its guard zzz_fencing_delete is switched off",
		"warning unfenced-table hidden.t: has no fence; no write was seen since its statistics began",
	}
	report := run(t, nobody.Pool, nil)
	if diff := cmp.Diff(append(slices.Clone(shared), "warning observing public.jobs: is only observed"), found(report)); diff != "" {
		t.Error(diff)
	}
	var skipped []string
	for _, s := range report.Skipped {
		skipped = append(skipped, s.Rule)
		if !strings.Contains(s.Reason, "needs SELECT on fencing.") || !strings.Contains(s.Reason, "fencectl grant ROLE --for monitor") {
			t.Errorf("%s: the reason says not what is missing and what gives it: %s", s.Rule, s.Reason)
		}
	}
	if diff := cmp.Diff([]string{"sequence-unsafe", "token-ahead-of-source", "observing"}, skipped); diff != "" {
		t.Error(diff)
	}

	for name, db := range map[string]audit.DB{"monitor": monitor.Pool, "superuser": pool} {
		report := run(t, db, nil)
		want := []string{
			shared[0],
			"error token-ahead-of-source fence nightly: stands at 99, and the newest token ever issued for it is 1: every holder is refused",
			shared[1],
			"warning observing public.jobs: is only observed; 1 violation was recorded in the last 24 hours",
		}
		if diff := cmp.Diff(want, found(report)); diff != "" || len(report.Skipped) > 0 {
			t.Errorf("%s: skipped %+v, findings (-want +got):\n%s", name, report.Skipped, diff)
		}
	}
}

// The audit runs in a transaction that could not write if it wanted to.
func TestAnAuditChangesNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	runSQL(t, pool, protectedJobs)
	spy := &spyDB{pool: pool}
	run(t, spy, nil)
	if diff := cmp.Diff([]pgx.TxOptions{{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}}, spy.options); diff != "" {
		t.Error(diff)
	}
	// On a pooled connection nothing of its settings stays behind.
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	before := pgtest.Value[string](t, conn, "SELECT current_setting('search_path') || current_setting('jit')")
	run(t, conn, nil)
	if after := pgtest.Value[string](t, conn, "SELECT current_setting('search_path') || current_setting('jit')"); after != before {
		t.Errorf("settings were %q and are %q", before, after)
	}
}

type spyDB struct {
	pool    *pgxpool.Pool
	options []pgx.TxOptions
}

func (s *spyDB) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	s.options = append(s.options, options)
	return s.pool.BeginTx(ctx, options)
}

// counter counts statements.
type counter struct {
	mutex      sync.Mutex
	statements []string
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.statements = append(c.statements, data.SQL)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) count() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	n := len(c.statements)
	c.statements = nil
	return n
}

// largeDatabase makes 10,000 tables, of which 1,000 are partitions, nearly all with the guards of a row fence.
func largeDatabase(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Exec(t, pool, `CREATE TABLE public.t0 (id bigint PRIMARY KEY, v text); SELECT fencing.protect('public.t0');
		CREATE TABLE public.p0 (id bigint, v text) PARTITION BY LIST (id); CREATE TABLE public.p0_0 PARTITION OF public.p0 FOR VALUES IN (0); SELECT fencing.protect('public.p0')`)
	// fencing.protect takes milliseconds a table. What it makes is copied instead, some tables a transaction.
	const batch = 250
	for from := 1; from < 9000; from += batch {
		pgtest.Exec(t, pool, fmt.Sprintf(`DO $$ DECLARE g text; BEGIN
			FOR i IN %d .. %d LOOP
				EXECUTE format('CREATE TABLE public.t%%s (id bigint, v text, last_fencing_token bigint NOT NULL DEFAULT COALESCE(fencing.presented(), 0::bigint))', i);
				CONTINUE WHEN i %% 10 = 0;
				FOR g IN SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'public.t0'::regclass LOOP
					EXECUTE replace(g, ' ON public.t0 ', format(' ON public.t%%s ', i));
				END LOOP;
			END LOOP; END $$`, from, min(from+batch, 9000)-1))
	}
	for part := 1; part < 1000; part += batch {
		pgtest.Exec(t, pool, fmt.Sprintf(`DO $$ BEGIN FOR i IN %d .. %d LOOP
			EXECUTE format('CREATE TABLE public.p0_%%s PARTITION OF public.p0 FOR VALUES IN (%%s)', i, i); END LOOP; END $$`, part, min(part+batch, 1000)-1))
	}
	pgtest.Exec(t, pool, "ANALYZE pg_catalog.pg_class, pg_catalog.pg_trigger, pg_catalog.pg_attribute, pg_catalog.pg_depend, pg_catalog.pg_inherits")
}

func TestTheNumberOfStatementsDoesNotGrowWithTheNumberOfTables(t *testing.T) {
	t.Parallel()
	statements := &counter{}
	pool := pgtest.New(t, pgtest.Configure(func(c *pgxpool.Config) { c.ConnConfig.Tracer = statements }))
	statements.count()
	run(t, pool, nil)
	empty := statements.count()
	runSQL(t, pool, protectedJobs+partitionedEvents+`SELECT fencing.protect('public.events');
		DO $$ BEGIN FOR i IN 1..50 LOOP EXECUTE format('CREATE TABLE public.t%s (id bigint)', i); END LOOP; END $$;
		ALTER TABLE public.jobs DISABLE TRIGGER ALL`)
	statements.count()
	report := run(t, pool, nil)
	if full := statements.count(); full != empty || empty == 0 || empty > 8 {
		t.Errorf("%d statements for an empty database, %d for one with %d tables", empty, full, report.Summary.Tables)
	}
}

// Ten thousand tables, nearly all of them fenced, take about a second. Making them takes minutes, so this is a benchmark and no
// test: go test -run '^$' -bench TenThousandTables ./internal/audit
func BenchmarkTenThousandTables(b *testing.B) {
	pool := pgtest.New(b)
	largeDatabase(b, pool)
	conn := pgtest.Conn(b, pool)
	before, ok := cpuTime(conn.PgConn().PID())
	for b.Loop() {
		report, err := audit.Run(b.Context(), conn, nil)
		if err != nil {
			b.Fatal(err)
		}
		// t0 to t8999 and p0; every tenth of t has lost its guards, and p0 has partitions that came later.
		if diff := cmp.Diff(audit.Summary{Tables: 9001, Fenced: 8102, Findings: 900}, report.Summary); diff != "" {
			b.Fatal(diff)
		}
	}
	if after, _ := cpuTime(conn.PgConn().PID()); ok {
		b.ReportMetric(float64((after-before).Milliseconds())/float64(b.N), "server-ms/op")
	}
}

// cpuTime is the processor time that a server process of this machine has used: what an audit costs the server, whatever else
// the machine is doing. Only Linux says so in this place.
func cpuTime(pid uint32) (time.Duration, bool) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// After the name, which is in parentheses: utime and stime are the 14th and 15th field of all, in hundredths of a second.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, false
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, true
}

// A table that is dropped while the catalogs are read is no error.
func TestTablesThatComeAndGoDoNotMakeTheAuditFail(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	runSQL(t, pool, protectedJobs)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, err := pool.Exec(ctx, fmt.Sprintf(`CREATE TABLE public.t%[1]d (id bigint PRIMARY KEY); SELECT fencing.protect('public.t%[1]d'); DROP TABLE public.t%[1]d`, i%3),
				pgx.QueryExecModeSimpleProtocol)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	for range 60 {
		if _, err := audit.Run(t.Context(), pool, nil); err != nil {
			t.Error(err)
			break
		}
	}
	stop()
	work.Wait()
}

// A subscription writes as a replica. The publisher is another database of the same server.
func TestASubscriptionThatWritesIntoAProtectedTableIsFound(t *testing.T) {
	t.Parallel()
	publisher, pool := pgtest.New(t), pgtest.New(t)
	runSQL(t, publisher, `CREATE TABLE public.jobs (id bigint PRIMARY KEY); CREATE TABLE public.other (id bigint PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES`)
	runSQL(t, pool, `CREATE TABLE public.jobs (id bigint PRIMARY KEY); CREATE TABLE public.other (id bigint PRIMARY KEY)`)
	name := "fencectl_" + pgtest.Value[string](t, pool, "SELECT current_database()")
	address := strings.ReplaceAll(libpqAddress(publisher), "'", "''")
	runSQL(t, pool, fmt.Sprintf(`CREATE SUBSCRIPTION "%s" CONNECTION '%s' PUBLICATION p WITH (create_slot = false, slot_name = NONE, enabled = false, copy_data = false, connect = true)`, name, address))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, sql := range []string{`ALTER SUBSCRIPTION "%s" DISABLE`, `ALTER SUBSCRIPTION "%s" SET (slot_name = NONE)`, `DROP SUBSCRIPTION "%s"`} {
			if _, err := pool.Exec(ctx, fmt.Sprintf(sql, name)); err != nil {
				t.Error(err)
			}
		}
	})
	runSQL(t, pool, `SELECT fencing.protect('public.jobs'); SELECT fencing.protect('public.other')`)
	if got := found(run(t, pool, nil)); len(got) > 0 {
		t.Fatalf("a subscription that is not enabled writes nothing, but:\n%s", strings.Join(got, "\n"))
	}
	runSQL(t, pool, fmt.Sprintf(`ALTER SUBSCRIPTION "%[1]s" SET (slot_name = 'fencectl_none'); ALTER SUBSCRIPTION "%[1]s" ENABLE`, name))
	report := run(t, pool, nil)
	want := []string{
		"error subscription-writes public.jobs: the subscription " + name + " writes into it, and fires no guard",
		"error subscription-writes public.other: the subscription " + name + " writes into it, and fires no guard",
	}
	if diff := cmp.Diff(want, found(report)); diff != "" {
		t.Fatal(diff)
	}
	runFix(t, pool, report.Findings[0].Fix)
	if got := found(run(t, pool, nil)); len(got) > 0 {
		t.Errorf("the fix should leave nothing to be found, but:\n%s", strings.Join(got, "\n"))
	}
}

// libpqAddress is where a server process finds a database.
func libpqAddress(pool *pgxpool.Pool) string {
	c := pool.Config().ConnConfig
	address := fmt.Sprintf("host=%s port=%d dbname=%s user=%s", c.Host, c.Port, c.Database, c.User)
	if c.Password != "" {
		address += " password=" + c.Password
	}
	return address
}

func TestEveryRuleHasAPageAndEveryPageARule(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../../docs/rules/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, name := range names {
		if page := strings.TrimSuffix(filepath.Base(name), ".md"); page != "README" {
			pages = append(pages, page)
		}
	}
	var rules []string
	for _, rule := range audit.Rules() {
		rules = append(rules, rule.Name)
	}
	slices.Sort(rules)
	if diff := cmp.Diff(rules, pages); diff != "" {
		t.Errorf("rules without page (-), pages without rule (+):\n%s", diff)
	}
	index, err := os.ReadFile("../../docs/rules/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules {
		if !strings.Contains(string(index), fmt.Sprintf("[`%[1]s`](%[1]s.md)", rule)) {
			t.Errorf("the index has no link to %s", rule)
		}
	}
}

// What a rule's page shows is what happens: its example runs, and whoever holds the old token in it is not refused; the rule then
// finds it; and what the page says to do mends it.
func TestTheExamplesOfTheRulesPagesAreTrue(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?ms)^```(sql|sh)\n(.*?)^```$")
	for _, rule := range audit.Rules() {
		switch rule.Name {
		case "subscription-writes", "unfenced-statement", "guard-outdated":
			continue // need a second database, a preloaded library, an older version: tests of their own look at them
		}
		t.Run(rule.Name, func(t *testing.T) {
			t.Parallel()
			page, err := os.ReadFile("../../docs/rules/" + rule.Name + ".md")
			if err != nil {
				t.Fatal(err)
			}
			blocks := block.FindAllStringSubmatch(string(page), -1)
			if len(blocks) != 2 || blocks[0][1] != "sql" {
				t.Fatalf("the page has %d blocks, want an example in SQL and what mends it", len(blocks))
			}
			pool := pgtest.New(t)
			if rule.Name == "owner-can-bypass" { // roles are not the database's, and do not go with it
				t.Cleanup(func() {
					if _, err := pool.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY shop_app, shop_owner; DROP ROLE shop_app, shop_owner"); err != nil {
						t.Error(err)
					}
				})
			}
			runSQL(t, pool, blocks[0][2])
			if rule.Name == "row-fence-with-deletes" {
				await(t, pool, "pg_catalog.pg_stat_get_tuples_deleted('public.jobs'::regclass) > 0")
			}
			finds := func() bool {
				return slices.ContainsFunc(run(t, pool, nil).Findings, func(f audit.Finding) bool { return f.Rule == rule.Name })
			}
			if !finds() {
				t.Error("the rule does not find its own example")
			}
			runFix(t, pool, strings.TrimSpace(blocks[1][2]))
			if finds() {
				t.Error("what the page says to do does not mend it")
			}
		})
	}
}
