package fenced

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencectl/fencectl/fenced/internal/wire"
)

// SQLDB is what can begin a transaction through database/sql: *sql.DB or *sql.Conn. A *sql.Tx cannot.
type SQLDB interface {
	BeginTx(ctx context.Context, options *sql.TxOptions) (*sql.Tx, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// RunSQL is [Run] for database/sql, with pgx's stdlib driver or lib/pq.
//
// With a db that was opened through [Connector] on pgx's driver, BEGIN and the presentation are one message, and every error of the
// transaction is typed where it occurs. With any other db the presentation is a round trip of its own, and errors are typed when
// RunSQL returns them; inside fn, [AsError] does it.
func RunSQL(ctx context.Context, db SQLDB, grant Grant, fn func(tx *sql.Tx) error) error {
	return RunSQLWith(ctx, db, []Grant{grant}, nil, nil, fn)
}

// RunSQLWith is [RunWith] for database/sql. The isolation level and access mode are in txOptions; options.TxOptions must be empty.
func RunSQLWith(ctx context.Context, db SQLDB, grants []Grant, txOptions *sql.TxOptions, options *RunOptions, fn func(tx *sql.Tx) error) error {
	var o RunOptions
	if options != nil {
		o = *options
	}
	if o.TxOptions != (pgx.TxOptions{}) {
		return errors.New("fenced: RunOptions.TxOptions is for pgx; database/sql has its own")
	}
	if err := checkGrants(grants); err != nil {
		return err
	}
	return runEach(ctx, grants, &o, func(ctx context.Context) error { return runSQLOnce(ctx, db, grants, txOptions, &o, fn) })
}

// presentation travels in the context from runSQLOnce to the driver's BeginTx, which may send it together with BEGIN.
type presentation struct {
	sql  string
	sent bool
}

type presentationKey struct{}

func runSQLOnce(ctx context.Context, db SQLDB, grants []Grant, txOptions *sql.TxOptions, o *RunOptions, fn func(tx *sql.Tx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	present, err := presentSQL(grants, o.MaxIdle, o.MaxDuration)
	if err != nil {
		return err
	}
	p := &presentation{sql: present}
	tx, err := db.BeginTx(context.WithValue(ctx, presentationKey{}, p), txOptions)
	if err != nil {
		return AsError(err)
	}
	open := true
	defer func() {
		if open { // fn failed, panicked, or ended its goroutine
			_ = tx.Rollback() // fails only with the connection, or because ctx has ended and it is rolled back already
		}
	}()
	if !p.sent {
		if _, err := tx.ExecContext(ctx, present); err != nil {
			return AsError(err)
		}
	}
	if err := fn(tx); err != nil {
		return AsError(err)
	}
	if err := grantsEnded(grants); err != nil { // see runOnce
		return err
	}
	open = false
	return commitSQL(ctx, tx)
}

func commitSQL(ctx context.Context, tx *sql.Tx) error {
	if ctx.Err() != nil {
		_ = tx.Rollback()
		return context.Cause(ctx)
	}
	err := tx.Commit()
	if err == nil || answered(err) {
		return AsError(err)
	}
	if SQLState(err) != "" { // see answered
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	// What a driver says of a transaction that had failed before is its own; a broken connection shows in these ways.
	var broken net.Error
	for _, sign := range []error{driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, sign) || errors.As(err, &broken) {
			return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
	}
	return err
}

// PresentSQL is [Present] for database/sql.
func PresentSQL(ctx context.Context, tx *sql.Tx, grants ...Grant) error {
	if err := checkGrants(grants); err != nil {
		return err
	}
	present, err := presentSQL(grants, 0, 0)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, present)
	return AsError(err)
}

// ClaimSQL is [Claim] for database/sql.
func ClaimSQL(ctx context.Context, db SQLDB, grant Grant) error {
	return ClaimSQLWith(ctx, db, []Grant{grant}, nil)
}

// ClaimSQLWith is [ClaimWith] for database/sql. With EvictAfter db must be a *sql.DB, and the eviction takes a second connection of
// it: its MaxOpenConns must leave room.
func ClaimSQLWith(ctx context.Context, db SQLDB, grants []Grant, options *ClaimOptions) error {
	var o ClaimOptions
	if options != nil {
		o = *options
	}
	if err := checkGrants(grants); err != nil {
		return err
	}
	return claimEach(ctx, grants, &o, func(ctx context.Context, grant Grant) (int, error) { return claimSQLOne(ctx, db, grant, &o) })
}

func claimSQLOne(ctx context.Context, db SQLDB, grant Grant, o *ClaimOptions) (evicted int, err error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if o.EvictAfter <= 0 {
		query, err := wire.Claim(named(grant))
		if err != nil {
			return 0, fmt.Errorf("fenced: %w", err)
		}
		_, err = db.ExecContext(ctx, query)
		return 0, err
	}
	pool, ok := db.(*sql.DB)
	if !ok {
		return 0, fmt.Errorf("fenced: EvictAfter needs a second connection, which a %T does not have", db)
	}
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	return claimAndEvict(ctx, grant, o, claimTx{
		pid: func(ctx context.Context, query string) (pid int32, err error) {
			var timeout string
			err = tx.QueryRowContext(ctx, query).Scan(&pid, &timeout)
			return pid, err
		},
		exec: func(ctx context.Context, query string) error {
			_, err := tx.ExecContext(ctx, query)
			return err
		},
		commit:   func(ctx context.Context) error { return commitSQL(ctx, tx) },
		rollback: func(context.Context) { _ = tx.Rollback() },
		evictor: func(ctx context.Context) (evictor, error) {
			conn, err := pool.Conn(ctx)
			if err != nil {
				return evictor{}, err
			}
			return evictor{
				end:   func(ctx context.Context, pid int32) ([]int32, error) { return evictSQL(ctx, conn, pid) },
				close: func(context.Context) { _ = conn.Close() }, // back to the pool
			}, nil
		},
	})
}

func evictSQL(ctx context.Context, conn *sql.Conn, pid int32) (pids []int32, err error) {
	rows, err := conn.QueryContext(ctx, wire.EvictSQL, pid)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var ended int32
		if err := rows.Scan(&ended); err != nil {
			return pids, err
		}
		pids = append(pids, ended)
	}
	return pids, rows.Err()
}
