package demo

import (
	"context"
	"fmt"
	"time"
)

// The three stories of this file happen with a lock in Redis, taken as its documentation says: SET with NX and PX. None of them
// needs a mistake in it; what they show is true of every lock that can be lost without its holder's knowing.

// A charge takes what an order costs from its account. Charging twice is the damage.
type charge struct{ order, account, cents int64 }

const fullAccount = 10000

func (c charge) lock() string { return fmt.Sprintf("account/%d", c.account) }
func (c charge) row() string  { return fmt.Sprintf("account %d", c.account) }

func (c charge) reset() string {
	return fmt.Sprintf(`
		SELECT fencing.unprotect('shop.accounts', drop_column => true);
		UPDATE shop.accounts SET balance_cents = %d WHERE account_id = %d;
		UPDATE shop.orders SET status = 'placed' WHERE order_id = %d;`, fullAccount, c.account, c.order)
}

func (c charge) fenced() string {
	return "SELECT fencing.unprotect('shop.orders', drop_column => true);" + c.reset() +
		"SELECT fencing.protect('shop.accounts', fence => 'account/{account_id}');"
}

func (c charge) unfenced() string {
	return "SELECT fencing.unprotect('shop.orders', drop_column => true);" + c.reset()
}

func (c charge) fence() string {
	return fmt.Sprintf("SELECT token FROM fencing.fence WHERE name = '%s'", c.lock())
}

// due is whether the order is still to be charged, as the worker reads it.
func (c charge) due(ctx context.Context, w *worker) (bool, error) {
	paid, err := w.read(ctx, c.row(), fmt.Sprintf("whether order %d is paid", c.order),
		fmt.Sprintf("SELECT (status = 'paid')::int::bigint FROM shop.orders WHERE order_id = %d", c.order),
		func(n int64) string { return map[int64]string{0: "not yet", 1: "yes, so there is nothing to do"}[n] })
	return paid == 0, err
}

// write charges the account.
func (c charge) write(ctx context.Context, w *worker) error {
	_, err := w.write(ctx, write{
		on: c.row(), text: fmt.Sprintf("charges the account %s for order %d", money(c.cents), c.order),
		sql: fmt.Sprintf("UPDATE shop.accounts SET balance_cents = balance_cents - %d\nWHERE account_id = %d;\nUPDATE shop.orders SET status = 'paid'\nWHERE order_id = %d",
			c.cents, c.account, c.order),
		silent: w.token == 0,
	})
	return err
}

func (c charge) judge(ctx context.Context, s *stage, kept string) (verdict, error) {
	var balance int64
	err := s.place.pool.QueryRow(ctx, "SELECT balance_cents FROM shop.accounts WHERE account_id = $1", c.account).Scan(&balance)
	if err != nil {
		return verdict{}, err
	}
	s.ending(c.row(), "the balance is %s, and should be %s", money(balance), money(fullAccount-c.cents))
	switch balance {
	case fullAccount - c.cents:
		return intact("%s", kept), nil
	case fullAccount - 2*c.cents:
		return damage("order %d of %s was charged twice", c.order, money(c.cents)), nil
	}
	return damage("the balance is %s, which no charge explains", money(balance)), nil
}

// lockHeldTwice is what a lock in a store that replicates or persists asynchronously comes to, whatever its clients do.
func lockHeldTwice() Scenario {
	c := charge{order: 23, account: 24, cents: 523}
	return Scenario{
		Name:  "lock-held-twice",
		Title: "Redis loses its last writes, and with them the lock that it gave",
		Story: `Worker A has the lock, in Redis, and is about to charge an order. Nobody is paused and no time limit passes. But Redis is
killed before the lock is on disk, or fails over to a replica that has not got it yet: it knows of no lock any more, and gives
it to worker B too. Both have read that the order is not paid, and both charge it. With the fence, B's token has to be newer; and
as the counter was lost with the lock, no token is issued until somebody has looked.`,
		Lesson: `A fence does not need the lock to be right. Whatever the lock service forgets, the database remembers: which token was claimed
last, and which life of the source issued it. The numbers of a source that starts again from 1 are put into a new epoch, above all that went before.`,
		needs: []need{needsRedis},
		without: form{
			label: "the lock alone (SET NX PX)", setup: c.unfenced(),
			play: func(ctx context.Context, s *stage) (verdict, error) {
				a, b, err := s.twoWorkers(ctx)
				if err != nil {
					return verdict{}, err
				}
				lock := s.plainLock(c.lock())
				if err := lock.take(ctx, a, secondLease); err != nil {
					return verdict{}, err
				}
				return playHeldTwice(ctx, s, c, a, b, func() error { return lock.take(ctx, b, secondLease) })
			},
		},
		with: form{
			label: "tokens with the lock, and a named fence, account/{account_id}, which is claimed", setup: c.fenced(), fence: c.fence(),
			play: func(ctx context.Context, s *stage) (verdict, error) {
				a, b, err := s.twoWorkers(ctx)
				if err != nil {
					return verdict{}, err
				}
				if err := s.trusted(ctx); err != nil {
					return verdict{}, err
				}
				if err := a.from(ctx, a.redisSource(secondLease), c.lock(), secondLease); err != nil {
					return verdict{}, err
				}
				if err := a.claim(ctx); err != nil {
					return verdict{}, err
				}
				return playHeldTwice(ctx, s, c, a, b, func() error {
					source := b.redisSource(secondLease)
					other, err := b.denied(ctx, source, c.lock())
					if err != nil {
						return err
					}
					if err := s.adopts(ctx, other); err != nil {
						return err
					}
					if err := b.from(ctx, source, c.lock(), secondLease); err != nil {
						return err
					}
					return b.claim(ctx)
				})
			},
		},
	}
}

// playHeldTwice goes on from where A has the lock.
func playHeldTwice(ctx context.Context, s *stage, c charge, a, b *worker, takeOver func() error) (verdict, error) {
	dueForA, err := c.due(ctx, a)
	if err != nil {
		return verdict{}, err
	}
	if err := s.losesData(ctx); err != nil {
		return verdict{}, err
	}
	if err := takeOver(); err != nil {
		return verdict{}, err
	}
	dueForB, err := c.due(ctx, b)
	if err != nil {
		return verdict{}, err
	}
	if !dueForA || !dueForB {
		return verdict{}, fmt.Errorf("order %d is paid before anybody has charged it", c.order)
	}
	for _, w := range []*worker{b, a} {
		if err := c.write(ctx, w); err != nil {
			return verdict{}, err
		}
	}
	return c.judge(ctx, s, "A's charge is refused; the order is charged once")
}

// foreignRelease is the oldest mistake with such locks, and the reason why their values are random: the last step of a holder
// that was too late.
func foreignRelease() Scenario {
	c := charge{order: 24, account: 25, cents: 524}
	return Scenario{
		Name:  "foreign-release",
		Title: "a worker that lost its lock gives back somebody else's",
		Story: `Worker A is paused past its lock's time limit, and worker B gets the lock. A wakes up, has nothing more to write, and gives
the lock back as every program does when it ends: DEL. But the lock is B's by now. So worker C gets it while B is at work; both have
read that the order is not paid, and both charge it.`,
		Lesson: `Every grant has an owner of its own, a random one, and a release compares before it deletes, in one step. A's late release
frees nothing; C waits, and then finds the order paid. The claims are there in case: they would have refused B what C has taken over.`,
		needs: []need{needsRedis},
		without: form{
			label: "the lock alone, freed with DEL", setup: c.unfenced(),
			play: func(ctx context.Context, s *stage) (verdict, error) {
				cast, err := s.threeWorkers(ctx)
				if err != nil {
					return verdict{}, err
				}
				lock := s.plainLock(c.lock())
				return playForeignRelease(ctx, s, c, cast, lockSteps{
					take:    func(w *worker, limit time.Duration) error { return lock.take(ctx, w, limit) },
					try:     func(w *worker, limit time.Duration) (bool, error) { return lock.try(ctx, w, limit) },
					release: func(w *worker) error { return lock.del(ctx, w) },
				})
			},
		},
		with: form{
			label: "a release that compares, and a named fence, account/{account_id}, which is claimed", setup: c.fenced(), fence: c.fence(),
			play: func(ctx context.Context, s *stage) (verdict, error) {
				cast, err := s.threeWorkers(ctx)
				if err != nil {
					return verdict{}, err
				}
				if err := s.trusted(ctx); err != nil {
					return verdict{}, err
				}
				return playForeignRelease(ctx, s, c, cast, lockSteps{
					take: func(w *worker, limit time.Duration) error {
						if err := w.from(ctx, w.redisSource(limit), c.lock(), limit); err != nil {
							return err
						}
						return w.claim(ctx)
					},
					try: func(w *worker, limit time.Duration) (bool, error) {
						got, err := w.tries(ctx, w.redisSource(limit), c.lock(), limit)
						if err == nil && got {
							err = w.claim(ctx)
						}
						return got, err
					},
					release: func(w *worker) error { return w.release(ctx) },
				})
			},
		},
	}
}

// lockSteps are a worker's, with the lock of one form of the story.
type lockSteps struct {
	take    func(w *worker, limit time.Duration) error         // as soon as it is free
	try     func(w *worker, limit time.Duration) (bool, error) // if it is free
	release func(w *worker) error
}

func (s *stage) threeWorkers(ctx context.Context) (cast [3]*worker, err error) {
	for i, name := range []string{"worker A", "worker B", "worker C"} {
		if cast[i], err = s.worker(ctx, name); err != nil {
			return cast, err
		}
	}
	return cast, nil
}

func playForeignRelease(ctx context.Context, s *stage, ch charge, cast [3]*worker, steps lockSteps) (verdict, error) {
	a, b, c := cast[0], cast[1], cast[2]
	if err := steps.take(a, firstLease); err != nil {
		return verdict{}, err
	}
	a.sleeps()
	if err := steps.take(b, secondLease); err != nil {
		return verdict{}, err
	}
	dueForB, err := ch.due(ctx, b)
	if err != nil {
		return verdict{}, err
	}
	if !dueForB {
		return verdict{}, fmt.Errorf("order %d is paid before anybody has charged it", ch.order)
	}
	a.wakes()
	if err := steps.release(a); err != nil {
		return verdict{}, err
	}
	got, err := steps.try(c, secondLease)
	if err != nil {
		return verdict{}, err
	}
	// Where C got it, it reads while B is at work. Otherwise it waits until B is done.
	dueForC := false
	if got {
		dueForC, err = ch.due(ctx, c)
	}
	if err == nil {
		err = ch.write(ctx, b)
	}
	if err == nil && !got {
		if err = steps.release(b); err == nil {
			err = steps.take(c, secondLease)
		}
		if err == nil {
			dueForC, err = ch.due(ctx, c)
		}
	}
	if err == nil && dueForC {
		err = ch.write(ctx, c)
	}
	if err != nil {
		return verdict{}, err
	}
	return ch.judge(ctx, s, "A's late release frees nothing; C waits for B, and the order is charged once")
}

// tokenApart is the fence with everything in place but the one thing that makes a token one: that it belongs to the grant.
func tokenApart() Scenario {
	const job = "rebuild-search"
	setup := fmt.Sprintf(`
		SELECT fencing.unprotect('shop.jobs', drop_column => true);
		UPDATE shop.jobs SET state = 'queued', orders_settled = 0 WHERE name = '%s';
		SELECT fencing.protect('shop.jobs');`, job)
	return Scenario{
		Name:  "token-apart",
		Title: "the token is drawn after the lock, in a step of its own",
		Story: `There is a fence, on both sides. In the first run a worker takes the lock, then draws its token from a counter: two requests.
Worker A is paused between them, past its lock's time limit. Worker B takes the lock, draws 1, and finishes the job. A wakes up and
draws 2: the worker whose lock is lost has the newer token, and the fence lets it through.`,
		Lesson: `A token has to say which grant it belongs to, so it has to be made in the step that makes the grant: one script, one
transaction, one statement. Then an older grant cannot have a newer token, however long anybody sleeps.`,
		needs: []need{needsRedis},
		without: form{
			label: "a row fence on shop.jobs; the lock (SET NX PX), then the token (INCR)", setup: setup, fence: jobFence(job),
			play: func(ctx context.Context, s *stage) (verdict, error) {
				lock := s.plainLock("jobs/" + job)
				return playTokenApart(ctx, s, job,
					func(w *worker, limit time.Duration) error { return lock.take(ctx, w, limit) },
					func(w *worker) error { return w.draw(ctx) })
			},
		},
		with: form{
			label: "the same fence; the lock and the token in one script", setup: setup, fence: jobFence(job),
			play: func(ctx context.Context, s *stage) (verdict, error) {
				if err := s.trusted(ctx); err != nil {
					return verdict{}, err
				}
				return playTokenApart(ctx, s, job,
					func(w *worker, limit time.Duration) error {
						return w.from(ctx, w.redisSource(limit), "jobs/"+job, limit)
					},
					func(*worker) error { return nil })
			},
		},
	}
}

func playTokenApart(ctx context.Context, s *stage, job string, take func(w *worker, limit time.Duration) error, draw func(*worker) error) (verdict, error) {
	a, b, err := s.twoWorkers(ctx)
	if err != nil {
		return verdict{}, err
	}
	if err := take(a, firstLease); err != nil {
		return verdict{}, err
	}
	a.sleeps()
	if err := take(b, secondLease); err != nil {
		return verdict{}, err
	}
	if err := draw(b); err != nil {
		return verdict{}, err
	}
	if _, err := b.write(ctx, progress(job, 1200)); err != nil {
		return verdict{}, err
	}
	a.wakes()
	if err := draw(a); err != nil {
		return verdict{}, err
	}
	if _, err := a.write(ctx, progress(job, 300)); err != nil {
		return verdict{}, err
	}
	return judgeProgress(ctx, s, job)
}
