package fencedtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fencedtest"
	"github.com/fencectl/fencectl/internal/exampledb"
)

// markRunning is the function under test.
func markRunning(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error {
	return fenced.Run(ctx, pool, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE public.jobs SET state = 'running' WHERE id = 1")
		return err
	})
}

// This is a test in the program's own test suite.
func ExampleRun() {
	testMarkRunningIsFenced := func(t *testing.T) {
		pool := exampledb.New() // a test database, where jobs is protected by the fence "jobs/nightly"
		defer pool.Close()
		fencedtest.Run(t, fencedtest.Config{Pool: pool, Fence: "jobs/nightly", Write: markRunning})
	}
	_ = testMarkRunningIsFenced
}

func TestMarkRunningIsFenced(t *testing.T) {
	pool := exampledb.New()
	defer pool.Close()
	fencedtest.Run(t, fencedtest.Config{Pool: pool, Fence: "jobs/nightly", Write: markRunning})
}
