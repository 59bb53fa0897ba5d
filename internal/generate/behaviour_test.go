package generate_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/generate/fixture"
	"github.com/fencectl/fencectl/internal/generate/fixture/pgxdb"
	"github.com/fencectl/fencectl/internal/generate/fixture/pgxoptions"
	"github.com/fencectl/fencectl/internal/generate/fixture/sqldb"
	"github.com/fencectl/fencectl/internal/generate/fixture/sqloptions"
	"github.com/fencectl/fencectl/internal/generate/fixture/units"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// database is the fixture's.
func database(t *testing.T, options ...pgtest.Option) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t, options...)
	content, err := fixture.Migrations.ReadFile("migrations/00001_tables.sql")
	if err != nil {
		t.Fatal(err)
	}
	up, _, _ := strings.Cut(string(content), "-- +goose Down")
	pgtest.Exec(t, pool, "SET LOCAL search_path = public;"+up)
	return pool
}

// withoutGuards switches off every guard: the statements are on their own.
func withoutGuards(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Exec(t, pool, `DO $$ DECLARE s text; BEGIN
		FOR s IN SELECT format('ALTER TABLE %s DISABLE TRIGGER USER', t.tgrelid::regclass) FROM pg_trigger t WHERE NOT t.tgisinternal LOOP EXECUTE s; END LOOP;
	END $$`)
}

// A repository is one of the generated ones, under one grant, with the methods of all: each writes or reads one text in the row with the key 1, or, missing,
// in one that is not there.
type repository struct {
	claim                          func(ctx context.Context) error // nil for a row fence
	insert, write, upsert          func(ctx context.Context, value string) error
	read                           func(ctx context.Context) (string, error)
	remove, missing, removeMissing func(ctx context.Context) error
}

// A kind is a table of the fixture, as one package has it.
type kind struct {
	name  string
	fence string // the lock's name
	once  bool   // a token writes once
	named bool
	query string       // reads the value
	base  fenced.Token // that its tokens are counted from
	open  func(db anyDB, grant fenced.Grant) repository
}

// anyDB is the database for both kinds of packages.
type anyDB struct {
	pgx pgxdb.DBTX
	sql sqldb.DBTX
}

func text(value string) pgtype.Text    { return pgtype.Text{String: value, Valid: true} }
func null(value string) sql.NullString { return sql.NullString{String: value, Valid: true} }
func second(_ any, err error) error    { return err }
func applied(applied bool, err error) error {
	if err == nil && !applied {
		return errors.New("not applied")
	}
	return err
}

const (
	readJobs     = `SELECT note FROM public.jobs WHERE id = 1`
	readItems    = `SELECT a_b FROM "Sales Dept"."Order Items" WHERE "select" = 1 AND "Order" = 'x'`
	readReadings = `SELECT value::text FROM public.readings WHERE sensor = 'a' AND hour = 1`
	readProgress = `SELECT worker FROM public.progress WHERE job_id = 1`
)

func number(value string) (n float64) {
	_, _ = fmt.Sscan(value, &n)
	return n
}

var kinds = []kind{
	{"pgx, strict rows", "jobs", true, false, readJobs, 0, func(db anyDB, grant fenced.Grant) repository {
		r := pgxdb.New(db.pgx).FencedJobs(grant)
		return repository{
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, pgxdb.FencedJobsInsertValues{ID: 1, Status: pgxdb.JobStatusQueued, Note: text(v), Payload: []byte(`{}`), Labels: []string{"a", "b"}}))
			},
			write: func(ctx context.Context, v string) error { return r.Note(ctx, 1, text(v)) },
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, 1, pgxdb.FencedJobsUpsertValues{Status: pgxdb.JobStatusQueued, Note: text(v), Payload: []byte(`{}`), Labels: []string{}}))
			},
			read:          func(ctx context.Context) (string, error) { row, err := r.Get(ctx, 1); return row.Note.String, err },
			remove:        func(ctx context.Context) error { return r.Delete(ctx, 1) },
			missing:       func(ctx context.Context) error { return r.Note(ctx, 9, text("")) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, 9) },
		}
	}},
	{"pgx with options, strict rows", "jobs", true, false, readJobs, 0, func(db anyDB, grant fenced.Grant) repository {
		r := pgxoptions.New().FencedJobs(db.pgx, grant)
		return repository{
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, pgxoptions.FencedJobsInsertValues{ID: 1, Status: pgxoptions.JobStatusQueued, Remark: &v, Body: json.RawMessage(`{}`), Labels: []string{}}))
			},
			write: func(ctx context.Context, v string) error { return r.Note(ctx, 1, &v) },
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, 1, pgxoptions.FencedJobsUpsertValues{Status: pgxoptions.JobStatusQueued, Remark: &v, Body: json.RawMessage(`{}`), Labels: []string{}}))
			},
			read: func(ctx context.Context) (string, error) {
				row, err := r.Get(ctx, 1)
				if err != nil {
					return "", err
				}
				return *row.Remark, nil
			},
			remove:        func(ctx context.Context) error { return r.Delete(ctx, 1) },
			missing:       func(ctx context.Context) error { return r.Note(ctx, 9, nil) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, 9) },
		}
	}},
	{"database/sql, strict rows", "jobs", true, false, readJobs, 0, func(db anyDB, grant fenced.Grant) repository {
		r := sqldb.New(db.sql).FencedJobs(grant)
		return repository{
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, sqldb.FencedJobsInsertValues{ID: 1, Status: sqldb.JobStatusQueued, Note: null(v), Payload: json.RawMessage(`{}`), Labels: []string{"a"}}))
			},
			write: func(ctx context.Context, v string) error { return r.Note(ctx, 1, null(v)) },
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, 1, sqldb.FencedJobsUpsertValues{Status: sqldb.JobStatusQueued, Note: null(v), Payload: json.RawMessage(`{}`), Labels: []string{}}))
			},
			read:          func(ctx context.Context) (string, error) { row, err := r.Get(ctx, 1); return row.Note.String, err },
			remove:        func(ctx context.Context) error { return r.Delete(ctx, 1) },
			missing:       func(ctx context.Context) error { return r.Note(ctx, 9, null("")) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, 9) },
		}
	}},
	{"pgx, reentrant rows", "items", false, false, readItems, 0, func(db anyDB, grant fenced.Grant) repository {
		r := pgxdb.New(db.pgx).FencedOrderItems(grant)
		return repository{
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, pgxdb.FencedOrderItemsInsertValues{Select: 1, Order: "x", AB: text(v)}))
			},
			write: func(ctx context.Context, v string) error {
				return r.Rename(ctx, 1, "x", pgxdb.FencedOrderItemsRenameValues{AB: text(v)})
			},
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, 1, "x", pgxdb.FencedOrderItemsUpsertValues{AB: text(v)}))
			},
			read:          func(ctx context.Context) (string, error) { row, err := r.Get(ctx, 1, "x"); return row.AB.String, err },
			remove:        func(ctx context.Context) error { return r.Delete(ctx, 1, "x") },
			missing:       func(ctx context.Context) error { return r.Rename(ctx, 1, "y", pgxdb.FencedOrderItemsRenameValues{}) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, 9, "x") },
		}
	}},
	{"database/sql, reentrant rows", "items", false, false, readItems, 0, func(db anyDB, grant fenced.Grant) repository {
		r := sqldb.New(db.sql).FencedOrderItems(grant)
		return repository{
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, sqldb.FencedOrderItemsInsertValues{Select: 1, Order: "x", AB: null(v)}))
			},
			write: func(ctx context.Context, v string) error {
				return r.Rename(ctx, 1, "x", sqldb.FencedOrderItemsRenameValues{AB: null(v)})
			},
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, 1, "x", sqldb.FencedOrderItemsUpsertValues{AB: null(v)}))
			},
			read:          func(ctx context.Context) (string, error) { row, err := r.Get(ctx, 1, "x"); return row.AB.String, err },
			remove:        func(ctx context.Context) error { return r.Delete(ctx, 1, "x") },
			missing:       func(ctx context.Context) error { return r.Rename(ctx, 1, "y", sqldb.FencedOrderItemsRenameValues{}) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, 9, "x") },
		}
	}},
	{"pgx, one fence, partitioned", "readings", false, true, readReadings, 0, func(db anyDB, grant fenced.Grant) repository {
		r := pgxdb.New(db.pgx).FencedReadings(grant)
		return repository{
			claim: r.Claim,
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, pgxdb.FencedReadingsInsertValues{Sensor: "a", Hour: 1, Value: number(v)}))
			},
			write: func(ctx context.Context, v string) error {
				return r.Update(ctx, "a", 1, pgxdb.FencedReadingsUpdateValues{Value: number(v)})
			},
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, "a", 1, pgxdb.FencedReadingsUpsertValues{Value: number(v)}))
			},
			read: func(ctx context.Context) (string, error) {
				row, err := r.Get(ctx, "a", 1)
				return fmt.Sprint(row.Value), err
			},
			remove:        func(ctx context.Context) error { return r.Delete(ctx, "a", 1) },
			missing:       func(ctx context.Context) error { return r.Update(ctx, "a", 9, pgxdb.FencedReadingsUpdateValues{}) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, "b", 1) },
		}
	}},
	{"database/sql, one fence, partitioned", "readings", false, true, readReadings, 0, func(db anyDB, grant fenced.Grant) repository {
		r := sqldb.New(db.sql).FencedReadings(grant)
		return repository{
			claim: r.Claim,
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, sqldb.FencedReadingsInsertValues{Sensor: "a", Hour: 1, Value: number(v)}))
			},
			write: func(ctx context.Context, v string) error {
				return r.Update(ctx, "a", 1, sqldb.FencedReadingsUpdateValues{Value: number(v)})
			},
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, "a", 1, sqldb.FencedReadingsUpsertValues{Value: number(v)}))
			},
			read: func(ctx context.Context) (string, error) {
				row, err := r.Get(ctx, "a", 1)
				return fmt.Sprint(row.Value), err
			},
			remove:        func(ctx context.Context) error { return r.Delete(ctx, "a", 1) },
			missing:       func(ctx context.Context) error { return r.Update(ctx, "a", 9, sqldb.FencedReadingsUpdateValues{}) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, "b", 1) },
		}
	}},
	{"pgx, a fence for each row", "job/1", false, true, readProgress, 0, func(db anyDB, grant fenced.Grant) repository {
		r := pgxdb.New(db.pgx).FencedProgress(grant)
		return repository{
			claim: r.Claim,
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, pgxdb.FencedProgressInsertValues{JobID: 1, Worker: v}))
			},
			write: func(ctx context.Context, v string) error {
				return r.Update(ctx, 1, pgxdb.FencedProgressUpdateValues{Worker: v})
			},
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, 1, pgxdb.FencedProgressUpsertValues{Worker: v}))
			},
			read:          func(ctx context.Context) (string, error) { row, err := r.Get(ctx, 1); return row.Worker, err },
			remove:        func(ctx context.Context) error { return r.Delete(ctx, 1) },
			missing:       func(ctx context.Context) error { return applied(r.Advance(ctx, 9, 1)) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, 9) },
		}
	}},
	{"pgx with options, a fence for each row", "job/1", false, true, readProgress, 0, func(db anyDB, grant fenced.Grant) repository {
		r := pgxoptions.New().FencedProgress(db.pgx, grant)
		return repository{
			claim: r.Claim,
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, pgxoptions.FencedProgressInsertValues{JobID: units.Big(1), WorkerName: v}))
			},
			write: func(ctx context.Context, v string) error {
				return r.Update(ctx, units.JobID(1), pgxoptions.FencedProgressUpdateValues{WorkerName: v})
			},
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, 1, pgxoptions.FencedProgressUpsertValues{WorkerName: v}))
			},
			read: func(ctx context.Context) (string, error) {
				row, err := r.Get(ctx, 1)
				if err != nil {
					return "", err
				}
				return row.WorkerName, nil
			},
			remove:        func(ctx context.Context) error { return r.Delete(ctx, 1) },
			missing:       func(ctx context.Context) error { return applied(r.Advance(ctx, 9, 1)) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, 9) },
		}
	}},
	{"database/sql with options, a fence for each row", "job/1", false, true, readProgress, 0, func(db anyDB, grant fenced.Grant) repository {
		r := sqloptions.New(db.sql).FencedProgress(grant)
		return repository{
			claim: r.Claim,
			insert: func(ctx context.Context, v string) error {
				return second(r.Insert(ctx, sqloptions.FencedProgressInsertValues{JobID: 1, Worker: v}))
			},
			write: func(ctx context.Context, v string) error {
				return r.Update(ctx, 1, sqloptions.FencedProgressUpdateValues{Worker: v})
			},
			upsert: func(ctx context.Context, v string) error {
				return second(r.Upsert(ctx, 1, sqloptions.FencedProgressUpsertValues{Worker: v}))
			},
			read: func(ctx context.Context) (string, error) {
				row, err := r.Get(ctx, 1)
				if err != nil {
					return "", err
				}
				return row.Worker, nil
			},
			remove:        func(ctx context.Context) error { return r.Delete(ctx, 1) },
			missing:       func(ctx context.Context) error { return applied(r.Advance(ctx, 9, 1)) },
			removeMissing: func(ctx context.Context) error { return r.Delete(ctx, 9) },
		}
	}},
}

// forEach runs a test for every kind of table, with its guards and without. All kinds share a database: a token is counted from the kind's base, and
// what one has left is removed before the next.
func forEach(t *testing.T, test func(t *testing.T, k kind, pool *pgxpool.Pool, db anyDB)) {
	for _, guards := range []string{"guards on", "guards off"} {
		t.Run(guards, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			if guards == "guards off" {
				withoutGuards(t, pool)
			}
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			for i, k := range kinds {
				k.base = fenced.Token(1000 * i)
				t.Run(k.name, func(t *testing.T) {
					pgtest.Exec(t, pool, `SELECT fencing.bypass('the next test'); DELETE FROM public.jobs; DELETE FROM public.readings;
						DELETE FROM public.progress; DELETE FROM "Sales Dept"."Order Items"`)
					test(t, k, pool, anyDB{pool, db})
				})
			}
		})
	}
}

// grant is one for the kind's lock.
func (k kind) grant(token fenced.Token) fenced.Grant { return fenced.NewGrant(k.fence, k.base+token) }

// under is the repository under a token, which it claims where the fence has a name.
func (k kind) under(t *testing.T, db anyDB, token fenced.Token) repository {
	t.Helper()
	r := k.open(db, k.grant(token))
	if k.named {
		must(t, r.claim(t.Context()))
	}
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stale checks that err is the refusal of a token, with both tokens.
func (k kind) stale(t *testing.T, what string, err error, presented, stored fenced.Token) {
	t.Helper()
	presented, stored = k.base+presented, k.base+stored
	var refusal *fenced.StaleError
	if !errors.As(err, &refusal) || !errors.Is(err, fenced.ErrStale) {
		t.Errorf("%s: %v, want ErrStale", what, err)
		return
	}
	if refusal.Presented != presented || refusal.Stored != stored {
		t.Errorf("%s: presented %v, stored %v, want %v and %v", what, refusal.Presented, refusal.Stored, presented, stored)
	}
	if errors.Is(err, fenced.ErrNotFound) {
		t.Errorf("%s: %v is ErrNotFound as well", what, err)
	}
}

func notFound(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, fenced.ErrNotFound) || errors.Is(err, fenced.ErrStale) {
		t.Errorf("%s: %v, want ErrNotFound", what, err)
	}
}

func TestAWriteUnderTheTokenIsApplied(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind, pool *pgxpool.Pool, db anyDB) {
		must(t, k.under(t, db, 10).insert(t.Context(), "10"))
		must(t, k.under(t, db, 11).write(t.Context(), "11"))
		if value, err := k.under(t, db, 11).read(t.Context()); value != "11" || err != nil {
			t.Errorf("read %q, %v", value, err)
		}
		must(t, k.under(t, db, 12).upsert(t.Context(), "12"))
		if value := pgtest.Value[string](t, pool, k.query); value != "12" {
			t.Errorf("the row has %q, want 12", value)
		}
		must(t, k.under(t, db, 13).remove(t.Context()))
		must(t, k.under(t, db, 14).upsert(t.Context(), "14"))
		if value := pgtest.Value[string](t, pool, k.query); value != "14" {
			t.Errorf("the row has %q, want 14", value)
		}
	})
}

func TestAStaleWriteIsRefusedWithBothTokens(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind, pool *pgxpool.Pool, db anyDB) {
		old := k.under(t, db, 11)
		must(t, old.insert(t.Context(), "11"))
		must(t, k.under(t, db, 12).write(t.Context(), "12"))
		k.stale(t, "write", old.write(t.Context(), "zombie"), 11, 12)
		k.stale(t, "upsert", old.upsert(t.Context(), "zombie"), 11, 12)
		k.stale(t, "delete", old.remove(t.Context()), 11, 12)
		if k.named { // a row fence knows nothing of rows that are not there
			k.stale(t, "a row that is not there", old.missing(t.Context()), 11, 12)
			k.stale(t, "delete a row that is not there", old.removeMissing(t.Context()), 11, 12)
			must(t, k.under(t, db, 13).remove(t.Context()))
			k.stale(t, "insert", old.insert(t.Context(), "zombie"), 11, 13)
			return
		}
		if value := pgtest.Value[string](t, pool, k.query); value != "12" {
			t.Errorf("the row has %q, want 12", value)
		}
	})
}

func TestARowThatIsNotThereIsNotFound(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind, _ *pgxpool.Pool, db anyDB) {
		r := k.under(t, db, 10)
		notFound(t, "write", r.missing(t.Context()))
		notFound(t, "delete", r.removeMissing(t.Context()))
		_, err := r.read(t.Context())
		notFound(t, "read", err)
	})
}

func TestASecondWriteUnderOneToken(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind, _ *pgxpool.Pool, db anyDB) {
		r := k.under(t, db, 10)
		must(t, r.insert(t.Context(), "1"))
		err := r.write(t.Context(), "2")
		if !k.once {
			must(t, err)
			return
		}
		var own *fenced.StaleError
		if !errors.As(err, &own) || !own.OwnWrite() || fenced.Lost(err) {
			t.Errorf("%v, want the refusal of the own earlier write", err)
		}
	})
}

// The old holder's write waits for the row that the new holder has written and not yet committed. The control is what people write: it overwrites.
func TestAWriteThatWaitedForANewerHolderIsRefused(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		if k.named || !strings.HasPrefix(k.name, "pgx,") {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for _, control := range []bool{true, false} {
				pool := database(t)
				withoutGuards(t, pool)
				must(t, k.under(t, anyDB{pgx: pool}, 10).insert(t.Context(), "10"))
				newer := pgtest.Conn(t, pool)
				tx, err := newer.Begin(t.Context())
				must(t, err)
				must(t, k.under(t, anyDB{pgx: tx}, 12).write(t.Context(), "12"))

				conn := pgtest.Conn(t, pool)
				waiting := pgtest.Call(t, conn, func(ctx context.Context) error {
					if control {
						table, _, _ := strings.Cut(strings.TrimPrefix(k.query, "SELECT "), " FROM ")
						_, from, _ := strings.Cut(k.query, " FROM ")
						from, _, _ = strings.Cut(from, " WHERE ")
						_, err := conn.Exec(ctx, "UPDATE "+from+" SET "+table+" = 'zombie'")
						return err
					}
					return k.open(anyDB{pgx: conn}, k.grant(11)).write(ctx, "zombie")
				}).Blocked()
				must(t, tx.Commit(t.Context()))
				err = waiting.Wait()
				value := pgtest.Value[string](t, pool, k.query)
				if control {
					if err != nil || value != "zombie" {
						t.Errorf("the control shows no race: %v, %q", err, value)
					}
					continue
				}
				k.stale(t, "the write that waited", err, 11, 12)
				if value != "12" {
					t.Errorf("the row has %q, want 12", value)
				}
			}
		})
	}
}

// A claim waits for the statement's transaction: that is the lock on the fence, with or without guards. Afterwards the old holder is refused.
func TestAClaimWaitsForAWriteInFlight(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		if !k.named || !strings.HasPrefix(k.name, "pgx,") {
			continue
		}
		for _, guards := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/guards %t", k.name, guards), func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				if !guards {
					withoutGuards(t, pool)
				}
				old := k.under(t, anyDB{pgx: pool}, 11)
				must(t, old.insert(t.Context(), "11"))
				tx, err := pgtest.Conn(t, pool).Begin(t.Context())
				must(t, err)
				must(t, k.open(anyDB{pgx: tx}, k.grant(11)).write(t.Context(), "111"))
				conn := pgtest.Conn(t, pool)
				claim := pgtest.Call(t, conn, func(ctx context.Context) error {
					return k.open(anyDB{pgx: conn}, k.grant(12)).claim(ctx)
				}).Blocked()
				must(t, tx.Commit(t.Context()))
				must(t, claim.Wait())
				if value := pgtest.Value[string](t, pool, k.query); value != "111" {
					t.Errorf("after the claim the row has %q, want 111", value)
				}
				k.stale(t, "write", old.write(t.Context(), "zombie"), 11, 12)
			})
		}
	}
}

func TestARepositoryWorksInAFencedTransaction(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind, pool *pgxpool.Pool, db anyDB) {
		must(t, k.under(t, db, 10).insert(t.Context(), "10"))
		run := func(token fenced.Token, value string) error {
			grant := k.grant(token)
			if strings.HasPrefix(k.name, "pgx") {
				return fenced.Run(t.Context(), pool, grant, func(tx pgx.Tx) error {
					return k.open(anyDB{pgx: tx}, grant).write(t.Context(), value)
				})
			}
			return fenced.RunSQL(t.Context(), db.sql.(*sql.DB), grant, func(tx *sql.Tx) error {
				return k.open(anyDB{sql: tx}, grant).write(t.Context(), value)
			})
		}
		k.under(t, db, 12)
		must(t, run(12, "12"))
		k.stale(t, "write", run(11, "zombie"), 11, 12)
		if value := pgtest.Value[string](t, pool, k.query); value != "12" {
			t.Errorf("the row has %q, want 12", value)
		}
		if k.named {
			grant := k.grant(13)
			err := fenced.Run(t.Context(), pool, grant, func(tx pgx.Tx) error {
				return pgxdb.New(tx).FencedProgress(grant).Claim(t.Context())
			})
			if err == nil || !strings.Contains(err.Error(), "transaction of its own") {
				t.Errorf("a claim within a transaction: %v", err)
			}
		}
	})
}

func TestATokenThatWasNotClaimedIsTold(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind, _ *pgxpool.Pool, db anyDB) {
		if !k.named {
			t.Skip("a row fence is not claimed")
		}
		if err := k.open(db, k.grant(10)).insert(t.Context(), "1"); !errors.Is(err, fenced.ErrUnclaimed) {
			t.Errorf("a fence that nobody has claimed: %v, want ErrUnclaimed", err)
		}
		must(t, k.under(t, db, 10).insert(t.Context(), "1"))
		if err := k.open(db, k.grant(11)).write(t.Context(), "1"); !errors.Is(err, fenced.ErrUnclaimed) {
			t.Errorf("a newer token: %v, want ErrUnclaimed", err)
		}
	})
}

// Two locks may have the same token: the source of another lock counts for itself. The grant's name decides.
func TestAGrantOfAnotherLockWritesNothing(t *testing.T) {
	t.Parallel()
	for _, guards := range []bool{true, false} {
		pool := database(t)
		if !guards {
			withoutGuards(t, pool)
		}
		mine, other := fenced.NewGrant("job/1", 5), fenced.NewGrant("job/2", 5)
		r, foreign := pgxdb.New(pool).FencedProgress(mine), pgxdb.New(pool).FencedProgress(other)
		must(t, r.Claim(t.Context()))
		must(t, foreign.Claim(t.Context()))
		must(t, second(r.Insert(t.Context(), pgxdb.FencedProgressInsertValues{JobID: 1, Worker: "mine"})))
		for what, err := range map[string]error{
			"insert": second(foreign.Insert(t.Context(), pgxdb.FencedProgressInsertValues{JobID: 3})),
			"update": foreign.Update(t.Context(), 1, pgxdb.FencedProgressUpdateValues{Worker: "foreign"}),
			"upsert": second(foreign.Upsert(t.Context(), 1, pgxdb.FencedProgressUpsertValues{Worker: "foreign"})),
			"delete": foreign.Delete(t.Context(), 1),
		} {
			if !errors.Is(err, fenced.ErrUnclaimed) || !strings.Contains(err.Error(), `"job/2"`) {
				t.Errorf("%s: %v, want ErrUnclaimed", what, err)
			}
		}
		if rows := pgtest.Value[string](t, pool, `SELECT string_agg(worker, ' ') FROM public.progress`); rows != "mine" {
			t.Errorf("the table has %q", rows)
		}
	}
}

func TestAConditionThatIsNotMetIsNoError(t *testing.T) {
	t.Parallel()
	pool := database(t)
	ctx := t.Context()
	jobs := func(token fenced.Token) *pgxdb.FencedJobs {
		return pgxdb.New(pool).FencedJobs(fenced.NewGrant("jobs", token))
	}
	must(t, second(jobs(10).Insert(ctx, pgxdb.FencedJobsInsertValues{ID: 1, Status: pgxdb.JobStatusQueued, Payload: []byte(`{}`), Labels: []string{}})))
	mark := func(token fenced.Token, id int64) (bool, error) {
		return jobs(token).MarkRunning(ctx, id, pgxdb.FencedJobsMarkRunningValues{Worker: text("w"), MostAttempts: 3})
	}
	if applied, err := mark(11, 1); !applied || err != nil {
		t.Errorf("the condition is met: %t, %v", applied, err)
	}
	row, err := jobs(11).Get(ctx, 1)
	if must(t, err); row.Status != pgxdb.JobStatusRunning || row.Attempts != 1 || !row.StartedAt.Valid || row.Worker != text("w") || row.LastFencingToken != 11 {
		t.Errorf("the row is %+v", row)
	}
	if applied, err := mark(12, 1); applied || err != nil {
		t.Errorf("the condition is not met: %t, %v", applied, err)
	}
	_, err = mark(10, 1)
	kind{}.stale(t, "an older token, the condition not met", err, 10, 11)
	_, err = mark(12, 2)
	notFound(t, "no such row", err)
}

func TestAnEndedGrantSendsNothing(t *testing.T) {
	t.Parallel()
	pool := database(t)
	ctx, end := context.WithCancelCause(t.Context())
	lost := errors.New("lost")
	grant := endedGrant{fenced.NewGrant("jobs", 10), ctx}
	r := pgxdb.New(pool).FencedJobs(grant)
	end(lost)
	for what, err := range map[string]error{"note": r.Note(t.Context(), 1, text("")), "insert": second(r.Insert(t.Context(), pgxdb.FencedJobsInsertValues{}))} {
		if !errors.Is(err, fenced.ErrGrantEnded) || !errors.Is(err, lost) || !fenced.Lost(err) {
			t.Errorf("%s: %v, want ErrGrantEnded with its cause", what, err)
		}
	}
	if err := pgxdb.New(pool).FencedJobs(nil).Delete(t.Context(), 1); err == nil {
		t.Error("a repository without a grant writes")
	}
}

type endedGrant struct {
	fenced.Grant
	ctx context.Context
}

func (g endedGrant) Context() context.Context { return g.ctx }

func TestASuppressedWriteIsAnError(t *testing.T) {
	t.Parallel()
	pool := database(t)
	must(t, second(pgxdb.New(pool).FencedJobs(fenced.NewGrant("jobs", 10)).Insert(t.Context(),
		pgxdb.FencedJobsInsertValues{ID: 1, Status: pgxdb.JobStatusQueued, Payload: []byte(`{}`), Labels: []string{}})))
	pgtest.Exec(t, pool, `CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER a BEFORE UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.nothing()`)
	err := pgxdb.New(pool).FencedJobs(fenced.NewGrant("jobs", 11)).Note(t.Context(), 1, text("x"))
	if err == nil || !strings.Contains(err.Error(), "had no effect") {
		t.Errorf("%v, want that it had no effect", err)
	}
}
