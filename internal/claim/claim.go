// Package claim raises a named fence for an operator, and ends the sessions of older holders that keep it waiting when told
// to. Programs claim with package fenced; this is the same statement with a person watching.
package claim

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/lockwait"
)

// Options says what to do while older writers keep the claim waiting. Nil means the defaults.
type Options struct {
	// EvictAfter is how long the claim waits before it ends the sessions that hold the fence. Default: 0, it ends none and
	// waits for as long as the context lets it.
	EvictAfter time.Duration

	// Waiting is called with who keeps the claim waiting, whenever that changes. Evicted is called with each session that
	// was ended. Both are called from one goroutine, before Claim returns. Default: nobody is told.
	Waiting func([]lockwait.Session)
	Evicted func(lockwait.Session)
}

// Result is a claim that has committed.
type Result struct {
	Previous fenced.Token       // what the fence held before; 0 when it is new
	Evicted  []lockwait.Session // the sessions that were ended for it
}

// lookEvery is how often a waiting claim looks at who it waits for.
const lookEvery = 200 * time.Millisecond

// Claim raises the fence to the token, in a transaction of its own. The pool must have a second connection to spare.
func Claim(ctx context.Context, pool *pgxpool.Pool, fence string, token fenced.Token, opts *Options) (*Result, error) {
	settings := Options{}
	if opts != nil {
		settings = *opts
	}
	result := &Result{Evicted: []lockwait.Session{}}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		queries := catalogdb.New(tx)
		if err := queries.BoundIdleTime(ctx); err != nil {
			return err
		}
		// Asked of the server, since behind a connection pooler the pid that the driver knows is not the backend's.
		pid, err := queries.BackendPID(ctx)
		if err != nil {
			return err
		}
		ended, stop := context.WithCancel(ctx)
		watch := &watch{pool: pool, pid: pid, settings: settings}
		done := make(chan struct{})
		go func() {
			defer close(done)
			watch.run(ended)
		}()
		previous, err := queries.ClaimFence(ctx, catalogdb.ClaimFenceParams{Fence: fence, Token: int64(token)})
		stop()
		<-done
		result.Previous = fenced.Token(previous)
		result.Evicted = append(result.Evicted, watch.evicted...)
		if err != nil && watch.err != nil {
			return watch.err // the claim was given up because those in its way could not be ended
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

type watch struct {
	pool     *pgxpool.Pool
	pid      int32
	settings Options

	evicted []lockwait.Session
	err     error
}

func (w *watch) run(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var evict <-chan time.Time
	if w.settings.EvictAfter > 0 {
		timer := time.NewTimer(w.settings.EvictAfter)
		defer timer.Stop()
		evict = timer.C
	}
	told, due := "", false
	for {
		select {
		case <-ctx.Done():
			return
		case <-evict:
			due = true
		case <-ticker.C:
		}
		// A look is short, and interrupting one would cost the connection.
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		if due {
			w.evict(look)
		}
		if blocking, err := lockwait.Blocking(look, w.pool, w.pid); err == nil && len(blocking) > 0 && w.settings.Waiting != nil {
			if now := lockwait.Identify(blocking); now != told {
				told = now
				w.settings.Waiting(blocking)
			}
		}
		cancel()
	}
}

// evict ends whoever holds the fence now. It stays due afterwards: an older writer that was queueing behind the first may
// get the fence next.
func (w *watch) evict(ctx context.Context) {
	ended, err := lockwait.EvictFenceHolders(ctx, w.pool, w.pid)
	if err != nil && w.err == nil {
		w.err = err
		// The claim could wait for ever; who called wants to know now.
		_, _ = catalogdb.New(w.pool).CancelBackend(ctx, w.pid)
	}
	for _, s := range ended {
		w.evicted = append(w.evicted, s)
		if w.settings.Evicted != nil {
			w.settings.Evicted(s)
		}
	}
}
