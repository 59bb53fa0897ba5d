package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/examples/internal/zombie"
	"github.com/fencectl/fencectl/examples/worker/jobdb"
	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fencedtest"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	if err := migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

func newWorker(name string, pool *pgxpool.Pool, source tokensrc.Source) *Worker {
	return &Worker{
		Name: name, Pool: pool, Source: source, Log: slog.New(slog.DiscardHandler),
		Print: func(context.Context, jobdb.Job, int32) error { return nil },
	}
}

func TestAZombieDoesNotWriteOverItsSuccessor(t *testing.T) {
	pool := database(t)
	worker, err := takeOver(t, pool)
	if !errors.Is(err, fenced.ErrStale) {
		t.Errorf("the zombie ended with %v, want ErrStale", err)
	}
	if worker != "second" {
		t.Errorf("the last to write was the %s worker", worker)
	}
}

// The generated statement asks the fence itself: it is safe where somebody has taken the guards away.
func TestWithoutGuardsAZombieDoesNotWriteOverItsSuccessorEither(t *testing.T) {
	pool := database(t)
	pgtest.Exec(t, pool, `SELECT fencing.unprotect('worker.progress')`)
	if worker, err := takeOver(t, pool); !errors.Is(err, fenced.ErrStale) || worker != "second" {
		t.Errorf("the zombie ended with %v, and the last to write was the %s worker", err, worker)
	}
}

// The control: the same without the fence, which neither a guard nor the statement asks.
func TestWithoutTheFenceAZombieWritesOverItsSuccessor(t *testing.T) {
	pool := database(t)
	pgtest.Exec(t, pool, `SELECT fencing.unprotect('worker.progress')`)
	pgtest.Exec(t, pool, `CREATE OR REPLACE FUNCTION fencing.hold(fence text, token bigint) RETURNS bigint LANGUAGE sql AS 'SELECT token'`)
	if worker, err := takeOver(t, pool); err != nil || worker != "first" {
		t.Errorf("the zombie ended with %v, and the last to write was the %s worker", err, worker)
	}
}

// takeOver lets a worker fall asleep over a job, and another finish it. It returns who wrote last, and how the
// first one ended when it woke up.
func takeOver(t *testing.T, pool *pgxpool.Pool) (lastWorker string, zombieErr error) {
	t.Helper()
	id, err := jobdb.New(pool).Enqueue(t.Context(), jobdb.EnqueueParams{Customer: "ACME", Pages: 3})
	if err != nil {
		t.Fatal(err)
	}
	source := postgres.NewLease(pool, nil)

	// The first worker falls asleep over its second page.
	asleep, wake := make(chan struct{}), make(chan struct{})
	first := newWorker("first", pool, zombie.Source(source))
	first.Print = func(_ context.Context, _ jobdb.Job, page int32) error {
		if page == 2 {
			close(asleep)
			<-wake
		}
		return nil
	}
	result := make(chan error, 1)
	go func() {
		_, err := first.next(t.Context())
		result <- err
	}()
	select {
	case <-asleep:
	case err := <-result:
		t.Fatalf("the first worker ended early: %v", err)
	}

	// Its lease lapses, and another worker finishes the job, from where the first was.
	pgtest.Exec(t, pool, `UPDATE fencing.lease SET expires_at = pg_catalog.clock_timestamp()`)
	var pages []int32
	second := newWorker("second", pool, source)
	second.Print = func(_ context.Context, _ jobdb.Job, page int32) error {
		pages = append(pages, page)
		return nil
	}
	if worked, err := second.next(t.Context()); !worked || err != nil {
		t.Fatalf("the second worker: %v, %v", worked, err)
	}
	if len(pages) != 2 || pages[0] != 2 {
		t.Errorf("the second worker did the pages %v, want 2 and 3", pages)
	}

	close(wake)
	zombieErr = <-result
	return pgtest.Value[string](t, pool, `SELECT worker FROM worker.progress WHERE job_id = $1 AND done = 3`, id), zombieErr
}

// A worker that is awake hears that its lock is gone before it writes, and takes it as it takes the database's refusal.
func TestAWorkerThatHearsOfItsLossStopsThatJobAlone(t *testing.T) {
	pool := database(t)
	if _, err := jobdb.New(pool).Enqueue(t.Context(), jobdb.EnqueueParams{Customer: "ACME", Pages: 1}); err != nil {
		t.Fatal(err)
	}
	w := newWorker("w", pool, postgres.NewLease(pool, &postgres.LeaseOptions{TTL: time.Second}))
	w.Print = func(ctx context.Context, _ jobdb.Job, _ int32) error {
		pgtest.Exec(t, pool, `UPDATE fencing.lease SET expires_at = pg_catalog.clock_timestamp()`)
		<-ctx.Done() // at the next renewal
		return nil
	}
	if worked, err := w.next(t.Context()); !worked || !fenced.Lost(err) {
		t.Errorf("%v, %v, want the loss of the lock", worked, err)
	}
	if rows := pgtest.Value[int64](t, pool, `SELECT count(*) FROM worker.progress`); rows != 0 {
		t.Errorf("it has written all the same")
	}
}

// The program's write function, in the failures that the kit knows. This is what a program's own tests would have.
func TestSaveIsFenced(t *testing.T) {
	pool := database(t)
	id, err := jobdb.New(pool).Enqueue(t.Context(), jobdb.EnqueueParams{Customer: "ACME", Pages: 100})
	if err != nil {
		t.Fatal(err)
	}
	fencedtest.Run(t, fencedtest.Config{
		Pool:  pool,
		Fence: fence(id),
		Write: func(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error {
			done, err := jobdb.New(pool).PagesDone(ctx, id)
			if err != nil {
				return err
			}
			return newWorker("w", pool, nil).save(ctx, grant, id, done+1)
		},
		Applied: func(ctx context.Context, pool *pgxpool.Pool) (int, error) {
			done, err := jobdb.New(pool).PagesDone(ctx, id)
			return int(done), err
		},
	})
}

func TestAWriteThatWasForgottenIsRefused(t *testing.T) {
	pool := database(t)
	id, err := jobdb.New(pool).Enqueue(t.Context(), jobdb.EnqueueParams{Customer: "ACME", Pages: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = fenced.Wrap(pool).Exec(t.Context(), `INSERT INTO worker.progress (job_id, done, worker) VALUES ($1, 1, 'nobody')`, id)
	if !errors.Is(err, fenced.ErrUnfenced) {
		t.Errorf("a write without a token: %v, want ErrUnfenced", err)
	}
}

func TestTheProgramDoesTheJobsAndEndsWhenItIsTold(t *testing.T) {
	pool := database(t)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-dsn", pgtest.DSN(t, pool), "-workers", "3", "-enqueue", "5", "-pages", "2", "-page", "1ms"}, io.Discard)
	}()
	const open = `SELECT count(*) FROM worker.job j WHERE j.pages > coalesce((SELECT done FROM worker.progress p WHERE p.job_id = j.id), 0)`
	jobs := func() int64 { return pgtest.Value[int64](t, pool, `SELECT count(*) FROM worker.job`) }
	for deadline := time.Now().Add(time.Minute); jobs() < 5 || pgtest.Value[int64](t, pool, open) > 0; time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("the program ended by itself: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the jobs are not done")
		}
	}
	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if held := pgtest.Value[int64](t, pool, `SELECT count(*) FROM fencing.lease WHERE expires_at > pg_catalog.clock_timestamp()`); held > 0 {
		t.Errorf("%d locks were not released", held)
	}
}
