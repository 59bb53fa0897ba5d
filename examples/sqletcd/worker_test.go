package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/examples/internal/zombie"
	"github.com/fencectl/fencectl/examples/sqletcd/jobdb"
	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fencedtest"
	"github.com/fencectl/fencectl/internal/etcdtest"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

func database(t *testing.T) (*pgxpool.Pool, *sql.DB) {
	t.Helper()
	pool := pgtest.New(t)
	db := open(pool)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := migrate(t.Context(), pool, db); err != nil {
		t.Fatal(err)
	}
	return pool, db
}

func newWorker(name string, db *sql.DB, source tokensrc.Source) *Worker {
	return &Worker{
		Name: name, DB: db, Source: source, Log: slog.New(slog.DiscardHandler),
		Print: func(context.Context, jobdb.Job, int32) error { return nil },
	}
}

func TestAZombieDoesNotWriteOverItsSuccessor(t *testing.T) {
	pool, db := database(t)
	worker, err := takeOver(t, pool, db)
	if !errors.Is(err, fenced.ErrStale) {
		t.Errorf("the zombie ended with %v, want ErrStale", err)
	}
	if worker != "second" {
		t.Errorf("the last to write was the %s worker", worker)
	}
}

// The generated statement asks the fence itself: it is safe where somebody has taken the guards away.
func TestWithoutGuardsAZombieDoesNotWriteOverItsSuccessorEither(t *testing.T) {
	pool, db := database(t)
	pgtest.Exec(t, pool, `SELECT fencing.unprotect('sqletcd.progress')`)
	if worker, err := takeOver(t, pool, db); !errors.Is(err, fenced.ErrStale) || worker != "second" {
		t.Errorf("the zombie ended with %v, and the last to write was the %s worker", err, worker)
	}
}

// The control: the same without the fence, which neither a guard nor the statement asks.
func TestWithoutTheFenceAZombieWritesOverItsSuccessor(t *testing.T) {
	pool, db := database(t)
	pgtest.Exec(t, pool, `SELECT fencing.unprotect('sqletcd.progress')`)
	pgtest.Exec(t, pool, `CREATE OR REPLACE FUNCTION fencing.hold(fence text, token bigint) RETURNS bigint LANGUAGE sql AS 'SELECT token'`)
	if worker, err := takeOver(t, pool, db); err != nil || worker != "first" {
		t.Errorf("the zombie ended with %v, and the last to write was the %s worker", err, worker)
	}
}

// takeOver lets a worker fall asleep over a job, and another finish it. It returns who wrote last, and how the
// first one ended when it woke up.
func takeOver(t *testing.T, pool *pgxpool.Pool, db *sql.DB) (lastWorker string, zombieErr error) {
	t.Helper()
	client := etcdtest.Start(t, 1).Client(t)
	id, err := jobdb.New(db).Enqueue(t.Context(), jobdb.EnqueueParams{Customer: "ACME", Pages: 3})
	if err != nil {
		t.Fatal(err)
	}
	source := etcd.NewMutex(client, &etcd.Options{Epochs: postgres.NewEpochs(pool)})

	// The first worker falls asleep over its second page.
	asleep, wake := make(chan struct{}), make(chan struct{})
	first := newWorker("first", db, zombie.Source(source))
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

	// etcd drops its lock, and another worker finishes the job, from where the first was.
	deleted, err := client.Delete(t.Context(), "fencing/mutex/"+url.PathEscape(fence(id))+"/", clientv3.WithPrefix())
	if err != nil || deleted.Deleted != 1 {
		t.Fatalf("%v, %v: where is the lock?", deleted, err)
	}
	var pages []int32
	second := newWorker("second", db, source)
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
	return pgtest.Value[string](t, pool, `SELECT worker FROM sqletcd.progress WHERE job_id = $1 AND done = 3`, id), zombieErr
}

// The program's write function, in the failures that the kit knows. This is what a program's own tests would have.
func TestSaveIsFenced(t *testing.T) {
	pool, db := database(t)
	id, err := jobdb.New(db).Enqueue(t.Context(), jobdb.EnqueueParams{Customer: "ACME", Pages: 100})
	if err != nil {
		t.Fatal(err)
	}
	fencedtest.Run(t, fencedtest.Config{
		Pool:  pool,
		Fence: fence(id),
		WriteSQL: func(ctx context.Context, db *sql.DB, grant fenced.Grant) error {
			done, err := jobdb.New(db).PagesDone(ctx, id)
			if err != nil {
				return err
			}
			return newWorker("w", db, nil).save(ctx, grant, id, done+1)
		},
		Applied: func(ctx context.Context, _ *pgxpool.Pool) (int, error) {
			done, err := jobdb.New(db).PagesDone(ctx, id)
			return int(done), err
		},
	})
}

func TestAWriteThatWasForgottenIsRefused(t *testing.T) {
	_, db := database(t)
	id, err := jobdb.New(db).Enqueue(t.Context(), jobdb.EnqueueParams{Customer: "ACME", Pages: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `INSERT INTO sqletcd.progress (job_id, done, worker) VALUES ($1, 1, 'nobody')`, id)
	if !errors.Is(err, fenced.ErrUnfenced) {
		t.Errorf("a write without a token: %v, want ErrUnfenced", err)
	}
}

func TestTheProgramDoesTheJobsAndEndsWhenItIsTold(t *testing.T) {
	pool, _ := database(t)
	cluster := etcdtest.Start(t, 1)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{
			"-dsn", pgtest.DSN(t, pool), "-etcd", cluster.Endpoints()[0], "-workers", "3", "-enqueue", "5", "-pages", "2", "-page", "1ms",
		}, io.Discard)
	}()
	const open = `SELECT count(*) FROM sqletcd.job j WHERE j.pages > coalesce((SELECT done FROM sqletcd.progress p WHERE p.job_id = j.id), 0)`
	jobs := func() int64 { return pgtest.Value[int64](t, pool, `SELECT count(*) FROM sqletcd.job`) }
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
	if left, err := cluster.Client(t).Get(t.Context(), "fencing/", clientv3.WithPrefix()); err != nil || left.Count > 0 {
		t.Errorf("%d locks were not released, %v", left.Count, err)
	}
}
