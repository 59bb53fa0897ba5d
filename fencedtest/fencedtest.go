// Package fencedtest plays the published failures of lock-protected writes against a program's own write function, on a real
// PostgreSQL, and fails the program's test with the story when a stale write gets through:
//
//	func TestMarkRunningIsFenced(t *testing.T) {
//		fencedtest.Run(t, fencedtest.Config{
//			Pool:  pool, // a test database with the schema fencing and the protected table
//			Fence: "jobs/nightly",
//			Write: func(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error {
//				return jobs.NewRepository(pool).MarkRunning(ctx, grant, 1)
//			},
//		})
//	}
//
// A holder is paused for real: its connections run through a relay that holds its first write, or its COMMIT, on the wire while the
// lock passes to somebody else. The function under test needs no hooks for it.
package fencedtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fencedtest/internal/wirepause"
)

// Config says what is tried.
type Config struct {
	// Pool connects to the test database, as a role that may do what Write does, and claim. Required. Its connections must not be
	// encrypted: the relay reads along.
	Pool *pgxpool.Pool
	// Fence is the named fence that protects the table. Empty for a row fence, which does not need claims and protects less: see Run.
	Fence string

	// Write does the write under test, the same one each time, under the grant, with the given pool and no other. WriteSQL is the
	// same for database/sql. One of them is required. It must be possible to do it several times, under growing tokens.
	Write    func(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error
	WriteSQL func(ctx context.Context, db *sql.DB, grant fenced.Grant) error

	// Delete removes, under the grant, what Write writes. When given, a paused owner that inserts again what its successor has deleted
	// is tried too: Write must then insert what is missing.
	Delete func(ctx context.Context, pool *pgxpool.Pool, grant fenced.Grant) error

	// Applied counts the writes that show in the data: the counter that Write increments, the rows that it appends. When given, it
	// must go up by one with each Write that succeeded and by none with one that failed, so that a lost update is found.
	Applied func(ctx context.Context, pool *pgxpool.Pool) (int, error)

	// Token issues the tokens, each greater than the one before and than what the fence has stored. Default: fencing.next_token().
	Token func(ctx context.Context) (fenced.Token, error)
}

// patience is for what must happen but has no promised time.
const patience = 30 * time.Second

// Run plays the scenarios one after another:
//
//   - an owner that sleeps before its write, while its successor writes: refused with fenced.ErrStale;
//   - an owner that sleeps between its write and its COMMIT, while its successor claims, reads and writes: it commits before the
//     claim goes through, or not at all (named fences only; under a row fence the successor may have read too early);
//   - the same two, counted with Applied: no update is lost;
//   - an owner that sleeps before its write, while its successor deletes the row (with Delete): it does not come back.
//
// A failure is reported with Errorf and the story of who did what when.
func Run(t testing.TB, config Config) {
	t.Helper()
	switch {
	case config.Pool == nil:
		t.Fatalf("fencedtest: Config.Pool is required")
	case (config.Write == nil) == (config.WriteSQL == nil):
		t.Fatalf("fencedtest: one of Config.Write and Config.WriteSQL is required")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*patience)
	defer cancel()
	for _, scenario := range []struct {
		name string
		play func(context.Context, *play) error
	}{{"sleeping owner", sleepingOwner}, {"in-flight older writer", inFlight}, {"re-insert after delete", reinsert}} {
		p := &play{config: config, name: scenario.name}
		if err := p.begin(ctx); err != nil {
			t.Fatalf("fencedtest: %s: cannot start: %v", scenario.name, err)
		}
		err := scenario.play(ctx, p)
		p.end()
		switch {
		case errors.Is(err, errNotPlayed):
			t.Logf("fencedtest: %s: %v", scenario.name, err)
		case err != nil:
			t.Errorf("fencedtest: %s: %v\n%s", scenario.name, err, p.story())
		}
	}
}

// errNotPlayed: the scenario does not apply.
var errNotPlayed = errors.New("not played")

// A play is one scenario being played, and its story.
type play struct {
	config   Config
	name     string
	relay    *wirepause.Relay
	old, new *actor
	lines    []string
	counted  int // Applied at the beginning
	accepted int // writes that succeeded since
}

// An actor is a holder of the lock, with connections of its own.
type actor struct {
	name  string
	grant fenced.Grant
	pool  *pgxpool.Pool
}

func (p *play) tell(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

func (p *play) story() string {
	var b strings.Builder
	for i, line := range p.lines {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, line)
	}
	return b.String()
}

func (p *play) begin(ctx context.Context) error {
	connection := p.config.Pool.Config()
	network, address := pgconn.NetworkAddress(connection.ConnConfig.Host, connection.ConnConfig.Port)
	relay, err := wirepause.New(network, address)
	if err != nil {
		return err
	}
	p.relay = relay
	connection.ConnConfig.TLSConfig, connection.ConnConfig.Fallbacks = nil, nil
	connection.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", relay.Addr())
	}
	relayed, err := pgxpool.NewWithConfig(ctx, connection)
	if err != nil {
		relay.Close()
		return err
	}
	p.old, p.new = &actor{name: "the old owner", pool: relayed}, &actor{name: "the new owner", pool: p.config.Pool}
	if p.config.Applied != nil {
		if p.counted, err = p.config.Applied(ctx, p.config.Pool); err != nil {
			p.end()
			return err
		}
	}
	return nil
}

func (p *play) end() {
	p.relay.Close() // first: it may still hold what the pool waits for
	p.old.pool.Close()
}

// take gives an actor the lock: a new token, and the fence claimed for it.
func (p *play) take(ctx context.Context, a *actor) error {
	token, err := p.token(ctx)
	if err != nil {
		return fmt.Errorf("cannot draw a token: %w", err)
	}
	name := p.config.Fence
	if name == "" {
		name = "fencedtest" // a row fence has no name
	}
	a.grant = fenced.NewGrant(name, token)
	p.tell("%s gets the lock under token %v", a.name, token)
	return nil
}

func (p *play) token(ctx context.Context) (fenced.Token, error) {
	if p.config.Token != nil {
		return p.config.Token(ctx)
	}
	var token fenced.Token
	err := p.config.Pool.QueryRow(ctx, `SELECT fencing.next_token()`).Scan(&token)
	return token, err
}

func (p *play) claim(ctx context.Context, a *actor) error {
	if p.config.Fence == "" {
		return nil
	}
	if err := fenced.Claim(ctx, p.config.Pool, a.grant); err != nil {
		return fmt.Errorf("%s cannot claim the fence %q: %w", a.name, p.config.Fence, err)
	}
	p.tell("%s claims the fence %q", a.name, p.config.Fence)
	return nil
}

func (p *play) write(ctx context.Context, a *actor) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.config.Write != nil {
		return p.config.Write(ctx, a.pool, a.grant)
	}
	db := sql.OpenDB(fenced.Connector(stdlib.GetPoolConnector(a.pool)))
	defer db.Close()
	return p.config.WriteSQL(ctx, db, a.grant)
}

// start lets the actor write in the background, held at the point. It returns when the actor is held, or has finished without getting there.
func (p *play) start(ctx context.Context, a *actor, point wirepause.Point) (result <-chan error, held bool, err error) {
	reached := p.relay.Hold(point)
	done := make(chan error, 1)
	go func() { done <- p.write(ctx, a) }()
	select {
	case statement := <-reached:
		where := map[wirepause.Point]string{wirepause.Write: "before its write", wirepause.Commit: "before its COMMIT"}[point]
		p.tell("%s is paused %s: %s", a.name, where, shorten(statement))
		return done, true, nil
	case err := <-done:
		p.relay.Resume()
		done <- err
		return done, false, nil
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

func shorten(statement string) string {
	statement = strings.Join(strings.Fields(statement), " ")
	if len(statement) > 100 {
		statement = statement[:100] + "…"
	}
	return statement
}

// stale says what is wrong with the outcome of a write that had to be refused; nil when nothing is.
func (p *play) stale(a *actor, err error) error {
	var stale *fenced.StaleError
	switch {
	case err == nil:
		p.accepted++
		p.tell("%s wakes up and goes on: its write is ACCEPTED", a.name)
		return fmt.Errorf("a stale write got through. Is the table protected and enforced (SELECT * FROM fencing.protection), " +
			"does the write go through a path that presents the token, and is this the fence that it is protected by?")
	case errors.As(err, &stale) && stale.OwnWrite():
		return fmt.Errorf("the stale write was refused as a repetition of an own one; the tokens are not as they should be: %w", err)
	case errors.Is(err, fenced.ErrStale):
		p.tell("%s wakes up and goes on: refused, stale", a.name)
		return nil
	}
	p.tell("%s wakes up and goes on: %v", a.name, err)
	return fmt.Errorf("the stale write failed, but its caller cannot tell why: the error is not fenced.ErrStale (does the function hide it, or use %%v instead of %%w?): %w", err)
}

// check compares what shows in the data with what succeeded.
func (p *play) check(ctx context.Context) error {
	if p.config.Applied == nil {
		return nil
	}
	now, err := p.config.Applied(ctx, p.config.Pool)
	if err != nil {
		return fmt.Errorf("cannot count what was applied: %w", err)
	}
	if got := now - p.counted; got != p.accepted {
		p.tell("%d writes succeeded, %d show in the data", p.accepted, got)
		return errors.New("an update was lost, or one that failed was applied. Does the write read before it claims?")
	}
	return nil
}

func (p *play) succeed(ctx context.Context, a *actor) error {
	if err := p.write(ctx, a); err != nil {
		p.tell("%s writes: %v", a.name, err)
		return fmt.Errorf("%s holds the lock and cannot write: %w", a.name, err)
	}
	p.accepted++
	p.tell("%s writes and commits", a.name)
	return nil
}

func steps(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// begun gives the lock to the old owner and lets it write up to the point.
func (p *play) begun(ctx context.Context, point wirepause.Point) (result <-chan error, held bool, err error) {
	if err := p.take(ctx, p.old); err != nil {
		return nil, false, err
	}
	if err := p.claim(ctx, p.old); err != nil {
		return nil, false, err
	}
	return p.start(ctx, p.old, point)
}

func sleepingOwner(ctx context.Context, p *play) error {
	result, held, err := p.begun(ctx, wirepause.Write)
	if err != nil {
		return err
	}
	if !held {
		err := <-result
		return fmt.Errorf("the write function ended without sending a statement that writes; its error is %w", orNone(err))
	}
	return steps(
		func() error { return p.take(ctx, p.new) },
		func() error { return p.claim(ctx, p.new) },
		func() error { return p.succeed(ctx, p.new) },
		func() error {
			p.relay.Resume()
			return p.stale(p.old, <-result)
		},
		func() error { return p.check(ctx) },
	)
}

func orNone(err error) error {
	if err == nil {
		return errors.New("nil")
	}
	return err
}

// inFlight: the old owner has written and not committed. Either the claim waits for it, and it may commit; or it must not.
func inFlight(ctx context.Context, p *play) error {
	if p.config.Fence == "" {
		return fmt.Errorf("%w: under a row fence the new owner can read before the old one commits; a named fence prevents that", errNotPlayed)
	}
	result, held, err := p.begun(ctx, wirepause.Commit)
	if err != nil {
		return err
	}
	if !held {
		if err := <-result; err != nil {
			return fmt.Errorf("the owner of the lock cannot write: %w", err)
		}
		return fmt.Errorf("%w: the write is a single statement without a COMMIT", errNotPlayed)
	}
	if err := p.take(ctx, p.new); err != nil {
		return err
	}
	claim := make(chan error, 1)
	go func() { claim <- fenced.Claim(ctx, p.config.Pool, p.new.grant) }()
	waits, err := p.waits(ctx, claim)
	if err != nil {
		return err
	}
	if waits {
		p.tell("%s claims the fence %q and waits for the old owner's transaction", p.new.name, p.config.Fence)
		p.relay.Resume()
		switch err := <-result; err {
		case nil:
			p.accepted++
			p.tell("%s wakes up and commits, before the claim", p.old.name)
		default:
			p.tell("%s wakes up and fails: %v", p.old.name, err)
		}
	}
	if err := <-claim; err != nil {
		return fmt.Errorf("the claim fails: %w", err)
	}
	p.tell("the claim of %s has gone through", p.new.name)
	if !waits {
		// The new owner now reads and writes, or waits for a lock on a row, which is no protection: it has read already.
		wrote := make(chan error, 1)
		go func() { wrote <- p.write(ctx, p.new) }()
		blocked, err := p.waits(ctx, wrote)
		if err != nil {
			return err
		}
		if blocked {
			p.tell("%s has read, and its write waits for a lock on the row", p.new.name)
		}
		p.relay.Resume()
		if err := p.stale(p.old, <-result); err != nil {
			return fmt.Errorf("a transaction of an older token committed after a newer claim: %w", err)
		}
		if err := <-wrote; err != nil {
			return fmt.Errorf("%s holds the lock and cannot write: %w", p.new.name, err)
		}
		p.accepted++
		return p.check(ctx)
	}
	return steps(
		func() error { return p.succeed(ctx, p.new) },
		func() error { return p.check(ctx) },
	)
}

// waits returns whether the call waits for a lock in the server, or has ended.
func (p *play) waits(ctx context.Context, ended chan error) (bool, error) {
	const waiting = `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
		WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid() AND wait_event_type = 'Lock'
		  AND pg_catalog.cardinality(pg_catalog.pg_blocking_pids(pid)) > 0)`
	for ctx.Err() == nil {
		select {
		case err := <-ended:
			ended <- err
			return false, nil
		case <-time.After(20 * time.Millisecond):
		}
		var waits bool
		if err := p.config.Pool.QueryRow(ctx, waiting).Scan(&waits); err != nil || waits {
			return waits, err
		}
	}
	return false, context.Cause(ctx)
}

func reinsert(ctx context.Context, p *play) error {
	if p.config.Delete == nil {
		return fmt.Errorf("%w: Config.Delete is not given", errNotPlayed)
	}
	p.config.Applied = nil // a deletion takes its writes with it
	result, held, err := p.begun(ctx, wirepause.Write)
	if err != nil {
		return err
	}
	if !held {
		return fmt.Errorf("the write function ended without sending a statement that writes; its error is %w", orNone(<-result))
	}
	return steps(
		func() error { return p.take(ctx, p.new) },
		func() error { return p.claim(ctx, p.new) },
		func() error {
			if err := p.config.Delete(ctx, p.new.pool, p.new.grant); err != nil {
				return fmt.Errorf("%s holds the lock and cannot delete: %w", p.new.name, err)
			}
			p.tell("%s deletes the row and commits", p.new.name)
			return nil
		},
		func() error {
			p.relay.Resume()
			err := p.stale(p.old, <-result)
			if err != nil && p.config.Fence == "" {
				return fmt.Errorf("%w (a row fence goes with its row: where rows are deleted, use a named fence)", err)
			}
			return err
		},
	)
}
