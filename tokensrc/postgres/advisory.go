package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/internal/tenure"
)

// AdvisoryOptions are the settings of an Advisory; nil means the defaults.
type AdvisoryOptions struct {
	// TTL is how long the server lets the lock's session be silent (idle_session_timeout) before it ends the session and frees
	// the lock: a process that is paused or cut off loses it after that. The source speaks up at a third of it. Default 15 s.
	TTL time.Duration
	// Logger is told of lost locks and failed heartbeats; nil for none.
	Logger *slog.Logger
}

// Advisory is a source of session advisory locks. Each grant, and each waiter, has a connection of its own, opened with the pool's
// settings but beside the pool; waiters queue in the server, first come, first served.
//
// The server frees the lock at once when it sees the connection break, and may give it away before this process has seen the same; only the
// fence covers that moment. A heartbeat that goes unanswered for a third of the TTL costs the connection, and so the lock. It does not work through a pooler in transaction mode. The lock's key is
// hashtextextended('fencing/' || name, 0). The pool's role needs EXECUTE on fencing.next_token (fencectl grant).
type Advisory struct {
	pool    *pgxpool.Pool
	options AdvisoryOptions
}

var _ tokensrc.Source = (*Advisory)(nil)

// NewAdvisory returns the source. pool stays the caller's to close, after all grants have been released.
func NewAdvisory(pool *pgxpool.Pool, options *AdvisoryOptions) *Advisory {
	s := &Advisory{pool: pool}
	if options != nil {
		s.options = *options
	}
	s.options.TTL = checkTTL(s.options.TTL, 15*time.Second)
	return s
}

// Acquire implements [tokensrc.Source].
func (s *Advisory) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	return s.acquire(ctx, name, sqlAdvisory)
}

// TryAcquire implements [tokensrc.Source].
func (s *Advisory) TryAcquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	return s.acquire(ctx, name, sqlTryAdvisory)
}

// A holder is the session that has the lock.
type holder struct {
	source *Advisory
	name   string
	pid    int32
	start  time.Time     // backend_start, which with pid names the session for good
	turn   chan struct{} // holds one value while nobody uses conn
	conn   *pgx.Conn     // nil once closed; guarded by turn
}

func (s *Advisory) acquire(ctx context.Context, name, sql string) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	conn, err := dial(ctx, s.pool, map[string]string{
		"idle_session_timeout": milliseconds(s.options.TTL),
		// A role's settings for its ordinary statements must not end the waiting or the lock.
		"lock_timeout": "0", "statement_timeout": "0", "idle_in_transaction_session_timeout": "0",
	})
	if err != nil {
		return nil, wrap(name, err)
	}
	h := &holder{source: s, name: name, turn: make(chan struct{}, 1), conn: conn}
	h.turn <- struct{}{}
	var token *fenced.Token
	sent := time.Now()
	err = conn.QueryRow(ctx, sql, oneRoundTrip, name).Scan(&token, &h.pid, &h.start)
	switch {
	case err != nil:
	case token == nil:
		err = tokensrc.ErrHeld
	case time.Since(sent) > s.options.TTL/10:
		// The server counts our silence from its answer, which came long after the request of one that waited.
		sent = time.Now()
		err = conn.Ping(ctx)
	}
	if err != nil {
		closeConn(ctx, conn) // and with it whatever lock it got
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, wrap(name, err)
	}
	return tenure.Start(ctx, tenure.Config{
		Name: name, Token: *token, TTL: s.options.TTL, Since: sent, Logger: s.options.Logger,
		Renew: func(ctx context.Context) (time.Duration, error) {
			return s.options.TTL, h.use(ctx, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
		},
		Check: func(ctx context.Context) error {
			return h.use(ctx, func(conn *pgx.Conn) error {
				// A ping that is interrupted costs the connection, and with it the lock: not for a caller's haste.
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.TTL/3)
				defer cancel()
				return conn.Ping(ctx)
			})
		},
		Release: h.release,
	}), nil
}

// use runs f on the connection, one at a time. A connection that broke has lost the lock for good.
func (h *holder) use(ctx context.Context, f func(*pgx.Conn) error) error {
	select {
	case <-h.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { h.turn <- struct{}{} }()
	if h.conn == nil {
		return fmt.Errorf("%w: its session has ended", tenure.ErrNotHeld)
	}
	err := f(h.conn)
	if h.conn != nil && h.conn.IsClosed() {
		h.conn = nil
		return errors.Join(fmt.Errorf("%w: its session has ended", tenure.ErrNotHeld), err)
	}
	return err
}

// release unlocks and closes the session. When that fails, it ends the session from another connection.
func (h *holder) release(ctx context.Context) error {
	err := h.use(ctx, func(conn *pgx.Conn) error {
		defer closeConn(ctx, conn) // a session that is closed keeps nothing, whatever the unlock says
		_, err := conn.Exec(ctx, sqlUnlock, oneRoundTrip, h.name)
		h.conn = nil
		return err
	})
	if err == nil {
		return nil
	}
	var ended int
	if err := h.source.pool.QueryRow(ctx, sqlEndSession, oneRoundTrip, h.pid, h.start).Scan(&ended); err != nil {
		return fmt.Errorf("the connection is closed, and the server cannot be asked to end its session: %w", err)
	}
	return nil // ended now, or gone before
}
