package generate_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// wire counts how often the server said that it is ready: once for every time the client stopped to wait.
type wire struct {
	mu  sync.Mutex
	log strings.Builder
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *wire) roundTrips() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := strings.Count(w.log.String(), "\tReadyForQuery\t")
	w.log.Reset()
	return n
}

// On a pool a write that succeeds is one round trip, whatever kind of fence it has, once pgx has prepared it.
func TestAWriteThatSucceedsIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	trace := &wire{}
	pool := database(t, pgtest.MaxConns(1), pgtest.Configure(func(config *pgxpool.Config) {
		config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			conn.PgConn().Frontend().Trace(trace, pgproto3.TracerOptions{SuppressTimestamps: true})
			return nil
		}
	}))
	for _, k := range kinds {
		if !strings.HasPrefix(k.name, "pgx,") {
			continue
		}
		db := anyDB{pgx: pool}
		must(t, k.under(t, db, 1).insert(t.Context(), "1"))
		for token := fenced.Token(2); token < 4; token++ {
			r := k.under(t, db, token)
			trace.roundTrips()
			must(t, r.write(t.Context(), "2"))
			if n := trace.roundTrips(); token == 3 && n != 1 {
				t.Errorf("%s: a write took %d round trips", k.name, n)
			}
		}
	}
}

// An application's role has privileges on its own tables, and what fencectl grant gives it.
func TestAnApplicationRoleIsEnough(t *testing.T) {
	t.Parallel()
	pool := database(t)
	app := pgtest.Role(t, pool, `SELECT, INSERT, UPDATE, DELETE ON public.jobs, public.readings, public.progress, "Sales Dept"."Order Items"`,
		`USAGE ON SCHEMA "Sales Dept"`, "EXECUTE ON FUNCTION fencing.claim(text, bigint), fencing.hold(text, bigint)").Pool
	for _, k := range kinds {
		if !strings.HasPrefix(k.name, "pgx,") {
			continue
		}
		db := anyDB{pgx: app}
		must(t, k.under(t, db, 1).insert(t.Context(), "1"))
		must(t, k.under(t, db, 2).write(t.Context(), "2"))
		k.stale(t, k.name, k.open(db, k.grant(1)).write(t.Context(), "zombie"), 1, 2)
		notFound(t, k.name, k.under(t, db, 3).missing(t.Context()))
		must(t, k.under(t, db, 4).remove(t.Context()))
	}
}
