package migrations_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

const (
	ownerA = "aaaaaaaa-0000-4000-8000-000000000000"
	ownerB = "bbbbbbbb-0000-4000-8000-000000000000"
	ownerC = "cccccccc-0000-4000-8000-000000000000"
)

// grant is what acquire_lease answers: token 0 when somebody else holds the lease.
type grant struct {
	token     int64
	expiresIn time.Duration
}

const acquireSQL = "SELECT coalesce(token, 0), expires_in FROM fencing.acquire_lease('nightly', $1::text::uuid, $2::text::interval)"

func acquire(t *testing.T, q pgtest.Querier, owner, ttl string) grant {
	t.Helper()
	var g grant
	if err := q.QueryRow(t.Context(), acquireSQL, owner, ttl).Scan(&g.token, &g.expiresIn); err != nil {
		t.Fatal(err)
	}
	return g
}

func acquiring(conn *pgx.Conn, g *grant, owner, ttl string) func(context.Context) error {
	return func(ctx context.Context) error {
		return conn.QueryRow(ctx, acquireSQL, owner, ttl).Scan(&g.token, &g.expiresIn)
	}
}

// expire makes the lease as if its time had passed.
func expire(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Exec(t, pool, "UPDATE fencing.lease SET expires_at = clock_timestamp() - interval '1 second'")
}

func TestALeaseIsHeldByOneUntilItExpiresOrIsReleased(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	a := acquire(t, pool, ownerA, "1 hour")
	if a.token != 1 || a.expiresIn != time.Hour {
		t.Errorf("the first acquired %+v", a)
	}
	for _, owner := range []string{ownerB, ownerA} { // a grant is not re-entrant: its owner is random
		if b := acquire(t, pool, owner, "1 hour"); b.token != 0 || b.expiresIn <= 59*time.Minute || b.expiresIn > time.Hour {
			t.Errorf("while it is held: %+v", b)
		}
	}
	finds(t, pool, int64(2), "SELECT fencing.next_token()") // no token was wasted on those
	finds(t, pool, true, "SELECT owner = $1::text::uuid AND token = 1 AND acquired_at = renewed_at AND expires_at = renewed_at + interval '1 hour' FROM fencing.lease", ownerA)

	expire(t, pool)
	b := acquire(t, pool, ownerB, "1 hour")
	if b.token <= a.token {
		t.Errorf("after it expired: %+v", b)
	}
	finds(t, pool, true, "SELECT fencing.release_lease('nightly', $1::text::uuid, $2)", ownerB, b.token)
	if c := acquire(t, pool, ownerC, "1 hour"); c.token <= b.token {
		t.Errorf("after it was released: %+v", c)
	}
	for _, arguments := range []string{
		"'', gen_random_uuid(), '1s'", "NULL, gen_random_uuid(), '1s'", "repeat('x', 1025), gen_random_uuid(), '1s'",
		"'x', NULL, '1s'", "'x', gen_random_uuid(), NULL", "'x', gen_random_uuid(), '0s'", "'x', gen_random_uuid(), '-1s'",
	} {
		ends(t, try(t, pool, "SELECT fencing.acquire_lease("+arguments+")"), "22023")
	}
	for _, ttl := range []string{"NULL", "'0s'", "'-1s'"} {
		ends(t, try(t, pool, fmt.Sprintf("SELECT fencing.renew_lease('nightly', '%s', 3, %s)", ownerC, ttl)), "22023")
	}
}

func TestOnlyItsOwnGrantRenewsOrReleasesALease(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const (
		renew   = "SELECT fencing.renew_lease('nightly', $1::text::uuid, $2, '2 hours')"
		release = "SELECT fencing.release_lease('nightly', $1::text::uuid, $2)"
		held    = "SELECT expires_at > clock_timestamp() FROM fencing.lease"
	)
	old := acquire(t, pool, ownerA, "1 hour")
	expire(t, pool)
	// Expired and taken by nobody: it is lost all the same.
	finds(t, pool, false, renew, ownerA, old.token)
	now := acquire(t, pool, ownerB, "1 hour")
	for _, c := range []struct {
		owner string
		token int64
	}{{ownerA, old.token}, {ownerA, now.token}, {ownerB, old.token}, {ownerB, now.token + 1}} {
		finds(t, pool, false, renew, c.owner, c.token)
		finds(t, pool, false, release, c.owner, c.token) // the late release of an earlier grant
		finds(t, pool, true, held)
	}
	finds(t, pool, true, renew, ownerB, now.token)
	finds(t, pool, true, "SELECT expires_at > clock_timestamp() + interval '1 hour 59 minutes' AND renewed_at > acquired_at FROM fencing.lease")
	finds(t, pool, true, release, ownerB, now.token)
	finds(t, pool, false, held)
	finds(t, pool, false, renew, ownerB, now.token)
	finds(t, pool, now.token, "SELECT token FROM fencing.lease") // the row stays
	finds(t, pool, false, "SELECT fencing.renew_lease('no such', $1::text::uuid, 1, '1s') OR fencing.release_lease('no such', $1::text::uuid, 1)", ownerA)
}

// Two come to a lease that is free: the one that has the row gets it, the other sees that it is held; and whoever gets it
// later has the greater token, though it asked earlier.
func TestOfTwoAcquirersOneGetsTheLease(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		for _, ending := range []string{"COMMIT", "ROLLBACK"} {
			t.Run(fmt.Sprintf("the row is there %t, the first one's %s", known, ending), func(t *testing.T) {
				t.Parallel()
				atEachLevel(t, func(t *testing.T, level string) {
					pool := pgtest.New(t)
					nextToken(t, pool) // the first one of all notes the server's incarnation, and others wait for it
					if known {
						acquire(t, pool, ownerC, "1 hour")
						expire(t, pool)
					}
					first, second := begin(t, pool, level), begin(t, pool, level)
					a := acquire(t, first, ownerA, "1 hour")
					var b grant
					racing := pgtest.Call(t, second, acquiring(second, &b, ownerB, "1 hour")).Blocked()
					// Others draw tokens while it waits: the number that a waiter drew early would be older than these.
					drawn := nextToken(t, pool)
					pgtest.Exec(t, first, ending)
					err := racing.Wait()
					pgtest.Exec(t, second, "COMMIT")
					switch {
					case ending == "COMMIT" && level != "READ COMMITTED":
						ends(t, err, serializationFailed)
					case ending == "COMMIT":
						ends(t, err, accepted)
						if a.token == 0 || b.token != 0 || b.expiresIn <= 0 {
							t.Errorf("first %+v, second %+v", a, b)
						}
						finds(t, pool, true, "SELECT owner = $1::text::uuid AND token = $2 FROM fencing.lease", ownerA, a.token)
					default:
						ends(t, err, accepted)
						if b.token <= drawn {
							t.Errorf("the waiter's token %d is older than %d, drawn while it waited", b.token, drawn)
						}
						finds(t, pool, true, "SELECT owner = $1::text::uuid AND token = $2 FROM fencing.lease", ownerB, b.token)
					}
				})
			})
		}
	}
}

func TestTokensFollowTheOrderOfTheGrants(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	acquire(t, pool, ownerC, "1 hour")
	expire(t, pool)
	// A queue of acquirers, each of whom gives the lease back in the transaction that got it.
	holder := begin(t, pool, "READ COMMITTED")
	pgtest.Exec(t, holder, "SELECT FROM fencing.lease FOR UPDATE")
	pgtest.Exec(t, pool, "CREATE TABLE public.grants (n bigint GENERATED ALWAYS AS IDENTITY, token bigint)")
	var queue []*pgtest.Statement
	for range 6 {
		queue = append(queue, pgtest.Go(t, pgtest.Conn(t, pool), `DO $$ DECLARE o uuid := gen_random_uuid(); g bigint; BEGIN
			g := (SELECT token FROM fencing.acquire_lease('nightly', o, '1 hour'));
			INSERT INTO public.grants (token) VALUES (g);
			PERFORM fencing.release_lease('nightly', o, g); END $$`).Blocked())
	}
	pgtest.Exec(t, holder, "COMMIT")
	for _, q := range queue {
		ends(t, q.Wait(), accepted)
	}
	finds(t, pool, true, "SELECT count(token) = 6 AND bool_and(token > before) FROM (SELECT token, lag(token, 1, 0::bigint) OVER (ORDER BY n) AS before FROM public.grants) g")
}

func TestARenewalAndATakeoverExcludeEachOther(t *testing.T) {
	t.Parallel()
	const renew = "SELECT fencing.renew_lease('nightly', $1::text::uuid, $2, '1 hour')"
	t.Run("the takeover is first", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.New(t)
		a := acquire(t, pool, ownerA, "1 hour")
		expire(t, pool)
		taking := begin(t, pool, "READ COMMITTED")
		b := acquire(t, taking, ownerB, "1 hour")
		conn := pgtest.Conn(t, pool)
		var renewed bool
		renewing := pgtest.Call(t, conn, scanInto(conn, &renewed, renew, ownerA, a.token))
		pgtest.Exec(t, taking, "COMMIT")
		ends(t, renewing.Wait(), accepted)
		if renewed || b.token == 0 {
			t.Errorf("renewed %t, taken over with %+v", renewed, b)
		}
	})
	t.Run("the renewal is first", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.New(t)
		a := acquire(t, pool, ownerA, "1 hour")
		// The renewal has happened and not committed, while the lease as committed runs out.
		renewing := begin(t, pool, "READ COMMITTED")
		pgtest.Exec(t, pool, "UPDATE fencing.lease SET expires_at = clock_timestamp() + interval '1.5 seconds'")
		finds(t, renewing, true, renew, ownerA, a.token)
		pgtest.Exec(t, pool, "SELECT pg_sleep(extract(epoch FROM expires_at - clock_timestamp()) + 0.01) FROM fencing.lease")
		conn := pgtest.Conn(t, pool)
		var b grant
		taking := pgtest.Call(t, conn, acquiring(conn, &b, ownerB, "1 hour")).Blocked()
		pgtest.Exec(t, renewing, "COMMIT")
		ends(t, taking.Wait(), accepted)
		if b.token != 0 || b.expiresIn < 50*time.Minute {
			t.Errorf("taken over from a holder that had renewed: %+v", b)
		}
	})
}

// A poll of a held lease takes no lock, and writes nothing.
func TestAskingForAHeldLeaseWaitsForNobody(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	a := acquire(t, pool, ownerA, "1 hour")
	renewing := begin(t, pool, "READ COMMITTED")
	finds(t, renewing, true, "SELECT fencing.renew_lease('nightly', $1::text::uuid, $2, '2 hours')", ownerA, a.token)
	if b := acquire(t, pool, ownerB, "1 hour"); b.token != 0 || b.expiresIn > time.Hour {
		t.Errorf("%+v", b)
	}
	asking := begin(t, pool, "READ COMMITTED")
	acquire(t, asking, ownerB, "1 hour")
	finds(t, asking, true, "SELECT pg_current_xact_id_if_assigned() IS NULL")
}

// The procedures answer as the functions do, and give nobody a power that he does not have.
func TestALeaseIsAcquiredAndReleasedByCallToo(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const mine, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	acquire := func(owner string) (token, ms *int64) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), "CALL fencing.acquire_lease('jobs', '"+owner+"', 30000, NULL, NULL)").Scan(&token, &ms); err != nil {
			t.Fatal(err)
		}
		return token, ms
	}
	token, ms := acquire(mine)
	if token == nil || ms == nil || *ms != 30_000 {
		t.Fatalf("acquired: token %v, for %v ms", token, ms)
	}
	if held, left := acquire(other); held != nil || left == nil || *left <= 0 || *left > 30_000 {
		t.Errorf("held by another: token %v, for %v ms", held, left)
	}
	finds(t, pool, false, "CALL fencing.release_lease('jobs', $1, $2, NULL)", other, *token)
	finds(t, pool, true, "CALL fencing.release_lease('jobs', $1, $2, NULL)", mine, *token)
	if again, _ := acquire(other); again == nil || *again <= *token {
		t.Errorf("acquired after the release: token %v, after %d", again, *token)
	}

	role := pgtest.Role(t, pool).Pool
	ends(t, try(t, role, "CALL fencing.acquire_lease('other', '"+mine+"', 30000, NULL, NULL)"), noPrivilege)
	ends(t, try(t, role, "CALL fencing.release_lease('jobs', '"+other+"', 1, NULL)"), noPrivilege)
}
