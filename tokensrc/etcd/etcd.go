// Package etcd issues fencing tokens from etcd: a mutex, and an election for leaders.
//
// A lock is a key with a lease, in a queue ordered by creation; the token is the key's CreateRevision, read in a transaction that
// is guarded by ownership of the key. Every grant has a lease of its own: two goroutines of one process that want one lock are as
// much rivals as two machines. Keys are laid out as etcd's own clientv3/concurrency does (PREFIX/NAME/LEASE in hex, the
// name escaped like a URL path segment), so etcdctl and concurrency.Election.Observe can watch them.
//
// Not used as a token, because they do not identify a tenure: the revision in a response's header (concurrency.Mutex.Header,
// Election.Header), which is the store's and can exceed the next holder's CreateRevision.
//
// The incarnation of an etcd is its cluster id, in decimal as "etcdctl endpoint status -w fields" shows it. A cluster that is restored from a snapshot under a new --initial-cluster-token or
// with other peer URLs has a new one. Restored under the same token and the same URLs it has not; then only the fence, which
// refuses its tokens, tells (fenced.ErrSourceBehind). Restore with --bump-revision and --mark-compacted, or adopt a new epoch.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/internal/tenure"
)

// Options are the settings of a source; nil means the defaults.
type Options struct {
	// TTL is how long etcd keeps the lock of a process that is gone. etcd counts whole seconds and has a minimum of its own, about
	// one and a half times its election timeout (2 s as shipped); a shorter or broken TTL is rounded up. Default 15 s.
	TTL time.Duration
	// Prefix is put before every key, without a trailing slash. Default "fencing/mutex" or "fencing/election".
	Prefix string
	// Value is the value of the holder's key, what observers of an election see (an address, for instance). It is not the
	// owner's identity, which is the lease. Default empty.
	Value string
	// Epochs registers the cluster's incarnation; nil issues every token in epoch 0, without a check.
	Epochs tokensrc.Epochs
	// SourceName is the name in the registry of Epochs. Default "etcd".
	SourceName string
	// Logger is told of lost locks and failed renewals; nil for none.
	Logger *slog.Logger
}

// Source implements [tokensrc.Source].
type Source struct {
	client  *clientv3.Client
	options Options
}

var _ tokensrc.Source = (*Source)(nil)

// NewMutex returns a source of locks. client stays the caller's to close, after all grants have been released.
func NewMutex(client *clientv3.Client, options *Options) *Source {
	return newSource(client, options, "fencing/mutex")
}

// NewElection returns a source of leaderships: Acquire campaigns, and the grant's context ends with the leadership. It differs from a
// mutex in its keys and in that Value is there to be observed.
func NewElection(client *clientv3.Client, options *Options) *Source {
	return newSource(client, options, "fencing/election")
}

func newSource(client *clientv3.Client, options *Options, prefix string) *Source {
	s := &Source{client: client}
	if options != nil {
		s.options = *options
	}
	if s.options.TTL <= 0 {
		s.options.TTL = 15 * time.Second
	}
	if s.options.Prefix == "" {
		s.options.Prefix = prefix
	}
	if s.options.SourceName == "" {
		s.options.SourceName = "etcd"
	}
	return s
}

// A claim is this process's key in a lock's queue.
type claim struct {
	source *Source
	prefix string // of the queue, with a trailing slash
	key    string
	lease  clientv3.LeaseID
	ttl    time.Duration
	sent   time.Time // when the request that last began the TTL was sent
	rev    int64     // the key's CreateRevision
}

// Acquire implements [tokensrc.Source].
func (s *Source) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	c, err := s.newClaim(ctx, name)
	if err != nil {
		return nil, err
	}
	kv, cluster, err := c.enqueue(ctx)
	if err == nil && string(kv.Key) != c.key {
		kv, cluster, err = c.wait(ctx)
	}
	return c.finish(ctx, name, kv, cluster, err)
}

// TryAcquire implements [tokensrc.Source].
func (s *Source) TryAcquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	// A look first: a lock that is held should not cost etcd a lease.
	resp, err := s.client.Get(ctx, s.queue(name), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return nil, fmt.Errorf("tokensrc/etcd: acquire %q: %w", name, err)
	}
	if resp.Count > 0 {
		return nil, fmt.Errorf("%w: %q", tokensrc.ErrHeld, name)
	}
	c, err := s.newClaim(ctx, name)
	if err != nil {
		return nil, err
	}
	kv, cluster, err := c.enqueueIfEmpty(ctx)
	return c.finish(ctx, name, kv, cluster, err)
}

func (s *Source) queue(name string) string {
	// The name is escaped, so that the queue of "jobs" is no prefix of the queue of "jobs/nightly".
	return s.options.Prefix + "/" + url.PathEscape(name) + "/"
}

func (s *Source) newClaim(ctx context.Context, name string) (*claim, error) {
	sent := time.Now()
	seconds := int64((s.options.TTL + time.Second - 1) / time.Second)
	lease, err := s.client.Grant(ctx, seconds)
	if err != nil {
		return nil, fmt.Errorf("tokensrc/etcd: acquire %q: %w", name, err)
	}
	queue := s.queue(name)
	return &claim{
		source: s, prefix: queue, key: queue + strconv.FormatInt(int64(lease.ID), 16), lease: lease.ID,
		ttl: time.Duration(lease.TTL) * time.Second, sent: sent,
	}, nil
}

// enqueue puts the key and reads the head of the queue in one transaction: when the head is our key, its CreateRevision is the token.
func (c *claim) enqueue(ctx context.Context) (head *mvccpb.KeyValue, cluster uint64, err error) {
	resp, err := c.source.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.key), "=", 0)).
		Then(clientv3.OpPut(c.key, c.source.options.Value, clientv3.WithLease(c.lease)), clientv3.OpGet(c.prefix, clientv3.WithFirstCreate()...)).
		Commit()
	if err != nil {
		return nil, 0, err
	}
	if !resp.Succeeded {
		return nil, 0, fmt.Errorf("key %q exists already", c.key) // somebody else writes under our prefix
	}
	c.rev = resp.Header.Revision
	return resp.Responses[1].GetResponseRange().Kvs[0], resp.Header.ClusterId, nil
}

// enqueueIfEmpty is enqueue for a queue that has nobody in it, else ErrHeld.
func (c *claim) enqueueIfEmpty(ctx context.Context) (head *mvccpb.KeyValue, cluster uint64, err error) {
	resp, err := c.source.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.prefix).WithPrefix(), "=", 0)).
		Then(clientv3.OpPut(c.key, c.source.options.Value, clientv3.WithLease(c.lease)), clientv3.OpGet(c.key)).
		Commit()
	if err != nil {
		return nil, 0, err
	}
	if !resp.Succeeded {
		return nil, 0, tokensrc.ErrHeld
	}
	c.rev = resp.Header.Revision
	return resp.Responses[1].GetResponseRange().Kvs[0], resp.Header.ClusterId, nil
}

// wait returns when our key is the head of the queue, having read it again under a fresh lease: while we waited, the lease
// may have run out and taken the key with it.
func (c *claim) wait(ctx context.Context) (head *mvccpb.KeyValue, cluster uint64, err error) {
	waiting, cancel := context.WithCancelCause(ctx)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		if err := c.keepAlive(waiting); err != nil {
			cancel(err)
		}
	}()
	err = c.waitForPredecessors(waiting)
	if cause := context.Cause(waiting); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	<-kept
	if err != nil {
		return nil, 0, err
	}
	if _, err := c.renew(ctx); err != nil {
		return nil, 0, err
	}
	return c.head(ctx)
}

// waitForPredecessors watches the key just before ours, so that a release wakes one waiter and not all.
func (c *claim) waitForPredecessors(ctx context.Context) error {
	client := c.source.client
	before := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(c.rev-1))
	for {
		resp, err := client.Get(ctx, c.prefix, before...)
		switch {
		case err == nil && len(resp.Kvs) == 0:
			return nil
		case err == nil:
			err = waitForDelete(ctx, client, string(resp.Kvs[0].Key), resp.Header.Revision+1)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			// An election of etcd's own leader, a member restarting: our place in the queue is kept by the lease, and when that
			// cannot be renewed either, ctx ends.
			c.source.debug("waiting for the lock is interrupted, trying again", "key", c.key, "error", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

func (s *Source) debug(msg string, args ...any) {
	if s.options.Logger != nil {
		s.options.Logger.Debug(msg, args...)
	}
}

func waitForDelete(ctx context.Context, client *clientv3.Client, key string, fromRevision int64) error {
	// RequireLeader: a member that was cut off from its cluster must end the watch instead of staying silent.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for resp := range client.Watch(ctx, key, clientv3.WithRev(fromRevision), clientv3.WithFilterPut()) {
		if err := resp.Err(); err != nil {
			return err
		}
		if len(resp.Events) > 0 {
			return nil
		}
	}
	return errors.New("the watch ended")
}

// keepAlive renews the lease of a waiter. It returns nil when ctx ends, else why the place in the queue is lost.
func (c *claim) keepAlive(ctx context.Context) error {
	ticker := time.NewTicker(c.ttl / 3)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		sent := time.Now()
		attempt, cancel := context.WithTimeout(ctx, c.ttl/3)
		_, err := c.source.client.KeepAliveOnce(attempt, c.lease)
		cancel()
		switch {
		case err == nil:
			last = sent
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, rpctypes.ErrLeaseNotFound) || time.Since(last) > c.ttl:
			return fmt.Errorf("the place in the queue is lost: %w", err)
		}
	}
}

func (c *claim) renew(ctx context.Context) (time.Duration, error) {
	sent := time.Now()
	resp, err := c.source.client.KeepAliveOnce(ctx, c.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return 0, fmt.Errorf("%w: its lease has expired", tenure.ErrNotHeld)
	}
	if err != nil {
		return 0, err
	}
	c.sent, c.ttl = sent, time.Duration(resp.TTL)*time.Second
	return c.ttl, nil
}

// head reads our key, guarded by ownership: it must exist with our revision and be the first of its queue.
func (c *claim) head(ctx context.Context) (*mvccpb.KeyValue, uint64, error) {
	resp, err := c.source.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.key), "=", c.rev)).
		Then(clientv3.OpGet(c.prefix, clientv3.WithFirstCreate()...)).
		Commit()
	if err != nil {
		return nil, 0, err
	}
	if !resp.Succeeded {
		return nil, 0, fmt.Errorf("%w: its key %q is gone", tenure.ErrNotHeld, c.key)
	}
	first := resp.Responses[0].GetResponseRange().Kvs[0]
	if string(first.Key) != c.key {
		return nil, 0, fmt.Errorf("%w: key %q comes before its own", tenure.ErrNotHeld, first.Key)
	}
	return first, resp.Header.ClusterId, nil
}

func (c *claim) release(ctx context.Context) error {
	// Revoking deletes what is attached to this lease, which is our key and nobody else's.
	_, err := c.source.client.Revoke(ctx, c.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// finish makes the grant, or gives the claim back.
func (c *claim) finish(ctx context.Context, name string, head *mvccpb.KeyValue, cluster uint64, err error) (tokensrc.Grant, error) {
	var token fenced.Token
	if err == nil {
		o := c.source.options
		token, err = tenure.Stamp(ctx, o.Epochs, o.SourceName, strconv.FormatUint(cluster, 10), head.CreateRevision)
	}
	if err != nil {
		cleanup, cancel := tenure.CleanupContext(ctx)
		defer cancel()
		if releaseErr := c.release(cleanup); releaseErr != nil {
			c.source.debug("could not give the claim back, it lapses", "key", c.key, "error", releaseErr)
		}
		return nil, fmt.Errorf("tokensrc/etcd: acquire %q: %w", name, err)
	}
	return tenure.Start(ctx, tenure.Config{
		Name: name, Token: token, TTL: c.ttl, Since: c.sent, Logger: c.source.options.Logger,
		Renew: func(ctx context.Context) (time.Duration, error) {
			ttl, err := c.renew(ctx)
			if err != nil {
				return 0, err
			}
			// The lease lives on when an operator deletes the key to break the lock.
			if _, _, err := c.head(ctx); err != nil {
				return 0, err
			}
			return ttl, nil
		},
		Check: func(ctx context.Context) error {
			_, _, err := c.head(ctx)
			return err
		},
		Release: c.release,
	}), nil
}
