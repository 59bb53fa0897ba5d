package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"
)

// Pending lists the files that [Up] would apply, oldest first, and changes nothing. It is empty when the schema is up to
// date, or kept up to date by the application's own migrations.
func Pending(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	var ours, theirs bool
	err := pool.QueryRow(ctx, `
		SELECT to_regclass('fencing.goose_db_version') IS NOT NULL, to_regprocedure('fencing.version()') IS NOT NULL`,
	).Scan(&ours, &theirs)
	switch {
	case err != nil:
		return nil, err
	case theirs && !ours:
		return nil, nil
	}
	var applied int64
	if ours {
		// Migrations are applied in order, and a row is deleted when its migration is taken back.
		err := pool.QueryRow(ctx, "SELECT COALESCE(max(version_id), 0) FROM "+VersionTable+" WHERE is_applied").Scan(&applied)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", VersionTable, err)
		}
	}
	var pending []string
	for _, name := range Files() {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, err
		}
		if version > applied {
			pending = append(pending, name)
		}
	}
	return pending, nil
}
