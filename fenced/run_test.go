package fenced_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/netfault"
	"github.com/fencectl/fencectl/internal/pgtest"
)

func setState(ctx context.Context, tx pgx.Tx, id int64, state string) error {
	_, err := tx.Exec(ctx, `UPDATE public.jobs SET state = $2 WHERE id = $1`, id, state)
	return err
}

func TestRunPresentsAndCommits(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	err := fenced.Run(ctx, pool, fenced.NewGrant("jobs", 34), func(tx pgx.Tx) error { return setState(ctx, tx, 1, "running") })
	if err != nil {
		t.Fatal(err)
	}
	if got := state(t, pool, 1); got != "running" {
		t.Errorf("state is %q", got)
	}
	if token := pgtest.Value[fenced.Token](t, pool, `SELECT last_fencing_token FROM public.jobs WHERE id = 1`); token != 34 {
		t.Errorf("the row's fence is %v", token)
	}
	err = fenced.Run(ctx, pool, fenced.NewGrant("jobs", 33), func(tx pgx.Tx) error { return setState(ctx, tx, 1, "zombie") })
	var stale *fenced.StaleError
	if !errors.As(err, &stale) || stale.Presented != 33 || stale.Stored != 34 || stale.OwnWrite() || stale.Table != "jobs" {
		t.Fatalf("an older token: %v", err)
	}
	err = fenced.Run(ctx, pool, fenced.NewGrant("jobs", 34), func(tx pgx.Tx) error { return setState(ctx, tx, 1, "again") })
	if !errors.As(err, &stale) || !stale.OwnWrite() {
		t.Fatalf("the same token again on a strict fence: %v", err)
	}
	if got := state(t, pool, 1); got != "running" {
		t.Errorf("state is %q", got)
	}
}

func TestFencedTransactionTakesNoRoundTripMoreThanAPlainOne(t *testing.T) {
	pool, wire := traced(t)
	jobs(t, pool, "")
	ctx := t.Context()
	update := func(tx pgx.Tx) error { return setState(ctx, tx, 1, "x") }

	// A plain transaction on the unprotected work: BEGIN, the statement, COMMIT. Twice, because the first prepares.
	plain := func() int {
		wire.reset()
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT fencing.present(1)`, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
			return update(tx)
		}); err != nil {
			t.Fatal(err)
		}
		return wire.roundTrips() - 1 // that presentation is what a fenced transaction saves
	}
	plain()
	jobs := &countingGrant{}
	pgtest.Exec(t, pool, `SELECT fencing.observe('public.jobs')`)
	want := plain()
	if want != 3 {
		t.Fatalf("a plain transaction of one statement takes %d round trips, so the count is wrong", want)
	}
	pgtest.Exec(t, pool, `SELECT fencing.enforce('public.jobs')`)
	wire.reset()
	if err := fenced.Run(ctx, pool, jobs, update); err != nil {
		t.Fatal(err)
	}
	if got := wire.roundTrips(); got != want {
		t.Errorf("a fenced transaction takes %d round trips, a plain one %d\n%s", got, want, wire.text())
	}
	wire.reset()
	jobs.next()
	err := fenced.RunWith(ctx, pool, []fenced.Grant{jobs, fenced.NewGrant("other", 7)}, &fenced.RunOptions{TxOptions: pgx.TxOptions{IsoLevel: pgx.Serializable}}, update)
	if err != nil {
		t.Fatal(err)
	}
	if got := wire.roundTrips(); got != want {
		t.Errorf("with two grants, bounds and an isolation level it takes %d round trips, a plain one %d", got, want)
	}
	wire.reset()
	if err := fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 10)); err != nil {
		t.Fatal(err)
	}
	if got := wire.roundTrips(); got != 1 {
		t.Errorf("a claim takes %d round trips\n%s", got, wire.text())
	}
}

// countingGrant has a token that can grow, and some time left.
type countingGrant struct{ token atomic.Int64 }

func (g *countingGrant) next()                           { g.token.Add(1) }
func (g *countingGrant) Name() string                    { return "jobs" }
func (g *countingGrant) Token() fenced.Token             { return fenced.Token(100 + g.token.Load()) }
func (g *countingGrant) TimeLeft() (time.Duration, bool) { return time.Minute, true }

func TestTransactionIsBoundedByTheTimeLeft(t *testing.T) {
	pool := pgtest.New(t, pgtest.Param("idle_in_transaction_session_timeout", "90s"))
	ctx := t.Context()
	// 17 and later know transaction_timeout; current_setting says NULL where it is not known.
	read := func(tx pgx.Tx) (idle, total *string, err error) {
		err = tx.QueryRow(ctx, `SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_timeout', true)`).Scan(&idle, &total)
		return idle, total, err
	}
	text := func(s *string) string {
		if s == nil {
			return "unknown"
		}
		return *s
	}
	for _, tt := range []struct {
		name        string
		grants      []fenced.Grant
		options     *fenced.RunOptions
		idle, total string
	}{
		{"no limit on the grant leaves the session's", []fenced.Grant{fenced.NewGrant("a", 1)}, nil, "90s", "0"},
		{"the time left", []fenced.Grant{limitedGrant{"a", 1500 * time.Millisecond}}, nil, "1500ms", "1500ms"},
		{"the shortest of several", []fenced.Grant{limitedGrant{"a", time.Minute}, limitedGrant{"b", 2 * time.Second}}, nil, "2s", "2s"},
		{"a shorter setting of the session stays", []fenced.Grant{limitedGrant{"a", time.Hour}}, nil, "90s", "1h"},
		{"given bounds", []fenced.Grant{limitedGrant{"a", time.Second}}, &fenced.RunOptions{MaxIdle: 3 * time.Second, MaxDuration: time.Hour}, "3s", "1h"},
		{"none wanted", []fenced.Grant{limitedGrant{"a", time.Second}}, &fenced.RunOptions{MaxIdle: -1, MaxDuration: -1}, "90s", "0"},
		{"given bounds count, not the time left", []fenced.Grant{limitedGrant{"a", time.Microsecond}}, &fenced.RunOptions{MaxIdle: time.Minute, MaxDuration: time.Minute}, "1min", "1min"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if pgtest.ServerVersion(t) < 17 {
				tt.total = "unknown"
			}
			err := fenced.RunWith(ctx, pool, tt.grants, tt.options, func(tx pgx.Tx) error {
				idle, total, err := read(tx)
				if text(idle) != tt.idle || text(total) != tt.total {
					t.Errorf("idle_in_transaction_session_timeout %s, transaction_timeout %s; want %s and %s", text(idle), text(total), tt.idle, tt.total)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	var after string
	if err := pool.QueryRow(ctx, `SHOW idle_in_transaction_session_timeout`).Scan(&after); err != nil || after != "90s" {
		t.Errorf("after the transactions the session's timeout is %s, %v", after, err)
	}
}

type limitedGrant struct {
	name string
	left time.Duration
}

func (g limitedGrant) Name() string                    { return g.name }
func (g limitedGrant) Token() fenced.Token             { return 50 }
func (g limitedGrant) TimeLeft() (time.Duration, bool) { return g.left, true }

// A holder that is paused in the middle of a transaction loses it, and its successor's claim goes through. The control is the same with
// the bounds switched off: the claim waits.
func TestPausedHolderDoesNotBlockItsSuccessor(t *testing.T) {
	for _, bounded := range []bool{true, false} {
		t.Run(fmt.Sprintf("bounded=%v", bounded), func(t *testing.T) {
			pool := pgtest.New(t)
			jobs(t, pool, ", fence => 'jobs'")
			ctx := t.Context()
			old, newer := limitedGrant{"jobs", 700 * time.Millisecond}, fenced.NewGrant("jobs", 51)
			if err := fenced.Claim(ctx, pool, old); err != nil {
				t.Fatal(err)
			}
			options := &fenced.RunOptions{}
			if !bounded {
				options = &fenced.RunOptions{MaxIdle: -1, MaxDuration: -1}
			}
			written, wake := make(chan struct{}, 1), make(chan struct{})
			result := make(chan error, 1)
			go func() {
				result <- fenced.RunWith(ctx, pool, []fenced.Grant{old}, options, func(tx pgx.Tx) error {
					if err := setState(ctx, tx, 1, "old"); err != nil {
						return err
					}
					written <- struct{}{}
					<-wake // the process is paused
					return setState(ctx, tx, 2, "old")
				})
			}()
			<-written
			successor := pgtest.Conn(t, pool)
			claim := pgtest.Call(t, successor, func(ctx context.Context) error { return fenced.Claim(ctx, successor, newer) }).Blocked()
			if !bounded {
				select {
				case <-claim.Done():
					t.Fatalf("without bounds the claim went through: %v", claim.Wait())
				case <-time.After(2 * time.Second):
				}
				close(wake)
				if err := <-result; err != nil {
					t.Fatal(err)
				}
				if err := claim.Wait(); err != nil {
					t.Fatal(err)
				}
				return
			}
			if err := claim.Wait(); err != nil {
				t.Fatal(err)
			}
			close(wake)
			if err := <-result; err == nil {
				t.Error("the paused transaction committed after its successor's claim")
			}
			if got := state(t, pool, 1); got != "new" {
				t.Errorf("the paused transaction left %q behind", got)
			}
		})
	}
}

func TestSeveralGrantsEachCountForTheirOwnFence(t *testing.T) {
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `CREATE TABLE public.account (account_id text PRIMARY KEY, balance bigint NOT NULL)`)
	pgtest.Exec(t, pool, `INSERT INTO public.account VALUES ('a', 100), ('b', 100), ('it''s \', 100)`)
	pgtest.Exec(t, pool, `SELECT fencing.protect('public.account', fence => 'account/{account_id}')`)
	ctx := t.Context()
	a, b := fenced.NewGrant("account/a", 7), fenced.NewGrant(`account/it's \`, 99)
	if err := fenced.ClaimWith(ctx, pool, []fenced.Grant{b, a}, nil); err != nil {
		t.Fatal(err)
	}
	transfer := func(grants ...fenced.Grant) error {
		return fenced.RunWith(ctx, pool, grants, nil, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE public.account SET balance = balance - 10 WHERE account_id = 'a'`); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE public.account SET balance = balance + 10 WHERE account_id = $1`, `it's \`)
			return err
		})
	}
	if err := transfer(a, b); err != nil {
		t.Fatalf("under both locks: %v", err)
	}
	if err := transfer(b, a); err != nil {
		t.Fatalf("in the other order: %v", err)
	}
	if err := transfer(a); err == nil {
		t.Error("under one lock a transfer went through")
	}
	// Now another holds one of the two.
	if err := fenced.Claim(ctx, pool, fenced.NewGrant(b.Name(), 100)); err != nil {
		t.Fatal(err)
	}
	var stale *fenced.StaleError
	if err := transfer(a, b); !errors.As(err, &stale) || stale.Fence != b.Name() || stale.Stored != 100 {
		t.Errorf("with one lock lost: %v", err)
	}
	if balance := pgtest.Value[int64](t, pool, `SELECT balance FROM public.account WHERE account_id = 'a'`); balance != 80 {
		t.Errorf("balance of a is %d, want 80: two transfers", balance)
	}
}

func TestRunRetriesOnlyWhenToldAndOnlyWhatIsSafe(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, ", mode => 'reentrant'")
	ctx := t.Context()
	attempts := func(retries int, isolation pgx.TxIsoLevel, token fenced.Token) (int, error) {
		n := 0
		err := fenced.RunWith(ctx, pool, []fenced.Grant{fenced.NewGrant("jobs", token)}, &fenced.RunOptions{Retries: retries, TxOptions: pgx.TxOptions{IsoLevel: isolation}},
			func(tx pgx.Tx) error {
				n++
				var before string
				if err := tx.QueryRow(ctx, `SELECT state FROM public.jobs WHERE id = 1`).Scan(&before); err != nil {
					return err
				}
				if n <= 2 { // somebody else writes between the snapshot and our write
					if err := fenced.Run(ctx, pool, fenced.NewGrant("jobs", token), func(tx pgx.Tx) error { return setState(ctx, tx, 1, fmt.Sprint(n)) }); err != nil {
						return err
					}
				}
				return setState(ctx, tx, 1, before+"!")
			})
		return n, err
	}
	if n, err := attempts(0, pgx.RepeatableRead, 10); n != 1 || fenced.SQLState(err) != "40001" {
		t.Errorf("no retries: %d attempts, %v", n, err)
	}
	if n, err := attempts(1, pgx.RepeatableRead, 11); n != 2 || fenced.SQLState(err) != "40001" {
		t.Errorf("one retry: %d attempts, %v", n, err)
	}
	if n, err := attempts(5, pgx.RepeatableRead, 12); n != 3 || err != nil {
		t.Errorf("five retries: %d attempts, %v", n, err)
	}
	if n, err := attempts(5, pgx.RepeatableRead, 1); n != 1 || !errors.Is(err, fenced.ErrStale) {
		t.Errorf("stale: %d attempts, %v; a stale token is not tried again", n, err)
	}
}

func TestFailingFunctionRollsBack(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	why := errors.New("the work failed")
	err := fenced.Run(ctx, pool, fenced.NewGrant("jobs", 5), func(tx pgx.Tx) error {
		if err := setState(ctx, tx, 1, "half"); err != nil {
			return err
		}
		return why
	})
	if err != why {
		t.Errorf("Run returned %v, want the function's error as it is", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a panic of the function was swallowed")
			}
		}()
		_ = fenced.Run(ctx, pool, fenced.NewGrant("jobs", 5), func(tx pgx.Tx) error {
			if err := setState(ctx, tx, 1, "half"); err != nil {
				return err
			}
			panic("bug")
		})
	}()
	if got := state(t, pool, 1); got != "new" {
		t.Errorf("state is %q", got)
	}
	if pool.Stat().AcquiredConns() != 0 {
		t.Error("a connection was not given back")
	}
}

func TestSwallowedRefusalDoesNotPassForACommit(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	pgtest.Exec(t, pool, `BEGIN; SELECT fencing.present(9); UPDATE public.jobs SET state = 'newer' WHERE id = 1; COMMIT`)
	err := fenced.Run(ctx, pool, fenced.NewGrant("jobs", 5), func(tx pgx.Tx) error {
		_ = setState(ctx, tx, 1, "old") // refused, and the function does not care
		return nil
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("Run says %v about a transaction that rolled back", err)
	}
}

func TestSavepointOutlivesARefusal(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	pgtest.Exec(t, pool, `BEGIN; SELECT fencing.present(9); UPDATE public.jobs SET state = 'newer' WHERE id = 1; COMMIT`)
	err := fenced.Run(ctx, pool, fenced.NewGrant("jobs", 5), func(tx pgx.Tx) error {
		refused := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return setState(ctx, tx, 1, "old") })
		if !errors.Is(refused, fenced.ErrStale) {
			t.Errorf("in a savepoint: %v", refused)
		}
		return setState(ctx, tx, 2, "mine")
	})
	if err != nil {
		t.Fatal(err)
	}
	if state(t, pool, 1) != "newer" || state(t, pool, 2) != "mine" {
		t.Errorf("states are %q and %q", state(t, pool, 1), state(t, pool, 2))
	}
}

func TestEveryWayToSendAStatementYieldsTypedErrors(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	for id := range 3 {
		pgtest.Exec(t, pool, fmt.Sprintf(`BEGIN; SELECT fencing.present(9); UPDATE public.jobs SET state = 'newer' WHERE id = %d; COMMIT`, id+1))
	}
	pgtest.Exec(t, pool, `SELECT fencing.protect('public.jobs', inserts => 'require')`)
	const update = `UPDATE public.jobs SET state = 'old' WHERE id = $1 RETURNING id`
	ways := map[string]func(db fenced.DBTX) error{
		"Exec": func(db fenced.DBTX) error {
			_, err := db.Exec(ctx, update, 1)
			return err
		},
		"Query": func(db fenced.DBTX) error {
			rows, err := db.Query(ctx, update, 1)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
			}
			return rows.Err()
		},
		"CollectRows": func(db fenced.DBTX) error {
			rows, _ := db.Query(ctx, update, 1)
			_, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			return err
		},
		"QueryRow": func(db fenced.DBTX) error {
			var id int64
			return db.QueryRow(ctx, update, 1).Scan(&id)
		},
		"Batch.Exec": func(db fenced.DBTX) error {
			batch := new(pgx.Batch)
			batch.Queue(update, 1)
			results := db.SendBatch(ctx, batch)
			defer results.Close()
			_, err := results.Exec()
			return err
		},
		"Batch.Query": func(db fenced.DBTX) error {
			batch := new(pgx.Batch)
			batch.Queue(update, 1)
			results := db.SendBatch(ctx, batch)
			defer results.Close()
			rows, err := results.Query()
			if err != nil {
				return err
			}
			defer rows.Close()
			rows.Next()
			return rows.Err()
		},
		"Batch.QueryRow": func(db fenced.DBTX) error {
			batch := new(pgx.Batch)
			batch.Queue(update, 1)
			results := db.SendBatch(ctx, batch)
			defer results.Close()
			var id int64
			return results.QueryRow().Scan(&id)
		},
		"Batch.Close": func(db fenced.DBTX) error {
			batch := new(pgx.Batch)
			batch.Queue(update, 1).Exec(func(pgconn.CommandTag) error { return nil })
			return db.SendBatch(ctx, batch).Close()
		},
		"savepoint": func(db fenced.DBTX) error {
			tx, ok := db.(pgx.Tx)
			if !ok {
				_, err := db.Exec(ctx, update, 1)
				return err
			}
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			defer inner.Rollback(ctx)
			_, err = inner.Exec(ctx, update, 1)
			return err
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			err := fenced.Run(ctx, pool, fenced.NewGrant("jobs", 5), func(tx pgx.Tx) error {
				err := way(tx)
				if !errors.Is(err, fenced.ErrStale) {
					t.Errorf("under Run: %v", err)
				}
				return err
			})
			if !errors.Is(err, fenced.ErrStale) {
				t.Errorf("Run returned %v", err)
			}
			if err := way(fenced.Wrap(pool)); !errors.Is(err, fenced.ErrUnfenced) {
				t.Errorf("on a wrapped pool, without a token: %v", err)
			}
		})
	}
	t.Run("CopyFrom", func(t *testing.T) {
		copyFrom := func(db fenced.DBTX) error {
			_, err := db.CopyFrom(ctx, pgx.Identifier{"public", "jobs"}, []string{"id", "state"}, pgx.CopyFromRows([][]any{{int64(9), "copied"}}))
			return err
		}
		if err := copyFrom(fenced.Wrap(pool)); !errors.Is(err, fenced.ErrUnfenced) {
			t.Errorf("without a token: %v", err)
		}
		if err := fenced.Run(ctx, pool, fenced.NewGrant("jobs", 10), func(tx pgx.Tx) error { return copyFrom(tx) }); err != nil {
			t.Errorf("with a token: %v", err)
		}
	})
}

func TestNotFoundIsNotStale(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	err := fenced.Run(ctx, pool, fenced.NewGrant("jobs", 5), func(tx pgx.Tx) error {
		var id int64
		return tx.QueryRow(ctx, `UPDATE public.jobs SET state = 'x' WHERE id = 99 RETURNING id`).Scan(&id)
	})
	if !errors.Is(err, pgx.ErrNoRows) || errors.Is(err, fenced.ErrStale) {
		t.Errorf("a row that does not exist: %v", err)
	}
}

type endingGrant struct {
	fenced.Grant
	ctx context.Context
}

func (g endingGrant) Context() context.Context { return g.ctx }

func TestRunEndsWithTheGrant(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	why := errors.New("the lock was lost")
	grantCtx, lose := context.WithCancelCause(ctx)
	grant := endingGrant{fenced.NewGrant("jobs", 5), grantCtx}
	err := fenced.Run(ctx, pool, grant, func(tx pgx.Tx) error {
		if err := setState(ctx, tx, 1, "late"); err != nil {
			return err
		}
		lose(why)
		return nil
	})
	if !errors.Is(err, fenced.ErrGrantEnded) || !errors.Is(err, why) {
		t.Errorf("the grant ended before COMMIT: %v", err)
	}
	if got := state(t, pool, 1); got != "new" {
		t.Errorf("state is %q", got)
	}
	called := false
	err = fenced.Run(ctx, pool, grant, func(pgx.Tx) error { called = true; return nil })
	if !errors.Is(err, fenced.ErrGrantEnded) || called {
		t.Errorf("under a grant that has ended: %v, called %v", err, called)
	}
	if err := fenced.Claim(ctx, pool, grant); !errors.Is(err, fenced.ErrGrantEnded) {
		t.Errorf("claim under a grant that has ended: %v", err)
	}
	if err := fenced.Run(ctx, pool, limitedGrant{"jobs", 0}, func(pgx.Tx) error { return nil }); !errors.Is(err, fenced.ErrGrantEnded) {
		t.Errorf("with no time left: %v", err)
	}
}

func TestLostAnswerToCommitIsAnUnknownOutcome(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	config, err := pgx.ParseConfig(pgtest.DSN(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	_, target := pgconn.NetworkAddress(config.Host, config.Port)
	link := netfault.New(t, target)
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", link.Addr())
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	err = fenced.Run(ctx, conn, fenced.NewGrant("jobs", 5), func(tx pgx.Tx) error {
		if err := setState(ctx, tx, 1, "done"); err != nil {
			return err
		}
		link.Stall()
		time.AfterFunc(200*time.Millisecond, link.Cut)
		return nil
	})
	if !errors.Is(err, fenced.ErrOutcomeUnknown) {
		t.Errorf("COMMIT was sent and its answer lost: %v", err)
	}
}

func TestConnectionIsUsableAfterAPresentationThatFailed(t *testing.T) {
	pool := pgtest.NewEmpty(t) // no schema fencing
	conn := pgtest.Conn(t, pool)
	ctx := t.Context()
	err := fenced.Run(ctx, conn, fenced.NewGrant("jobs", 5), func(pgx.Tx) error { return nil })
	if fenced.SQLState(err) != "3F000" && fenced.SQLState(err) != "42883" {
		t.Errorf("without the schema: %v", err)
	}
	if _, err := conn.Exec(ctx, "SELECT 1"); err != nil {
		t.Errorf("the caller's connection is left in a failed transaction: %v", err)
	}
}

func TestPresentInATransactionOfTheProgramsOwn(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	ctx := t.Context()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := fenced.Present(ctx, tx, fenced.NewGrant("jobs", 5)); err != nil {
			return err
		}
		return setState(ctx, tx, 1, "done")
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := state(t, pool, 1); got != "done" {
		t.Errorf("state is %q", got)
	}
}

func TestBadGrantsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	pool, wire := traced(t)
	ctx := t.Context()
	for name, grants := range map[string][]fenced.Grant{
		"none":        nil,
		"nil":         {nil},
		"zero token":  {fenced.NewGrant("a", 0)},
		"negative":    {fenced.NewGrant("a", -3)},
		"no name":     {fenced.NewGrant("", 3)},
		"same twice":  {fenced.NewGrant("a", 3), fenced.NewGrant("a", 4)},
		"NUL in name": {fenced.NewGrant("a", 3), fenced.NewGrant("\x00", 4)},
	} {
		if err := fenced.RunWith(ctx, pool, grants, nil, func(pgx.Tx) error { return io.EOF }); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: Run says %v", name, err)
		}
	}
	if n := wire.roundTrips(); n != 0 {
		t.Errorf("%d round trips", n)
	}
}

func TestALostLockIsOneQuestionAndNeedsAnotherAnswerThanAnOwnWrite(t *testing.T) {
	t.Parallel()
	refusal := func(presented, stored fenced.Token) fenced.Refusal {
		return fenced.Refusal{Presented: presented, Stored: stored}
	}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"a newer holder":          {&fenced.StaleError{Refusal: refusal(33, 34)}, true},
		"the grant has ended":     {fmt.Errorf("saving: %w", fenced.ErrGrantEnded), true},
		"an own earlier write":    {&fenced.StaleError{Refusal: refusal(34, 34)}, false},
		"a source that went back": {&fenced.StaleError{Refusal: refusal(33, 34), SourceBehind: true}, false},
		"not fenced":              {&fenced.UnfencedError{}, false},
		"something else":          {errors.New("disk full"), false},
		"nothing":                 {nil, false},
	} {
		if got := fenced.Lost(test.err); got != test.want {
			t.Errorf("%s: Lost(%v) = %v, want %v", name, test.err, got, test.want)
		}
	}
}

func TestRunUnderTheEndedContextOfAGrantSaysThatTheGrantHasEnded(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	why := errors.New("the lease lapsed")
	ctx, cancel := context.WithCancelCause(t.Context())
	grant := endingGrant{fenced.NewGrant("jobs", 1), ctx}
	cancel(why)
	// The grant's own context, as programs pass it, and one that has not ended.
	for _, ctx := range []context.Context{ctx, t.Context()} {
		err := fenced.Run(ctx, pool, grant, func(pgx.Tx) error { return nil })
		if !errors.Is(err, fenced.ErrGrantEnded) || !errors.Is(err, why) || !fenced.Lost(err) {
			t.Errorf("Run: %v, want ErrGrantEnded with its cause", err)
		}
		if err := fenced.Claim(ctx, pool, grant); !errors.Is(err, fenced.ErrGrantEnded) || !errors.Is(err, why) {
			t.Errorf("Claim: %v, want ErrGrantEnded with its cause", err)
		}
	}
}
