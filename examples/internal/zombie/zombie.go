// Package zombie makes a process that was paused past its lease, for the examples' tests: it holds a real grant of a real lock, and
// does not notice that the lock has gone to somebody else. What stops it is then the fence alone.
package zombie

import (
	"context"

	"github.com/fencectl/fencectl/tokensrc"
)

// Source returns a source whose grants go on after they were lost: their context is the one that Acquire was given. The
// grants do not tell how much time they have left either, so that nothing but the fence bounds what is done under them.
func Source(source tokensrc.Source) tokensrc.Source { return unaware{source} }

type unaware struct{ tokensrc.Source }

func (u unaware) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	return asleep(ctx, name, u.Source.Acquire)
}

func (u unaware) TryAcquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	return asleep(ctx, name, u.Source.TryAcquire)
}

func asleep(ctx context.Context, name string, acquire func(context.Context, string) (tokensrc.Grant, error)) (tokensrc.Grant, error) {
	held, err := acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	return grant{held, ctx}, nil
}

type grant struct {
	tokensrc.Grant
	ctx context.Context
}

func (g grant) Context() context.Context { return g.ctx }
