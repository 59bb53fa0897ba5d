package torture

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/privileges"
	"github.com/fencectl/fencectl/internal/torture/history"
	"github.com/fencectl/fencectl/migrations"
)

//go:embed schema.sql
var schema string

const (
	databaseName = "torture"
	workerRole   = "worker" // schema.sql creates it
)

// A database is the server that is the primary at the moment, and the relay that leads to it.
type database struct {
	relay   *relay
	options *pgserver.Options

	mu      sync.Mutex // guards what follows
	primary *pgserver.Server
	losses  []history.Loss
}

// newDatabase starts a server and makes what the workers need in it. The caller closes it.
func newDatabase(ctx context.Context, o *Options) (_ *database, err error) {
	d := &database{options: &pgserver.Options{Logger: o.Logger, Settings: map[string]string{
		// A server that was killed is back sooner when there is less to replay.
		"checkpoint_timeout": "30s",
	}}}
	if o.AsyncCommit {
		d.options.Settings["wal_writer_delay"] = "10s" // or what is acknowledged is on disk after 0.2 s, and a kill seldom comes in between
	}
	if d.primary, err = pgserver.Start(ctx, d.options); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close(context.WithoutCancel(ctx)))
		}
	}()
	if err := d.withPool(ctx, "postgres", func(pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, "CREATE DATABASE "+databaseName)
		return err
	}); err != nil {
		return nil, err
	}
	err = d.withPool(ctx, databaseName, func(pool *pgxpool.Pool) error {
		if _, err := migrations.Up(ctx, pool, nil); err != nil {
			return err
		}
		return fill(ctx, pool, o)
	})
	return d, err
}

// fill makes the tables and their rows, protects them unless the guards are off, and lets the workers' role in.
func fill(ctx context.Context, pool *pgxpool.Pool, o *Options) error {
	if _, err := pool.Exec(ctx, schema); err != nil {
		return fmt.Errorf("the workers' tables: %w", err)
	}
	for _, lock := range o.locks() {
		for table, rows := range map[history.Table]int{history.Named: history.Items, history.Reentrant: 1, history.Strict: 1} {
			for n := range rows {
				if _, err := pool.Exec(ctx, "INSERT INTO "+tableName(table)+" (lock, n) VALUES ($1, $2)", lock.Name, n); err != nil {
					return err
				}
			}
		}
	}
	if !o.GuardsOff {
		for _, call := range []string{
			"SELECT fencing.protect('torture.item', fence => '{lock}')",
			"SELECT fencing.protect('torture.reentrant', mode => 'reentrant')",
			"SELECT fencing.protect('torture.strict')",
		} {
			if _, err := pool.Exec(ctx, call); err != nil {
				return fmt.Errorf("%s: %w", call, err)
			}
		}
	}
	if o.AsyncCommit {
		if _, err := pool.Exec(ctx, "ALTER ROLE "+workerRole+" SET synchronous_commit = off"); err != nil {
			return err
		}
	}
	statements, err := privileges.Plan(ctx, pool, workerRole, []privileges.Purpose{privileges.App})
	if err != nil {
		return err
	}
	return privileges.Grant(ctx, pool, statements)
}

// tableName is a table's name in SQL.
func tableName(table history.Table) string {
	return pgx.Identifier{"torture", string(table)}.Sanitize()
}

func (d *database) withPool(ctx context.Context, name string, f func(*pgxpool.Pool) error) error {
	pool, err := pgxpool.New(ctx, d.server().DSN(name))
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(pool)
}

func (d *database) server() *pgserver.Server {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.primary
}

// open begins to relay, through a socket in the directory.
func (d *database) open(dir string) (err error) {
	if d.relay, err = newRelay(dir); err != nil {
		return err
	}
	d.relay.point(d.socket())
	return nil
}

func (d *database) socket() string {
	server := d.server()
	return socketName(server.SocketDir(), server.Port())
}

// owner is the account that the server runs under, nil when it is this process's own. PgBouncer runs under it, too: neither wants to be root.
func (d *database) owner() (*syscall.Credential, error) {
	info, err := os.Stat(d.server().DataDir())
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return nil, nil
	}
	return &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}, nil
}

// kill kills the server and all its backends, leaves it dead for a while, and has it recover.
func (d *database) kill(ctx context.Context, dead time.Duration) (note string, err error) {
	server := d.server()
	if err := server.Kill(); err != nil {
		return "", err
	}
	if err := wait(ctx, dead); err != nil {
		return "", err
	}
	begun := time.Now()
	if err := server.Restart(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("back after %v", time.Since(begun).Round(time.Millisecond)), nil
}

// freeze stops the server and all its backends for a while.
func (d *database) freeze(ctx context.Context, during time.Duration) error {
	server := d.server()
	if err := server.Pause(); err != nil {
		return err
	}
	return errors.Join(wait(ctx, during), server.Resume())
}

// promote starts a standby, lets it catch up, cuts it off, lets the primary go on alone for a while, kills the primary, and promotes the standby.
func (d *database) promote(ctx context.Context, alone time.Duration) (note string, err error) {
	old := d.server()
	standby, err := old.StartStandby(ctx, d.options)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, standby.Stop(context.WithoutCancel(ctx)))
		}
	}()
	// What had been acknowledged before this moment is on the standby when the wait is over.
	loss := history.Loss{From: now()}
	if err := standby.WaitReplayed(ctx, old); err != nil {
		return "", err
	}
	if err := standby.Disconnect(ctx); err != nil {
		return "", err
	}
	if err := wait(ctx, alone); err != nil {
		return "", err
	}
	lost, err := effects(ctx, old)
	if err != nil {
		return "", err
	}
	d.relay.point("")
	if err := old.Kill(); err != nil {
		return "", err
	}
	loss.To = now()
	if err := standby.Promote(ctx); err != nil {
		return "", err
	}
	kept, err := effects(ctx, standby)
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	d.primary, d.losses = standby, append(d.losses, loss)
	d.mu.Unlock()
	d.relay.point(d.socket())
	return fmt.Sprintf("%d writes lost or more", max(0, lost-kept)), old.Stop(ctx)
}

// effects counts the rows of the log on a server.
func effects(ctx context.Context, server *pgserver.Server) (n int, err error) {
	err = onServer(ctx, server, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(*) FROM torture.effect").Scan(&n)
	})
	return n, err
}

func onServer(ctx context.Context, server *pgserver.Server, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, server.DSN(databaseName))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// register makes an etcd cluster the one that issues tokens, in the first epoch.
func (d *database) register(ctx context.Context, cluster string) error {
	return onServer(ctx, d.server(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT fencing.source_epoch('etcd', $1)", cluster)
		return err
	})
}

// adopt makes the operator's decision about an etcd that came back as another: its tokens are good from now on, in a new epoch. Where it is the
// registered one already there is nothing to decide.
func (d *database) adopt(ctx context.Context, cluster string) error {
	return onServer(ctx, d.server(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT fencing.adopt_epoch(name, $1) FROM fencing.source WHERE name = 'etcd' AND incarnation <> $1", cluster)
		return err
	})
}

// damaged reports whether the log shows what the guards would have refused: an older token after a newer one.
func (d *database) damaged(ctx context.Context) (found bool, err error) {
	err = onServer(ctx, d.server(), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM (
			SELECT token, max(token) OVER (PARTITION BY target ORDER BY version) AS newest FROM torture.effect) e WHERE token > 0 AND token < newest)`).Scan(&found)
	})
	return found, err
}

// outcome reads what the database says in the end.
func (d *database) outcome(ctx context.Context, h *history.History) error {
	d.mu.Lock()
	h.Losses = append(h.Losses, d.losses...)
	d.mu.Unlock()
	return onServer(ctx, d.server(), func(conn *pgx.Conn) error {
		// One snapshot: a backend whose worker is dead may still be committing.
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
			rows, _ := tx.Query(ctx, "SELECT op, target, version, token FROM torture.effect ORDER BY id") // the error comes with the rows
			if h.Effects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[history.Effect]); err != nil {
				return err
			}
			h.Rows = map[history.Target]history.Row{}
			for _, table := range []history.Table{history.Named, history.Reentrant, history.Strict} {
				var (
					lock string
					n    int
					row  history.Row
				)
				rows, _ := tx.Query(ctx, "SELECT lock, n, version, op FROM "+tableName(table))
				if _, err := pgx.ForEachRow(rows, []any{&lock, &n, &row.Version, &row.Op}, func() error {
					h.Rows[history.NewTarget(table, lock, n)] = row
					return nil
				}); err != nil {
					return err
				}
			}
			h.Fences = map[string]int64{}
			var (
				name  string
				token int64
			)
			rows, _ = tx.Query(ctx, "SELECT name, token FROM fencing.fence")
			_, err = pgx.ForEachRow(rows, []any{&name, &token}, func() error {
				h.Fences[name] = token
				return nil
			})
			return err
		})
	})
}

// close stops the relay and the server, and removes it.
func (d *database) close(ctx context.Context) error {
	if d.relay != nil {
		d.relay.close()
	}
	return d.server().Stop(ctx)
}
