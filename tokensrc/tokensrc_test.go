package tokensrc_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/internal/tenure"
)

// lateSource grants the lock in the very moment that the waiting ends, which no real service can be made to do on purpose.
type lateSource struct{ released chan struct{} }

func (s lateSource) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	<-ctx.Done()
	return startTenure(ctx, name, s.released), nil
}

func (s lateSource) TryAcquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	return startTenure(ctx, name, s.released), nil
}

func startTenure(ctx context.Context, name string, released chan struct{}) tokensrc.Grant {
	return tenure.Start(ctx, tenure.Config{
		Name: name, Token: 1,
		Check:   func(context.Context) error { return nil },
		Release: func(context.Context) error { close(released); return nil },
	})
}

func TestALockThatComesAsTheWaitEndsIsGivenBack(t *testing.T) {
	released := make(chan struct{})
	grant, err := tokensrc.AcquireWithin(t.Context(), lateSource{released}, "jobs", 10*time.Millisecond)
	if grant != nil || !errors.Is(err, tokensrc.ErrHeld) {
		t.Fatalf("AcquireWithin = %v, %v", grant, err)
	}
	select {
	case <-released:
	default:
		t.Error("the lock that came too late is still held")
	}
}

// punctualSource takes exactly the given time, so that the end of a wait of the same length and its answer come at one moment.
type punctualSource struct {
	lateSource
	after time.Duration
}

func (s punctualSource) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	<-time.After(s.after)
	return startTenure(ctx, name, s.released), nil
}

func TestALockThatComesAtTheVeryEndOfTheWaitIsEitherGrantedOrHeld(t *testing.T) {
	const wait = time.Second
	given := 0
	for range 2000 {
		synctest.Test(t, func(t *testing.T) {
			released := make(chan struct{})
			grant, err := tokensrc.AcquireWithin(t.Context(), punctualSource{lateSource{released}, wait}, "jobs", wait)
			switch {
			case err == nil && grant != nil:
				given++
				if err := grant.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			case grant != nil || !errors.Is(err, tokensrc.ErrHeld):
				t.Fatalf("AcquireWithin = %v, %v", grant, err)
			}
			<-released
		})
	}
	t.Logf("granted %d times", given)
}

func TestObserveTellsHowAGrantEnded(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(cancel context.CancelFunc, grant tokensrc.Grant)
		want error
		lost bool
	}{
		{"released", func(_ context.CancelFunc, grant tokensrc.Grant) { grant.Release(context.Background()) }, tokensrc.ErrReleased, false},
		{"cancelled", func(cancel context.CancelFunc, _ tokensrc.Grant) { cancel() }, context.Canceled, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ends := make(chan tokensrc.EndEvent, 1)
			source := tokensrc.Observe(lateSource{make(chan struct{})}, observer{t, ends})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			grant, err := source.TryAcquire(ctx, "jobs")
			if err != nil {
				t.Fatal(err)
			}
			tt.end(cancel, grant)
			event := <-ends
			if !errors.Is(event.Cause, tt.want) || event.Lost() != tt.lost || event.Name != "jobs" || event.Token != fenced.Token(1) {
				t.Errorf("observed %+v", event)
			}
		})
	}
}

type observer struct {
	t    *testing.T
	ends chan tokensrc.EndEvent
}

func (o observer) Acquired(_ context.Context, event tokensrc.AcquireEvent) {
	if event.Err != nil || event.Token != 1 {
		o.t.Errorf("observed %+v", event)
	}
}
func (o observer) Ended(_ context.Context, event tokensrc.EndEvent) { o.ends <- event }
