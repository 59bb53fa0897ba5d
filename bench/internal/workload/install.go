package workload

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/migrations"
)

func install(ctx context.Context, dsn string) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = migrations.Up(ctx, pool, nil)
	return err
}
