package workload

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
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

// ServerVersion is the server's full version.
func ServerVersion(ctx context.Context, server *pgserver.Server) (version string, err error) {
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, "SELECT split_part(current_setting('server_version'), ' ', 1)").Scan(&version)
	return version, err
}
