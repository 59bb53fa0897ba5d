package fenced

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"reflect"

	"github.com/jackc/pgx/v5"
)

// Connector wraps the connector of a database/sql driver for PostgreSQL, so that the guards' refusals are typed errors wherever
// database/sql returns them, also from Row.Scan and Rows.Err:
//
//	db := sql.OpenDB(fenced.Connector(stdlib.GetConnector(*config)))
//
// On pgx's driver [RunSQL] then also sends BEGIN and the presentation in one message. What sql.Conn.Raw hands out is the wrapper; its
// method Unwrap() driver.Conn returns the driver's own connection.
func Connector(connector driver.Connector) driver.Connector { return fencedConnector{connector} }

type fencedConnector struct{ driver.Connector }

func (c fencedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &fencedConn{conn}, nil
}

// Close closes a connector that sql.DB.Close would close.
func (c fencedConnector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// fencedConn passes everything on. For what the driver's connection cannot do it answers as database/sql does for a connection without the method.
type fencedConn struct{ driver.Conn }

var (
	_ driver.ConnBeginTx        = (*fencedConn)(nil)
	_ driver.ConnPrepareContext = (*fencedConn)(nil)
	_ driver.ExecerContext      = (*fencedConn)(nil)
	_ driver.QueryerContext     = (*fencedConn)(nil)
	_ driver.NamedValueChecker  = (*fencedConn)(nil)
	_ driver.Pinger             = (*fencedConn)(nil)
	_ driver.SessionResetter    = (*fencedConn)(nil)
	_ driver.Validator          = (*fencedConn)(nil)
)

// Unwrap is the driver's own connection.
func (c *fencedConn) Unwrap() driver.Conn { return c.Conn }

func (c *fencedConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if p, ok := ctx.Value(presentationKey{}).(*presentation); ok {
		if pgxConn, ok := c.Conn.(interface{ Conn() *pgx.Conn }); ok {
			return beginPresenting(ctx, pgxConn.Conn(), options, p)
		}
	}
	beginner, ok := c.Conn.(driver.ConnBeginTx)
	if !ok {
		return nil, errors.New("fenced: the driver is too old: its connection has no BeginTx")
	}
	tx, err := beginner.BeginTx(ctx, options)
	if err != nil {
		return nil, AsError(err)
	}
	return fencedTx{tx}, nil
}

// beginPresenting is pgx's stdlib BeginTx with the presentation in the same message.
func beginPresenting(ctx context.Context, conn *pgx.Conn, options driver.TxOptions, p *presentation) (driver.Tx, error) {
	if conn.IsClosed() {
		return nil, driver.ErrBadConn
	}
	var o pgx.TxOptions
	switch level := sql.IsolationLevel(options.Isolation); level {
	case sql.LevelDefault:
	case sql.LevelReadUncommitted:
		o.IsoLevel = pgx.ReadUncommitted
	case sql.LevelReadCommitted:
		o.IsoLevel = pgx.ReadCommitted
	case sql.LevelRepeatableRead, sql.LevelSnapshot:
		o.IsoLevel = pgx.RepeatableRead
	case sql.LevelSerializable:
		o.IsoLevel = pgx.Serializable
	default:
		return nil, errors.New("fenced: PostgreSQL has no isolation level " + level.String())
	}
	if options.ReadOnly {
		o.AccessMode = pgx.ReadOnly
	}
	tx, err := begin(ctx, conn, pgx.TxOptions{BeginQuery: beginSQL(o) + "; " + p.sql})
	if err != nil {
		return nil, AsError(err)
	}
	p.sent = true
	return pgxTx{ctx, tx}, nil
}

// pgxTx lives no longer than the context of its BeginTx, which database/sql ends it with.
type pgxTx struct {
	ctx context.Context
	tx  pgx.Tx
}

func (t pgxTx) Commit() error   { return AsError(t.tx.Commit(t.ctx)) }
func (t pgxTx) Rollback() error { return t.tx.Rollback(t.ctx) }

type fencedTx struct{ driver.Tx }

func (t fencedTx) Commit() error { return AsError(t.Tx.Commit()) }

func (c *fencedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	var stmt driver.Stmt
	var err error
	if preparer, ok := c.Conn.(driver.ConnPrepareContext); ok {
		stmt, err = preparer.PrepareContext(ctx, query)
	} else {
		stmt, err = c.Conn.Prepare(query)
	}
	if err != nil {
		return nil, AsError(err)
	}
	return &fencedStmt{stmt, c}, nil
}

func (c *fencedConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *fencedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	execer, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	result, err := execer.ExecContext(ctx, query, args)
	return result, AsError(err)
}

func (c *fencedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	queryer, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	rows, err := queryer.QueryContext(ctx, query, args)
	if err != nil {
		return nil, AsError(err)
	}
	return fencedRows{rows}, nil
}

func (c *fencedConn) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return driver.ErrSkip
}

func (c *fencedConn) Ping(ctx context.Context) error {
	if pinger, ok := c.Conn.(driver.Pinger); ok {
		return pinger.Ping(ctx)
	}
	return nil
}

func (c *fencedConn) ResetSession(ctx context.Context) error {
	if resetter, ok := c.Conn.(driver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

func (c *fencedConn) IsValid() bool {
	if validator, ok := c.Conn.(driver.Validator); ok {
		return validator.IsValid()
	}
	return true
}

type fencedStmt struct {
	driver.Stmt
	conn *fencedConn
}

func (s *fencedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	execer, ok := s.Stmt.(driver.StmtExecContext)
	if !ok {
		return nil, errors.New("fenced: the driver is too old: its statement has no ExecContext")
	}
	result, err := execer.ExecContext(ctx, args)
	return result, AsError(err)
}

func (s *fencedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	queryer, ok := s.Stmt.(driver.StmtQueryContext)
	if !ok {
		return nil, errors.New("fenced: the driver is too old: its statement has no QueryContext")
	}
	rows, err := queryer.QueryContext(ctx, args)
	if err != nil {
		return nil, AsError(err)
	}
	return fencedRows{rows}, nil
}

// CheckNamedValue asks the statement, then the connection, as database/sql does.
func (s *fencedStmt) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return s.conn.CheckNamedValue(value)
}

type fencedRows struct{ driver.Rows }

func (r fencedRows) Next(dest []driver.Value) error {
	err := r.Rows.Next(dest)
	return AsError(err) // io.EOF comes back as it is: database/sql compares it with ==
}

func (r fencedRows) Close() error { return AsError(r.Rows.Close()) }

func (r fencedRows) HasNextResultSet() bool {
	rows, ok := r.Rows.(driver.RowsNextResultSet)
	return ok && rows.HasNextResultSet()
}

func (r fencedRows) NextResultSet() error {
	rows, ok := r.Rows.(driver.RowsNextResultSet)
	if !ok {
		return io.EOF
	}
	return AsError(rows.NextResultSet())
}

func (r fencedRows) ColumnTypeScanType(index int) reflect.Type {
	if rows, ok := r.Rows.(driver.RowsColumnTypeScanType); ok {
		return rows.ColumnTypeScanType(index)
	}
	return reflect.TypeFor[any]()
}

func (r fencedRows) ColumnTypeDatabaseTypeName(index int) string {
	if rows, ok := r.Rows.(driver.RowsColumnTypeDatabaseTypeName); ok {
		return rows.ColumnTypeDatabaseTypeName(index)
	}
	return ""
}

func (r fencedRows) ColumnTypeLength(index int) (int64, bool) {
	if rows, ok := r.Rows.(driver.RowsColumnTypeLength); ok {
		return rows.ColumnTypeLength(index)
	}
	return 0, false
}

func (r fencedRows) ColumnTypeNullable(index int) (nullable, known bool) {
	if rows, ok := r.Rows.(driver.RowsColumnTypeNullable); ok {
		return rows.ColumnTypeNullable(index)
	}
	return false, false
}

func (r fencedRows) ColumnTypePrecisionScale(index int) (precision, scale int64, known bool) {
	if rows, ok := r.Rows.(driver.RowsColumnTypePrecisionScale); ok {
		return rows.ColumnTypePrecisionScale(index)
	}
	return 0, 0, false
}
