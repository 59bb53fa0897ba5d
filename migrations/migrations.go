// Package migrations owns the SQL layer: the schema fencing, as goose migrations.
//
// The migrations are plain PostgreSQL and need no superuser, no extension and no role of their own.
// [Up] applies them with goose's own bookkeeping inside the schema (fencing.goose_db_version), apart
// from whatever migration tool the application uses; [FS] has the files for those who would rather
// carry them in their own migrations ("fencectl install --emit").
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migrations as goose SQL files, in the order of their names.
//
//go:embed *.sql
var FS embed.FS

const (
	// Schema is the schema that holds everything.
	Schema = "fencing"
	// VersionTable is goose's table of applied migrations, always qualified.
	VersionTable = Schema + ".goose_db_version"
	// LockTable is goose's table that stands in for a session lock behind a pooler in transaction mode.
	LockTable = Schema + ".goose_lock"
	// MinServerVersion is the oldest PostgreSQL that is supported, as server_version_num counts.
	MinServerVersion = 140000

	// lockID is the advisory lock under which migrations run. It is ours alone: goose's default is
	// shared with every other user of goose in the database, who would then wait for us.
	lockID int64 = 0x66656e6374_6c // "fenctl"
)

// Options are the settings of [Up]. The zero value, and nil, are the defaults.
type Options struct {
	// Logger receives one line per applied migration. Default: none.
	Logger *slog.Logger
	// TransactionPooler says that connections go through a pooler in transaction mode (PgBouncer),
	// where a session-level advisory lock is not held: a table is used as the lock instead.
	// Default: false.
	TransactionPooler bool
}

// Applied is one migration that was run.
type Applied struct {
	Version  int64         // the file's number
	Name     string        // the file's name
	Duration time.Duration // how long it took
}

// Result says what [Up] did.
type Result struct {
	// Applied are the migrations that were run, in order; empty when the schema was up to date.
	Applied []Applied
	// Version is the schema's migration afterwards. 0 when External.
	Version int64
	// External is true when the schema was installed by the application's own migrations: they are
	// the ones that keep it up to date, and Up has changed nothing.
	External bool
}

// ServerTooOldError is returned for a PostgreSQL older than [MinServerVersion].
type ServerTooOldError struct {
	Version int // server_version_num, for instance 130012
}

func (e *ServerTooOldError) Error() string {
	return fmt.Sprintf("PostgreSQL %d is too old: fencing needs %d or later", e.Version/10000, MinServerVersion/10000)
}

// ErrStandby is returned for a server in recovery: it takes no writes.
var ErrStandby = errors.New("the server is a standby and takes no writes: connect to the primary")

// NewerError is returned when the database has migrations that this build does not know.
type NewerError struct {
	Database, Known int64
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("the schema %s is at migration %d, newer than the %d this build knows: use a newer fencectl",
		Schema, e.Database, e.Known)
}

// Latest is the number of the newest migration in this build.
func Latest() int64 {
	names := Files()
	version, err := goose.NumericComponent(names[len(names)-1])
	if err != nil {
		panic(err) // the file names are part of the build
	}
	return version
}

// Files lists the migrations' file names, oldest first.
func Files() []string {
	names, err := fs.Glob(FS, "*.sql")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	slices.Sort(names)
	return names
}

// Sections returns the statements of one migration file, without goose's annotations: what installs,
// and what takes it back.
func Sections(name string) (up, down string, err error) {
	content, err := FS.ReadFile(name)
	if err != nil {
		return "", "", err
	}
	section := &up
	var out [2]strings.Builder
	which := 0
	for line := range strings.Lines(string(content)) {
		switch strings.TrimSpace(line) {
		case "-- +goose Up":
			continue
		case "-- +goose Down":
			which = 1
			continue
		case "-- +goose StatementBegin", "-- +goose StatementEnd":
			continue
		}
		out[which].WriteString(line)
	}
	*section = strings.TrimSpace(out[0].String()) + "\n"
	return up, strings.TrimSpace(out[1].String()) + "\n", nil
}

// Up installs the schema fencing, or brings it up to date. It is safe to call at every start of an
// application, by several of its instances at once.
//
// Each migration is a transaction of its own: an interruption leaves the schema at one of its
// versions, and the next Up goes on from there. The role needs CREATE on the database for the first
// one, and to own the schema afterwards. It does not close the pool.
func Up(ctx context.Context, pool *pgxpool.Pool, options *Options) (*Result, error) {
	if options == nil {
		options = &Options{}
	}
	external, err := prepare(ctx, pool)
	if err != nil {
		return nil, err
	}
	if external {
		return &Result{External: true}, nil
	}

	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() // closes the adapter, not the pool
	provider, err := newProvider(db, options)
	if err != nil {
		return nil, err
	}
	current, err := provider.GetDBVersion(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", VersionTable, err)
	}
	if latest := Latest(); current > latest {
		return nil, &NewerError{Database: current, Known: latest}
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("install schema %s: %w", Schema, err)
	}
	result := &Result{Version: current}
	for _, r := range results {
		result.Applied = append(result.Applied, Applied{Version: r.Source.Version, Name: r.Source.Path, Duration: r.Duration})
		result.Version = r.Source.Version
	}
	return result, nil
}

// Down removes the schema fencing with all that is in it: the fences, the logs, and the token
// sequence. It is one transaction, and fails without having changed anything while a table is still
// protected (PostgreSQL's dependencies see to that).
//
// Tokens start from 1 again after a later Up. Columns last_fencing_token that were left on tables
// still hold the old ones, and would refuse them.
func Down(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// What is not there need not be mentioned.
		if _, err := tx.Exec(ctx, "SET LOCAL client_min_messages = warning"); err != nil {
			return err
		}
		names := Files()
		slices.Reverse(names)
		for _, name := range names {
			_, down, err := Sections(name)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, down, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("take back %s: %w", name, err)
			}
		}
		for _, statement := range []string{
			"DROP TABLE IF EXISTS " + VersionTable + ", " + LockTable,
			"DROP SCHEMA " + Schema,
		} {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
}

func newProvider(db *sql.DB, options *Options) (*goose.Provider, error) {
	opts := []goose.ProviderOption{
		goose.WithTableName(VersionTable),
		// The application may have registered Go migrations of its own with goose's globals.
		goose.WithDisableGlobalRegistry(true),
	}
	if options.Logger != nil {
		opts = append(opts, goose.WithSlog(options.Logger), goose.WithVerbose(true))
	}
	if options.TransactionPooler {
		locker, err := lock.NewPostgresTableLocker(lock.WithTableName(LockTable), lock.WithTableLockID(lockID))
		if err != nil {
			return nil, err
		}
		opts = append(opts, goose.WithLocker(locker))
	} else {
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID))
		if err != nil {
			return nil, err
		}
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	return goose.NewProvider(goose.DialectPostgres, db, FS, opts...)
}

// prepare checks the server and makes the schema, which goose's version table needs to be there.
func prepare(ctx context.Context, pool *pgxpool.Pool) (external bool, err error) {
	var (
		version                       int
		standby, exists, ours, theirs bool
	)
	err = pool.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
		       to_regnamespace('fencing') IS NOT NULL,
		       to_regclass('fencing.goose_db_version') IS NOT NULL,
		       to_regprocedure('fencing.version()') IS NOT NULL`,
	).Scan(&version, &standby, &exists, &ours, &theirs)
	switch {
	case err != nil:
		return false, err
	case version < MinServerVersion:
		return false, &ServerTooOldError{Version: version}
	case standby:
		return false, ErrStandby
	case theirs && !ours:
		return true, nil
	case exists:
		return false, nil
	}
	_, err = pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+Schema)
	// IF NOT EXISTS does not protect from a concurrent CREATE: the loser gets one of these.
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "23505" || pgErr.Code == "42P06") {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("create schema %s: %w", Schema, err)
	}
	return false, nil
}
