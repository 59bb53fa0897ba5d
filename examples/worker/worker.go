package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/examples/worker/jobdb"
	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// A Worker does one job after another. A job that another worker was in the middle of is continued where that one was.
type Worker struct {
	Name   string
	Pool   *pgxpool.Pool
	Source tokensrc.Source
	Log    *slog.Logger
	// Print does one page of a job: the work that takes its time, and in which the process may be paused.
	Print func(ctx context.Context, job jobdb.Job, page int32) error
}

// idle is how long a worker without a job waits before it looks again.
const idle = time.Second

// Run works until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		worked, err := w.next(ctx)
		switch {
		case ctx.Err() != nil:
			// We were told to stop, and whatever that broke off is no failure.
		case errors.Is(err, fenced.ErrSourceBehind):
			return err // we do hold the lock, and its token is too old: an operator has to look at where the tokens come from
		case fenced.Lost(err):
			// The job is somebody else's now. Whatever this worker believed about it is worthless: drop it, look for another.
			w.Log.Warn("stopped, the lock is lost", "worker", w.Name, "error", err)
		case err != nil:
			return err
		case !worked:
			select {
			case <-ctx.Done():
			case <-time.After(idle):
			}
		}
	}
	return nil
}

// next does the first open job that nobody else is at. It returns false when there is none.
func (w *Worker) next(ctx context.Context) (worked bool, err error) {
	jobs, err := jobdb.New(w.Pool).OpenJobs(ctx, 100)
	if err != nil {
		return false, err
	}
	for _, job := range jobs {
		grant, err := w.Source.TryAcquire(ctx, fence(job.ID))
		if errors.Is(err, tokensrc.ErrHeld) {
			continue
		}
		if err != nil {
			return false, err
		}
		return true, errors.Join(
			w.do(grant, job),
			grant.Release(context.WithoutCancel(ctx)), // also when we were told to stop: nobody should have to wait for the lease to lapse
		)
	}
	return false, nil
}

// fence is the name of a job's lock, and of its fence: see the migration.
func fence(jobID int64) string { return fmt.Sprintf("worker/job/%d", jobID) }

func (w *Worker) do(grant tokensrc.Grant, job jobdb.Job) error {
	ctx := grant.Context() // ends with the lock

	// Claim before reading. From here on no older holder can write, and all that they have written is there to be read. Without it
	// a predecessor could still commit a page after we have looked how far the job is.
	if err := jobdb.New(w.Pool).FencedProgress(grant).Claim(ctx); err != nil {
		return err
	}
	done, err := jobdb.New(w.Pool).PagesDone(ctx, job.ID)
	if err != nil {
		return err
	}
	for done < job.Pages {
		done++
		if err := w.Print(ctx, job, done); err != nil {
			return err
		}
		if err := w.save(ctx, grant, job.ID, done); err != nil {
			return err
		}
		w.Log.Info("page done", "worker", w.Name, "job", job.ID, "token", grant.Token().String(), "page", done)
	}
	return nil
}

// save writes a page under the grant's token. The method is generated from the table and its fence (fencectl.yaml): its statement checks the
// token by itself, on a connection of the pool, in one round trip.
func (w *Worker) save(ctx context.Context, grant fenced.Grant, jobID int64, done int32) error {
	progress := jobdb.New(w.Pool).FencedProgress(grant)
	_, err := progress.Upsert(ctx, jobID, jobdb.FencedProgressUpsertValues{Done: done, Worker: w.Name})
	return err
}
