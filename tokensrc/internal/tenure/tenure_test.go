package tenure_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/internal/tenure"
)

// The services here are functions: what is tried is the timing, which a real service does not let one choose. The conformance suite
// tries the same promises on real ones.

const ttl = 400 * time.Millisecond

func held(context.Context) error { return nil }

func start(t *testing.T, config tenure.Config) *tenure.Tenure {
	t.Helper()
	config.Name, config.Token = "jobs", 34
	if config.Release == nil {
		config.Release = held
	}
	if config.Check == nil {
		config.Check = held
	}
	grant := tenure.Start(t.Context(), config)
	t.Cleanup(func() { _ = grant.Release(context.Background()) })
	return grant
}

// endOf waits for the end and returns when it came.
func endOf(t *testing.T, grant *tenure.Tenure) time.Time {
	t.Helper()
	select {
	case <-grant.Context().Done():
		return time.Now()
	case <-time.After(30 * time.Second):
		t.Fatal("the context does not end")
		return time.Time{}
	}
}

func TestTheContextEndsInTimeThoughTheRenewalHangs(t *testing.T) {
	since := time.Now()
	hang := make(chan struct{})
	grant := start(t, tenure.Config{TTL: ttl, Since: since, Renew: func(context.Context) (time.Duration, error) {
		<-hang // a client that ignores its context
		return ttl, nil
	}})
	defer close(hang)
	if lasted := endOf(t, grant).Sub(since); lasted < ttl*8/10 || lasted >= ttl {
		t.Errorf("it lasted %v of a TTL of %v", lasted, ttl)
	}
	if !errors.Is(context.Cause(grant.Context()), tokensrc.ErrLost) {
		t.Errorf("the cause is %v", context.Cause(grant.Context()))
	}
}

// The service counts from a moment that this process does not know, but that is no earlier than when the request was sent.
func TestTheTTLCountsFromWhenTheRequestWasSent(t *testing.T) {
	since := time.Now().Add(-ttl / 2) // the answer took that long
	grant := start(t, tenure.Config{TTL: ttl, Since: since})
	if left, limited := grant.TimeLeft(); !limited || left > ttl/2 {
		t.Errorf("TimeLeft is %v, %v", left, limited)
	}
	if lasted := endOf(t, grant).Sub(since); lasted >= ttl {
		t.Errorf("it lasted %v of a TTL of %v", lasted, ttl)
	}
}

func TestARenewalThatWasSlowToBeAnsweredCountsFromItsSending(t *testing.T) {
	var sent atomic.Int64
	begun := time.Now()
	grant := start(t, tenure.Config{TTL: ttl, Since: begun, Renew: func(ctx context.Context) (time.Duration, error) {
		if sent.Load() > 0 {
			<-ctx.Done() // only the first is answered
			return 0, ctx.Err()
		}
		sent.Store(int64(time.Since(begun)))
		select {
		case <-time.After(ttl / 4):
		case <-ctx.Done():
		}
		return ttl, nil
	}})
	if lasted := endOf(t, grant).Sub(begun.Add(time.Duration(sent.Load()))); lasted >= ttl {
		t.Errorf("it lasted %v after the last renewal was sent, with a TTL of %v", lasted, ttl)
	}
}

func TestAServiceThatIsAwayIsAskedAgainAndAnOwnerThatIsDeniedIsNot(t *testing.T) {
	away, denied := errors.New("connection refused"), tenure.ErrNotHeld
	var attempts atomic.Int32
	begun := time.Now()
	grant := start(t, tenure.Config{TTL: ttl, Since: begun, Renew: func(context.Context) (time.Duration, error) {
		attempts.Add(1)
		return 0, away
	}})
	if lasted := endOf(t, grant).Sub(begun); lasted < ttl*8/10 {
		t.Errorf("a service that is away cost the lock after %v, with a TTL of %v", lasted, ttl)
	}
	if attempts.Load() < 3 {
		t.Errorf("it was asked %d times", attempts.Load())
	}
	if cause := context.Cause(grant.Context()); !errors.Is(cause, away) {
		t.Errorf("the cause %v does not say why", cause)
	}

	begun = time.Now()
	grant = start(t, tenure.Config{TTL: ttl, Since: begun, Renew: func(context.Context) (time.Duration, error) { return 0, denied }})
	if lasted := endOf(t, grant).Sub(begun); lasted > ttl*8/10 {
		t.Errorf("the service said that the lock is another's, and the context went on for %v", lasted)
	}
}

func TestALossThatTheSourceNoticesEndsTheContextAtOnce(t *testing.T) {
	gone, why := make(chan struct{}), errors.New("session expired")
	grant := start(t, tenure.Config{
		TTL: time.Hour, Since: time.Now(), Gone: gone, GoneErr: func() error { return why },
		Renew: func(context.Context) (time.Duration, error) { return time.Hour, nil },
	})
	close(gone)
	endOf(t, grant)
	if cause := context.Cause(grant.Context()); !errors.Is(cause, why) || !errors.Is(cause, tokensrc.ErrLost) {
		t.Errorf("the cause is %v", cause)
	}
}

func TestAReleaseThatFailedIsTriedAgainAndOneThatSucceededIsNot(t *testing.T) {
	away := errors.New("connection refused")
	results := []error{away, away, nil}
	calls := 0
	grant := start(t, tenure.Config{TTL: time.Hour, Since: time.Now(), Release: func(context.Context) error {
		calls++
		return results[calls-1]
	}})
	for i, want := range []error{away, away, nil, nil, nil} {
		err := grant.Release(t.Context())
		if !errors.Is(err, want) {
			t.Errorf("call %d: %v, want %v", i+1, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), `"jobs"`) {
			t.Errorf("%v does not name the lock", err)
		}
	}
	if calls != 3 {
		t.Errorf("the service was told %d times", calls)
	}
}

func TestReleaseGivesUpWhenTheLockWouldHaveLapsed(t *testing.T) {
	grant := start(t, tenure.Config{TTL: ttl, Since: time.Now(), Release: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	begun := time.Now()
	if err := grant.Release(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Release: %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v, with a TTL of %v", took, ttl)
	}
}

func TestNothingIsRenewedAfterRelease(t *testing.T) {
	renewing, released := make(chan struct{}, 1), atomic.Bool{}
	grant := start(t, tenure.Config{
		TTL: ttl, Since: time.Now(),
		Renew: func(ctx context.Context) (time.Duration, error) {
			if released.Load() {
				t.Error("renewed after Release")
			}
			select {
			case renewing <- struct{}{}:
			default:
			}
			<-ctx.Done() // until the release interrupts it
			if released.Load() {
				t.Error("the lock was given back while a renewal was under way")
			}
			return 0, ctx.Err()
		},
		Release: func(context.Context) error {
			released.Store(true)
			return nil
		},
	})
	<-renewing
	if err := grant.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestTheTTLMayChangeWithARenewal(t *testing.T) {
	grant := start(t, tenure.Config{TTL: ttl, Since: time.Now(), Renew: func(context.Context) (time.Duration, error) { return time.Hour, nil }})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if left, _ := grant.TimeLeft(); left > 30*time.Minute {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the longer TTL does not count")
		}
	}
	if grant.Context().Err() != nil {
		t.Error("the context ended all the same")
	}
}
