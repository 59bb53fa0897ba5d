package fenced_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// wireLog records the protocol messages of every connection of a pool.
type wireLog struct {
	mu  sync.Mutex
	log strings.Builder
}

func (w *wireLog) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *wireLog) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log.Reset()
}

// roundTrips counts how often the server said that it is ready: once for every time the client stopped to wait.
func (w *wireLog) roundTrips() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.log.String(), "\tReadyForQuery\t")
}

func (w *wireLog) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func traced(t *testing.T) (*pgxpool.Pool, *wireLog) {
	t.Helper()
	log := new(wireLog)
	pool := pgtest.New(t, pgtest.MaxConns(1), pgtest.Configure(func(config *pgxpool.Config) {
		config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			conn.PgConn().Frontend().Trace(log, pgproto3.TracerOptions{SuppressTimestamps: true})
			return nil
		}
	}))
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	log.reset()
	return pool, log
}

// jobs makes the table public.jobs (id, state) with rows 1 to 3, protected as told.
func jobs(t *testing.T, pool *pgxpool.Pool, protect string) {
	t.Helper()
	pgtest.Exec(t, pool, `CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text NOT NULL)`)
	pgtest.Exec(t, pool, `INSERT INTO public.jobs SELECT i, 'new' FROM generate_series(1, 3) i`)
	pgtest.Exec(t, pool, `SELECT fencing.protect('public.jobs'`+protect+`)`)
}

func state(t *testing.T, pool *pgxpool.Pool, id int64) string {
	t.Helper()
	return pgtest.Value[string](t, pool, `SELECT state FROM public.jobs WHERE id = $1`, id)
}
