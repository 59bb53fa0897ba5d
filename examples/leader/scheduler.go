package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// election is the name of the election, and of the fence: see schema.sql.
const election = "leader/scheduler"

// A Scheduler is a candidate: it follows, waiting to be elected, or it leads, and then plans a round of work every so often.
type Scheduler struct {
	Name     string
	Pool     *pgxpool.Pool
	Election tokensrc.Source
	Rounds   <-chan time.Time // says when to plan
	// Patience is how long a new leader lets a predecessor finish that is in the middle of a transaction.
	Patience time.Duration
	Log      *slog.Logger
}

// Run takes part in the election until ctx ends.
func (s *Scheduler) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		s.Log.Info("following")
		leadership, err := s.Election.Acquire(ctx, election) // campaigns
		if err == nil {
			s.Log.Info("leading", "token", leadership.Token().String())
			err = errors.Join(
				s.lead(leadership),
				leadership.Release(context.WithoutCancel(ctx)), // resigns; after a leadership that was lost it frees nobody else's
			)
		}
		switch {
		case ctx.Err() != nil:
			// We were told to stop, and whatever that broke off is no failure.
		case errors.Is(err, fenced.ErrSourceBehind):
			return err // we do lead, and the token is too old: an operator has to look at what happened to etcd
		case fenced.Lost(err), errors.Is(err, tokensrc.ErrLost):
			// Whether the database said so or we noticed: somebody else leads. Nothing has been written since; campaign again.
			s.Log.Warn("deposed", "error", err)
		default:
			return err
		}
	}
	return nil
}

// lead plans rounds until the leadership ends, and never returns nil.
func (s *Scheduler) lead(leadership tokensrc.Grant) error {
	ctx := leadership.Context()
	// Before anything is read. A predecessor that was paused within a transaction would make us wait for it; a leader that was elected
	// because the other one is gone does not wait for ever, and ends that session.
	claim := &fenced.ClaimOptions{EvictAfter: s.Patience, Logger: s.Log}
	if err := fenced.ClaimWith(ctx, s.Pool, []fenced.Grant{leadership}, claim); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Rounds:
		}
		// To have looked at ctx is a courtesy. We may be paused here, and wake up as somebody who used to lead; what then stops us is
		// that the transaction presents our token.
		if err := s.plan(ctx, leadership); err != nil {
			return err
		}
	}
}

func (s *Scheduler) plan(ctx context.Context, leadership fenced.Grant) error {
	var round int64
	err := fenced.Run(ctx, s.Pool, leadership, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			INSERT INTO leader.plan (round, planned_by)
			SELECT coalesce(max(round), 0) + 1, $1 FROM leader.plan
			RETURNING round`, s.Name).Scan(&round)
	})
	if err != nil {
		return err
	}
	s.Log.Info("planned", "round", round)
	return nil
}
