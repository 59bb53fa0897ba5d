package pgtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/lib/pq"

	"github.com/fencectl/fencectl/internal/pgtest"
)

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	const tests = 8
	var mu sync.Mutex
	seen := map[string]bool{}
	t.Run("group", func(t *testing.T) {
		for i := range tests {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.NewEmpty(t)
				pgtest.Exec(t, pool, "CREATE TABLE public.only_here (i int)")
				name := pgtest.Value[string](t, pool, "SELECT current_database()::text")
				mu.Lock()
				defer mu.Unlock()
				seen[name] = true
			})
		}
	})
	if len(seen) != tests {
		t.Errorf("%d tests shared %d databases", tests, len(seen))
	}
	var left int
	if err := pgtest.NewEmpty(t).QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname = ANY ($1)", keys(seen)).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != 0 {
		t.Errorf("%d databases are still there after their tests", left)
	}
}

func keys(m map[string]bool) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}

func TestEverySessionHasAnEmptySearchPath(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id int)")
	std, err := sql.Open("postgres", pgtest.DSN(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	defer std.Close()
	role := pgtest.Role(t, pool, "SELECT ON public.jobs", "USAGE ON SCHEMA public")
	for name, query := range map[string]func(sql string) error{
		"pool":   func(sql string) error { _, err := pool.Exec(t.Context(), sql); return err },
		"conn":   func(sql string) error { _, err := pgtest.Conn(t, pool).Exec(t.Context(), sql); return err },
		"lib/pq": func(sql string) error { _, err := std.ExecContext(t.Context(), sql); return err },
		"role":   func(sql string) error { _, err := role.Pool.Exec(t.Context(), sql); return err },
	} {
		if err := query("SELECT FROM public.jobs"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		const undefinedTable = "42P01"
		if err := query("SELECT FROM jobs"); pgtest.SQLState(err) != undefinedTable {
			t.Errorf("%s: an unqualified name gave %v, want SQLSTATE %s", name, err, undefinedTable)
		}
	}
}

func TestARoleHasOnlyWhatItWasGranted(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id int); CREATE TABLE public.secrets (id int)")
	role := pgtest.Role(t, pool, "SELECT ON public.jobs")
	if user := pgtest.Value[string](t, role.Pool, "SELECT current_user::text"); user != role.Name {
		t.Errorf("connected as %s, want %s", user, role.Name)
	}
	pgtest.Exec(t, role.Pool, "SELECT FROM public.jobs")
	const insufficientPrivilege = "42501"
	for _, sql := range []string{"SELECT FROM public.secrets", "INSERT INTO public.jobs VALUES (1)", "CREATE ROLE another"} {
		if _, err := role.Pool.Exec(t.Context(), sql); pgtest.SQLState(err) != insufficientPrivilege {
			t.Errorf("%s: %v, want SQLSTATE %s", sql, err, insufficientPrivilege)
		}
	}
}

func TestARoleIsGoneAfterTheTest(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("inner", func(t *testing.T) {
		pool := pgtest.NewEmpty(t)
		role := pgtest.Role(t, pool, "CREATE ON SCHEMA public", "USAGE ON SCHEMA public")
		name = role.Name
		pgtest.Exec(t, role.Pool, "CREATE TABLE public.owned (id int)") // what it owns must not keep it alive
	})
	if pgtest.Value[bool](t, pgtest.NewEmpty(t), "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", name) {
		t.Errorf("role %s is still there", name)
	}
}

func TestBlockedReturnsOnlyWhenTheStatementWaits(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id int, state text); INSERT INTO public.jobs VALUES (1, '')")
	first, second := pgtest.Conn(t, pool), pgtest.Conn(t, pool)

	pgtest.Exec(t, first, "BEGIN; UPDATE public.jobs SET state = 'first'")
	update := pgtest.Go(t, second, "UPDATE public.jobs SET state = state || ', second'").Blocked()
	pgtest.WaitBlocked(t, pool, update.PID())
	if waiting := pgtest.WaitBlockedBy(t, pool, first.PgConn().PID()); waiting != update.PID() {
		t.Errorf("backend %d waits for the first session, want %d", waiting, update.PID())
	}
	select {
	case <-update.Done():
		t.Fatal("the update ended while its lock was held")
	default:
	}
	pgtest.Exec(t, first, "COMMIT")
	if err := update.Wait(); err != nil {
		t.Fatal(err)
	}
	if state := pgtest.Value[string](t, pool, "SELECT state FROM public.jobs"); state != "first, second" {
		t.Errorf("state is %q: the order was not the forced one", state)
	}
}

func TestBlockedFailsTheTestOfAStatementThatDoesNotWait(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	recorder := &fatalRecorder{TB: t}
	done := make(chan struct{})
	go func() { // Fatal ends its goroutine
		defer close(done)
		pgtest.Go(recorder, pgtest.Conn(t, pool), "SELECT 1").Blocked()
	}()
	<-done
	if !recorder.failed {
		t.Error("Blocked accepted a statement that had ended")
	}
}

// fatalRecorder notes that a test would have failed.
type fatalRecorder struct {
	testing.TB
	failed bool
}

func (r *fatalRecorder) Fatalf(string, ...any) {
	r.failed = true
	runtime.Goexit()
}

func TestAStatementThatStillRunsDoesNotOutliveTheTest(t *testing.T) {
	t.Parallel()
	var statement *pgtest.Statement
	t.Run("inner", func(t *testing.T) {
		pool := pgtest.NewEmpty(t)
		holder := pgtest.Conn(t, pool)
		pgtest.Exec(t, holder, "SELECT pg_advisory_lock(1)")
		statement = pgtest.Go(t, pgtest.Conn(t, pool), "SELECT pg_advisory_lock(1)").Blocked()
	})
	if err := statement.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("the statement ended with %v, want it cancelled", err)
	}
}

func TestCallMayReadResults(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.NewEmpty(t))
	var got int
	err := pgtest.Call(t, conn, func(ctx context.Context) error {
		return conn.QueryRow(ctx, "SELECT 42").Scan(&got)
	}).Wait()
	if err != nil || got != 42 {
		t.Errorf("got %d, %v", got, err)
	}
}

func TestSQLStateIsThatOfAnyDriver(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	std, err := sql.Open("postgres", pgtest.DSN(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	defer std.Close()
	const divisionByZero = "22012"
	_, pgxErr := pool.Exec(t.Context(), "SELECT 1/0")
	_, pqErr := std.ExecContext(t.Context(), "SELECT 1/0")
	for _, err := range []error{pgxErr, pqErr, fmt.Errorf("wrapped: %w", pgxErr)} {
		if got := pgtest.SQLState(err); got != divisionByZero {
			t.Errorf("SQLState(%v) = %q, want %q", err, got, divisionByZero)
		}
	}
	for _, err := range []error{nil, errors.New("other"), pgx.ErrNoRows} {
		if got := pgtest.SQLState(err); got != "" {
			t.Errorf("SQLState(%v) = %q, want none", err, got)
		}
	}
}

func TestTwoHundredSessionsFit(t *testing.T) {
	t.Parallel()
	const sessions = 200
	pool := pgtest.NewEmpty(t, pgtest.MaxConns(sessions), pgtest.Param("application_name", "crowd"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range sessions {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
	}
	if n := pgtest.Value[int](t, pgtest.Conn(t, pool), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'crowd'"); n != sessions+1 {
		t.Errorf("%d sessions, want %d", n, sessions+1)
	}
}
