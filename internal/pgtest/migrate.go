package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

func migrationsFS() fs.FS {
	_, file, _, _ := runtime.Caller(0)
	return os.DirFS(filepath.Join(filepath.Dir(file), "../../migrations"))
}

func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS fencing"); err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrationsFS(), goose.WithTableName("fencing.goose_db_version"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

// migrationsKey is a hash of the migrations' names and contents: a template made from others is another template.
func migrationsKey() (int64, error) {
	hash := sha256.New()
	files := migrationsFS()
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(hash, "%s %d\n%s", name, len(content), content)
	}
	return int64(binary.BigEndian.Uint64(hash.Sum(nil))), nil
}
