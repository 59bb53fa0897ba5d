// Command sqletcd is the worker pool of ../worker on database/sql, with its locks in etcd.
//
// See README.md for what to try with it.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/fencectl/fencectl/examples/sqletcd/jobdb"
	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/migrations"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

//go:generate go run ../../cmd/fencectl generate

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sqletcd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, output io.Writer) error {
	flags := flag.NewFlagSet("sqletcd", flag.ExitOnError)
	flags.SetOutput(output)
	dsn := flags.String("dsn", "", "`address` of the database (default $DATABASE_URL)")
	endpoints := flags.String("etcd", "127.0.0.1:2379", "`addresses` of etcd's members, with commas between them")
	workers := flags.Int("workers", 2, "how many workers")
	enqueue := flags.Int("enqueue", 0, "how many jobs to enqueue first")
	pages := flags.Int("pages", 20, "how many pages each of them has")
	page := flags.Duration("page", 500*time.Millisecond, "how long a page takes")
	ttl := flags.Duration("ttl", 5*time.Second, "how long the lock of a worker that is gone is kept")
	if err := flags.Parse(args); err != nil {
		return err
	}

	pool, err := pgxpool.New(ctx, cmp.Or(*dsn, os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	defer pool.Close()
	db := open(pool)
	defer db.Close()
	if err := migrate(ctx, pool, db); err != nil {
		return err
	}
	for range *enqueue {
		job := jobdb.EnqueueParams{Customer: "ACME", Pages: int32(*pages)}
		if _, err := jobdb.New(db).Enqueue(ctx, job); err != nil {
			return err
		}
	}

	client, err := connect(ctx, strings.Split(*endpoints, ","))
	if err != nil {
		return err
	}
	defer client.Close()
	log := slog.New(slog.NewTextHandler(output, nil))
	source := etcd.NewMutex(client, &etcd.Options{
		TTL:    *ttl,
		Logger: log,
		// The database remembers which etcd its tokens came from. One that was restored from a backup, or the wrong one, is
		// noticed before it issues a token that an old one could beat.
		Epochs: postgres.NewEpochs(pool),
	})
	group, ctx := errgroup.WithContext(ctx)
	for i := range *workers {
		w := &Worker{
			Name: fmt.Sprintf("%d-%d", os.Getpid(), i), DB: db, Source: source, Log: log,
			Print: func(ctx context.Context, _ jobdb.Job, _ int32) error {
				select {
				case <-time.After(*page):
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			},
		}
		group.Go(func() error { return w.Run(ctx) })
	}
	return group.Wait() // the workers have released their locks when it returns, so client and database may be closed
}

// open wraps pgx's database/sql driver, so that a guard's refusal is a typed error wherever database/sql returns it, and BEGIN takes
// the token with it in one message. Without the wrapper all works too, in one round trip more.
func open(pool *pgxpool.Pool) *sql.DB {
	db := sql.OpenDB(fenced.Connector(stdlib.GetPoolConnector(pool)))
	db.SetMaxIdleConns(0) // it is the pool that keeps connections
	return db
}

// connect also asks etcd something: its client connects only when it is used, and then tries for as long as it is let.
func connect(ctx context.Context, endpoints []string) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := client.Get(ctx, "fencing/", clientv3.WithCountOnly()); err != nil {
		return nil, errors.Join(fmt.Errorf("etcd at %s: %w", endpoints, err), client.Close())
	}
	return client, nil
}

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrate installs the schema fencing ("fencectl install" does the same), then the application's own migrations, which protect
// its tables.
func migrate(ctx context.Context, pool *pgxpool.Pool, db *sql.DB) error {
	if _, err := migrations.Up(ctx, pool, nil); err != nil {
		return err
	}
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	oneAtATime, err := lock.NewPostgresSessionLocker() // several processes may be started at once
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(oneAtATime), goose.WithTableName("public.sqletcd_goose_db_version"))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}
