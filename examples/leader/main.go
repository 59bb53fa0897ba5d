// Command leader is a scheduler of which several run and one leads: it is elected through etcd, and writes only while it leads.
//
// See README.md for what to try with it.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/migrations"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, output io.Writer) error {
	flags := flag.NewFlagSet("leader", flag.ExitOnError)
	flags.SetOutput(output)
	dsn := flags.String("dsn", "", "`address` of the database (default $DATABASE_URL)")
	endpoints := flags.String("etcd", "127.0.0.1:2379", "`addresses` of etcd's members, with commas between them")
	name := flags.String("name", fmt.Sprint(os.Getpid()), "what this candidate calls itself")
	every := flags.Duration("every", time.Second, "how often the leader plans")
	ttl := flags.Duration("ttl", 5*time.Second, "how long the leadership of a leader that is gone lasts")
	if err := flags.Parse(args); err != nil {
		return err
	}

	pool, err := pgxpool.New(ctx, cmp.Or(*dsn, os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate(ctx, pool); err != nil {
		return err
	}
	client, err := connect(ctx, strings.Split(*endpoints, ","))
	if err != nil {
		return err
	}
	defer client.Close()

	log := slog.New(slog.NewTextHandler(output, nil)).With("name", *name)
	rounds := time.NewTicker(*every)
	defer rounds.Stop()
	scheduler := &Scheduler{
		Name: *name,
		Pool: pool,
		Election: etcd.NewElection(client, &etcd.Options{
			TTL:    *ttl,
			Value:  *name, // what "etcdctl get --prefix fencing/election/" shows
			Logger: log,
			// The database remembers which etcd its tokens came from. One that was restored from a backup, or the wrong one, is
			// noticed before it makes anybody the leader.
			Epochs: postgres.NewEpochs(pool),
		}),
		Rounds:   rounds.C,
		Patience: *ttl,
		Log:      log,
	}
	return scheduler.Run(ctx) // it has resigned when it returns, so client and pool may be closed
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

//go:embed schema.sql
var schema string

// migrate installs the schema fencing ("fencectl install" does the same), then the example's own table.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrations.Up(ctx, pool, nil); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, schema)
	return err
}
