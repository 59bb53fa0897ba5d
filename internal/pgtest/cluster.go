package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
)

// dsnVariable names the environment variable with the address of an existing server to test on.
const dsnVariable = "FENCECTL_TEST_DSN"

// Every database is named after what keeps it alive, so that those of killed processes can be told from those in use, on
// a server that several test processes share: the 16 hexadecimal digits are the key of an advisory lock that every process
// that needs the database holds, shared, on its keeper connection.
const (
	databasePrefix = "fencectl_test_"     // then the process's key, "_" and a number
	templatePrefix = "fencectl_template_" // then the key that is the hash of the migrations
)

var ownName = regexp.MustCompile(`^(?:` + databasePrefix + `|` + templatePrefix + `)([0-9a-f]{16})(?:_[0-9]+|_new)?$`)

// cluster is the server that all tests of this process share.
type cluster struct {
	address  string        // a DSN of the maintenance database
	admin    *pgxpool.Pool // on the maintenance database
	keeper   *pgx.Conn     // holds the advisory locks for the life of the process
	major    int
	run      int64 // this process's key
	last     atomic.Int64
	template func() (string, error) // the name of the migrated template, made at the first call
}

// connectOnce is the one cluster of this process.
var connectOnce = sync.OnceValues(connect)

func start(t testing.TB) *cluster {
	t.Helper()
	c, err := connectOnce()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return c
}

// connect starts a server, or connects to the one that the environment names. Nothing stops the server it starts: the
// process that runs tests has no last line of code that is sure to run, and pgserver's watchdog needs none.
func connect() (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c := &cluster{address: os.Getenv(dsnVariable)}
	own := c.address == ""
	if own {
		server, err := pgserver.Start(ctx, &pgserver.Options{
			Settings: map[string]string{
				"max_connections": "400",
				"track_functions": "all",
				// Tests of the audit read statistics and catalogs: nothing may change them behind a test's back.
				"autovacuum": "off",
				// Compiling a query takes longer than any query here, and comes at unexpected moments.
				"jit": "off",
				// A test that provokes a deadlock waits this long; it is also no longer than a test's other waits.
				"deadlock_timeout":          "100ms",
				"max_prepared_transactions": "20",
			},
			Preload: []string{"pg_stat_statements"},
		})
		if err != nil {
			return nil, err
		}
		c.address = server.DSN("postgres")
	}
	config, err := pgxpool.ParseConfig(c.address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dsnVariable, err)
	}
	config.MaxConns = 8
	if c.admin, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if c.keeper, err = pgx.ConnectConfig(ctx, config.ConnConfig); err != nil {
		return nil, err
	}
	var version int
	if err := c.admin.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return nil, fmt.Errorf("the server's version: %w", err)
	}
	if c.major = version / 10000; c.major < pgserver.OldestMajor {
		return nil, fmt.Errorf("the server is PostgreSQL %d: %d or later is needed", c.major, pgserver.OldestMajor)
	}

	var random [8]byte
	rand.Read(random[:]) // never fails
	c.run = int64(binary.BigEndian.Uint64(random[:]))
	if err := c.keep(ctx, c.run); err != nil {
		return nil, err
	}
	if !own {
		if err := c.dropAbandoned(ctx); err != nil {
			return nil, err
		}
	}
	c.template = sync.OnceValues(c.makeTemplate)
	return c, nil
}

// keep takes a key's lock until this process ends.
func (c *cluster) keep(ctx context.Context, key int64) error {
	if _, err := c.keeper.Exec(ctx, "SELECT pg_advisory_lock_shared($1)", key); err != nil {
		return fmt.Errorf("locking the databases of this process: %w", err)
	}
	return nil
}

// dropAbandoned drops the databases that no running process needs: those of killed test processes, and templates of other
// migrations.
func (c *cluster) dropAbandoned(ctx context.Context) error {
	rows, err := c.admin.Query(ctx, "SELECT datname::text FROM pg_catalog.pg_database")
	if err != nil {
		return fmt.Errorf("listing databases: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("listing databases: %w", err)
	}
	templateKey, err := migrationsKey()
	if err != nil {
		return err
	}
	for _, name := range names {
		match := ownName.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		key, err := parseKey(match[1])
		if err != nil {
			return err
		}
		if key == templateKey {
			continue
		}
		var free bool
		// On the keeper connection too our own lock would not stand in the way, but our own databases do not exist yet.
		if err := c.keeper.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", key).Scan(&free); err != nil {
			return fmt.Errorf("looking after %s: %w", name, err)
		}
		if !free {
			continue
		}
		err = c.drop(ctx, name, nil)
		if _, unlockErr := c.keeper.Exec(ctx, "SELECT pg_advisory_unlock($1)", key); err == nil {
			err = unlockErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeTemplate migrates the template, unless another process has. It is built under another name, so that a template
// under its final name is always complete.
func (c *cluster) makeTemplate() (_ string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	key, err := migrationsKey()
	if err != nil {
		return "", err
	}
	name := templatePrefix + formatKey(key)
	building := name + "_new"

	// One process builds, the others wait for it. The builders' key differs from the one that keeps the template alive.
	builder, err := c.admin.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer builder.Release()
	if _, err := builder.Exec(ctx, "SELECT pg_advisory_lock($1)", ^key); err != nil {
		return "", fmt.Errorf("waiting to build the template: %w", err)
	}
	defer func() {
		_, unlockErr := builder.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", ^key)
		err = errors.Join(err, unlockErr)
	}()
	if err := c.keep(ctx, key); err != nil {
		return "", err
	}
	var exists bool
	if err := builder.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = $1)", name).Scan(&exists); err != nil {
		return "", fmt.Errorf("looking for the template: %w", err)
	}
	if exists {
		return name, nil
	}

	if err := c.drop(ctx, building, nil); err != nil {
		return "", err
	}
	if err := c.create(ctx, building, "template1"); err != nil {
		return "", err
	}
	dsn, err := c.dsn(building)
	if err != nil {
		return "", err
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return "", err
	}
	err = migrate(ctx, pool)
	pool.Close()
	if err != nil {
		return "", fmt.Errorf("migrating the template: %w", err)
	}
	// A template that admits no connections: one open session would make every CREATE DATABASE from it fail.
	for _, sql := range []string{
		fmt.Sprintf("ALTER DATABASE %s WITH IS_TEMPLATE true ALLOW_CONNECTIONS false", building),
		fmt.Sprintf("ALTER DATABASE %s RENAME TO %s", building, name),
	} {
		if _, err := builder.Exec(ctx, sql); err != nil {
			return "", fmt.Errorf("finishing the template: %w", err)
		}
	}
	return name, nil
}

// newName is a name for another database of this process.
func (c *cluster) newName() string {
	return fmt.Sprintf("%s%s_%d", databasePrefix, formatKey(c.run), c.last.Add(1))
}

// create makes a database whose sessions have an empty search_path. A template's own setting of it is not cloned.
func (c *cluster) create(ctx context.Context, name, template string) error {
	if _, err := c.admin.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, template)); err != nil {
		return fmt.Errorf("creating a database: %w", err)
	}
	if _, err := c.admin.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s SET search_path = ''", name)); err != nil {
		return fmt.Errorf("creating a database: %w", err)
	}
	return nil
}

// drop removes a database, whoever is connected, and the roles. Neither need exist.
func (c *cluster) drop(ctx context.Context, name string, roles []string) error {
	var isTemplate bool
	err := c.admin.QueryRow(ctx, "SELECT datistemplate FROM pg_catalog.pg_database WHERE datname = $1", name).Scan(&isTemplate)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("dropping %s: %w", name, err)
	}
	statements := []string{fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", name)}
	if isTemplate {
		statements = append([]string{fmt.Sprintf("ALTER DATABASE %s WITH IS_TEMPLATE false", name)}, statements...)
	}
	for _, role := range roles {
		statements = append(statements, "DROP ROLE IF EXISTS "+role)
	}
	for _, sql := range statements {
		if _, err := c.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// dsn is the address of a database of this server.
func (c *cluster) dsn(database string) (string, error) {
	if !isURL(c.address) {
		return c.address + " dbname=" + database, nil // the last one of a keyword wins
	}
	u, err := url.Parse(c.address)
	if err != nil {
		return "", fmt.Errorf("%s is not a valid address", dsnVariable) // the error would show the password
	}
	u.Path = "/" + database
	return u.String(), nil
}

// withUser is the address with another role to connect as.
func withUser(dsn, name, password string) (string, error) {
	if !isURL(dsn) {
		return fmt.Sprintf("%s user=%s password=%s", dsn, name, password), nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("the address of the test database is not valid")
	}
	u.User = url.UserPassword(name, password)
	return u.String(), nil
}

func isURL(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

func formatKey(key int64) string {
	return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(key)))
}

func parseKey(digits string) (int64, error) {
	b, err := hex.DecodeString(digits)
	if err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// poll calls f every few milliseconds until it returns true, or an error, or the context ends.
func poll(ctx context.Context, f func() (bool, error)) error {
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		done, err := f()
		if done || err != nil {
			tick.Stop()
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return context.Cause(ctx)
		}
	}
}
