package postgres_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/netfault"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/postgres"
	"github.com/fencectl/fencectl/tokensrc/sourcetest"
)

const ttl = 1500 * time.Millisecond

// another is a pool of its own on the same database, as another process would have.
func another(t testing.TB, pool *pgxpool.Pool, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	config.MaxConns = 4
	if change != nil {
		change(config)
	}
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	return other
}

// linked is another pool through a link that can be broken.
func linked(t testing.TB, pool *pgxpool.Pool) (*pgxpool.Pool, *netfault.Proxy) {
	t.Helper()
	_, target := pgconn.NetworkAddress(pool.Config().ConnConfig.Host, pool.Config().ConnConfig.Port)
	link := netfault.New(t, target)
	// The pool's own Close waits for connections that a stalled link keeps.
	t.Cleanup(link.Cut)
	return another(t, pool, func(config *pgxpool.Config) {
		config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", link.Addr())
		}
	}), link
}

func conformance(t *testing.T, config sourcetest.Config, newSource func(*pgxpool.Pool) tokensrc.Source) {
	pool := pgtest.New(t)
	watcher := pgtest.Conn(t, pool)
	config.TTL = ttl
	config.New = func(t testing.TB) tokensrc.Source { return newSource(another(t, pool, nil)) }
	config.NewLinked = func(t testing.TB) (tokensrc.Source, sourcetest.Link) {
		other, link := linked(t, pool)
		return newSource(other), link
	}
	config.Connections = func(t testing.TB) int {
		var n int
		if err := watcher.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	sourcetest.Run(t, config)
}

func TestLeaseConforms(t *testing.T) {
	conformance(t, sourcetest.Config{}, func(pool *pgxpool.Pool) tokensrc.Source {
		return postgres.NewLease(pool, &postgres.LeaseOptions{TTL: ttl})
	})
}

func TestAdvisoryConforms(t *testing.T) {
	conformance(t, sourcetest.Config{LocksOnClose: true}, func(pool *pgxpool.Pool) tokensrc.Source {
		return postgres.NewAdvisory(pool, &postgres.AdvisoryOptions{TTL: ttl})
	})
}

func TestSequenceConforms(t *testing.T) {
	conformance(t, sourcetest.Config{NoLock: true}, func(pool *pgxpool.Pool) tokensrc.Source { return postgres.NewSequence(pool) })
}

// wireLog counts how often the server said that it is ready: once for every time the client stopped to wait.
type wireLog struct {
	mu  sync.Mutex
	log strings.Builder
}

func (w *wireLog) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *wireLog) roundTrips() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.log.Reset()
	return strings.Count(w.log.String(), "\tReadyForQuery\t")
}

func TestAFreeLeaseIsAcquiredInOneRoundTrip(t *testing.T) {
	wire := new(wireLog)
	pool := another(t, pgtest.New(t), func(config *pgxpool.Config) {
		config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			conn.PgConn().Frontend().Trace(wire, pgproto3.TracerOptions{})
			return nil
		}
	})
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	source := postgres.NewLease(pool, nil)
	for _, call := range []func(context.Context, string) (tokensrc.Grant, error){source.Acquire, source.TryAcquire} {
		wire.roundTrips()
		grant, err := call(t.Context(), "jobs/nightly") // the first use ever: nothing is prepared
		if err != nil {
			t.Fatal(err)
		}
		if n := wire.roundTrips(); n != 1 {
			t.Errorf("acquiring took %d round trips", n)
		}
		if err := grant.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := wire.roundTrips(); n != 1 {
			t.Errorf("releasing took %d round trips", n)
		}
	}
}

// What a holder or its successor counts on is on disk before they are told; a release that is lost is only late.
func TestAllButAReleaseWaitForTheDisk(t *testing.T) {
	pool := pgtest.New(t)
	for _, sql := range []string{
		`CREATE TABLE public.seen (id bigint GENERATED ALWAYS AS IDENTITY, acquired boolean, free boolean, commit text)`,
		`CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		    INSERT INTO public.seen (acquired, free, commit)
		    VALUES (NEW.token <> OLD.token, NEW.expires_at <= clock_timestamp(), current_setting('synchronous_commit'));
		    RETURN NULL;
		END $$`,
		// Deferred: what the setting is when the transaction commits is what counts.
		`CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON fencing.lease DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note()`,
	} {
		pgtest.Exec(t, pool, sql)
	}
	source := postgres.NewLease(another(t, pool, func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams["synchronous_commit"] = "local" }), nil)
	grant, err := source.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	checker, ok := grant.(fenced.Checker)
	if !ok {
		t.Fatal("a lease cannot be checked")
	}
	if err := checker.Check(t.Context()); err != nil { // which renews it
		t.Fatal(err)
	}
	if err := grant.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	const seen = `SELECT string_agg(CASE WHEN acquired THEN 'acquired ' WHEN free THEN 'released ' ELSE 'renewed ' END || commit, ', ' ORDER BY id) FROM public.seen`
	if got, want := pgtest.Value[string](t, pool, seen), "acquired on, renewed on, released off"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

func TestAReleaseWakesTheWaiterLongBeforeItsPoll(t *testing.T) {
	pool := pgtest.New(t)
	options := &postgres.LeaseOptions{TTL: time.Hour, PollEvery: time.Hour}
	holder, waiter := postgres.NewLease(another(t, pool, nil), options), postgres.NewLease(another(t, pool, nil), options)
	held, err := holder.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan tokensrc.Grant, 1)
	go func() {
		grant, err := tokensrc.AcquireWithin(t.Context(), waiter, "jobs", time.Minute)
		if err != nil {
			t.Error(err)
		}
		got <- grant
	}()
	waitListening(t, pool)
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	grant := <-got
	if grant == nil {
		t.FailNow()
	}
	if err := grant.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The listening connection ends with the last waiter.
	deadline := time.Now().Add(20 * time.Second)
	for pgtest.Value[int](t, pool, listening) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the listening connection is still open")
		}
		<-time.After(10 * time.Millisecond)
	}
}

const listening = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN fencing_lease' AND state = 'idle'`

func waitListening(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for pgtest.Value[int](t, pool, listening) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("nobody listens")
		}
		<-time.After(10 * time.Millisecond)
	}
}

// dialing counts the connections of a pool, and those beside it, and refuses all after the first so many.
func dialing(most int64) (func(*pgxpool.Config), *atomic.Int64) {
	dialed := new(atomic.Int64)
	return func(config *pgxpool.Config) {
		config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if dialed.Add(1) > most {
				return errors.New("no more connections")
			}
			return nil
		}
	}, dialed
}

func TestAReleaseWakesTheProcessesOwnWaiterWithoutAnybodyListening(t *testing.T) {
	restrict, _ := dialing(1)
	pool := another(t, pgtest.New(t), func(config *pgxpool.Config) {
		restrict(config)
		config.MaxConns = 1
	})
	source := postgres.NewLease(pool, &postgres.LeaseOptions{TTL: time.Hour, PollEvery: time.Hour})
	held, err := source.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		grant, err := tokensrc.AcquireWithin(t.Context(), source, "jobs", time.Minute)
		if err == nil {
			err = grant.Release(context.Background())
		}
		got <- err
	}()
	if err := held.Release(t.Context()); err != nil { // before the waiter has asked, while it asks, or after
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func TestALockThatIsHandedOnCostsNoConnectionEachTime(t *testing.T) {
	const workers, times = 4, 10
	count, dialed := dialing(1000)
	pool := another(t, pgtest.New(t), func(config *pgxpool.Config) {
		count(config)
		config.MaxConns = workers
	})
	source := postgres.NewLease(pool, &postgres.LeaseOptions{TTL: time.Hour, PollEvery: time.Hour})
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range times {
				grant, err := source.Acquire(t.Context(), "jobs")
				if err == nil {
					err = grant.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	// The pool's, and one to listen for as long as anybody waits: at the start, and once more where the queue was empty for a moment.
	if n := dialed.Load(); n > workers+times/2 {
		t.Errorf("%d connections for %d acquisitions", n, workers*times)
	}
	if n := pgtest.Value[int](t, pool, listening); n != 0 {
		t.Errorf("%d connections listen when nobody waits", n)
	}
}

func TestAWaiterOutlivesItsListeningConnection(t *testing.T) {
	pool := pgtest.New(t)
	options := &postgres.LeaseOptions{TTL: time.Hour, PollEvery: 50 * time.Millisecond}
	holder, waiter := postgres.NewLease(another(t, pool, nil), options), postgres.NewLease(another(t, pool, nil), options)
	held, err := holder.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		grant, err := tokensrc.AcquireWithin(t.Context(), waiter, "jobs", time.Minute)
		if err == nil {
			err = grant.Release(context.Background())
		}
		got <- err
	}()
	waitListening(t, pool)
	pgtest.Exec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN fencing_lease'`)
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func TestAHeldLeaseNeverStarvesASmallPool(t *testing.T) {
	pool := another(t, pgtest.New(t), func(config *pgxpool.Config) { config.MaxConns = 1 })
	source := postgres.NewLease(pool, &postgres.LeaseOptions{TTL: ttl})
	held, err := source.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		grant, err := tokensrc.AcquireWithin(t.Context(), source, "jobs", time.Minute)
		if err == nil {
			err = grant.Release(context.Background())
		}
		got <- err
	}()
	waitListening(t, pool)
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func TestAnAdvisoryHolderNoticesThatItsSessionIsGone(t *testing.T) {
	pool := pgtest.New(t)
	source := postgres.NewAdvisory(another(t, pool, func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams["application_name"] = "holder" }),
		&postgres.AdvisoryOptions{TTL: ttl})
	grant, err := source.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer grant.Release(context.WithoutCancel(t.Context()))
	pgtest.Exec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holder'`)
	select {
	case <-grant.Context().Done():
		if cause := context.Cause(grant.Context()); !errors.Is(cause, tokensrc.ErrLost) {
			t.Errorf("the cause is %v", cause)
		}
	case <-time.After(10 * ttl):
		t.Fatal("the session is gone and the grant's context goes on")
	}
}

func TestTokensFitTheClaim(t *testing.T) {
	pool := pgtest.New(t)
	ctx := t.Context()
	for name, source := range map[string]tokensrc.Source{
		"lease": postgres.NewLease(pool, nil), "advisory": postgres.NewAdvisory(pool, nil), "sequence": postgres.NewSequence(pool),
	} {
		first, err := source.Acquire(ctx, "jobs/"+name)
		if err != nil {
			t.Fatal(err)
		}
		if err := fenced.Claim(ctx, pool, first); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := first.Release(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		second, err := source.Acquire(ctx, "jobs/"+name)
		if err != nil {
			t.Fatal(err)
		}
		if err := fenced.Claim(ctx, pool, second); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := fenced.Claim(ctx, pool, fenced.NewGrant(first.Name(), first.Token())); !errors.Is(err, fenced.ErrStale) {
			t.Errorf("%s: the first grant's claim: %v", name, err)
		}
		if err := second.Release(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEpochsRefuseAnotherIncarnationUntilItIsAdopted(t *testing.T) {
	pool := pgtest.New(t)
	ctx := t.Context()
	role := pgtest.Role(t, pool, "EXECUTE ON FUNCTION fencing.source_epoch(text, text)")
	for name, db := range map[string]postgres.Querier{"superuser": pool, "application": role.Pool} {
		epochs, source := postgres.NewEpochs(db), "etcd-"+name
		for range 2 {
			if epoch, err := epochs.Epoch(ctx, source, "one"); err != nil || epoch != 0 {
				t.Fatalf("%s: the first incarnation: %d, %v", name, epoch, err)
			}
		}
		_, err := epochs.Epoch(ctx, source, "two")
		var refused *tokensrc.IncarnationError
		if !errors.As(err, &refused) || !errors.Is(err, tokensrc.ErrIncarnation) || refused.Source != source || refused.Incarnation != "two" {
			t.Fatalf("%s: another incarnation: %v", name, err)
		}
		if want := "fencectl epoch adopt " + source + " two"; !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q does not say %q", name, err, want)
		}
		if name == "superuser" && refused.Registered != "one" {
			t.Errorf("registered is %q", refused.Registered)
		}
		pgtest.Exec(t, pool, `SELECT fencing.adopt_epoch($1, 'two')`, source)
		if epoch, err := epochs.Epoch(ctx, source, "two"); err != nil || epoch != 1 {
			t.Errorf("%s: adopted: %d, %v", name, epoch, err)
		}
		if _, err := epochs.Epoch(ctx, source, "one"); !errors.Is(err, tokensrc.ErrIncarnation) {
			t.Errorf("%s: the old incarnation again: %v", name, err)
		}
	}
}
