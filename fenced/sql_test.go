package fenced_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// eachSQL runs a test on a protected table through every driver, plain and wrapped.
func eachSQL(t *testing.T, protect string, test func(t *testing.T, pool *pgxpool.Pool, db *sql.DB, wrapped bool)) {
	connectors := map[string]func(t *testing.T, dsn string) driver.Connector{
		"pgx": func(t *testing.T, dsn string) driver.Connector {
			config, err := pgx.ParseConfig(dsn)
			if err != nil {
				t.Fatal(err)
			}
			return stdlib.GetConnector(*config)
		},
		"lib/pq": func(t *testing.T, dsn string) driver.Connector {
			connector, err := pq.NewConnector(dsn)
			if err != nil {
				t.Fatal(err)
			}
			return connector
		},
	}
	for name, newConnector := range connectors {
		for _, wrapped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s wrapped=%v", name, wrapped), func(t *testing.T) {
				pool := pgtest.New(t)
				jobs(t, pool, protect)
				connector := newConnector(t, pgtest.DSN(t, pool))
				if wrapped {
					connector = fenced.Connector(connector)
				}
				db := sql.OpenDB(connector)
				t.Cleanup(func() { db.Close() })
				test(t, pool, db, wrapped)
			})
		}
	}
}

func setStateSQL(ctx context.Context, tx *sql.Tx, id int64, state string) error {
	_, err := tx.ExecContext(ctx, `UPDATE public.jobs SET state = $2 WHERE id = $1`, id, state)
	return err
}

func TestSQLRunsClaimsAndRefuses(t *testing.T) {
	eachSQL(t, ", fence => 'jobs'", func(t *testing.T, pool *pgxpool.Pool, db *sql.DB, _ bool) {
		ctx := t.Context()
		old, newer := fenced.NewGrant("jobs", 33), fenced.NewGrant("jobs", 34)
		run := func(grant fenced.Grant, state string) error {
			return fenced.RunSQL(ctx, db, grant, func(tx *sql.Tx) error { return setStateSQL(ctx, tx, 1, state) })
		}
		if err := run(old, "x"); !errors.Is(err, fenced.ErrUnclaimed) {
			t.Errorf("before the claim: %v", err)
		}
		if err := fenced.ClaimSQL(ctx, db, old); err != nil {
			t.Fatal(err)
		}
		if err := run(old, "old"); err != nil {
			t.Fatal(err)
		}
		if err := fenced.ClaimSQL(ctx, db, newer); err != nil {
			t.Fatal(err)
		}
		var stale *fenced.StaleError
		if err := run(old, "zombie"); !errors.As(err, &stale) || stale.Presented != 33 || stale.Stored != 34 || stale.Fence != "jobs" || stale.Table != "jobs" || stale.Hint == "" {
			t.Errorf("the older holder's write: %v", err)
		}
		if err := fenced.ClaimSQL(ctx, db, old); !errors.As(err, &stale) {
			t.Errorf("the older holder's claim: %v", err)
		}
		if _, err := db.ExecContext(ctx, `UPDATE public.jobs SET state = 'unfenced'`); !errors.Is(fenced.AsError(err), fenced.ErrUnfenced) {
			t.Errorf("without a token: %v", err)
		}
		if got := state(t, pool, 1); got != "old" {
			t.Errorf("state is %q", got)
		}
	})
}

func TestSQLRowScanAndRowsErrAreTypedOnAWrappedDriver(t *testing.T) {
	eachSQL(t, "", func(t *testing.T, _ *pgxpool.Pool, db *sql.DB, wrapped bool) {
		ctx := t.Context()
		const update = `UPDATE public.jobs SET state = 'x' WHERE id = $1 RETURNING id`
		ways := map[string]func() error{
			"Exec":     func() error { _, err := db.ExecContext(ctx, update, 1); return err },
			"Row.Scan": func() error { var id int64; return db.QueryRowContext(ctx, update, 1).Scan(&id) },
			"Rows": func() error {
				rows, err := db.QueryContext(ctx, update, 1)
				if err != nil {
					return err
				}
				defer rows.Close()
				for rows.Next() {
				}
				return rows.Err()
			},
			"Stmt": func() error {
				stmt, err := db.PrepareContext(ctx, update)
				if err != nil {
					return err
				}
				defer stmt.Close()
				_, err = stmt.ExecContext(ctx, 1)
				return err
			},
			"Stmt.QueryRow": func() error {
				stmt, err := db.PrepareContext(ctx, update)
				if err != nil {
					return err
				}
				defer stmt.Close()
				var id int64
				return stmt.QueryRowContext(ctx, 1).Scan(&id)
			},
		}
		for name, way := range ways {
			err := way()
			if typed := errors.Is(err, fenced.ErrUnfenced); typed != wrapped {
				t.Errorf("%s: typed %v: %v", name, typed, err)
			}
			if !errors.Is(fenced.AsError(err), fenced.ErrUnfenced) {
				t.Errorf("%s: AsError cannot tell: %v", name, err)
			}
		}
	})
}

func TestSQLTransactionOptionsReachTheServer(t *testing.T) {
	eachSQL(t, "", func(t *testing.T, _ *pgxpool.Pool, db *sql.DB, _ bool) {
		ctx := t.Context()
		var level, readOnly, token string
		grants := []fenced.Grant{limitedGrant{"jobs", time.Minute}, fenced.NewGrant("other", 7)}
		err := fenced.RunSQLWith(ctx, db, grants, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}, nil, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'), current_setting('fencing.token')`).
				Scan(&level, &readOnly, &token)
		})
		if err != nil {
			t.Fatal(err)
		}
		if level != "repeatable read" || readOnly != "on" || token != "50" {
			t.Errorf("isolation %s, read only %s, token %s", level, readOnly, token)
		}
		var after string
		if err := db.QueryRowContext(ctx, `SELECT COALESCE(current_setting('fencing.token', true), '')`).Scan(&after); err != nil || after != "" {
			t.Errorf("after the transaction the token is %q, %v", after, err)
		}
	})
}

func TestSQLFailingFunctionRollsBack(t *testing.T) {
	eachSQL(t, "", func(t *testing.T, pool *pgxpool.Pool, db *sql.DB, _ bool) {
		ctx := t.Context()
		why := errors.New("the work failed")
		err := fenced.RunSQL(ctx, db, fenced.NewGrant("jobs", 5), func(tx *sql.Tx) error {
			if err := setStateSQL(ctx, tx, 1, "half"); err != nil {
				return err
			}
			return why
		})
		if err != why || state(t, pool, 1) != "new" {
			t.Errorf("%v, state %q", err, state(t, pool, 1))
		}
		// A refusal that the function swallows does not pass for a commit.
		pgtest.Exec(t, pool, `BEGIN; SELECT fencing.present(9); UPDATE public.jobs SET state = 'newer' WHERE id = 1; COMMIT`)
		err = fenced.RunSQL(ctx, db, fenced.NewGrant("jobs", 5), func(tx *sql.Tx) error {
			_ = setStateSQL(ctx, tx, 1, "old")
			return nil
		})
		if err == nil || errors.Is(err, fenced.ErrOutcomeUnknown) {
			t.Errorf("a swallowed refusal: %v", err)
		}
		// And the connection is fine afterwards.
		if err := fenced.RunSQL(ctx, db, fenced.NewGrant("jobs", 10), func(tx *sql.Tx) error { return setStateSQL(ctx, tx, 1, "fine") }); err != nil {
			t.Error(err)
		}
	})
}

func TestSQLEviction(t *testing.T) {
	eachSQL(t, ", fence => 'jobs'", func(t *testing.T, pool *pgxpool.Pool, db *sql.DB, _ bool) {
		ctx := t.Context()
		if err := fenced.ClaimSQL(ctx, db, fenced.NewGrant("jobs", 1)); err != nil {
			t.Fatal(err)
		}
		paused := pgtest.Conn(t, pool)
		pgtest.Exec(t, paused, `BEGIN; SELECT fencing.present(1); UPDATE public.jobs SET state = 'zombie' WHERE id = 1`)
		observer := new(recorder)
		err := fenced.ClaimSQLWith(ctx, db, []fenced.Grant{fenced.NewGrant("jobs", 2)}, &fenced.ClaimOptions{EvictAfter: 50 * time.Millisecond, Observer: observer})
		if err != nil {
			t.Fatal(err)
		}
		if len(observer.claims) != 1 || observer.claims[0].Evicted != 1 {
			t.Errorf("observed %+v", observer.claims)
		}
		if got := fence(t, pool, "jobs"); got != 2 {
			t.Errorf("the fence holds %v", got)
		}
	})
}

func TestSQLRetriesSerializationFailures(t *testing.T) {
	eachSQL(t, ", mode => 'reentrant'", func(t *testing.T, pool *pgxpool.Pool, db *sql.DB, _ bool) {
		ctx := t.Context()
		grant, n := fenced.NewGrant("jobs", 5), 0
		err := fenced.RunSQLWith(ctx, db, []fenced.Grant{grant}, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}, &fenced.RunOptions{Retries: 2}, func(tx *sql.Tx) error {
			n++
			var before string
			if err := tx.QueryRowContext(ctx, `SELECT state FROM public.jobs WHERE id = 1`).Scan(&before); err != nil {
				return err
			}
			if n == 1 {
				if err := fenced.Run(ctx, pool, grant, func(tx pgx.Tx) error { return setState(ctx, tx, 1, "other") }); err != nil {
					return err
				}
			}
			return setStateSQL(ctx, tx, 1, before+"!")
		})
		if err != nil || n != 2 || state(t, pool, 1) != "other!" {
			t.Errorf("%d attempts, %v, state %q", n, err, state(t, pool, 1))
		}
	})
}

func TestSQLFencedTransactionTakesNoRoundTripMoreOnAWrappedDriver(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, ", mode => 'reentrant'")
	ctx := t.Context()
	config, err := pgx.ParseConfig(pgtest.DSN(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	log := new(wireLog)
	db := sql.OpenDB(fenced.Connector(stdlib.GetConnector(*config,
		stdlib.OptionAfterConnect(func(_ context.Context, conn *pgx.Conn) error {
			conn.PgConn().Frontend().Trace(log, pgproto3.TracerOptions{})
			return nil
		}),
		// Otherwise the driver pings a connection that was idle for a second.
		stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))))
	defer db.Close()
	db.SetMaxOpenConns(1)
	work := func() {
		t.Helper()
		if err := fenced.RunSQL(ctx, db, fenced.NewGrant("jobs", 5), func(tx *sql.Tx) error { return setStateSQL(ctx, tx, 1, "x") }); err != nil {
			t.Fatal(err)
		}
	}
	work() // prepares
	log.reset()
	work()
	if n := log.roundTrips(); n != 3 {
		t.Errorf("BEGIN with the presentation, one statement, COMMIT took %d round trips, want 3\n%s", n, log.text())
	}
	log.reset()
	if err := fenced.ClaimSQL(ctx, db, fenced.NewGrant("jobs", 5)); err != nil {
		t.Fatal(err)
	}
	if n := log.roundTrips(); n != 1 {
		t.Errorf("a claim took %d round trips", n)
	}
}

func TestSQLDriverConnectionCanBeUnwrapped(t *testing.T) {
	pool := pgtest.New(t)
	config, err := pgx.ParseConfig(pgtest.DSN(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(fenced.Connector(stdlib.GetConnector(*config)))
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Raw(func(driverConn any) error {
		if _, ok := driverConn.(interface{ Unwrap() driver.Conn }).Unwrap().(*stdlib.Conn); !ok {
			t.Errorf("unwrapped to %T", driverConn)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPresentSQLInATransactionOfTheProgramsOwn(t *testing.T) {
	eachSQL(t, "", func(t *testing.T, pool *pgxpool.Pool, db *sql.DB, _ bool) {
		ctx := t.Context()
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if err := fenced.PresentSQL(ctx, tx, fenced.NewGrant("jobs", 5)); err != nil {
			t.Fatal(err)
		}
		if err := setStateSQL(ctx, tx, 1, "done"); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if got := state(t, pool, 1); got != "done" {
			t.Errorf("state is %q", got)
		}
	})
}
