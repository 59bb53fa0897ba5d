package fencedotel_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fenced/fencedotel"
	"github.com/fencectl/fencectl/internal/exampledb"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

func Example() {
	ctx := context.Background()
	pool := exampledb.New()
	defer pool.Close()
	metrics, err := fencedotel.New(otel.GetMeterProvider())
	if err != nil {
		panic(err)
	}
	source := tokensrc.Observe(postgres.NewLease(pool, nil), metrics)

	grant, err := source.Acquire(ctx, "jobs/nightly")
	if err != nil {
		panic(err)
	}
	defer grant.Release(context.WithoutCancel(ctx))
	grants := []fenced.Grant{grant}
	if err := fenced.ClaimWith(ctx, pool, grants, &fenced.ClaimOptions{Observer: metrics}); err != nil {
		panic(err)
	}
	err = fenced.RunWith(grant.Context(), pool, grants, &fenced.RunOptions{Observer: metrics}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE public.jobs SET state = 'running' WHERE id = 1")
		return err
	})
	fmt.Println(err)
	// Output: <nil>
}
