package tokensrc

import (
	"context"
	"errors"
	"time"

	"github.com/fencectl/fencectl/fenced"
)

// An Observer is told of a source's grants, for metrics. Its methods must be quick. fenced/fencedotel has one for OpenTelemetry.
type Observer interface {
	// Acquired is called after every Acquire and TryAcquire, on the caller's goroutine.
	Acquired(ctx context.Context, event AcquireEvent)
	// Ended is called once for every grant, when its context has ended.
	Ended(ctx context.Context, event EndEvent)
}

// An AcquireEvent describes an attempt to get a lock.
type AcquireEvent struct {
	Name  string
	Token fenced.Token // 0 when Err is not nil
	Took  time.Duration
	Err   error // as the caller gets it: ErrHeld, the context's, or the service's
}

// An EndEvent describes a tenure that is over.
type EndEvent struct {
	Name  string
	Token fenced.Token
	Held  time.Duration
	// Cause is the cause of the grant's context: it wraps ErrLost, is ErrReleased, or is that of the context given to Acquire.
	Cause error
}

// Lost reports whether the lock was lost rather than given back.
func (e EndEvent) Lost() bool { return errors.Is(e.Cause, ErrLost) }

// Observe returns a source that tells the observer of the grants of another.
func Observe(source Source, observer Observer) Source { return observed{source, observer} }

type observed struct {
	source   Source
	observer Observer
}

func (o observed) Acquire(ctx context.Context, name string) (Grant, error) {
	return o.acquire(ctx, name, o.source.Acquire)
}

func (o observed) TryAcquire(ctx context.Context, name string) (Grant, error) {
	return o.acquire(ctx, name, o.source.TryAcquire)
}

func (o observed) acquire(ctx context.Context, name string, acquire func(context.Context, string) (Grant, error)) (Grant, error) {
	begun := time.Now()
	grant, err := acquire(ctx, name)
	event := AcquireEvent{Name: name, Took: time.Since(begun), Err: err}
	if err == nil {
		event.Token = grant.Token()
		since := time.Now()
		context.AfterFunc(grant.Context(), func() {
			o.observer.Ended(context.WithoutCancel(ctx), EndEvent{Name: name, Token: grant.Token(), Held: time.Since(since), Cause: context.Cause(grant.Context())})
		})
	}
	o.observer.Acquired(ctx, event)
	return grant, err
}
