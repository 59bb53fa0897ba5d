package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/examples/internal/zombie"
	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fencedtest"
	"github.com/fencectl/fencectl/internal/etcdtest"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
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

// A candidate whose rounds the test sets off.
type candidate struct {
	*Scheduler
	rounds chan time.Time
}

func newCandidate(name string, pool *pgxpool.Pool, source tokensrc.Source) candidate {
	rounds := make(chan time.Time)
	return candidate{&Scheduler{
		Name: name, Pool: pool, Election: source, Rounds: rounds, Patience: time.Minute, Log: slog.New(slog.DiscardHandler),
	}, rounds}
}

// begin sets off a round of a candidate that leads, or is about to.
func (c candidate) begin(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case c.rounds <- time.Now():
	case err := <-ended:
		t.Fatalf("%s has ended: %v", c.Name, err)
	}
}

// awaitRounds returns when so many rounds are planned.
func awaitRounds(t *testing.T, pool *pgxpool.Pool, n int64) {
	t.Helper()
	rounds := func() int64 { return pgtest.Value[int64](t, pool, `SELECT count(*) FROM leader.plan`) }
	for deadline := time.Now().Add(time.Minute); rounds() < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d rounds are planned, want %d", rounds(), n)
		}
	}
}

func TestALeaderThatDoesNotKnowThatItWasDeposedPlansNothing(t *testing.T) {
	pool := database(t)
	planners, end := depose(t, pool, 2)
	if !errors.Is(end, fenced.ErrStale) {
		t.Errorf("the deposed leader ended with %v, want ErrStale", end)
	}
	if diff := cmp.Diff([]string{"first", "second", "second"}, planners); diff != "" {
		t.Errorf("who planned (-want +got):\n%s", diff)
	}
}

// The control: the same without the fence.
func TestWithoutTheFenceTwoLeadersPlan(t *testing.T) {
	pool := database(t)
	pgtest.Exec(t, pool, `SELECT fencing.unprotect('leader.plan')`)
	planners, end := depose(t, pool, 3)
	if !errors.Is(end, context.Canceled) {
		t.Errorf("the deposed leader ended with %v; nothing should have stopped it", end)
	}
	if diff := cmp.Diff([]string{"first", "second", "first", "second"}, planners); diff != "" {
		t.Errorf("who planned (-want +got):\n%s", diff)
	}
}

// depose has one candidate lead, then another, while the first still believes that it leads. Each plans a round, then the first, then
// the second. It returns who planned the rounds, and what ended the first one: the test, when so many are planned, if nothing else did.
func depose(t *testing.T, pool *pgxpool.Pool, rounds int64) (planners []string, end error) {
	t.Helper()
	client := etcdtest.Start(t, 1).Client(t)
	source := etcd.NewElection(client, &etcd.Options{Epochs: postgres.NewEpochs(pool)})
	first, second := newCandidate("first", pool, zombie.Source(source)), newCandidate("second", pool, source)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	leadership, err := first.Election.Acquire(ctx, election)
	if err != nil {
		t.Fatal(err)
	}
	firstEnded := make(chan error, 1)
	go func() { firstEnded <- first.lead(leadership) }()
	first.begin(t, firstEnded)
	awaitRounds(t, pool, 1)

	// etcd drops the leader's key: the other candidate is elected.
	deleted, err := client.Delete(t.Context(), "fencing/election/"+url.PathEscape(election)+"/", clientv3.WithPrefix())
	if err != nil || deleted.Deleted != 1 {
		t.Fatalf("%v, %v: where is the leader's key?", deleted, err)
	}
	secondEnded := make(chan error, 1)
	running, stopSecond := context.WithCancel(t.Context())
	defer stopSecond()
	go func() { secondEnded <- second.Run(running) }()
	second.begin(t, secondEnded)
	awaitRounds(t, pool, 2)

	first.begin(t, firstEnded)
	if rounds > 2 {
		awaitRounds(t, pool, rounds)
		stop()
	}
	end = <-firstEnded
	if err := leadership.Release(t.Context()); err != nil {
		t.Errorf("its resignation: %v", err)
	}
	second.begin(t, secondEnded) // goes on leading
	awaitRounds(t, pool, rounds+1)
	stopSecond()
	if err := <-secondEnded; err != nil {
		t.Errorf("the second leader ended with %v", err)
	}
	return pgtest.Value[[]string](t, pool, `SELECT array_agg(planned_by ORDER BY round) FROM leader.plan`), end
}

func TestADeposedLeaderCampaignsAgain(t *testing.T) {
	pool := database(t)
	client := etcdtest.Start(t, 1).Client(t)
	only := newCandidate("only", pool, etcd.NewElection(client, &etcd.Options{TTL: etcdtest.MinTTL, Epochs: postgres.NewEpochs(pool)}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- only.Run(ctx) }()
	only.begin(t, ended)
	awaitRounds(t, pool, 1)
	before := pgtest.Value[int64](t, pool, `SELECT token FROM fencing.fence`)

	if _, err := client.Delete(t.Context(), "fencing/election/"+url.PathEscape(election)+"/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	claimed := func() int64 { return pgtest.Value[int64](t, pool, `SELECT token FROM fencing.fence`) }
	for deadline := time.Now().Add(time.Minute); claimed() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not lead again")
		}
	}
	only.begin(t, ended)
	awaitRounds(t, pool, 2)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// The program's write function, in the failures that the kit knows.
func TestPlanIsFenced(t *testing.T) {
	pool := database(t)
	count := func(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
		err = pool.QueryRow(ctx, `SELECT count(*) FROM leader.plan`).Scan(&n)
		return n, err
	}
	fencedtest.Run(t, fencedtest.Config{
		Pool: pool, Fence: election, Applied: count,
		Write: func(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error {
			return newCandidate("c", pool, nil).plan(ctx, grant)
		},
	})
}

func TestTheProgramPlansAndResignsWhenItIsTold(t *testing.T) {
	pool := database(t)
	cluster := etcdtest.Start(t, 1)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-dsn", pgtest.DSN(t, pool), "-etcd", cluster.Endpoints()[0], "-every", "10ms"}, io.Discard)
	}()
	awaitRounds(t, pool, 3)
	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if left, err := cluster.Client(t).Get(t.Context(), "fencing/", clientv3.WithPrefix()); err != nil || left.Count > 0 {
		t.Errorf("%d leaders are left, %v", left.Count, err)
	}
}
