package demo

import (
	"context"
	"fmt"
)

// forgottenQuery is why the check belongs into the database and not into each statement.
func forgottenQuery() Scenario {
	const reset = `
		UPDATE shop.orders SET status = 'paid' WHERE order_id = 17;`
	return Scenario{
		Name:  "forgotten-query",
		Title: "the token is checked by hand, in every statement but one",
		Story: `The application has a column for the token, and its main query says WHERE last_fencing_token < $1, as the literature
has it. Worker A sleeps past its lock's time limit, as before. When it wakes up, its main query matches no row: good. A takes
that for a failed payment, and the error handler's query is one that nobody thought of.`,
		Lesson: `A predicate protects the statements that have it. The guard is on the table: a write that presents no token is refused,
whoever sends it. The existing column was taken over as it is.`,
		without: form{
			label: "a predicate in the statements",
			setup: `SELECT fencing.unprotect('shop.orders', drop_column => true);
				ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS last_fencing_token bigint NOT NULL DEFAULT 0;` + reset,
			play: playForgottenQuery,
		},
		with: form{
			label: "the same, and a row fence on shop.orders",
			setup: "SELECT fencing.unprotect('shop.orders');" + reset + "SELECT fencing.protect('shop.orders');",
			fence: "SELECT last_fencing_token FROM shop.orders WHERE order_id = 17",
			play:  playForgottenQuery,
		},
	}
}

func playForgottenQuery(ctx context.Context, s *stage) (verdict, error) {
	const (
		lock = "orders/17"
		row  = "order 17"
	)
	ship := func(w *worker) write {
		return write{
			on: row, text: "marks the order shipped, if no newer token has written it",
			sql: fmt.Sprintf("UPDATE shop.orders SET status = 'shipped', last_fencing_token = %[1]d\nWHERE order_id = 17 AND last_fencing_token < %[1]d", w.token),
			// The application knows of its own predicate alone.
			silent: true,
		}
	}
	a, b, err := s.twoWorkers(ctx)
	if err != nil {
		return verdict{}, err
	}
	if err := a.acquire(ctx, lock, firstLease); err != nil {
		return verdict{}, err
	}
	a.sleeps()
	if err := b.acquire(ctx, lock, secondLease); err != nil {
		return verdict{}, err
	}
	if _, err := b.write(ctx, ship(b)); err != nil {
		return verdict{}, err
	}
	a.wakes()
	if _, err := a.write(ctx, ship(a)); err != nil {
		return verdict{}, err
	}
	late, err := a.write(ctx, write{
		on: row, text: "runs its error handler",
		sql: "UPDATE shop.orders SET status = 'payment_failed'\nWHERE order_id = 17", silent: true,
	})
	if err != nil {
		return verdict{}, err
	}
	var status string
	if err := s.place.pool.QueryRow(ctx, "SELECT status FROM shop.orders WHERE order_id = 17").Scan(&status); err != nil {
		return verdict{}, err
	}
	s.ending(row, "the order is %s", status)
	if late || status != "shipped" {
		return damage("the order that B shipped is marked %s", status), nil
	}
	return intact("the query without a token is refused; the order stays shipped"), nil
}
