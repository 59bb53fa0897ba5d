package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/postgres"
	"github.com/fencectl/fencectl/tokensrc/redis"
)

// What workers do with Redis and etcd: with the plain commands that applications use, and through this toolkit's sources.

func (w *worker) redisClient() *goredis.Client {
	if w.redis == nil {
		options := *w.stage.place.redis.options
		options.Dialer = w.still.over(goredis.NewDialer(&options))
		w.redis = goredis.NewClient(&options)
		w.later(func(context.Context) error { return w.redis.Close() })
	}
	return w.redis
}

func (w *worker) etcdClient() (*clientv3.Client, error) {
	if w.etcd == nil {
		client, err := w.stage.place.etcd.connect(w.still)
		if err != nil {
			return nil, err
		}
		w.etcd = client
		w.later(func(context.Context) error { client.Close(); return nil }) // it complains of the requests that this ends
	}
	return w.etcd, nil
}

// A plainLock is a lock as Redis' own documentation has it: SET key owner NX PX milliseconds.
type plainLock struct {
	name, key string
}

func (s *stage) plainLock(name string) plainLock {
	return plainLock{name, s.place.redis.prefix + "plain:" + name}
}

// take takes the lock as soon as it is free.
func (l plainLock) take(ctx context.Context, w *worker, limit time.Duration) error {
	return w.asks(ctx, l.name, limit, func(ctx context.Context) (bool, time.Duration, error) { return l.attempt(ctx, w, limit) })
}

// try takes the lock if it is free.
func (l plainLock) try(ctx context.Context, w *worker, limit time.Duration) (got bool, err error) {
	got, left, err := l.attempt(ctx, w, limit)
	switch {
	case err != nil:
		return false, fmt.Errorf("%s: acquiring %s: %w", w.name, l.name, err)
	case got:
		w.granted(l.name, limit, gotLock(l.name, limit))
	default:
		w.waits(l.name, left)
	}
	return got, nil
}

func (l plainLock) attempt(ctx context.Context, w *worker, limit time.Duration) (got bool, left time.Duration, err error) {
	got, err = w.redisClient().SetNX(ctx, l.key, rand.Text(), limit).Result()
	if err != nil || got {
		return got, 0, err
	}
	left, err = w.redisClient().PTTL(ctx, l.key).Result()
	return false, max(left, time.Millisecond), err // negative when it has just expired
}

// draw takes the next number of a counter beside the lock.
func (w *worker) draw(ctx context.Context) error {
	number, err := w.redisClient().Incr(ctx, w.stage.place.redis.prefix+"plain:counter").Result()
	if err != nil {
		return fmt.Errorf("%s: drawing a token: %w", w.name, err)
	}
	w.token = fenced.Token(number)
	w.record(Event{Kind: Drew, On: w.lock, Toward: Locks, Text: fmt.Sprintf("draws its token from a counter (INCR): %d", number)})
	return nil
}

// del frees the lock, whoever's it is.
func (l plainLock) del(ctx context.Context, w *worker) error {
	if err := w.redisClient().Del(ctx, l.key).Err(); err != nil {
		return fmt.Errorf("%s: releasing %s: %w", w.name, w.lock, err)
	}
	holder := w.stage.holders[w.lock]
	delete(w.stage.holders, w.lock)
	e := Event{Kind: Released, On: w.lock, Toward: Locks, Text: "gives the lock back: DEL"}
	if holder != w.name {
		e.Concerns = holder
		e.Text += fmt.Sprintf(", which frees the lock of %s", holder)
	}
	w.record(e)
	return nil
}

const redisSourceName = "redis"

func (s *stage) epochs() tokensrc.Epochs { return postgres.NewEpochs(s.place.pool) }

// redisSource is this toolkit's lock in Redis.
func (w *worker) redisSource(limit time.Duration) tokensrc.Source {
	return redis.New(w.redisClient(), &redis.Options{
		TTL: limit, Prefix: w.stage.place.redis.prefix, PollEvery: 20 * time.Millisecond, Epochs: w.stage.epochs(), SourceName: redisSourceName,
	})
}

// from takes the lock, and its token with it, from a source.
func (w *worker) from(ctx context.Context, source tokensrc.Source, lock string, limit time.Duration) error {
	got, err := w.tries(ctx, source, lock, limit)
	if err != nil || got {
		return err
	}
	grant, err := source.Acquire(ctx, lock)
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	w.gets(grant, limit)
	return nil
}

// tries takes the lock if it is free.
func (w *worker) tries(ctx context.Context, source tokensrc.Source, lock string, limit time.Duration) (got bool, err error) {
	grant, err := source.TryAcquire(ctx, lock)
	if errors.Is(err, tokensrc.ErrHeld) {
		w.waits(lock, 0)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", w.name, err)
	}
	w.gets(grant, limit)
	return true, nil
}

func (w *worker) gets(grant tokensrc.Grant, limit time.Duration) {
	w.holds(grant)
	w.granted(grant.Name(), limit, fmt.Sprintf("gets lock %s for %s, and its token in the same step", grant.Name(), limit))
}

// holds takes a grant over. The stage releases it at the latest.
func (w *worker) holds(grant tokensrc.Grant) {
	w.later(grant.Release)
	w.grant, w.token = grant, grant.Token()
}

// release gives a grant back.
func (w *worker) release(ctx context.Context) error {
	if err := w.grant.Release(ctx); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	e := Event{Kind: Released, On: w.lock, Toward: Locks, Text: "gives the lock back"}
	if holder := w.stage.holders[w.lock]; holder == w.name {
		delete(w.stage.holders, w.lock)
	} else {
		e.Text += fmt.Sprintf(", if it is still its own; it is not, and %s keeps it", holder)
	}
	w.record(e)
	return nil
}

// trusted makes the Redis that there is the one on record. The run before may have made it lose its data; whoever operates it
// has seen to that meanwhile.
func (s *stage) trusted(ctx context.Context) error {
	source := redis.New(s.place.redis.client, &redis.Options{Prefix: s.place.redis.prefix, Epochs: s.epochs(), SourceName: redisSourceName})
	grant, err := source.TryAcquire(ctx, "demo/begin")
	if other := (*tokensrc.IncarnationError)(nil); errors.As(err, &other) {
		_, err := s.place.pool.Exec(ctx, "SELECT fencing.adopt_epoch($1, $2)", redisSourceName, other.Incarnation)
		return err
	}
	if err != nil {
		return err
	}
	return grant.Release(ctx)
}

// denied asks for a lock of a source that is not the one on record, and returns what it is.
func (w *worker) denied(ctx context.Context, source tokensrc.Source, lock string) (*tokensrc.IncarnationError, error) {
	grant, err := source.TryAcquire(ctx, lock)
	if err == nil {
		w.holds(grant)
		return nil, fmt.Errorf("%s got a token from a source that is not on record", w.name)
	}
	var other *tokensrc.IncarnationError
	if !errors.As(err, &other) {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	w.record(Event{
		Kind: Denied, On: lock, Toward: Locks, Text: "asks for the lock, and gets none: this Redis is not the one that issued the tokens so far",
		Message: other.Error(),
	})
	return other, nil
}

// adopts is what an operator does then.
func (s *stage) adopts(ctx context.Context, other *tokensrc.IncarnationError) error {
	var epoch int
	if err := s.place.pool.QueryRow(ctx, "SELECT fencing.adopt_epoch($1, $2)", other.Source, other.Incarnation).Scan(&epoch); err != nil {
		return fmt.Errorf("adopting the source: %w", err)
	}
	s.record(Event{
		Actor: Operator, Kind: Adopted, On: other.Source, Toward: Data,
		Text: fmt.Sprintf("has a look, and adopts it: its tokens are of epoch %d from now on, and greater than all before", epoch),
		SQL:  fmt.Sprintf("SELECT fencing.adopt_epoch('%s', '%s')", other.Source, other.Incarnation),
	})
	return nil
}

// losesData makes Redis forget everything, the locks too.
func (s *stage) losesData(ctx context.Context) error {
	if err := s.place.redis.lose(ctx); err != nil {
		return fmt.Errorf("making Redis lose its data: %w", err)
	}
	clear(s.holders)
	s.record(Event{Actor: Locks, Kind: Lost, Text: "Redis " + s.place.redis.loss})
	return nil
}

// election is this toolkit's election in etcd.
func (w *worker) election(limit time.Duration) (tokensrc.Source, error) {
	client, err := w.etcdClient()
	if err != nil {
		return nil, err
	}
	return etcd.NewElection(client, &etcd.Options{
		TTL: limit, Prefix: w.stage.place.etcd.prefix, Value: w.name, Epochs: w.stage.epochs(),
	}), nil
}
