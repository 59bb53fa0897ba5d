package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/redisserver"
)

// A redisPlace is the Redis of a demo.
type redisPlace struct {
	options *goredis.Options
	client  *goredis.Client // the demo's own; workers have theirs
	prefix  string          // of every key, with a hash tag
	what    string          // for people
	loss    string          // what its loss of data is, as a clause with it as the subject
	lose    func(context.Context) error
}

// openRedis connects to the Redis that address names. Without one it starts redis-server, and where that is not installed, a Redis
// inside this process.
func (p *place) openRedis(ctx context.Context, address, id string) error {
	goredis.SetLogger(&logging.VoidLogger{}) // it writes to stderr; what goes wrong comes back as an error
	r := &redisPlace{prefix: "{" + strings.ReplaceAll(DatabasePrefix, "_", "-") + id + "}:"}
	if address != "" {
		options, err := goredis.ParseURL(address)
		if err != nil {
			// Not the error itself: it may repeat the URL, and a password with it.
			return errors.New("--redis-url is no URL such as redis://host:6379/0")
		}
		r.options = options
		r.loss = "loses the last writes, as in a failover to a replica that had not got them yet (here: the demo's keys are deleted)"
		r.lose = r.deleteKeys
	} else if err := p.startRedis(ctx, r); err != nil {
		return err
	}
	r.options.ContextTimeoutEnabled = true
	r.client = goredis.NewClient(r.options)
	p.later(func(ctx context.Context) error {
		defer r.client.Close()
		if address == "" {
			return nil // they are gone with it
		}
		if err := r.deleteKeys(ctx); err != nil {
			return fmt.Errorf("the keys %s* at %s could not be deleted, delete them by hand: %w", r.prefix, r.options.Addr, err)
		}
		return nil
	})
	var info string
	err := answers(ctx, func(ctx context.Context) (err error) {
		info, err = r.client.Info(ctx, "server").Result()
		if err != nil && r.what != "" {
			err = r.client.Ping(ctx).Err() // miniredis has no INFO server
		}
		return err
	})
	if err != nil {
		return unreachable(ctx, "redis at "+r.options.Addr, err, "--redis-url")
	}
	if r.what == "" {
		version := "Redis"
		for line := range strings.Lines(info) {
			if number, found := strings.CutPrefix(line, "redis_version:"); found {
				version = "Redis " + strings.TrimSpace(number)
			}
		}
		r.what = version
		if address != "" {
			r.what += " at " + r.options.Addr
		}
	}
	p.redis = r
	return nil
}

func (p *place) startRedis(ctx context.Context, r *redisPlace) error {
	server, err := redisserver.Start(ctx, false)
	if errors.Is(err, redisserver.ErrNotInstalled) {
		return p.startMiniredis(r)
	}
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	p.later(func(context.Context) error { return server.Stop() })
	r.options = &goredis.Options{Addr: server.Addr()}
	r.loss = "is killed (SIGKILL), and comes back empty: it had not written anything to disk yet"
	r.lose = server.RestartEmpty
	return nil
}

// clockTick is how often the clock of the Redis in this process is moved on.
const clockTick = 5 * time.Millisecond

// startMiniredis starts a Redis in this process. Its keys only expire when it is told that time has passed, so it is told.
func (p *place) startMiniredis(r *redisPlace) error {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		return fmt.Errorf("starting a Redis in this process: %w", err)
	}
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(clockTick)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-tick.C:
				now := time.Now()
				server.FastForward(now.Sub(last))
				last = now
			case <-over:
				return
			}
		}
	}()
	p.later(func(context.Context) error {
		close(over)
		<-stopped
		server.Close()
		return nil
	})
	r.options = &goredis.Options{Addr: server.Addr()}
	r.what = "a Redis in this process (miniredis; redis-server is not installed)"
	r.loss = "is stopped, and comes back empty"
	r.lose = func(context.Context) error {
		server.Close()
		server.FlushAll()
		return server.Restart()
	}
	return nil
}

// deleteKeys removes all that the demo has written.
func (r *redisPlace) deleteKeys(ctx context.Context) error {
	pattern := strings.NewReplacer("{", `\{`, "}", `\}`).Replace(r.prefix) + "*"
	for keys := r.client.Scan(ctx, 0, pattern, 1000).Iterator(); ; {
		if !keys.Next(ctx) {
			return keys.Err()
		}
		if err := r.client.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
}

// answerWithin is how long a given service has to answer at all.
const answerWithin = 10 * time.Second

// unreachable is what a service did that was given, in words of its own: it is not the database.
func unreachable(ctx context.Context, what string, err error, flag string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &connect.Error{
		Kind: connect.Unreachable, Message: fmt.Sprintf("%s: %v", what, err),
		Next: fmt.Sprintf("start it, or leave out %s: the demo then uses one of its own", flag),
	}
}

func answers(ctx context.Context, request func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	err := request(limited)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		return fmt.Errorf("no answer within %v", answerWithin)
	}
	return err
}
