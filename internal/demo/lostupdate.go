package demo

import (
	"context"
	"fmt"
	"time"
)

// The two stories of this file are about one account with 100.00 in it: A takes 30.00 out, B pays 50.00 in. They differ in
// when A writes: after B has read, or before B has the lock.
const (
	accountLock = "account/7"
	accountRow  = "account 7"
	readBalance = "SELECT balance_cents FROM shop.accounts WHERE account_id = 7"
	withdrawn   = -3000
	deposited   = 5000

	accountRowFence = "SELECT last_fencing_token FROM shop.accounts WHERE account_id = 7"
	accountFence    = "SELECT token FROM fencing.fence WHERE name = 'account/7'"

	resetAccount = `
		UPDATE shop.accounts SET balance_cents = 10000 WHERE account_id = 7;`
	rowFenced = "SELECT fencing.unprotect('shop.accounts', drop_column => true);" + resetAccount +
		"SELECT fencing.protect('shop.accounts');"
	namedFenced = "SELECT fencing.unprotect('shop.accounts', drop_column => true);" + resetAccount +
		"SELECT fencing.protect('shop.accounts', fence => 'account/{account_id}');"
)

// lostUpdate is the hole that a check of each write leaves open however good it is: it says nothing about what was read.
func lostUpdate() Scenario {
	return Scenario{
		Name:  "lost-update",
		Title: "the new holder reads before the old one's last write arrives",
		Story: `Worker B has the lock and reads the balance of account 7. Then the last write of A arrives, whose time is over; no newer
token has written the row yet, so a row fence has no reason to refuse it. B writes what it computed from the balance that it
read. Every single write was in order, and one of them is lost.`,
		Lesson: `A new holder has to close the door behind its predecessor before it looks at anything. That is a claim: it raises the
fence to its own token, and from then on nothing older is let in. Claim first, then read.`,
		without: form{label: "a row fence on shop.accounts", setup: rowFenced, fence: accountRowFence, play: playLostUpdate(false)},
		with:    form{label: "a named fence, account/{account_id}, and claims", setup: namedFenced, fence: accountFence, play: playLostUpdate(true)},
	}
}

func playLostUpdate(claims bool) func(context.Context, *stage) (verdict, error) {
	return func(ctx context.Context, s *stage) (verdict, error) {
		a, b, err := s.twoWorkers(ctx)
		if err != nil {
			return verdict{}, err
		}
		seenByA, err := takeOver(ctx, a, firstLease, claims)
		if err != nil {
			return verdict{}, err
		}
		a.sleeps()
		seenByB, err := takeOver(ctx, b, secondLease, claims)
		if err != nil {
			return verdict{}, err
		}
		a.wakes()
		took, err := a.write(ctx, setBalance("takes 30.00 out", seenByA+withdrawn))
		if err != nil {
			return verdict{}, err
		}
		paid, err := b.write(ctx, setBalance("pays 50.00 in", seenByB+deposited))
		if err != nil {
			return verdict{}, err
		}
		return balance(ctx, s, took, paid)
	}
}

// writerInFlight is the same loss with the two in the other order: the old holder has written already, but not committed.
func writerInFlight() Scenario {
	return Scenario{
		Name:  "writer-in-flight",
		Title: "the new holder reads while the old one is in the middle of a transaction",
		Story: `Worker A has written the balance of account 7 in time, but is paused before its COMMIT. Worker B gets the lock and reads:
it sees the balance from before, for nothing has been committed. Its own write waits for the row that A has locked, and when A
commits, it goes over it.`,
		Lesson: `A guard keeps the fence locked until its transaction ends, and a claim waits for that. When the claim is through, whatever
older holders did has been committed or is gone, and B reads what is true. So the claim has to come before the read, in a
transaction of its own. (A holder that never wakes up is another matter: give its transactions a time limit.)`,
		without: form{label: "a row fence on shop.accounts", setup: rowFenced, fence: accountRowFence, play: playWriterInFlight(false)},
		with:    form{label: "a named fence, account/{account_id}, and claims", setup: namedFenced, fence: accountFence, play: playWriterInFlight(true)},
	}
}

func playWriterInFlight(claims bool) func(context.Context, *stage) (verdict, error) {
	return func(ctx context.Context, s *stage) (verdict, error) {
		a, b, err := s.twoWorkers(ctx)
		if err != nil {
			return verdict{}, err
		}
		seenByA, err := takeOver(ctx, a, firstLease, claims)
		if err != nil {
			return verdict{}, err
		}
		open, err := a.begin(ctx, setBalance("takes 30.00 out", seenByA+withdrawn))
		if err != nil || open == nil {
			return verdict{}, fmt.Errorf("worker A's write was not let in: %w", err)
		}
		a.stops("has written, and is paused before its COMMIT")
		if err := b.acquire(ctx, accountLock, secondLease); err != nil {
			return verdict{}, err
		}
		var took, paid bool
		goesOn := func(ctx context.Context) (err error) {
			a.goesOn("wakes up, and commits")
			took, err = a.commit(ctx, open)
			return err
		}
		if claims {
			err = b.waitsWhile(ctx, Event{On: accountLock, Toward: Data, Text: "claims the fence, which waits for worker A's transaction"}, b.inDatabase, b.claim, goesOn)
			if err != nil {
				return verdict{}, err
			}
		}
		seenByB, err := b.read(ctx, accountRow, "the balance", readBalance, money)
		if err != nil {
			return verdict{}, err
		}
		pays := func(ctx context.Context) (err error) {
			paid, err = b.write(ctx, setBalance("pays 50.00 in", seenByB+deposited))
			return err
		}
		if claims {
			err = pays(ctx)
		} else {
			err = b.waitsWhile(ctx, Event{On: accountRow, Toward: Data, Text: "writes the balance, which waits for the row that worker A has locked"}, b.inDatabase, pays, goesOn)
		}
		if err != nil {
			return verdict{}, err
		}
		return balance(ctx, s, took, paid)
	}
}

// takeOver is how a holder begins: it gets the lock, claims its fence where claims are made, and reads.
func takeOver(ctx context.Context, w *worker, limit time.Duration, claims bool) (int64, error) {
	if err := w.acquire(ctx, accountLock, limit); err != nil {
		return 0, err
	}
	if claims {
		if err := w.claim(ctx); err != nil {
			return 0, err
		}
	}
	return w.read(ctx, accountRow, "the balance", readBalance, money)
}

func setBalance(what string, cents int64) write {
	return write{
		on: accountRow, text: fmt.Sprintf("%s: sets the balance to %s", what, money(cents)),
		sql: fmt.Sprintf("UPDATE shop.accounts SET balance_cents = %d\nWHERE account_id = 7", cents),
	}
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// balance compares the account with the sum of what was acknowledged.
func balance(ctx context.Context, s *stage, took, paid bool) (verdict, error) {
	var cents int64
	if err := s.place.pool.QueryRow(ctx, readBalance).Scan(&cents); err != nil {
		return verdict{}, err
	}
	due := int64(10000)
	told := "A was told that its withdrawal was refused"
	if took {
		due += withdrawn
		told = "A was told that its withdrawal succeeded"
	}
	if paid {
		due += deposited
	}
	s.ending(accountRow, "the balance is %s, and should be %s: %s", money(cents), money(due), told)
	switch {
	case cents != due:
		return damage("the balance is %s instead of %s: A's withdrawal is lost", money(cents), money(due)), nil
	case !paid:
		return damage("B, which holds the lock, could not write"), nil
	case took:
		return intact("B's claim waits for A; both count, the balance is %s", money(cents)), nil
	}
	return intact("A's late write is refused, and A is told; the balance is %s", money(cents)), nil
}
