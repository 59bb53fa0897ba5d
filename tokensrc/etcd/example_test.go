package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/internal/etcdtest"
	"github.com/fencectl/fencectl/internal/stdout"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
)

var endpoints []string // of an etcd cluster

func ExampleNewMutex() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	source := etcd.NewMutex(client, &etcd.Options{TTL: 10 * time.Second})

	grant, err := source.Acquire(ctx, "jobs/nightly")
	if err != nil {
		panic(err)
	}
	defer grant.Release(context.WithoutCancel(ctx))
	// The token is the CreateRevision of the lock's key: give the grant to fenced.Claim and fenced.Run.
	fmt.Println(grant.Name(), grant.Token().Valid())

	_, err = source.TryAcquire(ctx, "jobs/nightly")
	fmt.Println(errors.Is(err, tokensrc.ErrHeld))
}

// A leader writes only while it leads: the grant's context ends with the leadership.
func ExampleNewElection() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	election := etcd.NewElection(client, &etcd.Options{TTL: 5 * time.Second, Value: "10.0.0.1:8080"}) // what followers see

	leadership, err := election.Acquire(ctx, "scheduler") // campaigns
	if err != nil {
		panic(err)
	}
	fmt.Println("leading:", leadership.Context().Err() == nil)
	if err := leadership.Release(ctx); err != nil { // resigns
		panic(err)
	}
	fmt.Println("leading:", leadership.Context().Err() == nil)
}

func TestExamples(t *testing.T) {
	endpoints = etcdtest.Start(t, 1).Endpoints()
	stdout.Compare(t, ExampleNewMutex, "jobs/nightly true\ntrue\n")
	stdout.Compare(t, ExampleNewElection, "leading: true\nleading: false\n")
}
