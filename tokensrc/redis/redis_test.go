package redis_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencectl/fencectl/internal/netfault"
	"github.com/fencectl/fencectl/internal/redistest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/redis"
	"github.com/fencectl/fencectl/tokensrc/sourcetest"
)

func TestConformance(t *testing.T) {
	server := redistest.Start(t)
	watcher := server.Client(t, server.Addr())
	options := &redis.Options{TTL: 1500 * time.Millisecond, PollEvery: 20 * time.Millisecond}
	sourcetest.Run(t, sourcetest.Config{
		TTL: options.TTL,
		New: func(t testing.TB) tokensrc.Source { return redis.New(server.Client(t, server.Addr()), options) },
		NewLinked: func(t testing.TB) (tokensrc.Source, sourcetest.Link) {
			link := netfault.New(t, server.Addr())
			return redis.New(server.Client(t, link.Addr()), options), link
		},
		Connections: func(t testing.TB) int {
			info, err := watcher.Info(context.Background(), "clients").Result()
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(info, "connected_clients:")
			n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\r\n", 2)[0]))
			if err != nil {
				t.Fatal(err)
			}
			return n
		},
	})
}

func TestTokensGrowAcrossARestartWithPersistence(t *testing.T) {
	server := redistest.Start(t)
	source := redis.New(server.Client(t, server.Addr()), nil)
	before, err := source.Acquire(t.Context(), "jobs/nightly")
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	after, err := redis.New(server.Client(t, server.Addr()), nil).Acquire(t.Context(), "jobs/nightly")
	if err != nil {
		t.Fatal(err)
	}
	defer after.Release(context.WithoutCancel(t.Context()))
	if after.Token() <= before.Token() {
		t.Errorf("token %v after %v", after.Token(), before.Token())
	}
}

func TestAReleaseWakesTheProcessesOwnWaiterLongBeforeItsPoll(t *testing.T) {
	server := redistest.Start(t)
	source := redis.New(server.Client(t, server.Addr()), &redis.Options{TTL: time.Hour, PollEvery: time.Hour})
	held, err := source.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		grant, err := tokensrc.AcquireWithin(t.Context(), source, "jobs", time.Minute)
		if err == nil {
			err = grant.Release(context.Background())
		}
		got <- err
	}()
	if err := held.Release(t.Context()); err != nil { // before the waiter has asked, while it asks, or after
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}
