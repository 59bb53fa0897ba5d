// Package tenure is what the grants of all sources have in common: a context that ends before the service can give the lock
// away, renewal, and a release that is idempotent and honest. A source brings three functions (renew, check, release) and
// the moment its time to live began.
package tenure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// ErrNotHeld is wrapped by a Renew or Check that the service answered with "not yours". Any other error of theirs is taken
// for a service that is away.
var ErrNotHeld = errors.New("the service says that the lock is not this grant's")

// Config is what a source knows of a lock that it has just taken.
type Config struct {
	Name  string
	Token fenced.Token
	// TTL is how long the service keeps the lock without renewal; 0 for a grant without a time limit.
	TTL time.Duration
	// Since is when the request that began the TTL was *sent*: the service's clock started later than that.
	Since time.Time
	// Renew extends the lock and returns its new TTL, counted by the service from no earlier than the call.
	Renew func(ctx context.Context) (time.Duration, error)
	// Check asks the service whether this very grant holds the lock.
	Check func(ctx context.Context) error
	// Release frees this grant's lock and whatever it uses. It returns nil when the lock is no longer this grant's. It is
	// called again if it failed.
	Release func(ctx context.Context) error
	// Gone, if not nil, is closed when the lock is known to be lost; GoneErr then says why.
	Gone    <-chan struct{}
	GoneErr func() error
	// Logger is told of lost locks and failed renewals; nil for none.
	Logger *slog.Logger
}

// A Tenure implements tokensrc.Grant, fenced.Bounded and fenced.Checker.
type Tenure struct {
	config Config
	ctx    context.Context
	cancel context.CancelCauseFunc
	kept   chan struct{} // closed when the renewing goroutine has returned

	mu       sync.Mutex
	deadline time.Time // when ctx ends without another renewal; zero for no limit
	expiry   *time.Timer
	lastErr  error // of the renewal

	releasing chan struct{} // holds one value while nobody is in Release
	released  bool          // guarded by releasing
}

// Margin is how much earlier than the TTL a grant's context ends: room for the drift of two clocks, and for
// the program to stop.
func Margin(ttl time.Duration) time.Duration { return min(ttl/10, 2*time.Second) }

// Start makes the grant of a lock just taken. parent is the context that Acquire was given.
func Start(parent context.Context, config Config) *Tenure {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Tenure{config: config, kept: make(chan struct{}), releasing: make(chan struct{}, 1)}
	t.releasing <- struct{}{}
	t.ctx, t.cancel = context.WithCancelCause(parent)
	if config.TTL > 0 {
		t.deadline = config.Since.Add(config.TTL - Margin(config.TTL))
		// A timer of its own, so that the context ends in time even while a renewal hangs.
		t.mu.Lock()
		t.expiry = time.AfterFunc(time.Until(t.deadline), t.expire)
		t.mu.Unlock()
	}
	go t.keep()
	return t
}

// Name is the lock's name.
func (t *Tenure) Name() string { return t.config.Name }

// Token is the grant's fencing token.
func (t *Tenure) Token() fenced.Token { return t.config.Token }

// Context ends when the lock is lost or released.
func (t *Tenure) Context() context.Context { return t.ctx }

// TimeLeft implements fenced.Bounded.
func (t *Tenure) TimeLeft() (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deadline.IsZero() {
		return 0, false
	}
	if t.ctx.Err() != nil {
		return 0, true
	}
	return max(0, time.Until(t.deadline)), true
}

// Check implements fenced.Checker.
func (t *Tenure) Check(ctx context.Context) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return t.config.Check(ctx)
}

func (t *Tenure) lose(why error) {
	if t.ctx.Err() != nil {
		return
	}
	t.cancel(fmt.Errorf("%w: %q under token %v: %w", tokensrc.ErrLost, t.config.Name, t.config.Token, why))
	t.config.Logger.Warn("lock lost", "lock", t.config.Name, "token", t.config.Token.String(), "why", why)
}

func (t *Tenure) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if left := time.Until(t.deadline); left > 0 { // a renewal came in while this timer was firing
		t.expiry.Reset(left)
		return
	}
	why := errors.New("not renewed in time")
	if t.lastErr != nil {
		why = fmt.Errorf("not renewed in time: %w", t.lastErr)
	}
	t.lose(why)
}

// keep renews until the context ends.
func (t *Tenure) keep() {
	defer close(t.kept)
	var tick <-chan time.Time
	var timer *time.Timer
	interval := t.config.TTL / 3
	if t.config.TTL > 0 && t.config.Renew != nil {
		timer = time.NewTimer(time.Until(t.config.Since.Add(interval)))
		defer timer.Stop()
		tick = timer.C
	}
	for {
		select {
		case <-t.ctx.Done():
			t.mu.Lock()
			if t.expiry != nil {
				t.expiry.Stop()
			}
			t.mu.Unlock()
			return
		case <-t.config.Gone:
			t.lose(t.config.GoneErr())
		case <-tick:
			sent := time.Now()
			ttl, err := t.renewOnce(interval)
			switch {
			case err == nil:
				interval = ttl / 3
				t.mu.Lock()
				t.deadline, t.lastErr = sent.Add(ttl-Margin(ttl)), nil
				t.mu.Unlock()
				timer.Reset(time.Until(sent.Add(interval)))
			case errors.Is(err, ErrNotHeld):
				t.lose(err)
			case t.ctx.Err() == nil:
				t.mu.Lock()
				t.lastErr = err
				t.mu.Unlock()
				t.config.Logger.Warn("renewal failed, trying again", "lock", t.config.Name, "token", t.config.Token.String(), "error", err)
				timer.Reset(interval / 8)
			}
		}
	}
}

// renewOnce gives an attempt a third of the TTL, so that a lost packet leaves time for another.
func (t *Tenure) renewOnce(limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	defer cancel()
	return t.config.Renew(ctx)
}

// Release implements tokensrc.Grant.
func (t *Tenure) Release(ctx context.Context) error {
	left, limited := t.TimeLeft()
	t.cancel(tokensrc.ErrReleased)
	<-t.kept // so that no renewal of ours is under way when the lock is given back
	if limited {
		// When the time to live is over there is nothing left to give back; a service that is away must not hold
		// the caller longer than that.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(left+Margin(t.config.TTL), time.Second))
		defer cancel()
	}
	select {
	case <-t.releasing:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { t.releasing <- struct{}{} }()
	if t.released {
		return nil
	}
	if err := t.config.Release(ctx); err != nil {
		return fmt.Errorf("tokensrc: release %q, token %v: %w", t.config.Name, t.config.Token, err)
	}
	t.released = true
	return nil
}

// Stamp puts the epoch of the source's incarnation on a counter that it issued. Without a registry the epoch is 0.
func Stamp(ctx context.Context, epochs tokensrc.Epochs, source, incarnation string, seq int64) (fenced.Token, error) {
	epoch := 0
	if epochs != nil {
		var err error
		if epoch, err = epochs.Epoch(ctx, source, incarnation); err != nil {
			return 0, err
		}
	}
	return fenced.NewToken(epoch, seq)
}

// CheckName refuses lock names that not every service and the fence can hold: empty, not UTF-8, with a NUL, over 512 bytes.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("tokensrc: a lock needs a name")
	case len(name) > 512:
		return fmt.Errorf("tokensrc: a lock's name is at most 512 bytes, this one has %d", len(name))
	case !utf8.ValidString(name):
		return fmt.Errorf("tokensrc: lock name %q is not UTF-8", name)
	}
	for i := range len(name) {
		if name[i] == 0 {
			return fmt.Errorf("tokensrc: lock name %q has a NUL character", name)
		}
	}
	return nil
}

// CleanupContext is for giving a lock back on a path that returns an error: it outlives ctx, but only so long that a caller whose
// context has ended does not notice. What cannot be given back lapses.
func CleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}
