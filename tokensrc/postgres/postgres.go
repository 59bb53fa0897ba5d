// Package postgres issues fencing tokens from the PostgreSQL database that is fenced, with the schema "fencing" installed. There
// is no other service to run, and the tokens' epoch is kept by the database itself: a promotion, a restore or a copy of the
// database raises it.
//
//   - [Lease]: a row of fencing.lease with an expiry on the database's clock. The one to start with.
//   - [Advisory]: a session advisory lock on a connection of its own, first come, first served.
//   - [Sequence]: no lock at all. The newest run wins, and the fence refuses the older ones.
//
// [Epochs] is the registry of incarnations for the sources of the other packages.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/tokensrc"
)

// oneRoundTrip is the extended protocol without a prepared statement: parse, bind and execute travel together.
const oneRoundTrip = pgx.QueryExecModeExec

// Querier is what can run a statement: *pgxpool.Pool, *pgx.Conn or pgx.Tx.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Epochs is the registry of incarnations in fencing.source. It implements [tokensrc.Epochs].
type Epochs struct{ db Querier }

var _ tokensrc.Epochs = (*Epochs)(nil)

// NewEpochs returns the registry of the database that is fenced. db stays the caller's to close; its role needs EXECUTE on
// fencing.source_epoch (fencectl grant).
func NewEpochs(db Querier) *Epochs { return &Epochs{db} }

// Epoch implements [tokensrc.Epochs].
func (e *Epochs) Epoch(ctx context.Context, source, incarnation string) (int, error) {
	var epoch *int
	if err := e.db.QueryRow(ctx, sqlSourceEpoch, oneRoundTrip, source, incarnation).Scan(&epoch); err != nil {
		return 0, fmt.Errorf("tokensrc/postgres: the epoch of source %q: %w", source, err)
	}
	if epoch != nil {
		return *epoch, nil
	}
	refused := &tokensrc.IncarnationError{Source: source, Incarnation: incarnation}
	// For the message only; the role may not be allowed to read it.
	_ = e.db.QueryRow(ctx, sqlRegistered, oneRoundTrip, source).Scan(&refused.Registered)
	return 0, refused
}

// dial opens a connection beside the pool, with the pool's settings: one that is taken for long must not be missing in the pool.
func dial(ctx context.Context, pool *pgxpool.Pool, parameters map[string]string) (*pgx.Conn, error) {
	config := pool.Config() // a copy
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	for name, value := range parameters {
		config.ConnConfig.RuntimeParams[name] = value
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	if config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			closeConn(ctx, conn)
			return nil, err
		}
	}
	return conn, nil
}

// closeConn says goodbye even when ctx has ended, but not for long.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(cleanup) // it is closed also when the goodbye fails
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func checkTTL(ttl, fallback time.Duration) time.Duration {
	if ttl < time.Millisecond {
		return fallback
	}
	return ttl.Truncate(time.Millisecond)
}

func wrap(name string, err error) error {
	if errors.Is(err, tokensrc.ErrHeld) {
		return fmt.Errorf("%w: %q", tokensrc.ErrHeld, name)
	}
	return fmt.Errorf("tokensrc/postgres: acquire %q: %w", name, err)
}
