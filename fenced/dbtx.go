package fenced

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DBTX is what sqlc-generated code runs on, with batches and COPY. *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn and pgx.Tx are one.
type DBTX interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error)
}

// Wrap returns a DBTX on which every refusal of a guard is a typed error ([AsError]): from Exec, Query, Row.Scan, Rows.Err, batch
// results and CopyFrom. It presents nothing; use it where the program does not go through [Run], whose tx is wrapped already.
func Wrap(db DBTX) DBTX { return wrapped{db} }

// WrapTx is Wrap for a transaction. Savepoints (Begin) are wrapped too.
func WrapTx(tx pgx.Tx) pgx.Tx {
	if _, is := tx.(wrappedTx); is {
		return tx
	}
	return wrappedTx{Tx: tx, wrapped: wrapped{tx}}
}

type wrapped struct{ db DBTX }

func (w wrapped) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := w.db.Exec(ctx, sql, args...)
	return tag, AsError(err)
}

func (w wrapped) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := w.db.Query(ctx, sql, args...)
	if rows != nil {
		rows = wrappedRows{rows}
	}
	return rows, AsError(err)
}

func (w wrapped) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return wrappedRow{w.db.QueryRow(ctx, sql, args...)}
}

func (w wrapped) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	return wrappedBatch{w.db.SendBatch(ctx, batch)}
}

func (w wrapped) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	n, err := w.db.CopyFrom(ctx, table, columns, source)
	return n, AsError(err)
}

// wrappedTx takes what can be refused from wrapped and the rest from the transaction.
type wrappedTx struct {
	pgx.Tx
	wrapped wrapped
}

func (w wrappedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := w.Tx.Begin(ctx)
	if err != nil {
		return tx, AsError(err)
	}
	return WrapTx(tx), nil
}

func (w wrappedTx) Commit(ctx context.Context) error { return AsError(w.Tx.Commit(ctx)) }

func (w wrappedTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return w.wrapped.Exec(ctx, sql, args...)
}

func (w wrappedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return w.wrapped.Query(ctx, sql, args...)
}

func (w wrappedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return w.wrapped.QueryRow(ctx, sql, args...)
}

func (w wrappedTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	return w.wrapped.SendBatch(ctx, batch)
}

func (w wrappedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	return w.wrapped.CopyFrom(ctx, table, columns, source)
}

type wrappedRows struct{ pgx.Rows }

func (r wrappedRows) Err() error             { return AsError(r.Rows.Err()) }
func (r wrappedRows) Scan(dest ...any) error { return AsError(r.Rows.Scan(dest...)) }

type wrappedRow struct{ row pgx.Row }

func (r wrappedRow) Scan(dest ...any) error { return AsError(r.row.Scan(dest...)) }

type wrappedBatch struct{ pgx.BatchResults }

func (b wrappedBatch) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	return tag, AsError(err)
}

func (b wrappedBatch) Query() (pgx.Rows, error) {
	rows, err := b.BatchResults.Query()
	if rows != nil {
		rows = wrappedRows{rows}
	}
	return rows, AsError(err)
}

func (b wrappedBatch) QueryRow() pgx.Row { return wrappedRow{b.BatchResults.QueryRow()} }

func (b wrappedBatch) Close() error { return AsError(b.BatchResults.Close()) }

func (b wrappedBatch) Tx() pgx.Tx {
	if tx := b.BatchResults.Tx(); tx != nil {
		return WrapTx(tx)
	}
	return nil
}
