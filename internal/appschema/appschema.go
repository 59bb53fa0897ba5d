// Package appschema provides the application's schema as a database that can be asked: a database that is given, or a throwaway
// PostgreSQL server to which it applies the application's own migrations, so that a check runs in CI without a server.
//
// It owns where that database comes from, the order in which migrations are applied, how their files are read (goose, dbmate,
// sql-migrate, golang-migrate, Flyway, plain SQL, dumps), and errors that name the file and the line. It leaves what is asked of the
// database to its callers.
package appschema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/migrations"
)

// database is the name of the throwaway server's database.
const database = "application"

// closeTimeout bounds Close: a throwaway server that does not stop by then is killed.
const closeTimeout = 30 * time.Second

// Settings are a project's settings (the key schema of fencectl.yaml).
type Settings struct {
	// Migrations are directories, files and glob patterns, relative to the project's directory, applied in this order; within one of
	// them by name, numbers in names by their value.
	Migrations []string
	// Extensions are created before the migrations run: those that the application expects of its platform.
	Extensions []string
	// Roles are created before the migrations run, without privileges: those that the migrations grant something to.
	Roles []string
}

// Options say where the schema comes from.
type Options struct {
	// Settings are the project's.
	Settings Settings
	// Dir is the directory that Settings.Migrations are relative to. Default: the working directory.
	Dir string
	// DSN is a database that has the schema. When it is set the migrations are not looked at.
	DSN string
	// Getenv reads FENCECTL_DSN and DATABASE_URL, which are used when there is neither a DSN nor a migration. Default: none are set.
	Getenv func(string) string
	// Progress is told what is being done, where it takes a moment. Default: nobody is.
	Progress func(string)
	// Logger is the throwaway server's. Default: discarded.
	Logger *slog.Logger
}

// A Database is the application's schema. The caller closes it.
type Database struct {
	// Pool is connected to it.
	Pool *pgxpool.Pool
	// Name says what it is, for messages: "database jobs at db:5432", "a throwaway PostgreSQL 17 with 12 migration files".
	Name string
	// Files are the migrations that were applied, in this order; none for a database that was given.
	Files []string
	// Skipped are files among them that are no SQL, such as goose's migrations in Go: what they do is not in this schema.
	Skipped []string

	close []func(context.Context) error
}

// ErrNone: there is neither a database nor a migration.
var ErrNone = errors.New("neither a database nor migrations are given; name one with --dsn, or write into fencectl.yaml where your migrations are: schema: {migrations: [migrations]}")

// Open connects to the database that is given, or starts a server and applies the migrations. Whatever it fails with, or when ctx ends, nothing
// is left behind. The error is an *Error when it is about a migration, a *connect.Error when it is about a database that was given, and
// [ErrNone] when there is neither.
func Open(ctx context.Context, options *Options) (*Database, error) {
	if options == nil {
		options = &Options{}
	}
	getenv := options.Getenv
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	switch {
	case options.DSN != "":
		return given(ctx, connect.Options{DSN: options.DSN})
	case len(options.Settings.Migrations) > 0:
		return throwaway(ctx, options)
	case getenv("FENCECTL_DSN") != "" || getenv("DATABASE_URL") != "":
		return given(ctx, connect.Options{Getenv: getenv})
	}
	return nil, ErrNone
}

func given(ctx context.Context, options connect.Options) (*Database, error) {
	options.Installed = true
	server, err := connect.Open(ctx, &options)
	if err != nil {
		return nil, err
	}
	d := &Database{Pool: server.Pool, Name: fmt.Sprintf("database %s at %s", server.Database, server.Address)}
	d.later(func(context.Context) error { server.Close(); return nil })
	return d, nil
}

func throwaway(ctx context.Context, options *Options) (_ *Database, err error) {
	files, skipped, err := Files(options.Dir, options.Settings.Migrations)
	if err != nil {
		return nil, err
	}
	scripts := make([]*script, len(files))
	for i, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		// Before the server is started: what cannot be read is said at once.
		if scripts[i], err = parse(file, string(content)); err != nil {
			return nil, err
		}
	}

	d := &Database{Files: files, Skipped: skipped}
	defer func() {
		if err == nil {
			return
		}
		err = errors.Join(err, d.Close(ctx))
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	progress := options.Progress
	if progress == nil {
		progress = func(string) {}
	}
	progress("starting PostgreSQL")
	server, err := pgserver.Start(ctx, &pgserver.Options{
		Logger: options.Logger, Preload: []string{"pg_stat_statements", "auto_explain"}, // those that migrations create or set up
	})
	if err != nil {
		return nil, err
	}
	d.later(server.Stop)
	d.Name = fmt.Sprintf("a throwaway PostgreSQL %d with %s", server.Version(), counted(len(files)))

	if err := create(ctx, server.DSN("postgres")); err != nil {
		return nil, err
	}
	opened, err := connect.Open(ctx, &connect.Options{DSN: server.DSN(database), Write: true})
	if err != nil {
		return nil, err
	}
	d.Pool = opened.Pool
	d.later(func(context.Context) error { opened.Close(); return nil })

	if !slices.ContainsFunc(scripts, func(s *script) bool { return bringsFencing.MatchString(s.text) }) {
		if _, err := migrations.Up(ctx, d.Pool, nil); err != nil {
			return nil, err
		}
	}
	if err := d.apply(ctx, options.Settings, scripts, progress); err != nil {
		return nil, err
	}
	return d, nil
}

// bringsFencing recognises the SQL layer among the application's own migrations, as "fencectl install --emit" writes it and as a dump has it.
var bringsFencing = regexp.MustCompile(`(?i)\bcreate\s+(or\s+replace\s+)?function\s+"?fencing"?\."?present"?\s*\(`)

func create(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+database)
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// apply runs the migrations on one connection.
func (d *Database) apply(ctx context.Context, settings Settings, scripts []*script, progress func(string)) error {
	pooled, err := d.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release()
	conn := pooled.Conn()
	for _, role := range settings.Roles {
		if _, err := conn.Exec(ctx, "CREATE ROLE "+pgx.Identifier{role}.Sanitize()); err != nil {
			return fmt.Errorf("schema.roles: %w", err)
		}
	}
	for _, extension := range settings.Extensions {
		if _, err := conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS "+pgx.Identifier{extension}.Sanitize()+" CASCADE"); err != nil {
			return fmt.Errorf("schema.extensions: %w", hinted(err))
		}
	}
	for i, s := range scripts {
		progress(fmt.Sprintf("applying migration %d of %d", i+1, len(scripts)))
		if err := s.run(ctx, conn.PgConn()); err != nil {
			return err
		}
		// What a file sets for its session is its own business: a dump empties the search_path.
		if _, err := conn.PgConn().Exec(ctx, "DISCARD ALL").ReadAll(); err != nil {
			return fmt.Errorf("after %s: %w", s.file, err)
		}
	}
	return nil
}

func (d *Database) later(f func(context.Context) error) { d.close = append(d.close, f) }

// Close closes the pool, and stops the throwaway server and removes its files, also when ctx has ended. Closing twice is no error.
func (d *Database) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	var errs []error
	for _, f := range slices.Backward(d.close) {
		errs = append(errs, f(ctx))
	}
	d.close = nil
	return errors.Join(errs...)
}

func counted(files int) string {
	if files == 1 {
		return "1 migration file"
	}
	return fmt.Sprintf("%d migration files", files)
}

// hinted adds what to do about an error that has to do with this server being another one than the application's.
func hinted(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return err
	}
	next := next(refused)
	if next == "" {
		return err
	}
	return fmt.Errorf("%s (SQLSTATE %s); %s", refused.Message, refused.Code, next)
}

func next(refused *pgconn.PgError) string {
	switch refused.Code {
	case "0A000", "58P01", "22023": // feature_not_supported, undefined_file
		if extensionMissing.MatchString(refused.Message) {
			return "install the extension beside the server's binaries, choose other binaries with " + pgserver.BinDirVariable + ", or use a database that has it with --dsn"
		}
	case "42704": // undefined_object
		if name := roleMissing.FindStringSubmatch(refused.Message); name != nil {
			return fmt.Sprintf("where the role comes from elsewhere, name it in fencectl.yaml: schema: {roles: [%s]}", name[1])
		}
		if typeMissing.MatchString(refused.Message) {
			return "where the type comes from an extension of your platform, name that in fencectl.yaml: schema: {extensions: [...]}"
		}
	case "42883": // undefined_function
		return "where the function comes from an extension of your platform, name that in fencectl.yaml: schema: {extensions: [...]}"
	}
	return refused.Hint
}

var (
	extensionMissing = regexp.MustCompile(`extension (control file|".*" is not available)`)
	roleMissing      = regexp.MustCompile(`^role "(.*)" does not exist$`)
	typeMissing      = regexp.MustCompile(`^type ".*" does not exist$`)
)
