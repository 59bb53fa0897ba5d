package fenced

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced/internal/wire"
)

// ClaimOptions are the settings of ClaimWith; nil means the defaults.
type ClaimOptions struct {
	// EvictAfter is how long a claim waits for transactions of older tokens before it ends their sessions (pg_terminate_backend), from a connection
	// of its own: a holder that is paused in the middle of a transaction holds the fence. The database role must be the
	// one of those sessions, or a member of pg_signal_backend. Kafka's producers do the same to their predecessors. Default 0: wait for
	// as long as ctx lets.
	EvictAfter time.Duration
	// Logger is told of refusals and of evictions; nil for none.
	Logger *slog.Logger
	// Observer is told of every claim; nil for none.
	Observer Observer
}

// Claim raises the fence of the grant's name to the grant's token, in a short transaction of its own. It waits for transactions of
// older tokens that have already written under the fence. After it, no older token can commit a write under the fence, and
// what they committed is visible to whoever starts reading now. So: claim, then read, then write.
//
// Claiming again with the same token is fine. [ErrStale] means that a newer token has claimed: stop. If the lock is nevertheless still held,
// the error is also [ErrSourceBehind]. Do not call it inside a transaction; a claim there can deadlock with writers, and would read an old snapshot.
func Claim(ctx context.Context, db DB, grant Grant) error {
	return ClaimWith(ctx, db, []Grant{grant}, nil)
}

// ClaimWith is Claim with options and for several grants, which it claims one after another in the order of their names, each in
// a transaction of its own: holding one fence while waiting for another would deadlock with a writer that uses both. When it fails, the
// fences before the failed one are claimed, which harms nobody: they were raised to their holder's own tokens.
//
// A claim is one round trip; with EvictAfter it is four.
func ClaimWith(ctx context.Context, db DB, grants []Grant, options *ClaimOptions) error {
	var o ClaimOptions
	if options != nil {
		o = *options
	}
	if err := checkGrants(grants); err != nil {
		return err
	}
	return claimEach(ctx, grants, &o, func(ctx context.Context, grant Grant) (int, error) { return claimOne(ctx, db, grant, &o) })
}

func claimEach(ctx context.Context, grants []Grant, o *ClaimOptions, claim func(context.Context, Grant) (evicted int, err error)) error {
	ordered := slices.SortedFunc(slices.Values(grants), func(a, b Grant) int { return cmp.Compare(a.Name(), b.Name()) })
	ctx, cancel := withGrants(ctx, grants)
	defer cancel(nil)
	for _, grant := range ordered {
		begun := time.Now()
		evicted, err := claim(ctx, grant)
		err = checkSource(ctx, grant, ended(grants, AsError(err)))
		if o.Observer != nil {
			o.Observer.Claimed(ctx, ClaimEvent{Fence: grant.Name(), Token: grant.Token(), Took: time.Since(begun), Evicted: evicted, Err: err})
		}
		logRefusal(ctx, o.Logger, "claim", grant.Name(), grant.Token(), err)
		if err != nil {
			return err
		}
	}
	return nil
}

// checkSource tells a lost lock from a source whose numbers have gone back: in the second case the source says that the lock is held.
func checkSource(ctx context.Context, grant Grant, err error) error {
	var stale *StaleError
	checker, ok := grant.(Checker)
	if ok && errors.As(err, &stale) && checker.Check(ctx) == nil {
		stale.SourceBehind = true
	}
	return err
}

func claimOne(ctx context.Context, db DB, grant Grant, o *ClaimOptions) (evicted int, err error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if conn, ok := db.(*pgx.Conn); ok && conn.PgConn().TxStatus() != 'I' {
		return 0, errors.New("fenced: the connection is in a transaction; a claim is a transaction of its own")
	}
	if o.EvictAfter <= 0 {
		sql, err := wire.Claim(named(grant))
		if err != nil {
			return 0, fmt.Errorf("fenced: %w", err)
		}
		_, err = db.Exec(ctx, sql)
		return 0, err
	}
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return 0, err
	}
	return claimAndEvict(ctx, grant, o, claimTx{
		pid: func(ctx context.Context, sql string) (pid int32, err error) {
			err = tx.QueryRow(ctx, sql).Scan(&pid, nil)
			return pid, err
		},
		exec: func(ctx context.Context, sql string) error {
			_, err := tx.Exec(ctx, sql)
			return err
		},
		commit:   func(ctx context.Context) error { return commit(ctx, tx) },
		rollback: func(ctx context.Context) { rollback(ctx, tx) },
		evictor:  func(ctx context.Context) (evictor, error) { return connectEvictor(ctx, db, tx) },
	})
}

func named(grant Grant) wire.Named {
	return wire.Named{Fence: grant.Name(), Token: int64(grant.Token())}
}

// A claimTx is the transaction of a claim, over pgx or database/sql.
type claimTx struct {
	pid      func(ctx context.Context, sql string) (int32, error)
	exec     func(ctx context.Context, sql string) error
	commit   func(ctx context.Context) error
	rollback func(ctx context.Context)
	evictor  func(ctx context.Context) (evictor, error) // on another connection
}

// An evictor ends the sessions that keep a backend waiting for a fence.
type evictor struct {
	end   func(ctx context.Context, pid int32) ([]int32, error)
	close func(ctx context.Context)
}

func claimAndEvict(ctx context.Context, grant Grant, o *ClaimOptions, tx claimTx) (evicted int, err error) {
	open := true
	defer func() {
		if open {
			tx.rollback(ctx)
		}
	}()
	call, err := wire.ClaimCall(named(grant))
	if err != nil {
		return 0, fmt.Errorf("fenced: %w", err)
	}
	idle := 10 * time.Second
	if left, limited := timeLeft([]Grant{grant}); limited {
		idle = left
	}
	pid, err := tx.pid(ctx, wire.BoundedPID(idle))
	if err != nil {
		return 0, err
	}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	evicting := make(chan int, 1)
	go func() {
		n, err := evict(waiting, tx.evictor, pid, grant, o)
		if err != nil {
			cancel(err) // the claim could wait for ever
		}
		evicting <- n
	}()
	err = tx.exec(waiting, call)
	cause := context.Cause(waiting)
	cancel(nil)
	evicted = <-evicting
	if err != nil {
		if cause != nil && ctx.Err() == nil {
			err = cause
		}
		return evicted, err
	}
	open = false
	return evicted, tx.commit(ctx)
}

// connectEvictor connects a second time. Not from the pool: where claims have taken all its connections, each would wait for another to end.
func connectEvictor(ctx context.Context, db DB, tx pgx.Tx) (evictor, error) {
	config := tx.Conn().Config()
	afterConnect := func(context.Context, *pgx.Conn) error { return nil }
	if pool, ok := db.(*pgxpool.Pool); ok {
		poolConfig := pool.Config()
		config = poolConfig.ConnConfig
		if poolConfig.BeforeConnect != nil {
			if err := poolConfig.BeforeConnect(ctx, config); err != nil {
				return evictor{}, err
			}
		}
		if poolConfig.AfterConnect != nil {
			afterConnect = poolConfig.AfterConnect
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return evictor{}, err
	}
	e := evictor{
		end: func(ctx context.Context, pid int32) ([]int32, error) {
			rows, err := conn.Query(ctx, wire.EvictSQL, pid)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[int32])
		},
		close: func(ctx context.Context) { _ = conn.Close(ctx) }, // closed in any case
	}
	if err := afterConnect(ctx, conn); err != nil {
		e.close(ctx)
		return evictor{}, err
	}
	return e, nil
}

// evict ends, after the time given and until ctx ends, the sessions that the claim waits for.
func evict(ctx context.Context, connect func(context.Context) (evictor, error), pid int32, grant Grant, o *ClaimOptions) (evicted int, err error) {
	timer := time.NewTimer(o.EvictAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return 0, nil
	case <-timer.C:
	}
	e, err := connect(ctx)
	if err == nil {
		defer func() {
			cleanup, cancel := cleanupContext(ctx)
			defer cancel()
			e.close(cleanup)
		}()
	}
	for err == nil {
		var pids []int32
		// An older writer that queued behind the first may get the fence next: look again until the claim is through.
		pids, err = endHolders(ctx, e, pid)
		if len(pids) > 0 {
			evicted += len(pids)
			if o.Logger != nil {
				o.Logger.WarnContext(ctx, "ended the sessions of older holders", "fence", grant.Name(), "token", grant.Token().String(), "pids", pids)
			}
		}
		timer.Reset(100 * time.Millisecond)
		select {
		case <-ctx.Done():
			return evicted, nil
		case <-timer.C:
		}
	}
	if ctx.Err() != nil {
		return evicted, nil
	}
	return evicted, fmt.Errorf("fenced: cannot end the sessions that keep the claim of %q waiting: %w", grant.Name(), err)
}

// endHolders is not interrupted when the claim goes through, which it does because of what this ends.
func endHolders(ctx context.Context, e evictor, pid int32) ([]int32, error) {
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	return e.end(ctx, pid)
}
