package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/internal/tenure"
	"github.com/fencectl/fencectl/tokensrc/internal/turns"
)

// LeaseOptions are the settings of a Lease; nil means the defaults.
type LeaseOptions struct {
	// TTL is how long the database keeps the lock of a process that is gone, in whole milliseconds; it is renewed at a third of
	// that. Default 15 s.
	TTL time.Duration
	// PollEvery is how often a waiter looks without having been woken: a release that happened while the listening
	// connection was down, or behind a pooler that cannot listen. Default 1 s.
	PollEvery time.Duration
	// Logger is told of lost locks and failed renewals; nil for none.
	Logger *slog.Logger
}

// Lease is a source of locks that are rows of fencing.lease, on the database's clock. A lock that is free is acquired in one round
// trip. The goroutines of one process that wait for one lock are served in the order in which they came; between processes there is
// no order. While somebody waits, the source has one connection of its own, beside the pool, to hear of releases by other processes
// (LISTEN).
//
// The pool's role needs EXECUTE on fencing.acquire_lease, renew_lease and release_lease (fencectl grant).
type Lease struct {
	pool     *pgxpool.Pool
	options  LeaseOptions
	turns    turns.Turns
	listener listener
}

var _ tokensrc.Source = (*Lease)(nil)

// NewLease returns the source. pool stays the caller's to close, after all grants have been released.
func NewLease(pool *pgxpool.Pool, options *LeaseOptions) *Lease {
	s := &Lease{pool: pool, listener: listener{pool: pool}}
	if options != nil {
		s.options = *options
	}
	s.options.TTL = checkTTL(s.options.TTL, 15*time.Second)
	if s.options.PollEvery <= 0 {
		s.options.PollEvery = time.Second
	}
	s.listener.logger = s.options.Logger
	return s
}

// TryAcquire implements [tokensrc.Source].
func (s *Lease) TryAcquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	grant, _, err := s.try(ctx, name)
	return grant, err
}

// Acquire implements [tokensrc.Source].
func (s *Lease) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	defer func() {
		if s.turns.Empty() {
			s.listener.rest()
		}
	}()
	released, done, err := s.turns.Wait(ctx, name)
	if err != nil {
		return nil, wrap(name, err)
	}
	defer done()
	grant, expires, err := s.try(ctx, name)
	if !errors.Is(err, tokensrc.ErrHeld) {
		return grant, err
	}
	// One waiter a name, because of the turns.
	woken, stop := s.listener.listen(name)
	defer stop()
	for {
		timer := time.NewTimer(min(expires+time.Millisecond, s.options.PollEvery))
		select {
		case <-released: // by this process
		case <-woken:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, wrap(name, context.Cause(ctx))
		}
		timer.Stop()
		grant, expires, err = s.try(ctx, name)
		if !errors.Is(err, tokensrc.ErrHeld) {
			return grant, err
		}
	}
}

// try also returns, with ErrHeld, how long the lock is held at most if it is not renewed.
func (s *Lease) try(ctx context.Context, name string) (_ tokensrc.Grant, expires time.Duration, _ error) {
	owner, ttl := newUUID(), s.options.TTL
	var token *fenced.Token
	var ms int64
	sent := time.Now()
	err := s.pool.QueryRow(ctx, sqlAcquireLease, oneRoundTrip, name, owner, ttl.Milliseconds()).Scan(&token, &ms)
	if err != nil {
		// When it was the answer that got lost, nobody knows the token, and the lease lapses.
		return nil, 0, wrap(name, err)
	}
	if token == nil {
		return nil, time.Duration(ms) * time.Millisecond, wrap(name, tokensrc.ErrHeld)
	}
	renew := func(ctx context.Context) (time.Duration, error) {
		var held bool
		if err := s.pool.QueryRow(ctx, sqlRenewLease, oneRoundTrip, name, owner, int64(*token), milliseconds(ttl)).Scan(&held); err != nil {
			return 0, err
		}
		if !held {
			return 0, tenure.ErrNotHeld
		}
		return ttl, nil
	}
	return tenure.Start(ctx, tenure.Config{
		Name: name, Token: *token, TTL: ttl, Since: sent, Logger: s.options.Logger,
		Renew: renew,
		// Renewing is the check: it does not touch what is another's.
		Check: func(ctx context.Context) error {
			_, err := renew(ctx)
			return err
		},
		Release: func(ctx context.Context) error {
			var ours bool
			err := s.pool.QueryRow(ctx, sqlReleaseLease, oneRoundTrip, name, owner, int64(*token)).Scan(&ours)
			if err == nil {
				s.turns.Wake(name)
			}
			return err
		},
	}), 0, nil
}

// newUUID is a random owner (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
