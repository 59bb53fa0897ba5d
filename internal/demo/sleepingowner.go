package demo

import (
	"context"
	"fmt"
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
			fence: jobFence("settle-payments"),
			play:  playSleepingOwner,
		},
	}
}

func playSleepingOwner(ctx context.Context, s *stage) (verdict, error) {
	const (
		job  = "settle-payments"
		lock = "jobs/" + job
		row  = "job " + job
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
	if _, err := b.write(ctx, progress(job, 1200)); err != nil {
		return verdict{}, err
	}
	a.wakes()
	if _, err := a.write(ctx, progress(job, 300)); err != nil {
		return verdict{}, err
	}
	return judgeProgress(ctx, s, job)
}

// allOrders is how many orders a job goes through.
const allOrders = 1200

// progress is the write of a worker that has got so far with a job.
func progress(job string, orders int64) write {
	w := write{on: "job " + job, text: fmt.Sprintf("notes that it is through with %d orders so far", orders)}
	state := "running"
	if orders == allOrders {
		w.text, state = fmt.Sprintf("is through with all %d orders, and marks the job done", orders), "done"
	}
	w.sql = fmt.Sprintf("UPDATE shop.jobs SET state = '%s', orders_settled = %d\nWHERE name = '%s'", state, orders, job)
	return w
}

// judgeProgress looks whether the job is still done, as worker B left it.
func judgeProgress(ctx context.Context, s *stage, job string) (verdict, error) {
	state, orders, err := progressOf(ctx, s, job)
	switch {
	case err != nil:
		return verdict{}, err
	case state != "done" || orders != allOrders:
		return damage("the job that B finished is back at %s, %d of %d", state, orders, allOrders), nil
	}
	return intact("A's late write is refused; the job stays done"), nil
}

// progressOf records what has become of a job.
func progressOf(ctx context.Context, s *stage, job string) (state string, orders int64, err error) {
	err = s.place.pool.QueryRow(ctx, "SELECT state, orders_settled FROM shop.jobs WHERE name = $1", job).Scan(&state, &orders)
	if err == nil {
		s.ending("job "+job, "the job is %s, with %d of %d orders", state, orders, allOrders)
	}
	return state, orders, err
}

func jobFence(name string) string {
	return fmt.Sprintf("SELECT last_fencing_token FROM shop.jobs WHERE name = '%s'", name)
}

func count(n int64) string { return strconv.FormatInt(n, 10) }
