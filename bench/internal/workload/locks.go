package workload

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"cirello.io/pglock"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/runner"
	"github.com/fencectl/fencectl/bench/internal/servers"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/postgres"
	"github.com/fencectl/fencectl/tokensrc/redis"
	"github.com/fencectl/fencectl/tokensrc/zookeeper"
)

// The variants of locks. Those of fencectl issue a token with every grant, the others none.
const (
	lease        = "fencectl, PostgreSQL lease"
	advisoryLock = "fencectl, PostgreSQL advisory lock"
	sequence     = "fencectl, PostgreSQL sequence"
	pgLock       = "cirello.io/pglock"
	etcdMutex    = "fencectl, etcd mutex"
	etcdElection = "fencectl, etcd election"
	rawMutex     = "etcd concurrency.Mutex"
	rawShared    = "etcd concurrency.Mutex, one session"
	rawElection  = "etcd concurrency.Election"
	redisLock    = "fencectl, Redis"
	redSync      = "redsync"
	redisLockLib = "redislock"
	zooKeeper    = "fencectl, ZooKeeper"
	rawZooKeeper = "zk.Lock, one session"

	// What a row that is written twice takes, the second time without waiting for the disk. No lock, and no token.
	floorLock = "floor: two UPDATEs"
)

// lockers acquire a lock, and return what releases it.
type locker func(ctx context.Context, name string) (release func(context.Context) error, err error)

func ofSource(source tokensrc.Source) locker {
	return func(ctx context.Context, name string) (func(context.Context) error, error) {
		grant, err := source.Acquire(ctx, name)
		if err != nil {
			return nil, err
		}
		return grant.Release, nil
	}
}

// contenders is how many goroutines want one lock.
const contenders = 8

var locksWorkload = Workload{
	Name: "locks", Title: "Acquiring and releasing a lock",
	About: "`alone`: one client acquires and releases a lock that nobody else wants, per second. `contended`: eight clients of one process want one lock and release it as soon as they have it, " +
		"acquisitions per second. `handover`: the time from the beginning of a release until a client that was waiting has the lock. All with the libraries' own settings; every service writes to disk before it answers. " +
		"`cirello.io/pglock` is only in the first: its waiter looks again after a whole lease, 20 s.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		lockers, order, err := b.lockers(ctx)
		if err != nil {
			return nil, err
		}
		alone := runner.Cell{Name: "locks/alone", Unit: runner.PerSecond, Repetitions: b.scale.Repetitions}
		contended := runner.Cell{Name: "locks/contended", Unit: runner.PerSecond, Repetitions: (b.scale.Repetitions + 2) / 3}
		handover := runner.Cell{Name: "locks/handover", Unit: runner.Milliseconds, Repetitions: (b.scale.Repetitions + 2) / 3}
		for i, variant := range order {
			lock := lockers[variant]
			name := fmt.Sprintf("lock/%d", i)
			cycle := func(name string) func(context.Context, int) error {
				return func(ctx context.Context, _ int) error {
					release, err := lock(ctx, name)
					if err != nil {
						return err
					}
					return release(ctx)
				}
			}
			if b.selection.wantsVariant(alone.Name, variant) {
				alone.Variants = append(alone.Variants, runner.Variant{Name: variant, Run: runner.Rate(1, b.scale.Slice, cycle(name))})
			}
			switch variant {
			case pgLock, pgLock + results.Again, sequence, rawShared, floorLock: // the last three are no locks between goroutines
				continue
			}
			if b.selection.wantsVariant(contended.Name, variant) {
				contended.Variants = append(contended.Variants, runner.Variant{Name: variant, Run: runner.Rate(contenders, 2*b.scale.Slice, cycle(name+"/contended"))})
			}
			if b.selection.wantsVariant(handover.Name, variant) {
				handover.Variants = append(handover.Variants, runner.Variant{Name: variant, Run: handovers(lock, name+"/handover")})
			}
		}
		var cells []runner.Cell
		for _, cell := range []runner.Cell{alone, contended, handover} {
			if len(cell.Variants) > 0 {
				cells = append(cells, cell)
			}
		}
		return cells, nil
	},
}

// handovers returns the mean time of a few handovers, in milliseconds.
func handovers(lock locker, name string) func(ctx context.Context) (float64, error) {
	const times = 4
	return func(ctx context.Context) (float64, error) {
		release, err := lock(ctx, name)
		if err != nil {
			return 0, err
		}
		var sum time.Duration
		for range times {
			type grant struct {
				release func(context.Context) error
				at      time.Time
				err     error
			}
			got := make(chan grant, 1)
			go func() {
				release, err := lock(ctx, name)
				got <- grant{release, time.Now(), err}
			}()
			// The waiter is to be waiting, and a poll of its not to keep time with us.
			hold := time.NewTimer(10*time.Millisecond + rand.N(10*time.Millisecond))
			select {
			case <-hold.C:
			case g := <-got:
				return 0, errors.Join(errors.New("the lock was held twice"), g.err)
			}
			begun := time.Now()
			if err := release(ctx); err != nil {
				return 0, err
			}
			g := <-got
			if g.err != nil {
				return 0, g.err
			}
			sum += g.at.Sub(begun)
			release = g.release
		}
		return float64(sum) / times / float64(time.Millisecond), release(ctx)
	}
}

// lockers are the variants whose service is installed here.
func (b *bench) lockers(ctx context.Context) (all map[string]locker, order []string, err error) {
	all = map[string]locker{}
	add := func(name string, l locker) {
		all[name] = l
		order = append(order, name)
	}
	if err := b.postgresLockers(ctx, add); err != nil {
		return nil, nil, err
	}
	for _, service := range []func(context.Context, func(string, locker)) error{b.etcdLockers, b.redisLockers, b.zooKeeperLockers} {
		err := service(ctx, add)
		if errors.Is(err, servers.ErrNotInstalled) {
			b.missing = append(b.missing, err.Error())
			continue
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return all, order, nil
}

func (b *bench) postgresLockers(ctx context.Context, add func(string, locker)) error {
	config, err := pgxpool.ParseConfig(b.server.DSN(database))
	if err != nil {
		return err
	}
	config.MaxConns = 2 * contenders
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	b.later(func(context.Context) error { pool.Close(); return nil })
	add(lease, ofSource(postgres.NewLease(pool, nil)))
	add(advisoryLock, ofSource(postgres.NewAdvisory(pool, nil)))
	add(sequence, ofSource(postgres.NewSequence(pool)))
	if err := b.exec(ctx, "CREATE TABLE public.floor (name text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50); INSERT INTO public.floor VALUES ('x', 0)"); err != nil {
		return err
	}
	asynchronous := config.Copy()
	asynchronous.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	hasty, err := pgxpool.NewWithConfig(ctx, asynchronous)
	if err != nil {
		return err
	}
	b.later(func(context.Context) error { hasty.Close(); return nil })
	add(floorLock, func(ctx context.Context, _ string) (func(context.Context) error, error) {
		write := func(ctx context.Context, pool *pgxpool.Pool) error {
			tag, err := pool.Exec(ctx, "UPDATE public.floor SET n = n + 1 WHERE name = $1", "x")
			return wrote(tag, err, 1)
		}
		return func(ctx context.Context) error { return write(ctx, hasty) }, write(ctx, pool)
	})

	// The same driver as ours, where the library would take lib/pq: what is compared is the work, not the driver.
	db := sql.OpenDB(stdlib.GetConnector(*config.ConnConfig))
	b.later(func(context.Context) error { return db.Close() })
	db.SetMaxOpenConns(2 * contenders)
	db.SetMaxIdleConns(2 * contenders)
	client, err := pglock.UnsafeNew(db)
	if err != nil {
		return err
	}
	if err := client.CreateTable(); err != nil {
		return err
	}
	for _, name := range []string{pgLock, pgLock + results.Again} {
		add(name, func(ctx context.Context, name string) (func(context.Context) error, error) {
			lock, err := client.AcquireContext(ctx, name)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return client.ReleaseContext(ctx, lock) }, nil
		})
	}
	return nil
}

func (b *bench) etcdLockers(ctx context.Context, add func(string, locker)) error {
	server, err := servers.Etcd(ctx)
	if err != nil {
		return err
	}
	b.later(func(context.Context) error { return server.Stop() })
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	b.later(func(context.Context) error { return client.Close() })
	add(etcdMutex, ofSource(etcd.NewMutex(client, nil)))
	add(etcdElection, ofSource(etcd.NewElection(client, nil)))

	const ttl = 15 // seconds, as ours
	for _, name := range []string{rawMutex, rawMutex + results.Again} {
		add(name, func(ctx context.Context, name string) (func(context.Context) error, error) {
			session, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
			if err != nil {
				return nil, err
			}
			mutex := concurrency.NewMutex(session, "raw/"+name)
			if err := mutex.Lock(ctx); err != nil {
				return nil, errors.Join(err, session.Close())
			}
			return func(ctx context.Context) error { return errors.Join(mutex.Unlock(ctx), session.Close()) }, nil
		})
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	if err != nil {
		return err
	}
	b.later(func(context.Context) error { return session.Close() })
	add(rawShared, func(ctx context.Context, name string) (func(context.Context) error, error) {
		mutex := concurrency.NewMutex(session, "shared/"+name)
		return mutex.Unlock, mutex.Lock(ctx)
	})
	add(rawElection, func(ctx context.Context, name string) (func(context.Context) error, error) {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
		if err != nil {
			return nil, err
		}
		election := concurrency.NewElection(session, "election/"+name)
		if err := election.Campaign(ctx, ""); err != nil {
			return nil, errors.Join(err, session.Close())
		}
		return func(ctx context.Context) error { return errors.Join(election.Resign(ctx), session.Close()) }, nil
	})
	return nil
}

func (b *bench) redisLockers(ctx context.Context, add func(string, locker)) error {
	server, err := servers.Redis(ctx)
	if err != nil {
		return err
	}
	b.later(func(context.Context) error { return server.Stop() })
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	b.later(func(context.Context) error { return client.Close() })
	add(redisLock, ofSource(redis.New(client, nil)))

	sync := redsync.New(redsyncredis.NewPool(client))
	add(redSync, func(ctx context.Context, name string) (func(context.Context) error, error) {
		mutex := sync.NewMutex(name)
		var taken *redsync.ErrTaken
		for { // it gives up after so many tries
			switch err := mutex.LockContext(ctx); {
			case err == nil:
				return func(ctx context.Context) error {
					_, err := mutex.UnlockContext(ctx)
					return err
				}, nil
			case !errors.Is(err, redsync.ErrFailed) && !errors.As(err, &taken):
				return nil, err
			}
		}
	})
	library := redislock.New(client)
	add(redisLockLib, func(ctx context.Context, name string) (func(context.Context) error, error) {
		lock, err := library.Obtain(ctx, "redislock/"+name, 15*time.Second, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
		if err != nil {
			return nil, err
		}
		return lock.Release, nil
	})
	return nil
}

func (b *bench) zooKeeperLockers(ctx context.Context, add func(string, locker)) error {
	server, err := servers.ZooKeeper(ctx)
	if err != nil {
		return err
	}
	b.later(func(context.Context) error { return server.Stop() })
	source, err := zookeeper.New(zookeeper.Options{Servers: []string{server.Addr()}})
	if err != nil {
		return err
	}
	add(zooKeeper, ofSource(source))
	conn, events, err := zk.Connect([]string{server.Addr()}, 15*time.Second, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	var drained sync.WaitGroup
	drained.Go(func() {
		for range events { //nolint:revive // read, so that the library does not wait
		}
	})
	b.later(func(context.Context) error { conn.Close(); drained.Wait(); return nil })
	add(rawZooKeeper, func(_ context.Context, name string) (func(context.Context) error, error) {
		lock := zk.NewLock(conn, "/raw/"+name, zk.WorldACL(zk.PermAll))
		return func(context.Context) error { return lock.Unlock() }, lock.Lock()
	})
	return nil
}
