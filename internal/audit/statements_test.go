package audit_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

// serverWith is a server of its own, with libraries loaded and the fencing schema, that has pg_stat_statements to install.
func serverWith(t *testing.T, libraries ...string) *pgxpool.Pool {
	t.Helper()
	server, err := pgserver.Start(t.Context(), &pgserver.Options{Preload: libraries})
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
	if !pgtest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_stat_statements')") {
		t.Skip("this PostgreSQL comes without pg_stat_statements")
	}
	if _, err := migrations.Up(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	return pool
}

func statementFindings(report *audit.Report) (lines []string, findings []audit.Finding) {
	for _, f := range report.Findings {
		if f.Rule == "unfenced-statement" {
			lines = append(lines, fmt.Sprintf("%s %s: %s", f.Severity, f.Object, f.Message))
			findings = append(findings, f)
		}
	}
	return lines, findings
}

func skippedStatements(t *testing.T, db audit.DB) []string {
	t.Helper()
	report, err := audit.Run(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, s := range report.Skipped {
		if s.Rule == "unfenced-statement" {
			reasons = append(reasons, s.Reason)
		}
	}
	return reasons
}

func TestStatementsOfRolesThatPresentNoTokenAreFound(t *testing.T) {
	t.Parallel()
	pool := serverWith(t, "pg_stat_statements")
	runSQL(t, pool, protectedJobs+`CREATE TABLE public.runs (id bigint PRIMARY KEY); SELECT fencing.protect('public.runs', fence => 'runs', observe => true);
		CREATE TABLE public.other (id bigint); CREATE SCHEMA a; CREATE TABLE a.jobs (id bigint)`)
	if diff := cmp.Diff([]string{"pg_stat_statements is not installed in this database (CREATE EXTENSION pg_stat_statements)"}, skippedStatements(t, pool)); diff != "" {
		t.Error(diff)
	}
	runSQL(t, pool, `CREATE SCHEMA ext; CREATE EXTENSION pg_stat_statements SCHEMA ext; CREATE ROLE forgetful; CREATE ROLE fenced_app; CREATE ROLE batch;
		GRANT USAGE ON SCHEMA a TO PUBLIC; GRANT ALL ON public.jobs, public.runs, public.other, a.jobs TO PUBLIC`)
	if lines, _ := statementFindings(run(t, pool, nil)); lines != nil {
		t.Fatalf("nothing was written yet, but: %q", lines)
	}
	runSQL(t, pool, `SET search_path = public; SET ROLE forgetful; INSERT INTO runs VALUES (1), (2); INSERT INTO public.jobs VALUES (3); UPDATE runs SET id = 0 WHERE id = 99;
		UPDATE other SET id = 1; SELECT * FROM runs FOR UPDATE; UPDATE jobs SET id = id WHERE false`)
	// The same statements by roles that present: with a function, a setting, in the statement.
	runSQL(t, pool, `SET ROLE fenced_app; BEGIN; SELECT fencing.present(7); UPDATE public.jobs SET state = 'done' WHERE id = 1; COMMIT; BEGIN; SET LOCAL fencing.token = 8;
		DELETE FROM public.jobs WHERE id = 2; COMMIT; INSERT INTO public.runs VALUES (7)`)
	runSQL(t, pool, `SET ROLE batch; UPDATE public.jobs SET last_fencing_token = 9 WHERE id = 1; INSERT INTO public.runs VALUES (8)`)
	// As fencectl lock would have it.
	conn := pgtest.Value[uint32](t, pool, "SELECT oid::int8 FROM pg_roles WHERE rolname = 'forgetful'")
	runSQL(t, pool, `SET ROLE forgetful; SELECT 1`)
	withOptions := pool.Config().ConnConfig.Copy()
	withOptions.RuntimeParams["options"] = "-c fencing.token=99 -c role=forgetful"
	session, err := pgx.ConnectConfig(t.Context(), withOptions)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, session, "UPDATE public.jobs SET state = 'late' WHERE id = 1")
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	const none = "; no statement of this role in pg_stat_statements presents a token"
	lines, findings := statementFindings(run(t, pool, nil))
	if diff := cmp.Diff([]string{
		"info public.jobs: the role forgetful ran once: UPDATE public.jobs SET state = $1 WHERE id = $2" + none +
			". As the fence enforces, it ran before that, or with a token that is not seen there (PGOPTIONS, as fencectl lock sets it)",
		"info public.runs: the role forgetful ran once: INSERT INTO runs VALUES ($1), ($2)" + none,
	}, lines); diff != "" {
		t.Fatal(diff)
	}
	if !strings.HasPrefix(findings[1].Key, "unfenced-statement:public.runs:forgetful:") || !strings.HasPrefix(findings[1].Fix, fmt.Sprintf("SELECT ext.pg_stat_statements_reset(%d, ", conn)) {
		t.Errorf("finding: %+v", findings[1])
	}
	for _, f := range findings {
		runFix(t, pool, f.Fix)
	}
	if lines, _ := statementFindings(run(t, pool, nil)); lines != nil {
		t.Errorf("after the fixes: %q", lines)
	}

	// A role sees what it may see, and says what it may not.
	pgtest.Exec(t, pool, "CREATE ROLE looker LOGIN")
	config := pool.Config().ConnConfig.Copy()
	config.User = "looker"
	looker, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = looker.Close(context.WithoutCancel(t.Context())) })
	if got := strings.Join(skippedStatements(t, looker), ";"); got != "pg_stat_statements may not be read: this needs SELECT on the view, and USAGE on its schema" {
		t.Errorf("without the schema: %s", got)
	}
	pgtest.Exec(t, pool, "GRANT USAGE ON SCHEMA ext TO looker")
	if got := strings.Join(skippedStatements(t, looker), ";"); !strings.HasSuffix(got, "is hidden: this needs membership in pg_read_all_stats") {
		t.Errorf("without pg_read_all_stats: %s", got)
	}
	pgtest.Exec(t, pool, "GRANT pg_read_all_stats TO looker")
	if got := skippedStatements(t, looker); got != nil {
		t.Errorf("with all: %s", got)
	}
}

func TestTheExampleOfUnfencedStatementIsTrue(t *testing.T) {
	t.Parallel()
	pool := serverWith(t, "pg_stat_statements")
	page, err := os.ReadFile("../../docs/rules/unfenced-statement.md")
	if err != nil {
		t.Fatal(err)
	}
	runSQL(t, pool, regexp.MustCompile("(?ms)^```sql\n(.*?)^```$").FindStringSubmatch(string(page))[1])
	// the superuser of the example presents; the other role does not
	lines, findings := statementFindings(run(t, pool, nil))
	if len(lines) != 1 || !strings.Contains(lines[0], "the role reports ran once: UPDATE public.jobs SET state = $1 WHERE id = $2") {
		t.Fatalf("found: %q", lines)
	}
	runFix(t, pool, findings[0].Fix)
	if lines, _ := statementFindings(run(t, pool, nil)); lines != nil {
		t.Errorf("after the fix: %q", lines)
	}
}

// Without the library the view is there and fails: an audit must not.
func TestPgStatStatementsThatIsNotLoadedIsSkipped(t *testing.T) {
	t.Parallel()
	pool := serverWith(t)
	runSQL(t, pool, protectedJobs+"CREATE EXTENSION pg_stat_statements SCHEMA public")
	if diff := cmp.Diff([]string{"pg_stat_statements is installed and not loaded: it has to be in shared_preload_libraries when the server starts"}, skippedStatements(t, pool)); diff != "" {
		t.Error(diff)
	}
}

// An owner that is in the database now may be the program at work. What mends it leaves the program able to work, and no more.
func TestAnOwnerThatIsConnectedIsAWarning(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	app := pgtest.Role(t, pool)
	runSQL(t, pool, protectedJobs+"ALTER TABLE public.jobs OWNER TO "+app.Name)
	session := pgtest.Conn(t, app.Pool)
	pgtest.Exec(t, session, "SELECT 1")
	report := run(t, pool, nil)
	if len(report.Findings) != 1 || report.Findings[0].Severity != audit.Warning || !strings.HasSuffix(report.Findings[0].Message, " of it is in this database now") {
		t.Fatalf("found: %+v", report.Findings)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf("DROP OWNED BY %[1]s_owner; DROP ROLE %[1]s_owner", app.Name)); err != nil {
			t.Error(err)
		}
	})
	runFix(t, pool, report.Findings[0].Fix)
	if got := found(run(t, pool, nil)); got != nil {
		t.Errorf("after the fix: %q", got)
	}
	pgtest.Exec(t, session, "BEGIN; SELECT fencing.present(7); UPDATE public.jobs SET state = 'done' WHERE id = 1; COMMIT")
	_, err := session.Exec(t.Context(), "ALTER TABLE public.jobs DISABLE TRIGGER USER")
	if state := pgtest.SQLState(err); state != "42501" {
		t.Errorf("the program can still switch the guards off: %v", err)
	}
}

func TestAnOlderSchemaIsFoundByWhatItSaysOfItself(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	replace := func(version string) {
		t.Helper()
		pgtest.Exec(t, pool, "CREATE OR REPLACE FUNCTION fencing.version() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN '"+version+"'::pg_catalog.text")
	}
	current := pgtest.Value[string](t, pool, "SELECT fencing.version()")
	replace("0.0.99")
	report := run(t, pool, nil)
	if diff := cmp.Diff([]string{"warning guard-outdated schema fencing: is of version 0.0.99, and this fencectl installs " + current}, found(report)); diff != "" {
		t.Error(diff)
	}
	if len(report.Findings) == 1 && report.Findings[0].Fix != "fencectl install" {
		t.Errorf("fix: %s", report.Findings[0].Fix)
	}
	replace("10.0.0")
	if got := found(run(t, pool, nil)); got != nil {
		t.Errorf("of a newer version: %q", got)
	}
	replace(current)
	if got := found(run(t, pool, nil)); got != nil {
		t.Errorf("of this version: %q", got)
	}
}
