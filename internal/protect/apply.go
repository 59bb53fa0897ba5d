package protect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/lockwait"
	"github.com/fencectl/fencectl/internal/tableref"
)

// ApplyOptions says how patient Apply is. Nil means the defaults.
type ApplyOptions struct {
	// LockTimeout is how long one attempt waits for each lock that it needs. Default: DefaultLockTimeout.
	LockTimeout time.Duration

	// Retries is how often a table whose lock was not to be had is tried again. Default: 0, a single attempt.
	Retries int

	// FirstPause is the pause before the first retry; each later one is twice as long, up to a minute, and each is varied
	// by half at random so that two fencectls do not meet again and again. Default: one second.
	FirstPause time.Duration

	// Progress is called, from the goroutine that called Apply, with everything that happens. Default: nobody is told.
	Progress func(Event)
}

// Defaults of the command line.
const (
	DefaultLockTimeout = 2 * time.Second
	DefaultRetries     = 5
	longestPause       = time.Minute
)

// An Event is one thing that Apply did: exactly one of the fields after Step is set.
type Event struct {
	Number, Total int // which step of how many, from 1
	Step          Step
	Done          bool
	Failed        error
	Retry         *Retry
}

// Retry says that an attempt met a lock and what comes next.
type Retry struct {
	Attempt, Attempts int // which attempt failed, of how many at most
	Pause             time.Duration
	Blocking          []lockwait.Session // who was in the way; empty when that could not be seen
}

// Result is how far Apply came. Every table is in exactly one of the three lists, and was either changed completely or
// left as it was: only a Failure whose Unknown is set may be either.
type Result struct {
	Applied  []Step
	Failed   []Failure
	NotTried []tableref.Table // left as they were: Apply was interrupted or lost the server before or in the middle of them
	Stopped  error            // why tables were not tried; nil when all were
}

// Failure is one table that could not be changed.
type Failure struct {
	Table   tableref.Table
	Err     error // a *LockedError, or what the server said
	Unknown bool  // the server was lost during COMMIT and could not be asked afterwards
}

// LockedError says that a table was in use through all attempts.
type LockedError struct {
	Table       string // quoted
	Attempts    int
	LockTimeout time.Duration
	Blocking    []lockwait.Session // who was in the way last; empty when that could not be seen
	err         error
}

func (e *LockedError) Error() string {
	attempts := "1 attempt"
	if e.Attempts != 1 {
		attempts = fmt.Sprintf("%d attempts", e.Attempts)
	}
	who, next := "another session", "find it in pg_locks, end its transaction"
	if len(e.Blocking) > 0 {
		who = lockwait.List(e.Blocking)
		next = "end that transaction"
		if pid := e.Blocking[0].PID; pid != 0 {
			next += fmt.Sprintf(" (SELECT pg_terminate_backend(%d))", pid)
		}
	}
	return fmt.Sprintf("table %s is in use: %s of %s met a lock held by %s; %s, or raise --lock-timeout or --retries, and run the command again",
		e.Table, attempts, e.LockTimeout, who, next)
}

func (e *LockedError) Unwrap() error { return e.err }

// Apply carries out the steps, one transaction each. A table that fails does not keep the others from being tried; the end
// of the context or the loss of the server does. It never returns nil.
func Apply(ctx context.Context, pool *pgxpool.Pool, steps []Step, opts *ApplyOptions) *Result {
	settings := ApplyOptions{}
	if opts != nil {
		settings = *opts
	}
	if settings.LockTimeout <= 0 {
		settings.LockTimeout = DefaultLockTimeout
	}
	if settings.FirstPause <= 0 {
		settings.FirstPause = time.Second
	}
	if settings.Progress == nil {
		settings.Progress = func(Event) {}
	}

	result := &Result{}
	for i, step := range steps {
		event := Event{Number: i + 1, Total: len(steps), Step: step}
		err := ctx.Err()
		if err == nil {
			err = applyStep(ctx, pool, event, settings)
		}
		var lost *lostCommitError
		switch {
		case err == nil:
			result.Applied = append(result.Applied, step)
			event.Done = true
			settings.Progress(event)
			continue
		case errors.As(err, &lost):
			result.Failed = append(result.Failed, Failure{Table: step.Table, Err: err, Unknown: true})
			result.Stopped = err
			i++
		case ctx.Err() != nil:
			result.Stopped = context.Cause(ctx)
		case !fromServer(err):
			result.Failed = append(result.Failed, Failure{Table: step.Table, Err: err})
			result.Stopped = err
			i++
		default:
			result.Failed = append(result.Failed, Failure{Table: step.Table, Err: err})
			event.Failed = err
			settings.Progress(event)
			continue
		}
		for _, rest := range steps[i:] {
			result.NotTried = append(result.NotTried, rest.Table)
		}
		break
	}
	return result
}

// fromServer tells an answer of a server that is still there from a connection that is not.
func fromServer(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Severity != "FATAL" && pgErr.Severity != "PANIC"
}

func applyStep(ctx context.Context, pool *pgxpool.Pool, event Event, settings ApplyOptions) error {
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: settings.FirstPause, Multiplier: 2, RandomizationFactor: 0.5, MaxInterval: longestPause,
	}
	attempts := 0
	var blocking []lockwait.Session
	operation := func() (struct{}, error) {
		attempts++
		var err error
		blocking, err = attempt(ctx, pool, event.Step, settings.LockTimeout)
		if err != nil && !worthRetrying(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}
	_, err := backoff.Retry(ctx, operation,
		backoff.WithBackOff(pauses),
		backoff.WithMaxTries(uint(max(0, settings.Retries)+1)),
		backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(_ error, pause time.Duration) {
			event.Retry = &Retry{Attempt: attempts, Attempts: settings.Retries + 1, Pause: pause, Blocking: blocking}
			settings.Progress(event)
		}))
	var permanent *backoff.PermanentError
	if errors.As(err, &permanent) { // Retry unwraps it, but not on the last attempt
		err = permanent.Unwrap()
	}
	if err != nil && sqlState(err) == lockNotAvailable {
		return &LockedError{Table: event.Step.Table.Quoted, Attempts: attempts, LockTimeout: settings.LockTimeout, Blocking: blocking, err: err}
	}
	return err
}

const lockNotAvailable = "55P03"

// worthRetrying: a lock that was not to be had, a deadlock that the server resolved at our cost, and a table that somebody
// else changed at the same moment, are gone the next time.
func worthRetrying(err error) bool {
	switch sqlState(err) {
	case lockNotAvailable, "40P01", "40001":
		return true
	case "XX000": // two DDL statements on one table; the class has no code of its own for it
		return strings.Contains(err.Error(), "concurrently updated")
	}
	return false
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// attempt runs the step once, and says who was in the way while it waited.
func attempt(ctx context.Context, pool *pgxpool.Pool, step Step, lockTimeout time.Duration) ([]lockwait.Session, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	// The transaction must end also when the context has: otherwise its locks would stay until the server notices.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	queries := catalogdb.New(tx)
	// Asked of the server, since behind a connection pooler the pid that the driver knows is not the backend's.
	pid, err := queries.BackendPID(ctx)
	if err != nil {
		return nil, err
	}
	for _, setting := range Settings(lockTimeout) {
		if _, err := tx.Exec(ctx, setting); err != nil {
			return nil, err
		}
	}

	watch := watchBlocking(ctx, pool, pid, lockTimeout)
	_, err = tx.Exec(ctx, step.SQL)
	blocking := watch.stop()
	if err != nil {
		return blocking, err
	}
	id, err := queries.CurrentTransactionID(ctx)
	if err != nil {
		return nil, err
	}
	return nil, commit(ctx, pool, tx, id)
}

// commit does not let the context interrupt it: a COMMIT that was sent and then abandoned leaves nobody knowing what
// became of it.
func commit(ctx context.Context, pool *pgxpool.Pool, tx pgx.Tx, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	err := tx.Commit(ctx)
	if err == nil || fromServer(err) {
		return err
	}
	// The connection broke. The server knows; ask it on another one, for a while: it may be restarting.
	status, askErr := backoff.Retry(ctx, func() (string, error) {
		status, err := catalogdb.New(pool).TransactionStatus(ctx, id)
		if err == nil && status == "in progress" {
			err = errors.New("the transaction is still in progress")
		}
		return status, err
	}, backoff.WithMaxTries(6))
	switch {
	case askErr == nil && status == "committed":
		return nil
	case askErr == nil && status == "aborted":
		return err
	}
	return &lostCommitError{err: err}
}

type lostCommitError struct{ err error }

func (e *lostCommitError) Error() string {
	return "the connection broke during COMMIT, and the server cannot be asked what became of it; run fencectl status when it is back"
}

func (e *lostCommitError) Unwrap() error { return e.err }

// A blockingWatch looks, while one backend waits, at who it waits for. It has to be done while it waits: once the lock
// timeout has struck the server no longer knows.
type blockingWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	last   []lockwait.Session // written by the goroutine, read after done
}

func watchBlocking(ctx context.Context, pool *pgxpool.Pool, pid int32, lockTimeout time.Duration) *blockingWatch {
	ended, cancel := context.WithCancel(ctx)
	w := &blockingWatch{cancel: cancel}
	// Often enough to look several times within the wait, and not so often as to be a load of its own.
	interval := min(max(lockTimeout/8, 5*time.Millisecond), 250*time.Millisecond)
	w.done.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ended.Done():
				return
			case <-ticker.C:
			}
			// The end of the watch does not interrupt a look: that would cost the connection, and a look is short.
			look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			sessions, err := lockwait.Blocking(look, pool, pid)
			cancel()
			// Not being able to look is no reason to fail: the lock error is then reported without a name.
			if err == nil && len(sessions) > 0 {
				w.last = sessions
			}
		}
	})
	return w
}

func (w *blockingWatch) stop() []lockwait.Session {
	w.cancel()
	w.done.Wait()
	return w.last
}
