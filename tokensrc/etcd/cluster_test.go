package etcd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/etcdtest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
)

func TestTheLossOfTheLeaderCostsNoLockThatIsHeldAndNoPlaceInTheQueue(t *testing.T) {
	cluster := etcdtest.Start(t, 3)
	options := &etcd.Options{TTL: 5 * time.Second}
	held, err := etcd.NewMutex(cluster.Client(t), options).Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	waiter := make(chan tokensrc.Grant, 1)
	go func() {
		grant, err := tokensrc.AcquireWithin(t.Context(), etcd.NewMutex(cluster.Client(t), options), "jobs", time.Minute)
		if err != nil {
			t.Error(err)
		}
		waiter <- grant
	}()
	waitQueued(t, cluster.Client(t), "fencing/mutex/jobs/", 2)

	cluster.StopMember(cluster.Leader(t))
	cluster.Leader(t) // another one is elected
	if err := held.Context().Err(); err != nil {
		t.Fatalf("the holder lost the lock: %v", context.Cause(held.Context()))
	}
	select {
	case grant := <-waiter:
		t.Fatalf("the waiter got %v while the lock is held", grant)
	default:
	}
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := <-waiter
	if next == nil {
		t.FailNow()
	}
	if next.Token() <= held.Token() {
		t.Errorf("token %v after %v", next.Token(), held.Token())
	}
	if err := next.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func waitQueued(t *testing.T, client *clientv3.Client, prefix string, n int64) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		resp, err := client.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		if resp.Count >= n {
			return
		}
	}
	t.Fatalf("there are not %d in the queue %s", n, prefix)
}

func TestWithoutAQuorumTheGrantEndsAndNoneIsGiven(t *testing.T) {
	cluster := etcdtest.Start(t, 3)
	source := etcd.NewMutex(cluster.Client(t), &etcd.Options{TTL: 2 * time.Second})
	held, err := source.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	cluster.StopMember(0)
	cluster.StopMember(1)
	select {
	case <-held.Context().Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the grant's context goes on without a quorum")
	}
	if cause := context.Cause(held.Context()); !errors.Is(cause, tokensrc.ErrLost) {
		t.Errorf("the cause is %v", cause)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if grant, err := source.TryAcquire(ctx, "other"); err == nil {
		t.Errorf("without a quorum it granted %v", grant.Token())
	}
}

func TestTheTokenIsTheKeysCreateRevision(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	for name, source := range map[string]*etcd.Source{
		"fencing/mutex/":    etcd.NewMutex(client, nil),
		"fencing/election/": etcd.NewElection(client, &etcd.Options{Value: "10.0.0.1:80"}),
	} {
		grant, err := source.Acquire(t.Context(), "a/b")
		if err != nil {
			t.Fatal(err)
		}
		// Other writes make the store's revision, which is in every response's header, run ahead of the key's.
		if _, err := client.Put(t.Context(), "unrelated", "x"); err != nil {
			t.Fatal(err)
		}
		resp, err := client.Get(t.Context(), name+"a%2Fb/", clientv3.WithPrefix())
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%v, %v", resp, err)
		}
		if created := fenced.Token(resp.Kvs[0].CreateRevision); grant.Token() != created || int64(created) == resp.Header.Revision {
			t.Errorf("%s: the token is %v, the key's CreateRevision %v, the store's revision %v", name, grant.Token(), created, resp.Header.Revision)
		}
		if err := grant.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnElectionCanBeObservedWithEtcdsOwnPackage(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	grant, err := etcd.NewElection(client, &etcd.Options{Value: "10.0.0.1:80"}).Acquire(t.Context(), "leader")
	if err != nil {
		t.Fatal(err)
	}
	defer grant.Release(context.WithoutCancel(t.Context()))
	session, err := concurrency.NewSession(client)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	leader, err := concurrency.NewElection(session, "fencing/election/leader").Leader(t.Context())
	if err != nil || string(leader.Kvs[0].Value) != "10.0.0.1:80" {
		t.Errorf("observed %v, %v", leader, err)
	}
}

func TestALockThatAnOperatorBreaksIsLost(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	grant, err := etcd.NewMutex(client, &etcd.Options{TTL: time.Second}).Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer grant.Release(context.WithoutCancel(t.Context()))
	// The lease lives on; only the key is deleted.
	if _, err := client.Delete(t.Context(), "fencing/mutex/jobs/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-grant.Context().Done():
		if cause := context.Cause(grant.Context()); !errors.Is(cause, tokensrc.ErrLost) {
			t.Errorf("the cause is %v", cause)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the key is gone and the grant's context goes on")
	}
}

// A waiter whose lease runs out while it waits has lost its place; it must not take the lock when its turn would have come.
func TestAWaiterWhoseLeaseIsGoneDoesNotGetTheLock(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	source := etcd.NewMutex(client, &etcd.Options{TTL: time.Hour})
	held, err := source.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := tokensrc.AcquireWithin(t.Context(), etcd.NewMutex(cluster.Client(t), &etcd.Options{TTL: time.Hour}), "jobs", time.Minute)
		result <- err
	}()
	waitQueued(t, client, "fencing/mutex/jobs/", 2)
	leases, err := client.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	queue, err := client.Get(t.Context(), "fencing/mutex/jobs/", append(clientv3.WithLastCreate(), clientv3.WithPrefix())...)
	if err != nil || len(queue.Kvs) != 1 {
		t.Fatalf("%v, %v", queue, err)
	}
	revoked := false
	for _, lease := range leases.Leases {
		if int64(lease.ID) == queue.Kvs[0].Lease {
			if _, err := client.Revoke(t.Context(), lease.ID); err != nil {
				t.Fatal(err)
			}
			revoked = true
		}
	}
	if !revoked {
		t.Fatal("the waiter's lease was not found")
	}
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err == nil {
		t.Fatal("a waiter without a key got the lock")
	}
}
