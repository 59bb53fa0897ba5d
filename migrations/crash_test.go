package migrations_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// crashing is a server of the test's own, with the schema fencing, that is killed and comes back.
type crashing struct {
	t      *testing.T
	server *pgserver.Server
	pool   *pgxpool.Pool
}

func startCrashing(t *testing.T) *crashing {
	t.Helper()
	server, err := pgserver.Start(t.Context(), &pgserver.Options{Durable: true, Settings: map[string]string{
		// Nothing but a commit shall flush the WAL: what the background would flush by chance is what is to be shown.
		"wal_writer_delay": "10s", "bgwriter_delay": "10s", "checkpoint_timeout": "1h", "autovacuum": "off",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	c := &crashing{t: t, server: server}
	c.connect()
	up(t, c.pool)
	return c
}

func (c *crashing) connect() {
	c.t.Helper()
	pool, err := pgxpool.New(c.t.Context(), c.server.DSN("postgres"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(pool.Close)
	c.pool = pool
}

func (c *crashing) conn() *pgx.Conn {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.server.DSN("postgres"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(c.t.Context())) })
	return conn
}

// flushed writes everything out, and stops the processes that flush WAL on their own: from here on only commits do.
func (c *crashing) flushed() {
	c.t.Helper()
	pgtest.Exec(c.t, c.pool, "CHECKPOINT")
	for _, process := range []string{"walwriter", "background writer", "checkpointer"} {
		pid := pgtest.Value[int](c.t, c.pool, "SELECT pid FROM pg_stat_activity WHERE backend_type = $1", process)
		// A test that fails before the crash must not wait for a server that cannot shut down.
		c.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		// One that is stopped at work may hold a lock that every commit needs: it is stopped again until that finds it at rest.
		for atRest := false; !atRest; {
			for _, signal := range []syscall.Signal{syscall.SIGCONT, syscall.SIGSTOP} {
				if err := syscall.Kill(pid, signal); err != nil {
					c.t.Fatal(err)
				}
			}
			atRest = pgtest.Value[bool](c.t, c.pool, "SELECT wait_event_type IS NOT DISTINCT FROM 'Activity' FROM pg_stat_activity WHERE pid = $1", pid)
		}
	}
}

func (c *crashing) crash() {
	c.t.Helper()
	if err := c.server.Kill(); err != nil {
		c.t.Fatal(err)
	}
	c.pool.Close()
	if err := c.server.Restart(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.connect()
}

// P4. A session that commits asynchronously by its own choice still gets tokens, claims and leases that last.
var sessions = map[string]string{"synchronous": "on", "asynchronous": "off", "local": "local"}

// nextval logs 32 numbers ahead, so only the first drawer of a block writes a WAL record, and until it commits nobody
// flushes it: another session that draws the next number has nothing to flush when it commits.
func TestATokenThatWasAcknowledgedIsNeverIssuedAgainAfterACrash(t *testing.T) {
	t.Parallel()
	c := startCrashing(t)
	// The first token of all notes the server's incarnation, and others wait for it. Not what is to be shown here.
	issued := map[int64]bool{nextToken(t, c.pool): true}
	for name, mode := range sessions {
		pgtest.Exec(t, c.pool, "DROP SEQUENCE IF EXISTS public.plain; CREATE SEQUENCE public.plain")
		// Control: the number that was committed is issued again.
		c.flushed()
		first, second := c.conn(), c.conn()
		pgtest.Exec(t, first, "BEGIN; SELECT nextval('public.plain')")
		committed := pgtest.Value[int64](t, second, "SELECT nextval('public.plain')")
		c.crash()
		pgtest.Exec(t, c.pool, "SELECT nextval('public.plain')")
		if again := pgtest.Value[int64](t, c.pool, "SELECT nextval('public.plain')"); again != committed {
			t.Errorf("control: nextval gave %d after the crash, and %d before it: the crash lost nothing, so it proves nothing", again, committed)
		}

		c.flushed()
		first, second = c.conn(), c.conn()
		pgtest.Exec(t, second, "SET synchronous_commit = "+mode)
		pgtest.Exec(t, first, "BEGIN; SELECT fencing.next_token()")
		for range 3 {
			token := pgtest.Value[int64](t, second, "SELECT fencing.next_token()")
			if issued[token] {
				t.Errorf("%s: token %d was issued twice", name, token)
			}
			issued[token] = true
		}
		// And as part of a longer transaction.
		pgtest.Exec(t, second, "BEGIN")
		issued[nextToken(t, second)] = true
		pgtest.Exec(t, second, "COMMIT")
		c.crash()
		for range 5 {
			token := nextToken(t, c.pool)
			if issued[token] {
				t.Errorf("%s: token %d was issued again after the crash", name, token)
			}
			issued[token] = true
		}
		for token := range issued {
			if next := nextToken(t, c.pool); next <= token {
				t.Fatalf("%s: token %d after %d", name, next, token)
			}
		}
	}
}

func TestWhatWasAcknowledgedSurvivesACrash(t *testing.T) {
	t.Parallel()
	c := startCrashing(t)
	pgtest.Exec(t, c.pool, jobs+`CREATE TABLE public.plain (id int PRIMARY KEY, state text); INSERT INTO public.plain VALUES (1, 'new');
		SELECT fencing.protect('public.jobs')`)
	token := int64(100)
	for name, mode := range sessions {
		token++
		c.flushed()
		conn := c.conn()
		pgtest.Exec(t, conn, "SET synchronous_commit = "+mode)
		// Control: what such a session commits on its own is lost, if it chose so.
		pgtest.Exec(t, conn, fmt.Sprintf("UPDATE public.plain SET state = '%s'", name))
		if mode == "off" {
			c.crash()
			finds(t, c.pool, false, "SELECT state = $1 FROM public.plain", name)
			c.flushed()
			conn = c.conn()
			pgtest.Exec(t, conn, "SET synchronous_commit = "+mode)
		}

		fence := "fence of " + name
		claim(t, conn, fence, token)
		c.crash()
		finds(t, c.pool, token, "SELECT token FROM fencing.fence WHERE name = $1", fence)
		ends(t, try(t, c.pool, fmt.Sprintf("SELECT fencing.claim('%s', %d)", fence, token-1)), stale)

		c.flushed()
		conn = c.conn()
		pgtest.Exec(t, conn, "SET synchronous_commit = "+mode)
		granted := acquire(t, conn, ownerA, "1 hour")
		c.crash()
		finds(t, c.pool, granted.token, "SELECT token FROM fencing.lease WHERE owner = $1::text::uuid AND expires_at > now()", ownerA)

		c.flushed()
		conn = c.conn()
		pgtest.Exec(t, conn, "SET synchronous_commit = "+mode)
		finds(t, conn, true, "SELECT fencing.renew_lease('nightly', $1::text::uuid, $2, '10 hours')", ownerA, granted.token)
		c.crash()
		finds(t, c.pool, true, "SELECT expires_at > now() + interval '9 hours' FROM fencing.lease")
		expire(t, c.pool)

		if mode == "on" {
			c.flushed()
			pgtest.Exec(t, c.conn(), under(token, "UPDATE public.jobs SET state = 'acknowledged'"))
			c.crash()
			finds(t, c.pool, fmt.Sprint("acknowledged ", token), "SELECT min(state || ' ' || last_fencing_token) FROM public.jobs")
			ends(t, try(t, c.pool, under(token-1, "UPDATE public.jobs SET state = 'zombie'")), stale)
		}
	}
}

// Control: where the counter is not logged, a crash begins it again; hence token_seq is, and the audit looks.
func TestAnUnloggedSequenceStartsAgainAfterACrash(t *testing.T) {
	t.Parallel()
	if pgtest.ServerVersion(t) < 15 {
		t.Skip("unlogged sequences came with PostgreSQL 15")
	}
	c := startCrashing(t)
	pgtest.Exec(t, c.pool, "CREATE UNLOGGED SEQUENCE public.numbers; SELECT nextval('public.numbers') FROM generate_series(1, 40)")
	c.crash()
	finds(t, c.pool, int64(1), "SELECT nextval('public.numbers')")
}
