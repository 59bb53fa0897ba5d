package demo

import (
	"context"
	"strconv"
)

// sleepingOwner is the failure that fencing tokens were invented for: Martin Kleppmann, "How to do distributed locking"
// (2016), and before him the lock sequencers of Google's Chubby (Burrows, OSDI 2006).
func sleepingOwner() Scenario {
	const reset = `
		UPDATE shop.jobs SET state = 'queued', orders_settled = 0 WHERE name = 'settle-payments';`
	return Scenario{
		Name:  "sleeping-owner",
		Title: "a worker sleeps past its lock's time limit, and writes when it wakes up",
		Story: `Worker A holds the lock of the job settle-payments, for a limited time, and is paused longer than that. Worker B gets
the lock, does the job and marks it done. Then A wakes up and goes on where it was. The statements are the same in both runs;
both workers even present their tokens each time. The only difference is the guard on the table shop.jobs.`,
		Lesson: `A could not know that it had lost the lock, so A could not be the one who checks. The row has accepted B's token, which
is newer, and so the guard refuses A's.`,
		without: form{
			label: "the lock alone",
			setup: "SELECT fencing.unprotect('shop.jobs', drop_column => true);" + reset,
			play:  playSleepingOwner,
		},
		with: form{
			label: "the lock, and a row fence on shop.jobs",
			setup: "SELECT fencing.unprotect('shop.jobs');" + reset + "SELECT fencing.protect('shop.jobs');",
			play:  playSleepingOwner,
		},
	}
}

func playSleepingOwner(ctx context.Context, s *stage) (verdict, error) {
	const (
		lock = "jobs/settle-payments"
		row  = "job settle-payments"
	)
	a, b, err := s.twoWorkers(ctx)
	if err != nil {
		return verdict{}, err
	}
	if err := a.acquire(ctx, lock, firstLease); err != nil {
		return verdict{}, err
	}
	if _, err := a.read(ctx, row, "how many orders are settled", "SELECT orders_settled FROM shop.jobs WHERE name = 'settle-payments'", count); err != nil {
		return verdict{}, err
	}
	a.sleeps()
	if err := b.acquire(ctx, lock, secondLease); err != nil {
		return verdict{}, err
	}
	if _, err := b.write(ctx, write{
		on: row, text: "settles all 1200 orders, and marks the job done",
		sql: "UPDATE shop.jobs SET state = 'done', orders_settled = 1200\nWHERE name = 'settle-payments'",
	}); err != nil {
		return verdict{}, err
	}
	a.wakes()
	late, err := a.write(ctx, write{
		on: row, text: "notes that it has settled 300 orders so far",
		sql: "UPDATE shop.jobs SET state = 'running', orders_settled = 300\nWHERE name = 'settle-payments'",
	})
	if err != nil {
		return verdict{}, err
	}
	var (
		state   string
		settled int64
	)
	err = s.pool.QueryRow(ctx, "SELECT state, orders_settled FROM shop.jobs WHERE name = 'settle-payments'").Scan(&state, &settled)
	if err != nil {
		return verdict{}, err
	}
	s.ending(row, "the job is %s, with %d of 1200 orders settled", state, settled)
	if late || state != "done" || settled != 1200 {
		return damage("the job that B finished is back at %s, %d of 1200", state, settled), nil
	}
	return intact("A's late write is refused; the job stays done"), nil
}

func count(n int64) string { return strconv.FormatInt(n, 10) }
