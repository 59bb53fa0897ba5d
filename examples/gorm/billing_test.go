package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/gorm"

	"github.com/fencectl/fencectl/examples/internal/zombie"
	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

// database has one open invoice, which is returned.
func database(t *testing.T) (*pgxpool.Pool, *gorm.DB, Invoice) {
	t.Helper()
	pool := pgtest.New(t)
	if err := migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	db, err := open(pool)
	if err != nil {
		t.Fatal(err)
	}
	invoice := Invoice{Customer: "ACME", Cents: 9900, State: "open"}
	if err := db.Create(&invoice).Error; err != nil {
		t.Fatalf("a new invoice needs no token: %v", err)
	}
	return pool, db, invoice
}

func state(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, `SELECT state FROM gorm.invoice`)
}

func TestAForgottenSaveIsRefused(t *testing.T) {
	pool, db, invoice := database(t)
	invoice.State = "paid"
	forgotten := map[string]func() error{
		"Save":    func() error { return db.Save(&invoice).Error },
		"Update":  func() error { return db.Model(&invoice).Update("state", "paid").Error },
		"Updates": func() error { return db.Model(&invoice).Updates(Invoice{State: "paid"}).Error },
		"Delete":  func() error { return db.Delete(&invoice).Error },
		"Save in a transaction": func() error {
			return db.Transaction(func(tx *gorm.DB) error { return tx.Save(&invoice).Error })
		},
	}
	for name, write := range forgotten {
		if err := write(); !errors.Is(err, fenced.ErrUnfenced) {
			t.Errorf("%s without a token: %v, want ErrUnfenced", name, err)
		}
	}
	if state := state(t, pool); state != "open" {
		t.Errorf("the invoice is %s, want open", state)
	}
}

func TestAZombieDoesNotSaveOverItsSuccessor(t *testing.T) {
	pool, db, invoice := database(t)
	if err := takeOver(t, pool, db, invoice); !errors.Is(err, fenced.ErrStale) {
		t.Errorf("the zombie ended with %v, want ErrStale", err)
	}
	if state := state(t, pool); state != "paid" {
		t.Errorf("the invoice is %s, want paid", state)
	}
}

// The control: the same without the fence.
func TestWithoutTheFenceAZombieSavesOverItsSuccessor(t *testing.T) {
	pool, db, invoice := database(t)
	pgtest.Exec(t, pool, `SELECT fencing.unprotect('gorm.invoice')`)
	if err := takeOver(t, pool, db, invoice); err != nil || state(t, pool) != "failed" {
		t.Errorf("the zombie ended with %v, and the invoice is %s", err, state(t, pool))
	}
}

// takeOver lets a payment fall asleep, and another one go through. It returns how the first one ended when it woke up.
func takeOver(t *testing.T, pool *pgxpool.Pool, db *gorm.DB, invoice Invoice) error {
	t.Helper()
	source := postgres.NewLease(pool, nil)

	// The first one falls asleep while it charges, and will wake up to hear that it failed.
	asleep, wake := make(chan struct{}), make(chan struct{})
	first := &Billing{DB: db, Source: zombie.Source(source), Charge: func(context.Context, Invoice) error {
		close(asleep)
		<-wake
		return errors.New("the customer has paid already")
	}}
	result := make(chan error, 1)
	go func() { result <- first.Pay(t.Context(), invoice.ID) }()
	select {
	case <-asleep:
	case err := <-result:
		t.Fatalf("the first one ended early: %v", err)
	}

	pgtest.Exec(t, pool, `UPDATE fencing.lease SET expires_at = pg_catalog.clock_timestamp()`)
	second := &Billing{DB: db, Source: source, Charge: func(context.Context, Invoice) error { return nil }}
	if err := second.Pay(t.Context(), invoice.ID); err != nil {
		t.Fatalf("the second one: %v", err)
	}

	if err := second.Pay(t.Context(), invoice.ID); !errors.Is(err, ErrDone) {
		t.Errorf("paying again: %v, want ErrDone", err)
	}
	close(wake)
	return <-result
}

func TestTheProgramPaysTheInvoices(t *testing.T) {
	pool, _, _ := database(t)
	var output bytes.Buffer
	if err := run(t.Context(), []string{"-dsn", pgtest.DSN(t, pool), "-invoices", "3", "-charge", "1ms"}, &output); err != nil {
		t.Fatal(err)
	}
	if paid := strings.Count(output.String(), " is paid\n"); paid != 4 {
		t.Errorf("it printed:\n%swant 4 invoices paid", output.String())
	}
	if open := pgtest.Value[int64](t, pool, `SELECT count(*) FROM gorm.invoice WHERE state <> 'paid'`); open > 0 {
		t.Errorf("%d invoices are not paid", open)
	}
}
