// Command gorm has invoices paid, each under a lock of its own, through GORM.
//
// See README.md for what to try with it.
package main

import (
	"cmp"
	"context"
	"database/sql"
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
	"github.com/jackc/pgx/v5/stdlib"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/migrations"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gorm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, output io.Writer) error {
	flags := flag.NewFlagSet("gorm", flag.ExitOnError)
	flags.SetOutput(output)
	dsn := flags.String("dsn", "", "`address` of the database (default $DATABASE_URL)")
	invoices := flags.Int("invoices", 10, "how many invoices to create first")
	charge := flags.Duration("charge", time.Second, "how long it takes to charge a customer")
	ttl := flags.Duration("ttl", 5*time.Second, "how long the lock of a process that is gone is kept")
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
	db, err := open(pool)
	if err != nil {
		return err
	}
	for range *invoices {
		if err := db.WithContext(ctx).Create(&Invoice{Customer: "ACME", Cents: 9900, State: "open"}).Error; err != nil {
			return err
		}
	}

	billing := &Billing{
		DB: db, Source: postgres.NewLease(pool, &postgres.LeaseOptions{TTL: *ttl}),
		Charge: func(ctx context.Context, _ Invoice) error {
			select {
			case <-time.After(*charge):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	}
	var due []Invoice
	if err := db.WithContext(ctx).Where("state IN ?", []string{"open", "charging"}).Order("id").Find(&due).Error; err != nil {
		return err
	}
	for _, invoice := range due {
		err := billing.Pay(ctx, invoice.ID)
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C
		case err == nil:
			fmt.Fprintf(output, "invoice %d is paid\n", invoice.ID)
		case errors.Is(err, tokensrc.ErrHeld), errors.Is(err, ErrDone):
			// Another process is at it, or was.
		case errors.Is(err, fenced.ErrStale), errors.Is(err, tokensrc.ErrLost):
			fmt.Fprintf(output, "invoice %d is somebody else's now: %v\n", invoice.ID, err)
		default:
			return err
		}
	}
	return nil
}

// open gives GORM pgx's database/sql driver, wrapped so that a guard's refusal is a typed error wherever GORM returns it.
// Without the wrapper, fenced.AsError makes one of what GORM returned.
func open(pool *pgxpool.Pool) (*gorm.DB, error) {
	db := sql.OpenDB(fenced.Connector(stdlib.GetPoolConnector(pool)))
	db.SetMaxIdleConns(0) // it is the pool that keeps connections
	return gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: db}), &gorm.Config{Logger: logger.Discard})
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
