package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// An Invoice is a model as any other: it has no field for the token.
type Invoice struct {
	ID       int64 `gorm:"primaryKey"`
	Customer string
	Cents    int64
	State    string // open, charging, paid or failed
	PaidAt   *time.Time
}

// TableName implements gorm's schema.Tabler.
func (Invoice) TableName() string { return "gorm.invoice" }

// InTransaction is db.Transaction under a grant: whatever fn creates, saves or deletes presents the grant's token.
func InTransaction(ctx context.Context, db *gorm.DB, grant fenced.Grant, fn func(tx *gorm.DB) error) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		// The transaction's first statement, good until its end.
		if err := tx.Exec("SELECT fencing.present(?)", grant.Token()).Error; err != nil {
			return err
		}
		return fn(tx)
	})
}

// Billing has customers pay.
type Billing struct {
	DB     *gorm.DB
	Source tokensrc.Source
	// Charge asks for the money: the slow part, in which the process may be paused. It happens outside the database, where nothing is
	// fenced. Whoever is asked must take the same invoice twice for one, as payment providers do with an idempotency key.
	Charge func(ctx context.Context, invoice Invoice) error
}

// ErrDone is returned for an invoice that is paid, or has failed.
var ErrDone = errors.New("the invoice is done")

// lockName is the name of an invoice's lock. A fence in the row has no name of its own.
func lockName(id int64) string { return fmt.Sprintf("gorm/invoice/%d", id) }

// Pay has an invoice paid. It returns tokensrc.ErrHeld when somebody else is at it.
func (b *Billing) Pay(ctx context.Context, id int64) error {
	grant, err := b.Source.TryAcquire(ctx, lockName(id))
	if err != nil {
		return err
	}
	defer grant.Release(context.WithoutCancel(ctx))
	ctx = grant.Context() // ends with the lock

	// Read and write in one transaction, with a lock on the row in between: this puts our token into the row, and whatever an older holder
	// saves after that is refused. What it saved before, we have read. Under a named fence a claim does this, without a write.
	var invoice Invoice
	err = InTransaction(ctx, b.DB, grant, func(tx *gorm.DB) error {
		if err := tx.Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate}).First(&invoice, id).Error; err != nil {
			return err
		}
		if invoice.PaidAt != nil || invoice.State == "failed" {
			return ErrDone
		}
		invoice.State = "charging"
		return tx.Save(&invoice).Error
	})
	if err != nil {
		return err
	}

	if err := b.Charge(ctx, invoice); err == nil {
		now := time.Now()
		invoice.State, invoice.PaidAt = "paid", &now
	} else if ctx.Err() != nil {
		return context.Cause(ctx) // told to stop, or the lock is lost: the next one will charge again
	} else {
		invoice.State = "failed"
	}

	// Save writes every column as it was when we read it, over whatever is there now. That is right if we still have the lock.
	return InTransaction(ctx, b.DB, grant, func(tx *gorm.DB) error { return tx.Save(&invoice).Error })
}
