// Package pgtest gives every test a PostgreSQL database of its own, on a real server, ready in some ten milliseconds.
//
// It owns the test server, the databases and roles in it, and the means to force an interleaving of sessions without a
// sleep. One server is started, at the first use, for each test process (see internal/pgserver), and ends with the
// process, however that ends. The schema fencing is migrated once, into a template that every New clones, so tests may
// run in parallel, repeatedly and under the race detector.
//
// Two environment variables change where the server comes from: FENCECTL_PG_BIN names the directory of other binaries,
// FENCECTL_TEST_DSN an existing server, on which a superuser may create and drop databases named fencectl_….
//
// Every session has an empty search_path, whoever opens it: a name that is not qualified fails, as it would for a user
// whose search_path is not the author's.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// timeout bounds every single thing that this package waits for. It is far beyond what any of them takes on a busy
// machine: reaching it is a failure, not a matter of speed.
const timeout = 60 * time.Second

// Option changes the pool that New and NewEmpty return.
type Option func(*pgxpool.Config)

// MaxConns sets the most connections that the pool opens. Default: 10.
func MaxConns(n int32) Option {
	return func(c *pgxpool.Config) { c.MaxConns = n }
}

// Param sets a server parameter in every connection of the pool, such as application_name.
func Param(name, value string) Option {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

// Configure gives the pool's whole configuration to f: for tracers and hooks.
func Configure(f func(*pgxpool.Config)) Option { return f }

// New returns a pool, connected as a superuser, on a fresh database with the schema fencing installed. The pool is closed
// and the database dropped when the test ends. A test that cannot have it fails.
func New(t testing.TB, opts ...Option) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := setupContext(t)
	defer cancel()
	c := start(t)
	template, err := c.template()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return c.open(ctx, t, template, opts)
}

// NewEmpty is New without the schema fencing: the database holds nothing at all.
func NewEmpty(t testing.TB, opts ...Option) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := setupContext(t)
	defer cancel()
	return start(t).open(ctx, t, "template1", opts)
}

// Conn opens a session of its own beside the pool's, on the same database as the same role. It is closed when the test
// ends.
func Conn(t testing.TB, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	ctx, cancel := setupContext(t)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		t.Fatalf("pgtest: another session: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		_ = conn.Close(ctx) // the server may have ended the session: that can be what the test is about
	})
	return conn
}

// DSN is the address of the pool's database, for programs and drivers that connect on their own, as the pool's role.
func DSN(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pool.Config().ConnString()
}

// LoginRole is a role that Role created.
type LoginRole struct {
	Name string        // needs no quoting
	DSN  string        // connects to the test's database as this role
	Pool *pgxpool.Pool // connected as this role; closed when the test ends
}

// Role creates a role that may log in and nothing else, then grants it what is given: each grant is what stands between
// GRANT and TO, such as "SELECT, UPDATE ON public.jobs", or the name of another role. The role is dropped with the
// database.
func Role(t testing.TB, pool *pgxpool.Pool, grants ...string) *LoginRole {
	t.Helper()
	ctx, cancel := setupContext(t)
	defer cancel()
	db := databaseOf(t, pool)

	role := &LoginRole{Name: "fencectl_role_" + strings.ToLower(rand.Text())}
	password := rand.Text()
	if _, err := pool.Exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", role.Name, password)); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	db.roles = append(db.roles, role.Name)
	for _, grant := range grants {
		if _, err := pool.Exec(ctx, fmt.Sprintf("GRANT %s TO %s", grant, role.Name)); err != nil {
			t.Fatalf("pgtest: GRANT %s: %v", grant, err)
		}
	}
	var err error
	if role.DSN, err = withUser(DSN(t, pool), role.Name, password); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config, err := pgxpool.ParseConfig(role.DSN)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = defaultMaxConns
	if role.Pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { closePool(t, role.Pool) })
	return role
}

// ServerVersion is the major version of the test server: 14, 15, …
func ServerVersion(t testing.TB) int {
	t.Helper()
	return start(t).major
}

// SQLState is the SQLSTATE of the server's error in err's chain, whatever driver it came through; "" without one.
func SQLState(err error) string {
	var coded interface {
		error
		SQLState() string
	}
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Exec runs a statement that must succeed. Without arguments it may be several statements.
func Exec(t testing.TB, q Querier, sql string, args ...any) pgconn.CommandTag {
	t.Helper()
	tag, err := q.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("pgtest: %v\n%s", describe(err), sql)
	}
	return tag
}

// Value runs a query that must succeed and return a row, and returns the row's single column.
func Value[T any](t testing.TB, q Querier, sql string, args ...any) T {
	t.Helper()
	var value T
	if err := q.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("pgtest: %v\n%s", describe(err), sql)
	}
	return value
}

// describe adds to a server's error the fields that its text leaves out.
func describe(err error) string {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err.Error()
	}
	text := err.Error()
	for _, field := range []struct{ name, value string }{{"DETAIL", pgErr.Detail}, {"HINT", pgErr.Hint}, {"CONTEXT", pgErr.Where}} {
		if field.value != "" {
			text += "\n" + field.name + ": " + field.value
		}
	}
	return text
}

// database is one test's database.
type database struct {
	cluster *cluster
	name    string
	roles   []string // to be dropped after it: what they own and were granted goes with the database
}

// databases finds the database of a pool that New or NewEmpty returned, for as long as its test runs.
var databases sync.Map // of *pgxpool.Pool to *database

func databaseOf(t testing.TB, pool *pgxpool.Pool) *database {
	t.Helper()
	db, ok := databases.Load(pool)
	if !ok {
		t.Fatal("pgtest: this pool was not made by New or NewEmpty in a running test")
	}
	return db.(*database)
}

const defaultMaxConns = 10

// open creates a database from a template and connects a pool to it.
func (c *cluster) open(ctx context.Context, t testing.TB, template string, opts []Option) *pgxpool.Pool {
	t.Helper()
	db := &database{cluster: c, name: c.newName()}
	if err := c.create(ctx, db.name, template); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		if err := c.drop(ctx, db.name, db.roles); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})

	dsn, err := c.dsn(db.name)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = defaultMaxConns
	for _, opt := range opts {
		opt(config)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	databases.Store(pool, db)
	t.Cleanup(func() {
		databases.Delete(pool)
		closePool(t, pool)
	})
	return pool
}

// closePool closes a pool at the end of a test. A connection that was never given back would make Close wait for ever, so
// it is a failure of its own; a test that has failed already may well have left one.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	const patience = 5 * time.Second
	select {
	case <-closed:
	case <-time.After(patience):
		if !t.Failed() {
			t.Errorf("pgtest: %d connections were not given back to the pool when the test ended", pool.Stat().AcquiredConns())
		}
	}
}

// setupContext ends with the test, or when something takes far too long.
func setupContext(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), timeout)
}

// cleanupContext is for what runs after the test's own context has ended.
func cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), timeout)
}
