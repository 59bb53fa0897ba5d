package redis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencectl/fencectl/internal/redistest"
	"github.com/fencectl/fencectl/internal/stdout"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/redis"
)

var addr string // host:port of a Redis server

func ExampleNew() {
	ctx := context.Background()
	client := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer client.Close()
	source := redis.New(client, &redis.Options{TTL: 10 * time.Second})

	grant, err := source.Acquire(ctx, "jobs/nightly")
	if err != nil {
		panic(err)
	}
	defer grant.Release(context.WithoutCancel(ctx))
	fmt.Println(grant.Name(), grant.Token())

	_, err = source.TryAcquire(ctx, "jobs/nightly")
	fmt.Println(errors.Is(err, tokensrc.ErrHeld))
}

func TestExample(t *testing.T) {
	addr = redistest.Start(t).Addr()
	stdout.Compare(t, ExampleNew, "jobs/nightly 1\ntrue\n")
}
