package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fencedtest"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

// newBank is a bank with 100 cents on each of the accounts 1 to 3.
func newBank(t *testing.T) *Bank {
	t.Helper()
	pool := pgtest.New(t)
	if err := migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	bank := &Bank{Pool: pool, Source: postgres.NewLease(pool, nil)}
	for id := range int64(3) {
		if err := bank.Open(t.Context(), id+1, 100); err != nil {
			t.Fatal(err)
		}
	}
	return bank
}

// balances of the accounts 1, 2 and 3.
func balances(t *testing.T, bank *Bank) []int64 {
	t.Helper()
	return pgtest.Value[[]int64](t, bank.Pool, `SELECT array_agg(cents ORDER BY account_id) FROM transfer.account`)
}

func want(t *testing.T, bank *Bank, cents ...int64) {
	t.Helper()
	if diff := cmp.Diff(cents, balances(t, bank)); diff != "" {
		t.Errorf("the balances (-want +got):\n%s", diff)
	}
}

func TestATransferMovesTheMoneyOrNothing(t *testing.T) {
	bank := newBank(t)
	if err := bank.Transfer(t.Context(), 2, 1, 30); err != nil {
		t.Fatal(err)
	}
	want(t, bank, 130, 70, 100)
	if err := bank.Transfer(t.Context(), 2, 1, 71); !errors.Is(err, ErrInsufficient) {
		t.Errorf("without enough money: %v", err)
	}
	if err := bank.Transfer(t.Context(), 1, 9, 1); !errors.Is(err, fenced.ErrNotFound) {
		t.Errorf("to an account that does not exist: %v", err)
	}
	want(t, bank, 130, 70, 100)
	if entries := pgtest.Value[int64](t, bank.Pool, `SELECT count(*) FROM transfer.entry`); entries != 1 {
		t.Errorf("%d entries, want 1", entries)
	}
}

// The zombie has both locks, and one of them passes on: its transfer is refused as a whole, although it may still write to the other account.
func TestAZombieWithOneOfTwoLocksMovesNothing(t *testing.T) {
	for lostLock, other := range map[int64]int64{1: 2, 2: 1} {
		bank := newBank(t)
		var grants []fenced.Grant
		for _, id := range []int64{1, 2} {
			held, err := bank.Source.Acquire(t.Context(), accountLock(id))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { held.Release(context.WithoutCancel(t.Context())) })
			grants = append(grants, fenced.NewGrant(held.Name(), held.Token())) // does not notice that it is over
		}
		if err := bank.move(t.Context(), grants, 1, 2, 10); err != nil {
			t.Fatalf("the holder of the locks: %v", err)
		}
		want(t, bank, 90, 110, 100)

		pgtest.Exec(t, bank.Pool, `UPDATE fencing.lease SET expires_at = pg_catalog.clock_timestamp() WHERE name = $1`, accountLock(lostLock))
		if err := bank.Transfer(t.Context(), 3, lostLock, 5); err != nil {
			t.Fatalf("the successor: %v", err)
		}
		before := balances(t, bank)
		if err := bank.move(t.Context(), grants, 1, 2, 10); !errors.Is(err, fenced.ErrStale) {
			t.Errorf("a zombie that lost account %d: %v, want ErrStale", lostLock, err)
		}
		// The same when it had claimed, and was about to write, when the lock passed on.
		err := fenced.RunWith(t.Context(), bank.Pool, grants, nil, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `UPDATE transfer.account SET cents = cents + 10 WHERE account_id = $1`, other); err != nil {
				t.Errorf("the account %d, whose lock it still has: %v", other, err)
			}
			_, err := tx.Exec(t.Context(), `UPDATE transfer.account SET cents = cents - 10 WHERE account_id = $1`, lostLock)
			return err
		})
		var stale *fenced.StaleError
		if !errors.As(err, &stale) || stale.Fence != accountLock(lostLock) {
			t.Errorf("a zombie in the middle of its transaction: %v, want the fence %s to refuse it", err, accountLock(lostLock))
		}
		want(t, bank, before...)
	}
}

// The control: without the fence the zombie writes the balance that it has read when it still had the lock, and money appears.
func TestWithoutTheFenceAZombieMakesMoney(t *testing.T) {
	bank := newBank(t)
	pgtest.Exec(t, bank.Pool, `SELECT fencing.unprotect('transfer.account')`)
	zombie := pgtest.Conn(t, bank.Pool)
	balance := pgtest.Value[int64](t, zombie, `SELECT cents FROM transfer.account WHERE account_id = 1`)
	if err := bank.Transfer(t.Context(), 1, 2, 40); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, zombie, `UPDATE transfer.account SET cents = $1 WHERE account_id = 1`, balance-10)
	pgtest.Exec(t, zombie, `UPDATE transfer.account SET cents = cents + 10 WHERE account_id = 2`)
	want(t, bank, 90, 150, 100)
}

// Two that want the same two locks for opposite transfers do not wait for each other for ever, and lose no cent.
func TestOppositeTransfersDoNotDeadlock(t *testing.T) {
	pool := pgtest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var output bytes.Buffer
	if err := run(ctx, []string{"-dsn", pgtest.DSN(t, pool), "-transfers", "20", "-clerks", "3"}, &output); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Error("it took far too long: somebody waited for a lock to lapse")
	}
	if want := "account 1: 10000 cents, account 2: 10000 cents, together 20000, after 40 transfers"; strings.TrimSpace(output.String()) != want {
		t.Errorf("it printed %q, want %q", output.String(), want)
	}
	if deadlocks := pgtest.Value[int64](t, pool, `SELECT deadlocks FROM pg_catalog.pg_stat_database WHERE datname = current_database()`); deadlocks > 0 {
		t.Errorf("%d deadlocks in the database", deadlocks)
	}
}

// The program's write function, in the failures that the kit knows.
func TestMoveIsFenced(t *testing.T) {
	bank := newBank(t)
	other := func(ctx context.Context) (fenced.Grant, error) {
		var token fenced.Token
		err := bank.Pool.QueryRow(ctx, `SELECT fencing.next_token()`).Scan(&token)
		return fenced.NewGrant(accountLock(2), token), err
	}
	fencedtest.Run(t, fencedtest.Config{
		Pool:  bank.Pool,
		Fence: accountLock(1),
		Write: func(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error {
			second, err := other(ctx)
			if err != nil {
				return err
			}
			return (&Bank{Pool: pool}).move(ctx, []fenced.Grant{grant, second}, 1, 2, 1)
		},
		Applied: func(context.Context, *pgxpool.Pool) (int, error) { return int(100 - balances(t, bank)[0]), nil },
	})
}
