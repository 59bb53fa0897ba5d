package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/pgserver"
)

// DatabasePrefix begins the name of every database that the demo creates on a server that it was given. Where the process is
// killed before it could drop its database, that is what to look for.
const DatabasePrefix = "fencectl_demo_"

// ownDatabase is its name on a server of the demo's own, which lives no longer than the database does.
const ownDatabase = "shop"

// leaveTimeout bounds the taking down: a given server may have become unreachable meanwhile.
const leaveTimeout = 30 * time.Second

// A place is the database that the demo runs in, and what has to be taken down afterwards.
type place struct {
	pool    *pgxpool.Pool
	dsn     string      // for people: how to reach the database with psql
	version string      // the server's, such as "15.18"
	own     bool        // the server was started for the demo
	redis   *redisPlace // nil where no scenario needs it
	etcd    *etcdPlace  // the same
	close   []func(context.Context) error
}

// open makes the database, and connects to the lock services that the scenarios need or starts them.
func open(ctx context.Context, opts *Options, scenarios []Scenario) (_ *place, err error) {
	p := &place{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.leave(ctx))
		}
	}()
	id := strings.ToLower(rand.Text()[:12])
	// The database last: to start one takes longest, and a wrong address of another service is to be known before.
	if needed(scenarios, needsRedis) {
		if err := p.openRedis(ctx, opts.RedisURL, id); err != nil {
			return nil, err
		}
	}
	if needed(scenarios, needsEtcd) {
		if err := p.openEtcd(ctx, opts.EtcdEndpoints, id); err != nil {
			return nil, err
		}
	}
	if err := p.openDatabase(ctx, opts.DSN, DatabasePrefix+id); err != nil {
		return nil, err
	}
	return p, nil
}

// openDatabase makes the database: on the server that dsn names, or on one that it starts from the binaries of this machine.
func (p *place) openDatabase(ctx context.Context, dsn, database string) error {
	var psql func() string
	if dsn == "" {
		server, err := pgserver.Start(ctx, nil)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		p.later(server.Stop)
		p.own, database, dsn = true, ownDatabase, server.DSN("postgres")
		psql = func() string { return server.DSN(database) }
	}
	server, err := connect.Open(ctx, &connect.Options{DSN: dsn, Write: true})
	if err != nil {
		return err
	}
	p.later(func(context.Context) error { server.Close(); return nil })
	p.version, _, _ = strings.Cut(server.Version, " ")

	name := pgx.Identifier{database}.Sanitize()
	if _, err := server.Pool.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "42501" { // insufficient_privilege
			return &connect.Error{
				Kind: connect.NoPrivilege, Message: fmt.Sprintf("role %s may not create a database at %s", server.Role, server.Address),
				Next: "use a role with CREATEDB, or leave out --dsn: the demo then starts a server of its own",
			}
		}
		return fmt.Errorf("creating a database for the demo: %w", err)
	}
	if !p.own {
		p.later(func(ctx context.Context) error {
			if _, err := server.Pool.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
				return fmt.Errorf("database %s could not be dropped, drop it by hand: %w", database, err)
			}
			return nil
		})
		psql = func() string { return fmt.Sprintf("database %s on %s", database, server.Address) }
	}

	config := server.Pool.Config()
	config.ConnConfig.Database = database
	// What the server has to say about IF EXISTS and the like is no part of the story.
	config.ConnConfig.OnNotice = nil
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	p.later(func(context.Context) error { p.pool.Close(); return nil })
	p.dsn = psql()
	return nil
}

// load runs a script in a session of its own and returns when that session is over: that is when PostgreSQL has counted what
// it wrote, which the audit then finds.
func (p *place) load(ctx context.Context, script string) error {
	conn, err := pgx.ConnectConfig(ctx, p.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, script, pgx.QueryExecModeSimpleProtocol)
	pid := int32(conn.PgConn().PID())
	if err := errors.Join(err, conn.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for over := false; !over; <-tick.C {
		if err := p.pool.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid).Scan(&over); err != nil {
			return err
		}
	}
	return nil
}

func (p *place) later(f func(context.Context) error) { p.close = append(p.close, f) }

// leave takes down everything that open has made, also after the context has ended.
func (p *place) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	var errs []error
	for i := len(p.close) - 1; i >= 0; i-- {
		errs = append(errs, p.close[i](ctx))
	}
	p.close = nil
	return errors.Join(errs...)
}
