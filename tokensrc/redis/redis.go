// Package redis issues fencing tokens from Redis: a key with an expiry is the lock, a counter beside it the token, both
// in one Lua script.
//
// It is an optimisation, not a guarantee. Redis replicates asynchronously and may lose its last writes in a crash or a failover: two
// clients can hold one lock, and the counter can go back. The fence in the database stays right: it refuses the tokens that came out too
// old (fenced.ErrStale, and fenced.ErrSourceBehind from fenced.Claim). Where that is too often, use another source.
//
// The incarnation of a Redis is a random identity that the first grant writes into the same hash as the counter. It survives
// what the counter survives (a restart with persistence, a failover) and is lost with it (a restart without, FLUSHALL, another server), unlike
// Redis' own run id and replication id, which change at every restart and would ask for an operator each time. A loss of only the
// last writes keeps the identity; the fence notices it.
//
// A waiter polls, since a key that expires tells nobody. The goroutines of one process that wait for one lock poll
// one at a time, in the order in which they came; between processes there is no order.
package redis

import (
	"context"
	"crypto/rand"
	_ "embed" // the Lua scripts
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/internal/tenure"
	"github.com/fencectl/fencectl/tokensrc/internal/turns"
)

var (
	//go:embed acquire.lua
	acquireLua string
	//go:embed renew.lua
	renewLua string
	//go:embed release.lua
	releaseLua string
)

// Options are the settings of a source; nil means the defaults.
type Options struct {
	// TTL is how long Redis keeps the lock of a process that is gone, in whole milliseconds. Default 15 s.
	TTL time.Duration
	// Prefix is put before every key. It should have a hash tag, or a Redis Cluster refuses the scripts: lock and counter must be in
	// one slot. Default "{fencing}:".
	Prefix string
	// PollEvery is how often the first waiter of a process tries, half of it to one and a half of it by chance. Default 100 ms.
	PollEvery time.Duration
	// Epochs registers the server's incarnation; nil issues every token in epoch 0, without a check.
	Epochs tokensrc.Epochs
	// SourceName is the name in the registry of Epochs. Default "redis".
	SourceName string
	// Logger is told of lost locks and failed renewals; nil for none.
	Logger *slog.Logger
}

// Source implements [tokensrc.Source].
type Source struct {
	client  goredis.Scripter
	options Options
	turns   turns.Turns
	acquire *goredis.Script
	renew   *goredis.Script
	release *goredis.Script
}

var _ tokensrc.Source = (*Source)(nil)

// New returns a source of locks. client is a *redis.Client, *redis.ClusterClient or *redis.Ring with a single shard; it stays the caller's to close, after
// all grants have been released. Set ContextTimeoutEnabled in its options, or a server that hangs is given up only after the
// client's own timeouts.
func New(client goredis.Scripter, options *Options) *Source {
	s := &Source{client: client, acquire: goredis.NewScript(acquireLua), renew: goredis.NewScript(renewLua), release: goredis.NewScript(releaseLua)}
	if options != nil {
		s.options = *options
	}
	if s.options.TTL < time.Millisecond {
		s.options.TTL = 15 * time.Second
	}
	s.options.TTL = s.options.TTL.Truncate(time.Millisecond)
	if s.options.Prefix == "" {
		s.options.Prefix = "{fencing}:"
	}
	if s.options.PollEvery <= 0 {
		s.options.PollEvery = 100 * time.Millisecond
	}
	if s.options.SourceName == "" {
		s.options.SourceName = "redis"
	}
	return s
}

// Acquire implements [tokensrc.Source].
func (s *Source) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	woken, done, err := s.turns.Wait(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("tokensrc/redis: acquire %q: %w", name, err)
	}
	defer done()
	for {
		grant, expires, err := s.try(ctx, name)
		if !errors.Is(err, tokensrc.ErrHeld) {
			return grant, err
		}
		wait := s.options.PollEvery/2 + mathrand.N(s.options.PollEvery)
		if expires >= 0 {
			wait = min(wait, expires+time.Millisecond)
		}
		timer := time.NewTimer(wait)
		select {
		case <-woken: // its holder was in this process
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("tokensrc/redis: acquire %q: %w", name, context.Cause(ctx))
		}
		timer.Stop()
	}
}

// TryAcquire implements [tokensrc.Source].
func (s *Source) TryAcquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	grant, _, err := s.try(ctx, name)
	return grant, err
}

func (s *Source) try(ctx context.Context, name string) (_ tokensrc.Grant, expires time.Duration, _ error) {
	wrap := func(err error) error { return fmt.Errorf("tokensrc/redis: acquire %q: %w", name, err) }
	if ctx.Err() != nil {
		return nil, 0, wrap(context.Cause(ctx))
	}
	key, owner := s.options.Prefix+"lock:"+name, rand.Text()
	ttl := strconv.FormatInt(s.options.TTL.Milliseconds(), 10)
	release := func(ctx context.Context) error {
		return s.release.Run(ctx, s.client, []string{key}, owner).Err()
	}
	abandon := func() {
		cleanup, cancel := tenure.CleanupContext(ctx)
		defer cancel()
		if err := release(cleanup); err != nil && s.options.Logger != nil {
			s.options.Logger.Debug("could not give the lock back, it lapses", "lock", name, "error", err)
		}
	}

	sent := time.Now()
	reply, err := s.acquire.Run(ctx, s.client, []string{key, s.options.Prefix + "source"}, owner, ttl, rand.Text()).Slice()
	if err != nil {
		abandon() // the answer may be what was lost
		return nil, 0, wrap(err)
	}
	seq, text, err := parseReply(reply)
	if err != nil {
		abandon()
		return nil, 0, wrap(err)
	}
	if seq == 0 {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, 0, wrap(err)
		}
		return nil, time.Duration(ms) * time.Millisecond, fmt.Errorf("%w: %q", tokensrc.ErrHeld, name)
	}
	token, err := tenure.Stamp(ctx, s.options.Epochs, s.options.SourceName, text, seq)
	if err != nil {
		abandon()
		return nil, 0, wrap(err)
	}
	return tenure.Start(ctx, tenure.Config{
		Name: name, Token: token, TTL: s.options.TTL, Since: sent, Logger: s.options.Logger,
		Release: func(ctx context.Context) error {
			err := release(ctx)
			if err == nil {
				s.turns.Wake(name)
			}
			return err
		},
		Renew: func(ctx context.Context) (time.Duration, error) {
			renewed, err := s.renew.Run(ctx, s.client, []string{key}, owner, ttl).Int()
			if err == nil && renewed == 0 {
				err = tenure.ErrNotHeld
			}
			return s.options.TTL, err
		},
		Check: func(ctx context.Context) error {
			// Renewing is the check: it does not touch what is another's.
			renewed, err := s.renew.Run(ctx, s.client, []string{key}, owner, ttl).Int()
			if err == nil && renewed == 0 {
				err = tenure.ErrNotHeld
			}
			return err
		},
	}), 0, nil
}

func parseReply(reply []any) (seq int64, text string, err error) {
	if len(reply) == 2 {
		var ok1, ok2 bool
		seq, ok1 = reply[0].(int64)
		text, ok2 = reply[1].(string)
		if ok1 && ok2 {
			return seq, text, nil
		}
	}
	return 0, "", fmt.Errorf("the script answered %v", reply)
}
