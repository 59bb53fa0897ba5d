package postgres

import (
	"context"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/internal/tenure"
)

// Sequence is a source without a lock: every Acquire succeeds at once with a new token, for any name, and the newest run wins, because
// its claim makes the fence refuse the older ones. Its grants have no time limit and end only with Release, or with the context
// that Acquire was given; a run learns that it is no longer the newest from fenced.ErrStale.
type Sequence struct{ db Querier }

var _ tokensrc.Source = (*Sequence)(nil)

// NewSequence returns the source. db stays the caller's to close; do not give it a transaction, because a token may be
// used only once the transaction that drew it has committed.
func NewSequence(db Querier) *Sequence { return &Sequence{db} }

// Acquire implements [tokensrc.Source].
func (s *Sequence) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	var token fenced.Token
	if err := s.db.QueryRow(ctx, sqlNextToken, oneRoundTrip).Scan(&token); err != nil {
		return nil, wrap(name, err)
	}
	return tenure.Start(ctx, tenure.Config{
		Name: name, Token: token,
		Check:   func(context.Context) error { return nil },
		Release: func(context.Context) error { return nil },
	}), nil
}

// TryAcquire implements [tokensrc.Source]; it is Acquire.
func (s *Sequence) TryAcquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	return s.Acquire(ctx, name)
}
