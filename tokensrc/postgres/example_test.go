package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/exampledb"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

func ExampleNewLease() {
	ctx := context.Background()
	pool := exampledb.New() // a *pgxpool.Pool
	defer pool.Close()
	source := postgres.NewLease(pool, &postgres.LeaseOptions{TTL: 10 * time.Second})

	grant, err := source.Acquire(ctx, "jobs/nightly")
	if err != nil {
		panic(err)
	}
	_, err = source.TryAcquire(ctx, "jobs/nightly")
	fmt.Println("a second holder:", errors.Is(err, tokensrc.ErrHeld))

	// To wait, but not for ever:
	_, err = tokensrc.AcquireWithin(ctx, source, "jobs/nightly", 50*time.Millisecond)
	fmt.Println("after a while:", errors.Is(err, tokensrc.ErrHeld))

	if err := grant.Release(context.WithoutCancel(ctx)); err != nil {
		panic(err)
	}
	fmt.Println("the grant's context ended:", context.Cause(grant.Context()))
	// Output:
	// a second holder: true
	// after a while: true
	// the grant's context ended: tokensrc: the lock was released
}

func ExampleNewAdvisory() {
	ctx := context.Background()
	pool := exampledb.New()
	defer pool.Close()
	source := postgres.NewAdvisory(pool, nil)
	grant, err := source.TryAcquire(ctx, "jobs/nightly")
	if err != nil {
		panic(err)
	}
	defer grant.Release(context.WithoutCancel(ctx))
	fmt.Println(grant.Name(), grant.Token())
	// Output: jobs/nightly 1
}

// The newest run of a report wins; an older one that is still running is refused from then on.
func ExampleNewSequence() {
	ctx := context.Background()
	pool := exampledb.New()
	defer pool.Close()
	source := postgres.NewSequence(pool)

	start := func() tokensrc.Grant {
		grant, err := source.Acquire(ctx, "jobs/nightly")
		if err != nil {
			panic(err)
		}
		if err := fenced.Claim(ctx, pool, grant); err != nil {
			panic(err)
		}
		return grant
	}
	older, newest := start(), start()
	write := func(grant fenced.Grant) error {
		return fenced.Run(ctx, pool, grant, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE public.jobs SET state = 'reported'")
			return err
		})
	}
	fmt.Println("older:", errors.Is(write(older), fenced.ErrStale))
	fmt.Println("newest:", write(newest))
	// Output:
	// older: true
	// newest: <nil>
}

// The registry goes into the options of the sources of other services.
func ExampleNewEpochs() {
	ctx := context.Background()
	pool := exampledb.New()
	defer pool.Close()
	var epochs tokensrc.Epochs = postgres.NewEpochs(pool)

	epoch, err := epochs.Epoch(ctx, "etcd", "14841639068965178418") // the first incarnation seen is remembered
	fmt.Println(epoch, err)
	_, err = epochs.Epoch(ctx, "etcd", "10276657743932975437") // another cluster
	fmt.Println(err)
	// Output:
	// 0 <nil>
	// tokensrc: source "etcd" is now "10276657743932975437", which is not the incarnation that issued this database's tokens (registered: "14841639068965178418"): it lost its data, was restored, or is another cluster; when that is intended, run: fencectl epoch adopt etcd 10276657743932975437
}
