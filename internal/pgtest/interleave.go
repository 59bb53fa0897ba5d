package pgtest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statement is something that a session does in another goroutine, while the test goes on with other sessions:
//
//	update := pgtest.Go(t, old, "UPDATE public.jobs SET state = 'done' WHERE id = 1")
//	update.Blocked()        // it waits for the new holder's lock, for certain
//	commit(new)
//	err := update.Wait()
//
// Its methods are for the test's own goroutine.
type Statement struct {
	t       testing.TB
	cluster *cluster
	pid     uint32
	what    string
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // to be read after done is closed
}

// Go runs a statement on a connection in another goroutine. Until Wait has returned, nothing else may use the connection.
// A statement that is still running when the test ends is cancelled and waited for.
func Go(t testing.TB, conn *pgx.Conn, sql string, args ...any) *Statement {
	t.Helper()
	return run(t, conn, sql, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
}

// Call is Go for whatever uses the connection: f may read results, run several statements or call the code under test.
// Its context ends with the test.
func Call(t testing.TB, conn *pgx.Conn, f func(ctx context.Context) error) *Statement {
	t.Helper()
	return run(t, conn, "the call", f)
}

func run(t testing.TB, conn *pgx.Conn, what string, f func(context.Context) error) *Statement {
	t.Helper()
	// Not the test's context, which ends before the cleanups run: what those cancel is then waited for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout)
	s := &Statement{t: t, cluster: start(t), pid: conn.PgConn().PID(), what: what, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = f(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-s.done
	})
	return s
}

// PID is the process id of the session's backend.
func (s *Statement) PID() uint32 { return s.pid }

// Blocked returns when the session waits for a lock that another one holds, which it then does until the test makes the
// other one let go. A statement that ends instead fails the test.
func (s *Statement) Blocked() *Statement {
	s.t.Helper()
	ctx, cancel := setupContext(s.t)
	defer cancel()
	err := poll(ctx, func() (bool, error) {
		select {
		case <-s.done:
			return false, fmt.Errorf("it ended without waiting for a lock: %w", errOr(s.err, "no error"))
		default:
			return s.cluster.blocked(ctx, s.pid)
		}
	})
	if err != nil {
		s.t.Fatalf("pgtest: %s\n%s should be waiting for a lock, but %v", s.cluster.sessions(), s.what, err)
	}
	return s
}

// Wait returns the statement's error when it has ended. One that does not end fails the test.
func (s *Statement) Wait() error {
	s.t.Helper()
	<-s.done
	if errors.Is(s.err, context.DeadlineExceeded) {
		s.t.Fatalf("pgtest: %s\n%s did not end within %s", s.cluster.sessions(), s.what, timeout)
	}
	return s.err
}

// Done is closed when the statement has ended.
func (s *Statement) Done() <-chan struct{} { return s.done }

// Cancel asks the server to end the statement. Wait then returns its error.
func (s *Statement) Cancel() { s.cancel() }

// WaitBlocked returns when the backend with this process id, on the pool's server, waits for a lock that another session
// holds. It fails the test when that does not happen.
func WaitBlocked(t testing.TB, pool *pgxpool.Pool, pid uint32) {
	t.Helper()
	ctx, cancel := setupContext(t)
	defer cancel()
	c := databaseOf(t, pool).cluster
	if err := poll(ctx, func() (bool, error) { return c.blocked(ctx, pid) }); err != nil {
		t.Fatalf("pgtest: %s\nbackend %d should be waiting for a lock, but %v", c.sessions(), pid, err)
	}
}

// WaitBlockedBy returns when some session waits for a lock that the backend with this process id holds, and which: for
// code under test that opens its own connection. It fails the test when that does not happen.
func WaitBlockedBy(t testing.TB, pool *pgxpool.Pool, holder uint32) (waiting uint32) {
	t.Helper()
	ctx, cancel := setupContext(t)
	defer cancel()
	c := databaseOf(t, pool).cluster
	err := poll(ctx, func() (bool, error) {
		err := c.admin.QueryRow(ctx, `SELECT pid FROM pg_catalog.pg_stat_activity
			WHERE wait_event_type = 'Lock' AND $1 = ANY (pg_catalog.pg_blocking_pids(pid)) LIMIT 1`, int32(holder)).Scan(&waiting)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		t.Fatalf("pgtest: %s\nsome session should be waiting for backend %d, but %v", c.sessions(), holder, err)
	}
	return waiting
}

// blocked tells whether a backend waits for a heavyweight lock that somebody holds. Both conditions: the wait event alone
// also shows for a moment while a free lock is taken, pg_blocking_pids alone also names whoever queues ahead.
func (c *cluster) blocked(ctx context.Context, pid uint32) (bool, error) {
	var blocked bool
	err := c.admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
		WHERE pid = $1 AND wait_event_type = 'Lock' AND pg_catalog.cardinality(pg_catalog.pg_blocking_pids(pid)) > 0)`, int32(pid)).Scan(&blocked)
	return blocked, err
}

// sessions says who waits for whom, for the message of a test that fails over it.
func (c *cluster) sessions() string {
	ctx, cancel := cleanupContext()
	defer cancel()
	rows, err := c.admin.Query(ctx, `SELECT pg_catalog.format('%s %s, %s, blocked by %s: %s', pid, state,
			coalesce(wait_event_type || '/' || wait_event, 'running'), pg_catalog.pg_blocking_pids(pid), pg_catalog.left(query, 200))
		FROM pg_catalog.pg_stat_activity WHERE datname LIKE 'fencectl_test_%' ORDER BY pid`)
	if err != nil {
		return err.Error()
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err.Error()
	}
	text := "sessions:"
	for _, line := range lines {
		text += "\n\t" + line
	}
	return text
}

// errOr is err, or an error with the text where there is none.
func errOr(err error, text string) error {
	if err == nil {
		return errors.New(text)
	}
	return err
}
