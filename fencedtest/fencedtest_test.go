package fencedtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fencedtest"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// recorder is a test that is allowed to fail.
type recorder struct {
	testing.TB
	failures, logs []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.TB.Helper()
	r.TB.Fatalf(format, args...)
}

func (r *recorder) Logf(format string, args ...any) {
	r.logs = append(r.logs, fmt.Sprintf(format, args...))
}

func table(t *testing.T, protect string) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `CREATE TABLE public.counter (id bigint PRIMARY KEY, n bigint NOT NULL)`)
	pgtest.Exec(t, pool, `INSERT INTO public.counter VALUES (1, 0)`)
	if protect != "" {
		pgtest.Exec(t, pool, `SELECT fencing.protect('public.counter', `+protect+`)`)
	}
	return pool
}

// increment reads, then writes what it has read plus one: the function that loses updates.
func increment(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error {
	return fenced.Run(ctx, pool, grant, func(tx pgx.Tx) error { return readAndWrite(ctx, tx) })
}

func readAndWrite(ctx context.Context, tx pgx.Tx) error {
	var n int64
	err := tx.QueryRow(ctx, `SELECT n FROM public.counter WHERE id = 1`).Scan(&n)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO public.counter VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET n = excluded.n`, n+1)
	return err
}

func unfenced(ctx context.Context, pool *pgxpool.Pool, _ fenced.Grant) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return readAndWrite(ctx, tx) })
}

func remove(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error {
	return fenced.Run(ctx, pool, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM public.counter WHERE id = 1`)
		return err
	})
}

func count(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
	err = pool.QueryRow(ctx, `SELECT COALESCE((SELECT n FROM public.counter WHERE id = 1), 0)`).Scan(&n)
	return n, err
}

func TestAFencedWritePasses(t *testing.T) {
	t.Run("named fence", func(t *testing.T) {
		pool := table(t, `fence => 'counter'`)
		fencedtest.Run(t, fencedtest.Config{Pool: pool, Fence: "counter", Write: increment, Delete: remove, Applied: count})
	})
	t.Run("row fence", func(t *testing.T) {
		pool := table(t, `mode => 'reentrant'`)
		fencedtest.Run(t, fencedtest.Config{Pool: pool, Write: increment})
	})
	t.Run("database/sql", func(t *testing.T) {
		pool := table(t, `fence => 'counter'`)
		fencedtest.Run(t, fencedtest.Config{Pool: pool, Fence: "counter", Applied: count, WriteSQL: func(ctx context.Context, db *sql.DB, grant fenced.Grant) error {
			return fenced.RunSQL(ctx, db, grant, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `UPDATE public.counter SET n = n + 1 WHERE id = 1`)
				return err
			})
		}})
	})
}

func TestStaleWritesAreFoundAndTold(t *testing.T) {
	for _, tt := range []struct {
		name    string
		protect string
		config  fencedtest.Config
		want    []string // in the failures, all of them
		none    string   // in none of them
	}{
		{
			name: "no protection at all", config: fencedtest.Config{Fence: "counter", Write: unfenced, Applied: count},
			want: []string{
				"sleeping owner: a stale write got through", "is paused before its write: INSERT INTO public.counter",
				"the new owner writes and commits", "its write is ACCEPTED",
				"in-flight older writer: a transaction of an older token committed after a newer claim",
			},
		},
		{
			name: "presents, but the table is not protected", config: fencedtest.Config{Fence: "counter", Write: increment},
			want: []string{"sleeping owner: a stale write got through", "in-flight older writer: a transaction of an older token committed"},
		},
		{
			name: "only observed", protect: `fence => 'counter', observe => true`, config: fencedtest.Config{Fence: "counter", Write: increment},
			want: []string{"sleeping owner: a stale write got through"},
		},
		{
			name: "the error is hidden", protect: `fence => 'counter'`,
			config: fencedtest.Config{Fence: "counter", Write: func(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error {
				if err := increment(ctx, pool, grant); err != nil {
					return errors.New("increment: " + err.Error())
				}
				return nil
			}},
			want: []string{"its caller cannot tell why"},
		},
		{
			name: "a row fence goes with its row", protect: `mode => 'reentrant'`, config: fencedtest.Config{Write: increment, Delete: remove},
			want: []string{"re-insert after delete: a stale write got through", "use a named fence"}, none: "sleeping owner",
		},
		{
			name: "writes nothing", protect: `fence => 'counter'`,
			config: fencedtest.Config{Fence: "counter", Write: func(context.Context, *pgxpool.Pool, fenced.Grant) error { return nil }},
			want:   []string{"ended without sending a statement that writes"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Pool = table(t, tt.protect)
			r := &recorder{TB: t}
			fencedtest.Run(r, tt.config)
			all := strings.Join(r.failures, "\n")
			for _, want := range tt.want {
				if !strings.Contains(all, want) {
					t.Errorf("no failure says %q; they say:\n%s", want, all)
				}
			}
			if tt.none != "" && strings.Contains(all, tt.none) {
				t.Errorf("a failure says %q:\n%s", tt.none, all)
			}
		})
	}
}
