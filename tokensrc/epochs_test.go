package tokensrc_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/etcdtest"
	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/internal/redistest"
	"github.com/fencectl/fencectl/internal/zktest"
	"github.com/fencectl/fencectl/migrations"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/postgres"
	"github.com/fencectl/fencectl/tokensrc/redis"
	"github.com/fencectl/fencectl/tokensrc/zookeeper"
)

// Sources whose numbers go back, for real: what the old holder, who still has a token from before, could then do without the epoch, and
// what happens with it.

const lock = "jobs/nightly"

func protectedJobs(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Exec(t, pool, `CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text NOT NULL)`)
	pgtest.Exec(t, pool, `INSERT INTO public.jobs VALUES (1, 'new')`)
	pgtest.Exec(t, pool, `SELECT fencing.protect('public.jobs', fence => 'jobs/nightly')`)
}

func write(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant, state string) error {
	return fenced.Run(ctx, pool, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE public.jobs SET state = $1 WHERE id = 1`, state)
		return err
	})
}

// oneTenure acquires, claims and releases, and returns what a zombie of that tenure has in its hands.
func oneTenure(t *testing.T, pool *pgxpool.Pool, source tokensrc.Source) fenced.Grant {
	t.Helper()
	grant := acquire(t, source)
	if err := fenced.Claim(t.Context(), pool, grant); err != nil {
		t.Fatal(err)
	}
	if err := grant.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	return fenced.NewGrant(grant.Name(), grant.Token())
}

func acquire(t *testing.T, source tokensrc.Source) tokensrc.Grant {
	t.Helper()
	grant, err := tokensrc.AcquireWithin(t.Context(), source, lock, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		grant.Release(ctx)
	})
	return grant
}

// wentBack tries a source that has lost its data, without a registry of epochs and with one. reissue draws tokens until the source has
// issued again what the zombie has.
func wentBack(t *testing.T, pool *pgxpool.Pool, name string, plain, registered tokensrc.Source, zombie fenced.Grant) {
	t.Helper()
	ctx := t.Context()

	// Without the epoch: the new holder is locked out, and told why, until the source has reached the zombie's number. Then there
	// are two holders with one token, and the fence cannot tell them apart.
	for {
		grant := acquire(t, plain)
		if grant.Token() > zombie.Token() {
			t.Fatalf("the source did not go back: token %v after %v", grant.Token(), zombie.Token())
		}
		err := fenced.Claim(ctx, pool, grant)
		if grant.Token() == zombie.Token() {
			if err != nil {
				t.Fatal(err)
			}
			if err := write(ctx, pool, zombie, "zombie"); err != nil {
				t.Fatalf("control: without the epoch the old holder's write was refused (%v); this test tests nothing", err)
			}
			if err := grant.Release(ctx); err != nil {
				t.Fatal(err)
			}
			break
		}
		if !errors.Is(err, fenced.ErrStale) || !errors.Is(err, fenced.ErrSourceBehind) || !strings.Contains(err.Error(), "fencectl epoch adopt") {
			t.Fatalf("the lock is held under %v, the fence stands at %v: %v; want ErrSourceBehind", grant.Token(), zombie.Token(), err)
		}
		if err := grant.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}

	// With it: nothing is issued until the operator has looked.
	_, err := registered.TryAcquire(ctx, lock)
	var refused *tokensrc.IncarnationError
	if !errors.As(err, &refused) || refused.Source != name {
		t.Fatalf("the source has another incarnation: %v", err)
	}
	if err := pool.QueryRow(ctx, `SELECT fencing.adopt_epoch($1, $2)`, refused.Source, refused.Incarnation).Scan(nil); err != nil {
		t.Fatal(err)
	}
	grant := acquire(t, registered) // that it was refused left no lock behind
	if grant.Token().Epoch() != 1 || grant.Token() <= zombie.Token() {
		t.Fatalf("after adoption the token is %v", grant.Token())
	}
	if err := fenced.Claim(ctx, pool, grant); err != nil {
		t.Fatal(err)
	}
	if err := write(ctx, pool, zombie, "zombie"); !errors.Is(err, fenced.ErrStale) {
		t.Errorf("the old holder's write under %v: %v", zombie.Token(), err)
	}
	if err := write(ctx, pool, grant, "new holder"); err != nil {
		t.Error(err)
	}
	if err := grant.Release(ctx); err != nil {
		t.Error(err)
	}
}

func TestRedisRestartedEmpty(t *testing.T) {
	t.Parallel()
	pool, server := pgtest.New(t), redistest.Start(t)
	protectedJobs(t, pool)
	options := redis.Options{TTL: 30 * time.Second}
	withEpochs := options
	withEpochs.Epochs = postgres.NewEpochs(pool)
	registered := redis.New(server.Client(t, server.Addr()), &withEpochs)
	var zombie fenced.Grant
	for range 5 {
		zombie = oneTenure(t, pool, registered)
	}
	server.Restart(t) // with its data: the same incarnation, and numbers that go on
	if next := oneTenure(t, pool, registered); next.Token() <= zombie.Token() || next.Token().Epoch() != 0 {
		t.Fatalf("after a restart with data: token %v after %v", next.Token(), zombie.Token())
	} else {
		zombie = next
	}
	server.RestartEmpty(t)
	wentBack(t, pool, "redis", redis.New(server.Client(t, server.Addr()), &options), registered, zombie)
}

func TestZooKeeperRestartedEmpty(t *testing.T) {
	t.Parallel()
	pool, server := pgtest.New(t), zktest.Start(t)
	protectedJobs(t, pool)
	newSource := func(epochs tokensrc.Epochs) tokensrc.Source {
		source, err := zookeeper.New(zookeeper.Options{Servers: []string{server.Addr()}, TTL: 4 * time.Second, Epochs: epochs})
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	registered := newSource(postgres.NewEpochs(pool))
	var zombie fenced.Grant
	for range 5 {
		zombie = oneTenure(t, pool, registered)
	}
	server.Restart(t)
	if next := oneTenure(t, pool, registered); next.Token() <= zombie.Token() || next.Token().Epoch() != 0 {
		t.Fatalf("after a restart with data: token %v after %v", next.Token(), zombie.Token())
	}
	server.RestartEmpty(t)
	// Its transaction ids do not repeat one by one, so only the refusal is tried.
	_, err := registered.TryAcquire(t.Context(), lock)
	var refused *tokensrc.IncarnationError
	if !errors.As(err, &refused) || refused.Source != "zookeeper" {
		t.Fatalf("an ensemble without its data: %v", err)
	}
	if err := fenced.Claim(t.Context(), pool, acquire(t, newSource(nil))); !errors.Is(err, fenced.ErrSourceBehind) {
		t.Errorf("without the registry: %v", err)
	}
}

func TestEtcdRestoredFromASnapshot(t *testing.T) {
	t.Parallel()
	pool, cluster := pgtest.New(t), etcdtest.Start(t, 1)
	protectedJobs(t, pool)
	ctx := t.Context()
	options := etcd.Options{TTL: 30 * time.Second}
	withEpochs := options
	withEpochs.Epochs = postgres.NewEpochs(pool)
	oneTenure(t, pool, etcd.NewMutex(cluster.Client(t), &withEpochs))
	snapshot := cluster.Snapshot(t)
	zombie := oneTenure(t, pool, etcd.NewMutex(cluster.Client(t), &withEpochs)) // lost with the restore

	// As etcd's documentation advises, with a token of its own: another cluster, another incarnation.
	cluster.Restore(t, snapshot, etcdtest.RestoreOptions{NewToken: true})
	wentBack(t, pool, "etcd", etcd.NewMutex(cluster.Client(t), &options), etcd.NewMutex(cluster.Client(t), &withEpochs), zombie)

	// Restored in place, under the same token and addresses, it has the same cluster id: nobody can tell until the fence does.
	snapshot = cluster.Snapshot(t)
	registered := etcd.NewMutex(cluster.Client(t), &withEpochs)
	for range 3 {
		zombie = oneTenure(t, pool, registered)
	}
	cluster.Restore(t, snapshot, etcdtest.RestoreOptions{})
	registered = etcd.NewMutex(cluster.Client(t), &withEpochs)
	behind := acquire(t, registered)
	if err := fenced.Claim(ctx, pool, behind); !errors.Is(err, fenced.ErrSourceBehind) {
		t.Fatalf("restored in place: token %v, fence %v: %v", behind.Token(), zombie.Token(), err)
	}
	if err := behind.Release(ctx); err != nil {
		t.Fatal(err)
	}

	// With a revision bump its numbers go on.
	cluster.Restore(t, snapshot, etcdtest.RestoreOptions{Bump: 1_000_000})
	bumped := acquire(t, etcd.NewMutex(cluster.Client(t), &withEpochs))
	if bumped.Token() <= zombie.Token() {
		t.Errorf("after a restore with a bump: token %v after %v", bumped.Token(), zombie.Token())
	}
	if err := fenced.Claim(ctx, pool, bumped); err != nil {
		t.Error(err)
	}
}

func TestAWorkerAtTheWrongClusterPoisonsNothing(t *testing.T) {
	t.Parallel()
	pool, right, wrong := pgtest.New(t), etcdtest.Start(t, 1), etcdtest.Start(t, 1)
	protectedJobs(t, pool)
	options := &etcd.Options{TTL: 30 * time.Second, Epochs: postgres.NewEpochs(pool)}
	zombie := oneTenure(t, pool, etcd.NewMutex(right.Client(t), options))
	// The other cluster is far ahead: its tokens would lock everybody else out.
	for range 200 {
		if _, err := wrong.Client(t).Put(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := etcd.NewMutex(wrong.Client(t), options).TryAcquire(t.Context(), lock); !errors.Is(err, tokensrc.ErrIncarnation) {
		t.Fatalf("a worker at another cluster: %v", err)
	}
	if next := oneTenure(t, pool, etcd.NewMutex(right.Client(t), options)); next.Token() <= zombie.Token() {
		t.Errorf("token %v after %v", next.Token(), zombie.Token())
	}
}

func TestPostgresStandbyPromotedAfterLosingTransactions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary, err := pgserver.Start(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Stop(context.Background()) })
	open := func(s *pgserver.Server) *pgxpool.Pool {
		pool, err := pgxpool.New(ctx, s.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	pool := open(primary)
	if _, err := migrations.Up(ctx, pool, nil); err != nil {
		t.Fatal(err)
	}
	protectedJobs(t, pool)
	source := postgres.NewLease(pool, &postgres.LeaseOptions{TTL: 30 * time.Second})
	survives := oneTenure(t, pool, source)

	standby, err := primary.StartStandby(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Stop(context.Background()) })
	if err := standby.WaitReplayed(ctx, primary); err != nil {
		t.Fatal(err)
	}
	if err := standby.Disconnect(ctx); err != nil {
		t.Fatal(err)
	}
	// What the standby never hears of: more tokens than the sequence writes ahead (32), and the last one's claim.
	var zombie fenced.Grant
	for range 50 {
		zombie = oneTenure(t, pool, source)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	pool = open(standby)
	source = postgres.NewLease(pool, &postgres.LeaseOptions{TTL: 30 * time.Second})

	// Without the epoch: the bare sequence issues again what the zombie may have, and the zombie's greater token is as good as new.
	bare := pgtest.Value[fenced.Token](t, pool, `SELECT nextval('fencing.token_seq')`)
	if bare <= survives.Token() || bare >= zombie.Token() {
		t.Fatalf("control: the bare sequence goes on with %v; the standby knew %v and lost %v", bare, survives.Token(), zombie.Token())
	}
	if err := fenced.Claim(ctx, pool, fenced.NewGrant(lock, bare)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fenced.Claim(ctx, pool, zombie), write(ctx, pool, zombie, "zombie")); err != nil {
		t.Fatalf("control: without the epoch the old holder was refused (%v); this test tests nothing", err)
	}

	// With it, by itself.
	grant := acquire(t, source)
	if grant.Token().Epoch() != 1 || grant.Token() <= zombie.Token() {
		t.Fatalf("the promoted standby's first token is %v", grant.Token())
	}
	if err := fenced.Claim(ctx, pool, grant); err != nil {
		t.Fatal(err)
	}
	if err := write(ctx, pool, zombie, "zombie"); !errors.Is(err, fenced.ErrStale) {
		t.Errorf("the old holder's write under %v: %v", zombie.Token(), err)
	}
	if err := write(ctx, pool, grant, "new holder"); err != nil {
		t.Error(err)
	}
}
