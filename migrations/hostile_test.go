package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

var acceptDatabases atomic.Int64

// acceptCreateDatabase is pgtest.New with a database of other properties, such as ENCODING or LOCALE, which a clone of the
// template cannot have.
func acceptCreateDatabase(t *testing.T, properties string) *pgxpool.Pool {
	t.Helper()
	maintenance := pgtest.NewEmpty(t)
	base := pgtest.Value[string](t, maintenance, "SELECT current_database()::text")
	// pgtest drops what it finds abandoned by the form of its names, and counts from 1: a 0 keeps ours apart.
	cut := strings.LastIndex(base, "_")
	name := fmt.Sprintf("%s_0%d", base[:cut], acceptDatabases.Add(1))
	pgtest.Exec(t, maintenance, fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 %s", name, properties))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := maintenance.Exec(ctx, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)); err != nil {
			t.Error(err)
		}
	})
	pgtest.Exec(t, maintenance, fmt.Sprintf("ALTER DATABASE %s SET search_path = ''", name))
	config, err := pgxpool.ParseConfig(strings.ReplaceAll(pgtest.DSN(t, maintenance), base, name))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := migrations.Up(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	return pool
}
