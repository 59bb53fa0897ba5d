package fenced

import (
	"context"
	"time"
)

// A Grant is one tenure of one lock, as far as this package needs to know it. Every tokensrc.Grant is one; a program with a
// lock service of its own implements these two methods.
type Grant interface {
	// Name is the lock's name, which is also the name of its fence.
	Name() string
	// Token is the fencing token issued with this tenure. It never changes.
	Token() Token
}

// Bounded is implemented by grants that lapse unless they are renewed. [Run] asks it how long its transaction may idle
// and take, so that a holder that is paused in the middle of one does not keep its successor waiting.
type Bounded interface {
	// TimeLeft is how long the grant is certain to last without another renewal, on this process's monotonic clock;
	// zero or less when it has ended. ok is false for a grant that has no time limit.
	TimeLeft() (left time.Duration, ok bool)
}

// Checker is implemented by grants that can ask their source whether they still hold the lock. [Claim] uses it to tell a
// lost lock from a source that has gone back.
type Checker interface {
	// Check is nil when the source confirms that this very grant holds the lock.
	Check(ctx context.Context) error
}

// NewGrant makes a Grant of a name and a token that came from elsewhere: a message, a command line, an environment variable.
func NewGrant(name string, token Token) Grant { return staticGrant{name, token} }

type staticGrant struct {
	name  string
	token Token
}

func (g staticGrant) Name() string { return g.name }
func (g staticGrant) Token() Token { return g.token }
