package fenced_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/exampledb"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

// Queries stands for what sqlc generates: a struct on a DBTX.
type Queries struct {
	db interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}
}

func (q *Queries) MarkRunning(ctx context.Context, id int64) error {
	_, err := q.db.Exec(ctx, "UPDATE public.jobs SET state = 'running' WHERE id = $1", id)
	return err
}

func Example() {
	ctx := context.Background()
	pool := exampledb.New() // a *pgxpool.Pool; the table jobs is protected by the fence "jobs/nightly"
	defer pool.Close()
	source := postgres.NewLease(pool, nil)

	grant, err := source.Acquire(ctx, "jobs/nightly") // lock and token in one atomic step
	if err != nil {
		panic(err)
	}
	defer grant.Release(context.WithoutCancel(ctx))
	if err := fenced.Claim(ctx, pool, grant); err != nil { // before the first read
		panic(err)
	}
	err = fenced.Run(grant.Context(), pool, grant, func(tx pgx.Tx) error {
		queries := &Queries{tx}
		return queries.MarkRunning(ctx, 1)
	})
	fmt.Println("written under token", grant.Token(), err)

	// Whoever does not present a token does not get through.
	_, err = fenced.Wrap(pool).Exec(ctx, "UPDATE public.jobs SET state = 'lost'")
	fmt.Println(errors.Is(err, fenced.ErrUnfenced))

	// Output:
	// written under token 1 <nil>
	// true
}

// An old holder wakes up after another has taken over.
func ExampleStaleError() {
	ctx := context.Background()
	pool := exampledb.New()
	defer pool.Close()
	old, newer := fenced.NewGrant("jobs/nightly", 33), fenced.NewGrant("jobs/nightly", 34)
	for _, grant := range []fenced.Grant{old, newer} {
		if err := fenced.Claim(ctx, pool, grant); err != nil {
			panic(err)
		}
	}

	err := fenced.Run(ctx, pool, old, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE public.jobs SET state = 'zombie'")
		return err
	})
	var stale *fenced.StaleError
	if errors.As(err, &stale) {
		fmt.Printf("fence %s: presented %v, stored %v, own earlier write: %v\n", stale.Fence, stale.Presented, stale.Stored, stale.OwnWrite())
	}
	// Output:
	// fence jobs/nightly: presented 33, stored 34, own earlier write: false
}

// A transfer between two accounts under two locks.
func ExampleRunWith() {
	ctx := context.Background()
	pool := exampledb.New() // the table account is protected by the fences "account/{id}"
	defer pool.Close()
	source := postgres.NewLease(pool, nil)

	// Always in the same order, as with any two locks.
	from, err := source.Acquire(ctx, "account/1")
	if err != nil {
		panic(err)
	}
	defer from.Release(context.WithoutCancel(ctx))
	to, err := source.Acquire(ctx, "account/2")
	if err != nil {
		panic(err)
	}
	defer to.Release(context.WithoutCancel(ctx))

	grants := []fenced.Grant{from, to}
	if err := fenced.ClaimWith(ctx, pool, grants, nil); err != nil {
		panic(err)
	}
	options := &fenced.RunOptions{TxOptions: pgx.TxOptions{IsoLevel: pgx.Serializable}, Retries: 3}
	err = fenced.RunWith(ctx, pool, grants, options, func(tx pgx.Tx) error {
		for id, amount := range map[int]int{1: -30, 2: +30} {
			if _, err := tx.Exec(ctx, "UPDATE public.account SET balance = balance + $2 WHERE id = $1", id, amount); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	var one, two int
	if err := pool.QueryRow(ctx, "SELECT min(balance), max(balance) FROM public.account").Scan(&one, &two); err != nil {
		panic(err)
	}
	fmt.Println(one, two)
	// Output: 70 130
}

// A predecessor is paused in the middle of its transaction and holds the fence.
func ExampleClaimWith() {
	ctx := context.Background()
	pool := exampledb.New()
	defer pool.Close()
	old := fenced.NewGrant("jobs/nightly", 33) // no time limit, so nothing ends its transaction by itself
	if err := fenced.Claim(ctx, pool, old); err != nil {
		panic(err)
	}
	wrote, wake, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- fenced.Run(ctx, pool, old, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE public.jobs SET state = 'half' WHERE id = 1")
			close(wrote)
			<-wake
			return err
		})
	}()
	<-wrote

	err := fenced.ClaimWith(ctx, pool, []fenced.Grant{fenced.NewGrant("jobs/nightly", 34)}, &fenced.ClaimOptions{EvictAfter: 100 * time.Millisecond})
	fmt.Println("claimed:", err)
	close(wake)
	fmt.Println("the predecessor committed:", <-done == nil)
	// Output:
	// claimed: <nil>
	// the predecessor committed: false
}

// A transaction that the program begins itself.
func ExamplePresent() {
	ctx := context.Background()
	pool := exampledb.New()
	defer pool.Close()
	grant := fenced.NewGrant("jobs/nightly", 34)
	if err := fenced.Claim(ctx, pool, grant); err != nil {
		panic(err)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		panic(err)
	}
	defer tx.Rollback(ctx)
	if err := fenced.Present(ctx, tx, grant); err != nil {
		panic(err)
	}
	tag, err := fenced.WrapTx(tx).Exec(ctx, "UPDATE public.jobs SET state = 'running'")
	if err != nil {
		panic(err)
	}
	fmt.Println(tag, tx.Commit(ctx))
	// Output: UPDATE 2 <nil>
}

// The same through database/sql.
func ExampleRunSQL() {
	ctx := context.Background()
	config, err := pgx.ParseConfig(exampledb.DSN())
	if err != nil {
		panic(err)
	}
	db := sql.OpenDB(fenced.Connector(stdlib.GetConnector(*config))) // typed errors everywhere, one round trip for BEGIN and token
	defer db.Close()

	old, newer := fenced.NewGrant("jobs/nightly", 33), fenced.NewGrant("jobs/nightly", 34)
	for _, grant := range []fenced.Grant{old, newer} {
		if err := fenced.ClaimSQL(ctx, db, grant); err != nil {
			panic(err)
		}
	}
	mark := func(grant fenced.Grant) error {
		return fenced.RunSQL(ctx, db, grant, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE public.jobs SET state = 'running' WHERE id = 1")
			return err
		})
	}
	fmt.Println("the holder:", mark(newer))
	fmt.Println("its predecessor is stale:", errors.Is(mark(old), fenced.ErrStale))
	// Output:
	// the holder: <nil>
	// its predecessor is stale: true
}

// Typing the errors of a database/sql driver that is not wrapped.
func ExampleAsError() {
	ctx := context.Background()
	db, err := sql.Open("pgx", exampledb.DSN())
	if err != nil {
		panic(err)
	}
	defer db.Close()
	var id int64
	err = db.QueryRowContext(ctx, "UPDATE public.jobs SET state = 'lost' WHERE id = 1 RETURNING id").Scan(&id)
	fmt.Println(errors.Is(err, fenced.ErrUnfenced), errors.Is(fenced.AsError(err), fenced.ErrUnfenced))
	// Output: false true
}

func ExampleToken() {
	plain, _ := fenced.NewToken(0, 34) // in epoch 0 a token is the source's own number, an etcd revision for instance
	later, _ := fenced.NewToken(1, 3)  // the source was restored from a backup
	fmt.Println(plain, later, plain < later)
	fmt.Println(later.Epoch(), later.Seq(), int64(later))

	parsed, err := fenced.ParseToken("1:3")
	fmt.Println(parsed == later, err)
	// Output:
	// 34 1:3 true
	// 1 3 281474976710659
	// true <nil>
}
