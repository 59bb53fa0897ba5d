package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencectl/fencectl/internal/stdout"
	"github.com/fencectl/fencectl/internal/zktest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/zookeeper"
)

var servers []string // host:port of the ensemble's servers

func ExampleNew() {
	ctx := context.Background()
	source, err := zookeeper.New(zookeeper.Options{Servers: servers, TTL: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	grant, err := source.Acquire(ctx, "jobs/nightly")
	if err != nil {
		panic(err)
	}
	defer grant.Release(context.WithoutCancel(ctx))
	fmt.Println(grant.Name(), grant.Token().Valid())

	_, err = source.TryAcquire(ctx, "jobs/nightly")
	fmt.Println(errors.Is(err, tokensrc.ErrHeld))
}

func TestExample(t *testing.T) {
	servers = []string{zktest.Start(t).Addr()}
	stdout.Compare(t, ExampleNew, "jobs/nightly true\ntrue\n")
}
