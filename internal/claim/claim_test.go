package claim_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/claim"
	"github.com/fencectl/fencectl/internal/lockwait"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// shop has a table under the fence jobs/nightly, which stands at 10.
func shop(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text)")
	pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', fence => 'jobs/nightly')")
	pgtest.Exec(t, pool, "SELECT fencing.claim('jobs/nightly', 10)")
	return pool
}

// writer is an older holder in the middle of a transaction: it has written, and holds the fence until it ends.
func writer(t *testing.T, pool *pgxpool.Pool) (tx pgx.Tx, pid int32) {
	t.Helper()
	return writerAt(t, pool, pgx.ReadCommitted)
}

func writerAt(t *testing.T, pool *pgxpool.Pool, isolation pgx.TxIsoLevel) (tx pgx.Tx, pid int32) {
	t.Helper()
	tx, err := pgtest.Conn(t, pool).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: isolation})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // the session may be gone: that is what some tests are about
	pid = pgtest.Value[int32](t, tx, "SELECT pg_backend_pid()")
	pgtest.Exec(t, tx, "SELECT fencing.present(10)")
	pgtest.Exec(t, tx, "INSERT INTO public.jobs SELECT COALESCE(max(id), 0) + $1, 'new' FROM public.jobs", pid)
	return tx, pid
}

func stored(t *testing.T, pool *pgxpool.Pool) int64 {
	t.Helper()
	return pgtest.Value[int64](t, pool, "SELECT token FROM fencing.fence WHERE name = 'jobs/nightly'")
}

func TestClaimReturnsWhatTheFenceHeld(t *testing.T) {
	t.Parallel()
	pool := shop(t)
	for _, tt := range []struct {
		fence           string
		token, previous fenced.Token
	}{{"jobs/nightly", 11, 10}, {"jobs/nightly", 11, 11}, {"jobs/hourly", 3, 0}} {
		result, err := claim.Claim(t.Context(), pool, tt.fence, tt.token, nil)
		if err != nil {
			t.Fatal(err)
		}
		if result.Previous != tt.previous || len(result.Evicted) != 0 {
			t.Errorf("claim(%s, %v): %+v", tt.fence, tt.token, result)
		}
	}
	if _, err := claim.Claim(t.Context(), pool, "jobs/nightly", 9, nil); pgtest.SQLState(err) != fenced.SQLStateStale {
		t.Errorf("an older token must be refused: %v", err)
	}
}

func TestAClaimWithoutEvictionWaitsForTheOlderWriterAndSaysForWhom(t *testing.T) {
	t.Parallel()
	pool := shop(t)
	older, pid := writer(t, pool)
	var told [][]lockwait.Session
	result, err := claim.Claim(t.Context(), pool, "jobs/nightly", 11, &claim.Options{
		Waiting: func(sessions []lockwait.Session) {
			told = append(told, sessions)
			if err := older.Commit(t.Context()); err != nil { // only now may the claim go on
				t.Error(err)
			}
		},
		Evicted: func(lockwait.Session) { t.Error("nobody was to be evicted") },
	})
	if err != nil {
		t.Fatal(err)
	}
	if result.Previous != 10 || stored(t, pool) != 11 {
		t.Errorf("result %+v, stored %d", result, stored(t, pool))
	}
	if len(told) != 1 || len(told[0]) != 1 || told[0][0].PID != pid {
		t.Errorf("told: %+v, want once about %d", told, pid)
	}
	if got := pgtest.Value[int64](t, pool, "SELECT count(*) FROM public.jobs"); got != 1 {
		t.Errorf("the older writer's row must be there, found %d", got)
	}
}

func TestEvictionEndsEveryOlderWriterAndNobodyElse(t *testing.T) {
	t.Parallel()
	pool := shop(t)
	_, first := writer(t, pool)
	_, second := writer(t, pool)
	// A bystander in a transaction of its own, on the same table, which holds no fence.
	bystander, err := pgtest.Conn(t, pool).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, bystander, "SELECT FROM public.jobs")

	result, err := claim.Claim(t.Context(), pool, "jobs/nightly", 11, &claim.Options{EvictAfter: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var got []int32
	for _, s := range result.Evicted {
		got = append(got, s.PID)
	}
	slices.Sort(got)
	want := []int32{first, second}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("evicted %v, want %v", got, want)
	}
	if stored(t, pool) != 11 || pgtest.Value[int64](t, pool, "SELECT count(*) FROM public.jobs") != 0 {
		t.Error("the claim must have gone through, and the older writers' rows must not")
	}
	pgtest.Exec(t, bystander, "SELECT FROM public.jobs") // still there
	if err := bystander.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// Another claim ahead in the queue blocks this one as well, by PostgreSQL's account; but it holds nothing, and may be newer. Above READ
// COMMITTED the older writer holds the fence's row, and the claim ahead has the advisory lock that this one waits for.
func TestEvictionSparesTheClaimsThatQueueAhead(t *testing.T) {
	t.Parallel()
	for _, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			pool := shop(t)
			_, older := writerAt(t, pool, isolation)
			queueing := pgtest.Conn(t, pool)
			ahead := pgtest.Go(t, queueing, "SELECT fencing.claim('jobs/nightly', 12)").Blocked()

			// 12 is claimed once the older writer is gone; 13 is newer than that, and gets through afterwards.
			result, err := claim.Claim(t.Context(), pool, "jobs/nightly", 13, &claim.Options{EvictAfter: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Evicted) != 1 || result.Evicted[0].PID != older {
				t.Errorf("evicted %+v, want only %d", result.Evicted, older)
			}
			if err := ahead.Wait(); err != nil && pgtest.SQLState(err) != fenced.SQLStateStale {
				t.Errorf("the other claim was disturbed: %v", err)
			}
			if stored(t, pool) != 13 {
				t.Errorf("stored %d", stored(t, pool))
			}
		})
	}
}

func TestAClaimIsGivenUpWhenItMayNotEvict(t *testing.T) {
	t.Parallel()
	pool := shop(t)
	_, _ = writer(t, pool) // a superuser's session
	role := pgtest.Role(t, pool, "EXECUTE ON FUNCTION fencing.claim(text, bigint)", "SELECT ON fencing.fence")
	_, err := claim.Claim(t.Context(), role.Pool, "jobs/nightly", 11, &claim.Options{EvictAfter: time.Millisecond})
	if pgtest.SQLState(err) != "42501" || !strings.Contains(err.Error(), "ending the sessions") {
		t.Errorf("want the missing privilege, got %v", err)
	}
	if stored(t, pool) != 10 {
		t.Errorf("stored %d", stored(t, pool))
	}
}

func TestAnInterruptedClaimClaimsNothing(t *testing.T) {
	t.Parallel()
	pool := shop(t)
	older, _ := writer(t, pool)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := claim.Claim(ctx, pool, "jobs/nightly", 11, &claim.Options{Waiting: func([]lockwait.Session) { cancel() }})
	if err == nil {
		t.Fatal("the claim went through")
	}
	if err := older.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stored(t, pool) != 10 {
		t.Errorf("stored %d", stored(t, pool))
	}
}
