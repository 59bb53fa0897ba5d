package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// A Bank moves money between accounts.
type Bank struct {
	Pool   *pgxpool.Pool
	Source tokensrc.Source
}

// ErrInsufficient is returned when there is not enough on the account that is to pay.
var ErrInsufficient = errors.New("not enough money on the account")

// accountLock is the name of an account's lock, and of its fence: see schema.sql.
func accountLock(id int64) string { return fmt.Sprintf("account/%d", id) }

// Transfer moves cents from one account to another, under the locks of both.
func (b *Bank) Transfer(ctx context.Context, from, to, cents int64) (err error) {
	if from == to || cents <= 0 {
		return fmt.Errorf("cannot transfer %d cents from account %d to account %d", cents, from, to)
	}
	// Always in the same order, whichever way the money goes: the opposite transfer would otherwise hold the second lock and wait for the first.
	names := []string{accountLock(from), accountLock(to)}
	slices.Sort(names)
	grants := make([]fenced.Grant, 0, len(names))
	for _, name := range names {
		grant, err := b.Source.Acquire(ctx, name)
		if err != nil {
			return err
		}
		defer grant.Release(context.WithoutCancel(ctx)) //nolint:gocritic // at the end of the transfer, as meant
		grants = append(grants, grant)
	}
	return b.move(ctx, grants, from, to, cents)
}

// move is what happens under the two locks.
func (b *Bank) move(ctx context.Context, grants []fenced.Grant, from, to, cents int64) error {
	// Before the balance is read. Each claim is a transaction of its own: to hold one fence while waiting for the other would be a deadlock with a
	// transfer that has written under both.
	if err := fenced.ClaimWith(ctx, b.Pool, grants, nil); err != nil {
		return err
	}
	// Both tokens are presented, each for its own fence. If one of the two locks has passed on, the whole transfer is refused. And
	// it ends when the first of the grants does.
	return fenced.RunWith(ctx, b.Pool, grants, nil, func(tx pgx.Tx) error {
		var balance int64
		if err := tx.QueryRow(ctx, "SELECT cents FROM transfer.account WHERE account_id = $1", from).Scan(&balance); err != nil {
			return err
		}
		if balance < cents {
			return fmt.Errorf("account %d: %w", from, ErrInsufficient)
		}
		// What was read is still true when it is written: nobody without a newer token can have changed it, and with one we are refused.
		if _, err := tx.Exec(ctx, "UPDATE transfer.account SET cents = $2 WHERE account_id = $1", from, balance-cents); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "UPDATE transfer.account SET cents = cents + $2 WHERE account_id = $1", to, cents)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("account %d: %w", to, fenced.ErrNotFound)
		}
		_, err = tx.Exec(ctx, "INSERT INTO transfer.entry (from_account, to_account, cents) VALUES ($1, $2, $3)", from, to, cents)
		return err
	})
}

// Open opens an account. An INSERT is a write under the account's fence too: the lock on an account exists before the account does.
func (b *Bank) Open(ctx context.Context, id, cents int64) error {
	grant, err := b.Source.Acquire(ctx, accountLock(id))
	if err != nil {
		return err
	}
	defer grant.Release(context.WithoutCancel(ctx))
	if err := fenced.Claim(ctx, b.Pool, grant); err != nil {
		return err
	}
	return fenced.Run(ctx, b.Pool, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO transfer.account (account_id, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING", id, cents)
		return err
	})
}
