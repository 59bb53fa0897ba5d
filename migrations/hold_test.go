package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// hold is for statements that are sure of their fence by themselves: everything here holds with the guards switched off.
func TestHoldChecksAndKeepsTheFenceWithoutAnyGuard(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "fence => 'nightly'")
	pgtest.Exec(t, pool, "ALTER TABLE public.jobs DISABLE TRIGGER USER")
	const write = "UPDATE public.jobs SET state = 'held' WHERE id = 1 AND (SELECT fencing.hold('nightly', 34)) = 34"
	ends(t, try(t, pool, write), "ZF004")
	finds(t, pool, int64(0), "SELECT fencing.claim('nightly', 34)")
	ends(t, try(t, pool, write), accepted)
	ends(t, try(t, pool, "SELECT fencing.hold('nightly', 33)"), stale)
	ends(t, try(t, pool, "SELECT fencing.hold('nightly', 35)"), "ZF004")
	ends(t, try(t, pool, "SELECT fencing.hold('nightly', 0)"), "ZF003")
	ends(t, try(t, pool, "SELECT fencing.hold('nightly', NULL)"), "ZF003")
	ends(t, try(t, pool, "SELECT fencing.hold(NULL, 34)"), "22023")
	ends(t, try(t, pool, "SELECT fencing.hold('', 34)"), "22023")

	// A newer claim waits for it, and then it is stale.
	tx, err := pgtest.Conn(t, pool).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, write)
	claim := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('nightly', 36)").Blocked()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := claim.Wait(); err != nil {
		t.Fatal(err)
	}
	ends(t, try(t, pool, write), stale)
}

// What it presents is what the guards ask for, so that one statement is enough; a token of the transaction's own stays.
func TestHoldPresentsForItsFence(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "fence => 'job/{id}'")
	finds(t, pool, int64(0), "SELECT fencing.claim('job/1', 34)")
	ends(t, try(t, pool, "UPDATE public.jobs SET state = 'held' WHERE id = 1 AND (SELECT fencing.hold('job/1', 34)) = 34"), accepted)

	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		finds(t, tx, int64(7), "SELECT fencing.present(7)")
		finds(t, tx, int64(34), "SELECT fencing.hold('job/1', 34)")
		finds(t, tx, []int64{7, 34, 7}, "SELECT ARRAY[fencing.presented(), fencing.presented('job/1'), fencing.presented('job/2')]")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A claim takes the fence's advisory lock, then its row. Who holds the row already must not wait for that lock: a guard that comes after a
// hold would, if it did not see that the fence has accepted this transaction.
func TestAGuardAfterAHoldDoesNotDeadlockWithAClaim(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "fence => 'nightly'")
	for _, after := range []string{"", "SELECT fencing.claim('other', 34)"} { // the second makes the transaction forget, of another fence
		pgtest.Exec(t, pool, "SELECT fencing.lower_fence(name, 0, 'again') FROM fencing.fence")
		pgtest.Exec(t, pool, "SELECT fencing.claim('nightly', 34); SELECT fencing.claim('other', 33)")
		tx, err := pgtest.Conn(t, pool).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, "SELECT fencing.hold('nightly', 34)")
		pgtest.Exec(t, tx, after)
		claim := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('nightly', 36)").Blocked()
		pgtest.Exec(t, tx, "UPDATE public.jobs SET state = 'held' WHERE id = 1")
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := claim.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHoldIsNotForEverybody(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "fence => 'nightly'")
	finds(t, pool, int64(0), "SELECT fencing.claim('nightly', 34)")
	ends(t, try(t, pgtest.Role(t, pool).Pool, "SELECT fencing.hold('nightly', 34)"), noPrivilege)
	ends(t, try(t, pgtest.Role(t, pool, "EXECUTE ON FUNCTION fencing.hold(text, bigint)").Pool, "SELECT fencing.hold('nightly', 34)"), accepted)
}
