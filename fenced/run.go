package fenced

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencectl/fencectl/fenced/internal/wire"
)

// DB is what can begin a transaction: *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn. A pgx.Tx cannot, because a claim and a fenced
// transaction are not parts of another one.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// ErrGrantEnded: the grant's context ended, or its time was over, so nothing was sent or the transaction was given up. When the context
// ended it comes with that context's cause, for example tokensrc.ErrLost.
var ErrGrantEnded = errors.New("fenced: the grant has ended")

// RunOptions are the settings of RunWith; nil means the defaults.
type RunOptions struct {
	// TxOptions are the isolation level, access mode and deferrability; CommitQuery works too. BeginQuery is not possible. Default: the
	// session's defaults.
	TxOptions pgx.TxOptions
	// Retries is how often the function is run again after serialization_failure (40001) or deadlock_detected (40P01), in a new
	// transaction, after a short pause. The function must then bear being run more than once. Default 0.
	Retries int
	// MaxIdle bounds how long the server lets the transaction wait for this program between statements
	// (idle_in_transaction_session_timeout, local to the transaction; a shorter setting of the session stays). Default 0: the time the grant has
	// left when the transaction begins. Negative: no bound, and a program that is paused in a transaction keeps its successor waiting.
	MaxIdle time.Duration
	// MaxDuration bounds the whole transaction, where the server is PostgreSQL 17 or later (transaction_timeout, likewise). Default 0:
	// the time the grant has left when the transaction begins, also when the grant is renewed meanwhile; set it for
	// transactions that are longer than the time to live. Negative: no bound.
	MaxDuration time.Duration
	// Logger is told of refusals; nil for none.
	Logger *slog.Logger
	// Observer is told of every attempt; nil for none.
	Observer Observer
}

// Run runs fn in a transaction that presents the grant's token, and commits it. BEGIN and the presentation are one message to the server:
// a fenced transaction takes no more round trips than any other.
//
// fn must use the tx it is given and must not commit it; it may use savepoints (tx.Begin), batches, COPY and prepared statements. Errors from tx
// are typed already (see [AsError]). If fn returns an error, or panics, the transaction is rolled back and Run returns the error. Run
// also ends when the grant's context does; its error is then [ErrGrantEnded] with the cause.
//
// The transaction is bounded by the time that the grant has left ([Bounded]), so that this process, when it is paused in the middle
// of it, does not keep the fence locked against its successor.
//
// Call [Claim] once under each grant before the first Run, for tables under a named fence and wherever fn reads what it then writes.
func Run(ctx context.Context, db DB, grant Grant, fn func(tx pgx.Tx) error) error {
	return RunWith(ctx, db, []Grant{grant}, nil, fn)
}

// RunWith is Run with options and for several grants in one transaction, such as a transfer between two accounts under two locks. Each
// token is presented for the fence of its grant's name. The first is in addition the transaction's own: fences of other names, and
// row fences, are checked against it.
func RunWith(ctx context.Context, db DB, grants []Grant, options *RunOptions, fn func(tx pgx.Tx) error) error {
	var o RunOptions
	if options != nil {
		o = *options
	}
	if o.TxOptions.BeginQuery != "" {
		return errors.New("fenced: TxOptions.BeginQuery is Run's own; use the other fields")
	}
	if err := checkGrants(grants); err != nil {
		return err
	}
	return runEach(ctx, grants, &o, func(ctx context.Context) error { return runOnce(ctx, db, grants, &o, fn) })
}

// runEach makes the attempts.
func runEach(ctx context.Context, grants []Grant, o *RunOptions, run func(context.Context) error) error {
	ctx, cancel := withGrants(ctx, grants)
	defer cancel(nil)
	for attempt := 1; ; attempt++ {
		begun := time.Now()
		err := ended(grants, run(ctx))
		if o.Observer != nil {
			o.Observer.Ran(ctx, RunEvent{Fence: grants[0].Name(), Token: grants[0].Token(), Took: time.Since(begun), Attempt: attempt, Err: err})
		}
		logRefusal(ctx, o.Logger, "transaction", grants[0].Name(), grants[0].Token(), err)
		if err == nil || attempt > o.Retries || !canRetry(err) {
			return err
		}
		// By chance, so that two that failed on each other do not meet again.
		timer := time.NewTimer(time.Duration(attempt)*5*time.Millisecond + rand.N(10*time.Millisecond))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// canRetry: the server rolled back because of what others did at the same time.
func canRetry(err error) bool {
	switch SQLState(err) {
	case "40001", "40P01":
		return true
	}
	return false
}

func runOnce(ctx context.Context, db DB, grants []Grant, o *RunOptions, fn func(tx pgx.Tx) error) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	present, err := presentSQL(grants, o.MaxIdle, o.MaxDuration)
	if err != nil {
		return err
	}
	options := o.TxOptions
	options.BeginQuery = beginSQL(o.TxOptions) + "; " + present
	raw, err := begin(ctx, db, options)
	if err != nil {
		return AsError(err)
	}
	open := true
	defer func() {
		if open { // fn failed, panicked, or ended its goroutine
			rollback(ctx, raw)
		}
	}()
	if err := fn(WrapTx(raw)); err != nil {
		return AsError(err)
	}
	// The context hears of a grant's end on another goroutine; a lock that is known to be lost must not get as far as COMMIT.
	if err := grantsEnded(grants); err != nil {
		return err
	}
	open = false
	return commit(ctx, raw)
}

// begin starts a transaction with a BeginQuery that does more than begin. When the "more" is refused the transaction is open and failed:
// a pool then drops the connection, but one that the caller keeps must be mended.
func begin(ctx context.Context, db DB, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := db.BeginTx(ctx, options)
	if err == nil {
		return tx, nil
	}
	var conn *pgx.Conn
	switch db := db.(type) {
	case *pgx.Conn:
		conn = db
	case interface{ Conn() *pgx.Conn }: // *pgxpool.Conn
		conn = db.Conn()
	}
	if conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() == 'E' {
		cleanup, cancel := cleanupContext(ctx)
		defer cancel()
		_, rollbackErr := conn.Exec(cleanup, "ROLLBACK")
		err = errors.Join(err, rollbackErr)
	}
	return nil, err
}

func rollback(ctx context.Context, tx pgx.Tx) {
	cleanup, cancel := cleanupContext(ctx)
	defer cancel()
	// It fails only with the connection, and then the server rolls back by itself.
	_ = tx.Rollback(cleanup)
}

func cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// commit tells a COMMIT that failed from one whose answer was lost. (pgconn.SafeToRetry does not: it is also true of a connection that
// broke while the answer was awaited.)
func commit(ctx context.Context, tx pgx.Tx) error {
	if ctx.Err() != nil || tx.Conn().IsClosed() {
		rollback(ctx, tx)
		return cmp.Or(context.Cause(ctx), pgconn.ErrConnClosed)
	}
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	rollback(ctx, tx)
	if answered(err) || errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) {
		return AsError(err)
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}

// answered reports whether the error of a COMMIT is the server's answer: the transaction was rolled back. Class 08, connection
// exception, is not: it is how a pooler says that it has lost the server, whose answer it then does not know either.
func answered(err error) bool {
	code := SQLState(err)
	return code != "" && !strings.HasPrefix(code, "08")
}

// ended puts the end of a grant into an error that came of it, whichever context noticed first: the callers', a grant's own or Run's.
func ended(grants []Grant, err error) error {
	if err == nil || Kind(err) != "" || errors.Is(err, ErrGrantEnded) {
		return err
	}
	end := grantsEnded(grants)
	if end == nil {
		return err
	}
	if errors.Is(end, err) { // it is the cause itself
		return end
	}
	return fmt.Errorf("%w: %w", end, err)
}

// withGrants derives a context that ends with the first of the grants that have one.
func withGrants(ctx context.Context, grants []Grant) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var stops []func() bool
	for _, grant := range grants {
		if g, ok := grant.(interface{ Context() context.Context }); ok {
			stops = append(stops, context.AfterFunc(g.Context(), func() { cancel(grantsEnded([]Grant{grant})) }))
		}
	}
	if err := grantsEnded(grants); err != nil { // AfterFunc runs on a goroutine of its own
		cancel(err)
	}
	return ctx, func(cause error) {
		for _, stop := range stops {
			stop()
		}
		cancel(cause)
	}
}

// grantsEnded is an error when the context of one of the grants has ended.
func grantsEnded(grants []Grant) error {
	for _, grant := range grants {
		if g, ok := grant.(interface{ Context() context.Context }); ok && g.Context().Err() != nil {
			return fmt.Errorf("%w: %q: %w", ErrGrantEnded, grant.Name(), context.Cause(g.Context()))
		}
	}
	return nil
}

func checkGrants(grants []Grant) error {
	if len(grants) == 0 {
		return errors.New("fenced: no grant given")
	}
	seen := make(map[string]bool)
	for _, grant := range grants {
		switch {
		case grant == nil:
			return errors.New("fenced: a grant is nil")
		case !grant.Token().Valid():
			return &InvalidTokenError{Refusal{
				Fence: grant.Name(), Presented: grant.Token(), Message: fmt.Sprintf("%d is no token", int64(grant.Token())),
				Hint: "a token is positive; take it from the grant of the lock",
			}}
		case grant.Name() == "":
			return errors.New("fenced: a grant needs a name, which is its fence's")
		case seen[grant.Name()]:
			return fmt.Errorf("fenced: two grants are named %q", grant.Name())
		}
		seen[grant.Name()] = true
	}
	return nil
}

// timeLeft is that of the grant that ends first; ok is false when none has a limit.
func timeLeft(grants []Grant) (left time.Duration, ok bool) {
	for _, grant := range grants {
		if bounded, is := grant.(Bounded); is {
			if l, limited := bounded.TimeLeft(); limited && (!ok || l < left) {
				left, ok = l, true
			}
		}
	}
	return left, ok
}

func presentSQL(grants []Grant, maxIdle, maxDuration time.Duration) (string, error) {
	left, limited := timeLeft(grants)
	if limited && left <= 0 {
		return "", fmt.Errorf("%w: no time is left on it", ErrGrantEnded)
	}
	bound := func(given time.Duration) time.Duration {
		switch {
		case given < 0:
			return 0
		case given == 0 && limited:
			return left
		}
		return given
	}
	tokens := make([]wire.Named, len(grants))
	for i, grant := range grants {
		tokens[i] = named(grant)
	}
	sql, err := wire.Present(tokens, wire.Bounds{Idle: bound(maxIdle), Total: bound(maxDuration)})
	if err != nil {
		return "", fmt.Errorf("fenced: %w", err)
	}
	return sql, nil
}

// beginSQL is pgx's own, which it does not export.
func beginSQL(o pgx.TxOptions) string {
	parts := []string{"BEGIN"}
	if o.IsoLevel != "" {
		parts = append(parts, "ISOLATION LEVEL "+string(o.IsoLevel))
	}
	for _, mode := range []string{string(o.AccessMode), string(o.DeferrableMode)} {
		if mode != "" {
			parts = append(parts, mode)
		}
	}
	return strings.Join(parts, " ")
}

// Present presents the grants in a transaction that the program began itself, and bounds it by the time they have left, as [RunWith] does. It
// takes one round trip. Errors of the statements that follow are typed when they go through [WrapTx] or [AsError].
func Present(ctx context.Context, tx pgx.Tx, grants ...Grant) error {
	if err := checkGrants(grants); err != nil {
		return err
	}
	sql, err := presentSQL(grants, 0, 0)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sql)
	return AsError(err)
}
