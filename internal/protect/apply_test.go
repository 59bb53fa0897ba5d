package protect_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/internal/protect"
	"github.com/fencectl/fencectl/internal/tableref"
	"github.com/fencectl/fencectl/migrations"
)

// shop makes three tables to protect.
func shop(t *testing.T) (*pgxpool.Pool, []tableref.Table) {
	t.Helper()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.a (id bigint PRIMARY KEY); CREATE TABLE public.b (id bigint PRIMARY KEY); CREATE TABLE public.c (id bigint PRIMARY KEY)")
	return pool, tables(t, pool, "public.*")
}

func tables(t *testing.T, pool *pgxpool.Pool, args ...string) []tableref.Table {
	t.Helper()
	catalog, err := tableref.Read(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	found, err := catalog.Resolve(args, nil, "table")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// open connects as fencectl does: two connections, none to spare.
func open(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	server, err := connect.Open(t.Context(), &connect.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server.Pool
}

// hold locks a table in a transaction of another session, as a long-running query would, until the test ends or release.
func hold(t *testing.T, pool *pgxpool.Pool, table, application string) (pid int32, release func()) {
	t.Helper()
	conn := pgtest.Conn(t, pool)
	pgtest.Exec(t, conn, "SET application_name = '"+application+"'")
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "LOCK TABLE "+table+" IN ACCESS SHARE MODE")
	return pgtest.Value[int32](t, tx, "SELECT pg_backend_pid()"), func() {
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	}
}

func protectedTables(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, "SELECT COALESCE(string_agg(table_name, ' ' ORDER BY table_name), '') FROM fencing.protection")
}

func names[T any](list []T, name func(T) string) string {
	var all []string
	for _, x := range list {
		all = append(all, name(x))
	}
	return strings.Join(all, " ")
}

func stepName(s protect.Step) string       { return s.Table.Name }
func failureName(f protect.Failure) string { return f.Table.Name }
func tableName(t tableref.Table) string    { return t.Name }

func TestApplyChangesEveryTableAndAgainNothing(t *testing.T) {
	t.Parallel()
	pool, all := shop(t)
	fencectl := open(t, pgtest.DSN(t, pool))
	for range 2 {
		result := protect.Apply(t.Context(), fencectl, protect.Protect(all, nil, protect.Options{}), nil)
		if got := names(result.Applied, stepName); got != "a b c" || result.Failed != nil || result.NotTried != nil || result.Stopped != nil {
			t.Fatalf("result: %+v", result)
		}
		if got := protectedTables(t, pool); got != "a b c" {
			t.Errorf("protected: %s", got)
		}
	}
}

func TestThePrintedScriptDoesWhatApplyDoes(t *testing.T) {
	t.Parallel()
	pool, all := shop(t)
	opts := protect.Options{Mode: "reentrant", Inserts: "require", Observe: true, MaxAdvance: 1000}
	pgtest.Exec(t, pool, protect.Script(protect.Protect(all, nil, opts), time.Second))
	script, err := protect.Current(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, pool, protect.Script(protect.Unprotect(all, true), time.Second))
	if got := protectedTables(t, pool); got != "" {
		t.Fatalf("still protected: %s", got)
	}
	if result := protect.Apply(t.Context(), open(t, pgtest.DSN(t, pool)), protect.Protect(all, nil, opts), nil); len(result.Applied) != 3 {
		t.Fatalf("result: %+v", result)
	}
	applied, err := protect.Current(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	for oid, want := range script {
		if got := applied[oid]; got != want {
			t.Errorf("applied %+v, the script gave %+v", got, want)
		}
		if want.Mode != "reentrant" || want.Inserts != "require" || want.Enforcement != "observe" || want.MaxAdvance != 1000 {
			t.Errorf("the options were lost: %+v", want)
		}
	}
}

func TestTheUndoOfAChangeIsTheEarlierProtection(t *testing.T) {
	t.Parallel()
	pool, _ := shop(t)
	table := tables(t, pool, "public.a")
	for _, before := range []protect.Options{
		{Mode: "strict", Inserts: "allow"},
		{Mode: "reentrant", Inserts: "require", MaxAdvance: 7, Observe: true},
		{Fence: `it's a "fence"\`, MaxAdvance: 9},
		{Fence: "a/{id}", Observe: true},
	} {
		pgtest.Exec(t, pool, protect.Protect(table, nil, before)[0].SQL)
		current, err := protect.Current(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		change := protect.Protect(table, current, protect.Options{Fence: "another", Observe: !before.Observe})[0]
		pgtest.Exec(t, pool, change.SQL)
		pgtest.Exec(t, pool, change.Undo)
		restored, err := protect.Current(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		if restored[table[0].OID] != current[table[0].OID] {
			t.Errorf("%+v came back as %+v", current[table[0].OID], restored[table[0].OID])
		}
	}
}

func TestLiteralsAreWhatTheServerReads(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	for _, text := range []string{"", "a", "it's", `back\slash`, `\'; DROP TABLE x; --`, "Größe\n\t$$ $1 %", strings.Repeat("'", 10), `E'\x41'`} {
		for _, setting := range []string{"on", "off"} {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, tx, "SET LOCAL standard_conforming_strings = "+setting)
			var got string
			if err := tx.QueryRow(t.Context(), "SELECT "+protect.Literal(text), pgx.QueryExecModeDescribeExec).Scan(&got); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if got != text {
				t.Errorf("%q came back as %q with standard_conforming_strings %s", text, got, setting)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestATableInUseNamesWhoUsesItAndTheOthersAreDone(t *testing.T) {
	t.Parallel()
	pool, all := shop(t)
	pid, release := hold(t, pool, "public.b", "nightly report")
	defer release()

	var retries []protect.Retry
	result := protect.Apply(t.Context(), open(t, pgtest.DSN(t, pool)), protect.Protect(all, nil, protect.Options{}), &protect.ApplyOptions{
		LockTimeout: 200 * time.Millisecond, Retries: 2, FirstPause: time.Millisecond,
		Progress: func(e protect.Event) {
			if e.Retry != nil {
				retries = append(retries, *e.Retry)
			}
		},
	})
	if applied, failed := names(result.Applied, stepName), names(result.Failed, failureName); applied != "a c" || failed != "b" || result.NotTried != nil {
		t.Fatalf("applied %q, failed %q, result %+v", applied, failed, result)
	}
	var locked *protect.LockedError
	if !errors.As(result.Failed[0].Err, &locked) {
		t.Fatalf("want a *LockedError, got %v", result.Failed[0].Err)
	}
	for _, part := range []string{"public.b", fmt.Sprintf("pid %d", pid), "nightly report", "idle in transaction", "3 attempts", "200ms", "--retries", fmt.Sprintf("pg_terminate_backend(%d)", pid)} {
		if !strings.Contains(locked.Error(), part) {
			t.Errorf("the error does not name %q: %v", part, locked)
		}
	}
	if len(locked.Blocking) != 1 || locked.Blocking[0].PID != pid || locked.Blocking[0].TransactionMS < 0 {
		t.Errorf("blocking: %+v", locked.Blocking)
	}
	if len(retries) != 2 || retries[0].Attempt != 1 || retries[1].Attempt != 2 || retries[0].Attempts != 3 || len(retries[0].Blocking) != 1 {
		t.Errorf("retries: %+v", retries)
	}
	if got := protectedTables(t, pool); got != "a c" {
		t.Errorf("protected: %s", got)
	}
}

func TestARoleThatMayNotSeeWhatOthersDoStillNamesThem(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	role := pgtest.Role(t, pool, "CREATE ON SCHEMA public", "USAGE ON SCHEMA public")
	// The role is a bystander of the test server's superuser, whose session holds the lock.
	pgtest.Exec(t, role.Pool, "CREATE TABLE public.a (id bigint PRIMARY KEY)")
	for _, f := range pgtest.Value[[]string](t, pool, "SELECT array_agg(p.oid::regprocedure::text) FROM pg_proc p WHERE p.pronamespace = 'fencing'::regnamespace") {
		pgtest.Exec(t, pool, "GRANT EXECUTE ON ROUTINE "+f+" TO "+role.Name)
	}
	pgtest.Exec(t, pool, "GRANT SELECT ON fencing.protection, fencing.guard TO "+role.Name)
	pid, release := hold(t, pool, "public.a", "report")
	defer release()
	result := protect.Apply(t.Context(), open(t, role.DSN), protect.Protect(tables(t, pool, "public.a"), nil, protect.Options{}),
		&protect.ApplyOptions{LockTimeout: 200 * time.Millisecond})
	if len(result.Failed) != 1 {
		t.Fatalf("result: %+v", result)
	}
	text := result.Failed[0].Err.Error()
	if want := fmt.Sprintf("a lock held by pid %d (report, role %s);", pid, pool.Config().ConnConfig.User); !strings.Contains(text, want) {
		t.Errorf("the error does not say %q: %s", want, text)
	}
}

func TestARetrySucceedsOnceTheTableIsFree(t *testing.T) {
	t.Parallel()
	pool, _ := shop(t)
	_, release := hold(t, pool, "public.a", "short")
	result := protect.Apply(t.Context(), open(t, pgtest.DSN(t, pool)), protect.Protect(tables(t, pool, "public.a"), nil, protect.Options{}), &protect.ApplyOptions{
		LockTimeout: 100 * time.Millisecond, Retries: 3, FirstPause: time.Millisecond,
		Progress: func(e protect.Event) {
			if e.Retry != nil {
				release() // the first attempt met the lock; the next one will not
			}
		},
	})
	if got := names(result.Applied, stepName); got != "a" {
		t.Fatalf("result: %+v, %v", result, result.Failed)
	}
}

// While an attempt waits for its lock, every query that comes after it waits too: the wait must end within the lock timeout.
func TestAnAttemptGivesItsPlaceInTheQueueUp(t *testing.T) {
	t.Parallel()
	pool, _ := shop(t)
	_, release := hold(t, pool, "public.a", "long")
	defer release()
	reader := pgtest.Conn(t, pool)
	done := make(chan *protect.Result, 1)
	ctx, cancel := context.WithCancel(t.Context())
	retrying := make(chan struct{}, 100)
	go func() {
		done <- protect.Apply(ctx, open(t, pgtest.DSN(t, pool)), protect.Protect(tables(t, pool, "public.a"), nil, protect.Options{}), &protect.ApplyOptions{
			LockTimeout: 100 * time.Millisecond, Retries: 1, FirstPause: time.Hour,
			Progress: func(protect.Event) { retrying <- struct{}{} },
		})
	}()
	<-retrying // it has given up, and waits for its next attempt
	pgtest.Exec(t, reader, "SELECT FROM public.a")
	cancel()
	if result := <-done; names(result.NotTried, tableName) != "a" {
		t.Errorf("result: %+v", result)
	}
}

func TestATableThatCannotBeProtectedDoesNotKeepTheOthersFromIt(t *testing.T) {
	t.Parallel()
	pool, _ := shop(t)
	pgtest.Exec(t, pool, "ALTER TABLE public.b ADD COLUMN last_fencing_token text")
	result := protect.Apply(t.Context(), open(t, pgtest.DSN(t, pool)), protect.Protect(tables(t, pool, "public.*"), nil, protect.Options{}), nil)
	if applied, failed := names(result.Applied, stepName), names(result.Failed, failureName); applied != "a c" || failed != "b" {
		t.Fatalf("applied %q, failed %q", applied, failed)
	}
	if got := pgtest.SQLState(result.Failed[0].Err); got != "42804" {
		t.Errorf("SQLSTATE %s: %v", got, result.Failed[0].Err)
	}
}

func TestAnInterruptionLeavesEveryTableAsItWasOrDone(t *testing.T) {
	t.Parallel()
	pool, all := shop(t)
	pid, release := hold(t, pool, "public.b", "report")
	defer release()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("Ctrl-C")
	done := make(chan *protect.Result, 1)
	go func() {
		done <- protect.Apply(ctx, open(t, pgtest.DSN(t, pool)), protect.Protect(all, nil, protect.Options{}),
			&protect.ApplyOptions{LockTimeout: time.Hour})
	}()
	waiting := pgtest.WaitBlockedBy(t, pool, uint32(pid)) // a is done, b waits for its lock
	cancel(reason)
	result := <-done
	if applied, left := names(result.Applied, stepName), names(result.NotTried, tableName); applied != "a" || left != "b c" || result.Failed != nil {
		t.Errorf("applied %q, not tried %q, failed %+v", applied, left, result.Failed)
	}
	if !errors.Is(result.Stopped, reason) {
		t.Errorf("stopped: %v", result.Stopped)
	}
	if got := protectedTables(t, pool); got != "a" {
		t.Errorf("protected: %s", got)
	}
	if pgtest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", waiting) {
		t.Error("the interrupted statement still waits on the server")
	}
}

func TestTheLossOfTheServerStopsAndSaysWhatWasNotTried(t *testing.T) {
	t.Parallel()
	pool, all := shop(t)
	pid, release := hold(t, pool, "public.b", "report")
	defer release()
	done := make(chan *protect.Result, 1)
	go func() {
		done <- protect.Apply(t.Context(), open(t, pgtest.DSN(t, pool)), protect.Protect(all, nil, protect.Options{}),
			&protect.ApplyOptions{LockTimeout: time.Hour})
	}()
	waiting := pgtest.WaitBlockedBy(t, pool, uint32(pid))
	pgtest.Exec(t, pool, "SELECT pg_terminate_backend($1)", waiting)
	result := <-done
	if applied, failed, left := names(result.Applied, stepName), names(result.Failed, failureName), names(result.NotTried, tableName); applied != "a" || failed != "b" || left != "c" {
		t.Errorf("applied %q, failed %q, not tried %q", applied, failed, left)
	}
	if len(result.Failed) == 1 && result.Failed[0].Unknown {
		t.Error("the statement had not committed: its outcome is known")
	}
	if got := protectedTables(t, pool); got != "a" {
		t.Errorf("protected: %s", got)
	}
}

// hangingCommit is a server on which a COMMIT is written, and then not acknowledged, for want of the standby it waits for.
func hangingCommit(t *testing.T) (server *pgserver.Server, local *pgxpool.Pool, dsn string) {
	t.Helper()
	server, err := pgserver.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	dsn = server.DSN("postgres")
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "local"
	if local, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(local.Close)
	if _, err := migrations.Up(t.Context(), local, nil); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, local, "CREATE TABLE public.a (id bigint PRIMARY KEY)")
	pgtest.Exec(t, local, "CREATE TABLE public.b (id bigint PRIMARY KEY)")
	pgtest.Exec(t, local, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	pgtest.Exec(t, local, "SELECT pg_reload_conf()")
	eventually(t, local, "SELECT current_setting('synchronous_standby_names') = 'nobody'")
	return server, local, dsn
}

func eventually(t *testing.T, pool *pgxpool.Pool, condition string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !pgtest.Value[bool](t, pool, condition) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", condition)
		}
	}
}

const committing = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')"

func TestACommitWhoseAnswerIsLostIsAskedFor(t *testing.T) {
	t.Parallel()
	_, local, dsn := hangingCommit(t)
	done := make(chan *protect.Result, 1)
	go func() {
		done <- protect.Apply(t.Context(), open(t, dsn), protect.Protect(tables(t, local, "public.a"), nil, protect.Options{}), nil)
	}()
	eventually(t, local, committing)
	pgtest.Exec(t, local, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	if result := <-done; names(result.Applied, stepName) != "a" {
		t.Errorf("the transaction had committed: %+v", result)
	}
	if got := protectedTables(t, local); got != "a" {
		t.Errorf("protected: %q", got)
	}
}

func TestACommitThatNobodyCanBeAskedAboutIsUnknown(t *testing.T) {
	t.Parallel()
	server, local, dsn := hangingCommit(t)
	done := make(chan *protect.Result, 1)
	go func() {
		done <- protect.Apply(t.Context(), open(t, dsn), protect.Protect(tables(t, local, "public.*"), nil, protect.Options{}), nil)
	}()
	eventually(t, local, committing)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	result := <-done
	if len(result.Failed) != 1 || !result.Failed[0].Unknown || names(result.NotTried, tableName) != "b" || result.Stopped == nil {
		t.Errorf("result: %+v", result)
	}
}
