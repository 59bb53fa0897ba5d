package migrations_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// The SQLSTATEs that the tests expect, by what they mean. The first five are the product's own.
const (
	stale     = "ZF001"
	unfenced  = "ZF002"
	invalid   = "ZF003"
	unclaimed = "ZF004"
	truncate  = "ZF005"

	accepted            = ""
	notNullViolation    = "23502"
	transactionAborted  = "25P02"
	idleTimeout         = "25P03"
	dependentObjects    = "2BP01"
	serializationFailed = "40001"
	deadlockDetected    = "40P01"
	noPrivilege         = "42501"
	wrongState          = "55000"
)

var isolationLevels = []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}

// atEachLevel runs a parallel subtest for each isolation level.
func atEachLevel(t *testing.T, f func(t *testing.T, level string)) {
	for _, level := range isolationLevels {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			f(t, level)
		})
	}
}

// begin opens a session and begins a transaction in it.
func begin(t *testing.T, pool *pgxpool.Pool, level string) *pgx.Conn {
	t.Helper()
	conn := pgtest.Conn(t, pool)
	pgtest.Exec(t, conn, "BEGIN ISOLATION LEVEL "+level)
	return conn
}

// beginUnder is begin, presenting a token.
func beginUnder(t *testing.T, pool *pgxpool.Pool, level string, token int64) *pgx.Conn {
	t.Helper()
	conn := begin(t, pool, level)
	present(t, conn, token)
	return conn
}

func present(t *testing.T, q pgtest.Querier, token int64) {
	t.Helper()
	pgtest.Exec(t, q, "SELECT fencing.present($1)", token)
}

// try runs statements, in one transaction unless they say otherwise, and returns the error.
func try(t *testing.T, q pgtest.Querier, sql string) error {
	t.Helper()
	_, err := q.Exec(t.Context(), sql)
	return err
}

// under is a transaction of statements under a token.
func under(token int64, sql string) string {
	return fmt.Sprintf("SELECT fencing.present(%d); %s", token, sql)
}

// ends checks how a statement ended: with a SQLSTATE, or accepted. It returns the server's error.
func ends(t *testing.T, err error, want string) *pgconn.PgError {
	t.Helper()
	if got := pgtest.SQLState(err); got != want || (err != nil) != (want != accepted) {
		t.Errorf("it ended with SQLSTATE %q (%v), want %q", got, err, want)
	}
	pgErr := &pgconn.PgError{}
	errors.As(err, &pgErr)
	return pgErr
}

// endsOneOf is ends where more than one outcome keeps the promise.
func endsOneOf(t *testing.T, err error, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if pgtest.SQLState(err) == want && (err != nil) == (want != accepted) {
			return
		}
	}
	t.Errorf("it ended with SQLSTATE %q (%v), want one of %q", pgtest.SQLState(err), err, wants)
}

// finds checks the one value that a query returns.
func finds[T any](t *testing.T, q pgtest.Querier, want T, sql string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, pgtest.Value[T](t, q, sql, args...)); diff != "" {
		t.Errorf("%s\nfound (-want +got):\n%s", sql, diff)
	}
}

// detail is the JSON object that a refusal carries.
func detail(t *testing.T, refusal *pgconn.PgError) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(refusal.Detail), &fields); err != nil {
		t.Errorf("DETAIL %q is not a JSON object: %v", refusal.Detail, err)
	}
	return fields
}

// jobs makes the table that most tests write: two rows, both in state 'new'.
const jobs = `
	CREATE TABLE public.jobs (id int PRIMARY KEY, state text NOT NULL);
	INSERT INTO public.jobs VALUES (1, 'new'), (2, 'new');`

// fencedJobs returns a database with public.jobs, protected with the given further arguments of protect, and
// public.plain, its twin without guards, for controls.
func fencedJobs(t *testing.T, protectArguments string) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, jobs)
	pgtest.Exec(t, pool, "CREATE TABLE public.plain (id int PRIMARY KEY, state text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO public.plain VALUES (1, 'new'), (2, 'new')")
	if protectArguments != "" {
		protectArguments = ", " + protectArguments
	}
	pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs'"+protectArguments+")")
	return pool
}

// state is the state of a row of public.jobs, or of its twin, as committed.
func state(t *testing.T, pool *pgxpool.Pool, table string, id int) string {
	t.Helper()
	return pgtest.Value[string](t, pool, fmt.Sprintf("SELECT coalesce((SELECT state FROM public.%s WHERE id = %d), 'no row')", table, id))
}

// claim raises a fence in a transaction of its own.
func claim(t *testing.T, q pgtest.Querier, fence string, token int64) {
	t.Helper()
	pgtest.Exec(t, q, "SELECT fencing.claim($1, $2)", fence, token)
}

// scanInto is a call that runs a query and keeps its one value.
func scanInto[T any](conn *pgx.Conn, value *T, sql string, args ...any) func(context.Context) error {
	return func(ctx context.Context) error { return conn.QueryRow(ctx, sql, args...).Scan(value) }
}
