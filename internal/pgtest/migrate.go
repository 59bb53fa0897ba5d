package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/migrations"
)

// migrate installs the schema fencing.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := migrations.Up(ctx, pool, nil)
	return err
}

// migrationsKey is a hash of the migrations' names and contents: a template made from others is another template.
func migrationsKey() (int64, error) {
	hash := sha256.New()
	for _, name := range migrations.Files() {
		content, err := migrations.FS.ReadFile(name)
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(hash, "%s %d\n%s", name, len(content), content)
	}
	return int64(binary.BigEndian.Uint64(hash.Sum(nil))), nil
}
