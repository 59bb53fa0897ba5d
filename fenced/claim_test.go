package fenced_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/pgtest"
)

func fence(t *testing.T, pool *pgxpool.Pool, name string) fenced.Token {
	t.Helper()
	return pgtest.Value[fenced.Token](t, pool, `SELECT token FROM fencing.fence WHERE name = $1`, name)
}

func TestClaimRaisesOnce(t *testing.T) {
	pool := pgtest.New(t)
	ctx := t.Context()
	name := `jobs/it's "quoted" \ 漢`
	for range 2 { // a retry is fine
		if err := fenced.Claim(ctx, pool, fenced.NewGrant(name, 34)); err != nil {
			t.Fatal(err)
		}
	}
	if got := fence(t, pool, name); got != 34 {
		t.Fatalf("the fence holds %v", got)
	}
	var stale *fenced.StaleError
	err := fenced.Claim(ctx, pool, fenced.NewGrant(name, 33))
	if !errors.As(err, &stale) || stale.Fence != name || stale.Presented != 33 || stale.Stored != 34 || stale.SourceBehind || stale.OwnWrite() {
		t.Errorf("an older token: %v", err)
	}
	// The connection of a refused claim is as good as new.
	if got := pool.Stat().TotalConns(); got != 1 {
		t.Errorf("the pool has %d connections, and never needed a second", got)
	}
}

func TestClaimWorksWhateverTheSessionsIsolationLevel(t *testing.T) {
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			pool := pgtest.New(t, pgtest.Param("default_transaction_isolation", level))
			jobs(t, pool, ", fence => 'jobs'")
			ctx := t.Context()
			if err := fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 1)); err != nil {
				t.Fatal(err)
			}
			// The claim waits for an older writer, and for a claim between the two: at REPEATABLE READ it would fail with 40001.
			old := pgtest.Conn(t, pool)
			pgtest.Exec(t, old, `BEGIN; SELECT fencing.present(1); UPDATE public.jobs SET state = 'old' WHERE id = 1`)
			second := pgtest.Call(t, pgtest.Conn(t, pool), func(ctx context.Context) error { return fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 2)) })
			pgtest.WaitBlockedBy(t, pool, old.PgConn().PID())
			pgtest.Exec(t, old, `COMMIT`)
			if err := second.Wait(); err != nil {
				t.Fatal(err)
			}
			if got := fence(t, pool, "jobs"); got != 2 {
				t.Errorf("the fence holds %v", got)
			}
		})
	}
}

func TestClaimInsideATransactionIsRefused(t *testing.T) {
	pool := pgtest.New(t)
	conn := pgtest.Conn(t, pool)
	pgtest.Exec(t, conn, "BEGIN")
	if err := fenced.Claim(t.Context(), conn, fenced.NewGrant("jobs", 1)); err == nil {
		t.Error("Claim ran inside a transaction")
	}
}

// Two that claim the same two fences, and a writer that uses both in the other order, do not deadlock.
func TestSeveralClaimsHoldOneFenceAtATime(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, ", fence => 'job/{id}'")
	ctx := t.Context()
	grants := func(token fenced.Token) []fenced.Grant {
		return []fenced.Grant{fenced.NewGrant("job/2", token), fenced.NewGrant("job/1", token)}
	}
	if err := fenced.ClaimWith(ctx, pool, grants(1), nil); err != nil {
		t.Fatal(err)
	}
	writer := pgtest.Conn(t, pool)
	pgtest.Exec(t, writer, `BEGIN; SELECT fencing.present(1); UPDATE public.jobs SET state = 'old' WHERE id = 2`)
	claim := make(chan error, 1)
	go func() { claim <- fenced.ClaimWith(ctx, pool, grants(2), nil) }()
	pgtest.WaitBlockedBy(t, pool, writer.PgConn().PID())
	// The claim has job/1 and waits for job/2. Were it one transaction, this write would deadlock with it instead of being stale.
	_, err := writer.Exec(ctx, `UPDATE public.jobs SET state = 'old' WHERE id = 1`)
	if fenced.SQLState(err) != fenced.SQLStateStale {
		t.Errorf("the older writer: %v", err)
	}
	pgtest.Exec(t, writer, `ROLLBACK`)
	if err := <-claim; err != nil {
		t.Fatal(err)
	}
}

type recorder struct {
	claims []fenced.ClaimEvent
	runs   []fenced.RunEvent
}

func (r *recorder) Claimed(_ context.Context, event fenced.ClaimEvent) {
	r.claims = append(r.claims, event)
}
func (r *recorder) Ran(_ context.Context, event fenced.RunEvent) { r.runs = append(r.runs, event) }

func TestEvictionEndsOlderHoldersAndNobodyElse(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, ", fence => 'jobs'")
	ctx := t.Context()
	if err := fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 1)); err != nil {
		t.Fatal(err)
	}
	paused, bystander := pgtest.Conn(t, pool), pgtest.Conn(t, pool)
	pgtest.Exec(t, paused, `BEGIN; SELECT fencing.present(1); UPDATE public.jobs SET state = 'zombie' WHERE id = 1`)
	pgtest.Exec(t, bystander, `BEGIN; SELECT * FROM fencing.fence`)

	// An older claim queues before ours: it holds nothing and must not be ended, though we wait for it.
	queued := make(chan error, 1)
	go func() { queued <- fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 2)) }()
	pgtest.WaitBlockedBy(t, pool, paused.PgConn().PID())

	observer := new(recorder)
	begun := time.Now()
	err := fenced.ClaimWith(ctx, pool, []fenced.Grant{fenced.NewGrant("jobs", 3)}, &fenced.ClaimOptions{EvictAfter: 300 * time.Millisecond, Observer: observer})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("it evicted after %v", took)
	}
	if err := <-queued; err != nil && !errors.Is(err, fenced.ErrStale) {
		t.Errorf("the claim that queued before ours: %v", err)
	}
	if got := fence(t, pool, "jobs"); got != 3 {
		t.Errorf("the fence holds %v", got)
	}
	if _, err := paused.Exec(ctx, `COMMIT`); err == nil {
		t.Error("the paused holder committed")
	}
	if _, err := bystander.Exec(ctx, `COMMIT`); err != nil {
		t.Errorf("a reader was ended too: %v", err)
	}
	if len(observer.claims) != 1 || observer.claims[0].Evicted != 1 {
		t.Errorf("observed %+v", observer.claims)
	}
}

func TestEvictionWorksFromAPoolOfOneConnection(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, ", fence => 'jobs'")
	ctx := t.Context()
	if err := fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 1)); err != nil {
		t.Fatal(err)
	}
	config := pool.Config()
	config.MaxConns = 1
	small, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	for i, db := range []fenced.DB{small, pgtest.Conn(t, pool)} {
		paused := pgtest.Conn(t, pool)
		pgtest.Exec(t, paused, fmt.Sprintf(`BEGIN; SELECT fencing.present(%d); UPDATE public.jobs SET state = 'zombie' WHERE id = 1`, i+1))
		err := fenced.ClaimWith(ctx, db, []fenced.Grant{fenced.NewGrant("jobs", fenced.Token(i+2))}, &fenced.ClaimOptions{EvictAfter: 50 * time.Millisecond})
		if err != nil {
			t.Errorf("%T: %v", db, err)
		}
	}
}

func TestEvictionThatIsNotPermittedEndsTheClaim(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, ", fence => 'jobs'")
	ctx := t.Context()
	if err := fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 1)); err != nil {
		t.Fatal(err)
	}
	paused := pgtest.Conn(t, pool) // a superuser's
	pgtest.Exec(t, paused, `BEGIN; SELECT fencing.present(1); UPDATE public.jobs SET state = 'zombie' WHERE id = 1`)
	role := pgtest.Role(t, pool, "EXECUTE ON FUNCTION fencing.claim(text, bigint)")
	err := fenced.ClaimWith(ctx, role.Pool, []fenced.Grant{fenced.NewGrant("jobs", 2)}, &fenced.ClaimOptions{EvictAfter: 50 * time.Millisecond})
	if fenced.SQLState(err) != "42501" {
		t.Errorf("want insufficient_privilege, got %v", err)
	}
	if _, err := paused.Exec(ctx, `COMMIT`); err != nil {
		t.Errorf("the other role's session was ended all the same: %v", err)
	}
}

func TestClaimHonoursItsContext(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, ", fence => 'jobs'")
	ctx := t.Context()
	if err := fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 1)); err != nil {
		t.Fatal(err)
	}
	paused := pgtest.Conn(t, pool)
	pgtest.Exec(t, paused, `BEGIN; SELECT fencing.present(1); UPDATE public.jobs SET state = 'zombie' WHERE id = 1`)
	for _, evictAfter := range []time.Duration{0, time.Hour} {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		err := fenced.ClaimWith(short, pool, []fenced.Grant{fenced.NewGrant("jobs", 2)}, &fenced.ClaimOptions{EvictAfter: evictAfter})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("EvictAfter %v: %v", evictAfter, err)
		}
	}
	if got := fence(t, pool, "jobs"); got != 1 {
		t.Errorf("the fence holds %v", got)
	}
}

type checkedGrant struct {
	fenced.Grant
	held error
}

func (g checkedGrant) Check(context.Context) error { return g.held }

func TestClaimTellsALostLockFromASourceThatWentBack(t *testing.T) {
	pool := pgtest.New(t)
	ctx := t.Context()
	if err := fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 200)); err != nil {
		t.Fatal(err)
	}
	behind := fenced.Claim(ctx, pool, checkedGrant{fenced.NewGrant("jobs", 7), nil})
	if !errors.Is(behind, fenced.ErrStale) || !errors.Is(behind, fenced.ErrSourceBehind) {
		t.Errorf("the lock is held and its token is old: %v", behind)
	}
	lost := fenced.Claim(ctx, pool, checkedGrant{fenced.NewGrant("jobs", 7), errors.New("not yours")})
	if !errors.Is(lost, fenced.ErrStale) || errors.Is(lost, fenced.ErrSourceBehind) {
		t.Errorf("the lock is lost: %v", lost)
	}
}

func TestObserverSeesRefusalsByKind(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, ", fence => 'jobs'")
	ctx := t.Context()
	observer := new(recorder)
	claim := func(token fenced.Token) {
		_ = fenced.ClaimWith(ctx, pool, []fenced.Grant{fenced.NewGrant("jobs", token)}, &fenced.ClaimOptions{Observer: observer})
	}
	run := func(token fenced.Token) {
		_ = fenced.RunWith(ctx, pool, []fenced.Grant{fenced.NewGrant("jobs", token)}, &fenced.RunOptions{Observer: observer},
			func(tx pgx.Tx) error { return setState(ctx, tx, 1, "x") })
	}
	claim(5)
	claim(4)
	run(5)
	run(4)
	run(6)
	var kinds []string
	for _, event := range observer.claims {
		kinds = append(kinds, fenced.Kind(event.Err))
	}
	for _, event := range observer.runs {
		kinds = append(kinds, fenced.Kind(event.Err))
	}
	if want := []string{"", "stale", "", "stale", "unclaimed"}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %q, want %q", kinds, want)
	}
}
