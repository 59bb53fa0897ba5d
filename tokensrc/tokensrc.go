// Package tokensrc defines what a source of fencing tokens is: a lock whose every grant carries a number that only grows.
//
// One package per source implements it: tokensrc/postgres (a lease, an advisory lock, a plain sequence), tokensrc/etcd (a
// mutex, an election), tokensrc/redis and tokensrc/zookeeper. Each takes the lock and its token in one atomic operation,
// and each is held against the same conformance suite, tokensrc/sourcetest, which sources written elsewhere can run too.
//
// This package leaves the checking of tokens to the database and to package fenced: a lock alone, from any of these
// sources, does not protect data.
package tokensrc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencectl/fencectl/fenced"
)

// A Source grants locks by name. It is safe for concurrent use. It owns no goroutine and no connection while none of its
// grants is held and nobody waits; the client that it was made from stays the caller's to close, after the grants are released.
type Source interface {
	// Acquire waits until the lock is free and takes it. ctx bounds the waiting; it is also the parent of the grant's
	// context, so that cancelling it (the program stops) ends the work under the grant. To limit only the waiting, use
	// [AcquireWithin].
	//
	// An error that wraps ctx's cause means the wait was given up; an [*IncarnationError], that the source is not the one
	// that issued this database's tokens; anything else, that the service could not be used. In no case is a lock left behind
	// for longer than its time to live.
	Acquire(ctx context.Context, name string) (Grant, error)
	// TryAcquire takes the lock if it is free, and returns [ErrHeld] if it is not. Otherwise it is like Acquire.
	TryAcquire(ctx context.Context, name string) (Grant, error)
}

// A Grant is one tenure of one lock. Its owner's identity at the service is random, never a host name or a process id, so that
// two tenures are never taken for each other. The caller must Release it, also after its context has ended.
//
// Grants of this module's sources also implement [fenced.Bounded] (how long the grant lasts without another renewal) and
// [fenced.Checker] (ask the service whether it is still held).
type Grant interface {
	// Name and Token; see [fenced.Grant].
	fenced.Grant
	// Context ends when the lock is lost, released, or when the context that Acquire was given ends. context.Cause tells
	// which: it wraps [ErrLost], is [ErrReleased], or is the parent's cause. It ends conservatively early, on this process's
	// monotonic clock, before the service can give the lock to somebody else. That is a courtesy to the program, not a
	// guarantee: a paused process notices nothing. The guarantee is the fence.
	Context() context.Context
	// Release gives the lock back, and only this tenure of it: a late call, after the lock was lost, frees nobody else's.
	// It may be called repeatedly and concurrently; once one call has succeeded the others return nil. An error means that
	// the service could not be told, and the lock lapses when its time to live is over. Call it with a context that is still
	// alive: defer grant.Release(context.WithoutCancel(ctx)). It gives up by itself about when the lock would have lapsed.
	Release(ctx context.Context) error
}

var (
	// ErrHeld: somebody else holds the lock.
	ErrHeld = errors.New("tokensrc: the lock is held")
	// ErrLost is the cause of a grant's context when the lock was lost: it was not renewed in time, or the service says that it is
	// no longer this grant's.
	ErrLost = errors.New("tokensrc: the lock was lost")
	// ErrReleased is the cause of a grant's context after Release.
	ErrReleased = errors.New("tokensrc: the lock was released")
	// ErrIncarnation is what every [*IncarnationError] is.
	ErrIncarnation = errors.New("tokensrc: unknown incarnation of the token source")
)

// AcquireWithin is source.Acquire with a limit on the waiting alone: after wait it gives up with [ErrHeld]. The grant's context
// is not limited by it.
func AcquireWithin(ctx context.Context, source Source, name string, wait time.Duration) (Grant, error) {
	waiting, cancel := context.WithCancelCause(ctx)
	late := fmt.Errorf("%w: %q was not free within %v", ErrHeld, name, wait)
	timer := time.AfterFunc(wait, func() { cancel(late) })
	grant, err := source.Acquire(waiting, name)
	inTime := timer.Stop()
	switch {
	case err != nil:
		if cause := context.Cause(waiting); cause != nil && ctx.Err() == nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	case !inTime && ctx.Err() == nil:
		// The lock came in the moment the wait ended. The grant's context ends with the wait, on the timer's goroutine, now or soon, so the
		// grant is of no use.
		return nil, errors.Join(late, grant.Release(context.WithoutCancel(ctx)))
	}
	// The grant's context is a child of waiting: end that one with it, or it would stay registered with ctx.
	context.AfterFunc(grant.Context(), func() { cancel(nil) })
	return grant, nil
}

// Epochs is the registry of incarnations: which life of a source issues tokens for this database, and under which epoch.
// tokensrc/postgres.Epochs is the one in the target database's fencing.source.
//
// A source's numbers go back when it loses data: an etcd restored from a snapshot, a Redis that came up empty, a worker
// pointed at another cluster. Its incarnation then differs from the registered one, and the source refuses to issue tokens until an
// operator has looked and said "fencectl epoch adopt", which raises the epoch.
type Epochs interface {
	// Epoch returns the epoch of the source's incarnation. The first incarnation ever seen of a source is registered with
	// epoch 0. For an incarnation other than the registered one it returns an *IncarnationError.
	Epoch(ctx context.Context, source, incarnation string) (int, error)
}

// An IncarnationError says that the source is not the one that issued this database's tokens so far. errors.Is(err, ErrIncarnation).
type IncarnationError struct {
	// Source is the source's name in the registry.
	Source string
	// Incarnation is the one met now.
	Incarnation string
	// Registered is the one on record; empty when the registry does not tell.
	Registered string
}

func (e *IncarnationError) Error() string {
	known := ""
	if e.Registered != "" {
		known = fmt.Sprintf(" (registered: %q)", e.Registered)
	}
	return fmt.Sprintf("tokensrc: source %q is now %q, which is not the incarnation that issued this database's tokens%s: it lost its data, was restored, "+
		"or is another cluster; when that is intended, run: fencectl epoch adopt %s %s", e.Source, e.Incarnation, known, e.Source, e.Incarnation)
}

// Is matches [ErrIncarnation].
func (e *IncarnationError) Is(target error) bool { return target == ErrIncarnation }
