// Command transfer moves money between two accounts under the locks of both, many times at once and in both directions.
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
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fencectl/fencectl/migrations"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "transfer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, output io.Writer) error {
	flags := flag.NewFlagSet("transfer", flag.ExitOnError)
	flags.SetOutput(output)
	dsn := flags.String("dsn", "", "`address` of the database (default $DATABASE_URL)")
	transfers := flags.Int("transfers", 50, "how many transfers of a cent in each direction")
	clerks := flags.Int("clerks", 2, "how many clerks work on each direction at once")
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
	bank := &Bank{Pool: pool, Source: postgres.NewLease(pool, &postgres.LeaseOptions{TTL: 5 * time.Second})}
	for _, account := range []int64{1, 2} {
		if err := bank.Open(ctx, account, 100_00); err != nil {
			return err
		}
	}

	group, working := errgroup.WithContext(ctx)
	for clerk := range 2 * *clerks {
		from, to := int64(1), int64(2)
		if clerk%2 == 1 {
			from, to = to, from
		}
		group.Go(func() error {
			for i := clerk / 2; i < *transfers; i += *clerks {
				if err := bank.Transfer(working, from, to, 1); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) { // Ctrl-C is no failure
		return err
	}

	var one, two, entries int64
	err = pool.QueryRow(context.WithoutCancel(ctx), `
		SELECT (SELECT cents FROM transfer.account WHERE account_id = 1),
		       (SELECT cents FROM transfer.account WHERE account_id = 2),
		       (SELECT count(*) FROM transfer.entry)`).Scan(&one, &two, &entries)
	if err != nil {
		return err
	}
	fmt.Fprintf(output, "account 1: %d cents, account 2: %d cents, together %d, after %d transfers\n", one, two, one+two, entries)
	return nil
}

//go:embed schema.sql
var schema string

// migrate installs the schema fencing ("fencectl install" does the same), then the example's own tables.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrations.Up(ctx, pool, nil); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, schema)
	return err
}
