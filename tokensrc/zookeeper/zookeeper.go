// Package zookeeper issues fencing tokens from Apache ZooKeeper (3.5 or later): the lock is an ephemeral sequential node in the lock's
// queue, the token that node's czxid, the id of the transaction that created it.
//
// Every grant has a session on a connection of its own, so a lost session is one lost lock, and closing it frees that lock and
// nothing else. A server allows 60 connections from one address unless maxClientCnxns says otherwise.
//
// A zxid has the ensemble's own epoch in its upper half; the 48 bits of a token's counter hold 65535 elections, after which
// the source refuses to issue.
//
// The incarnation of an ensemble is a random identity that the first grant writes to ROOT/incarnation. Another ensemble, or this one
// without its data, has another. Restored from an older snapshot it has not; then only the fence, which refuses the tokens, tells
// (fenced.ErrSourceBehind).
package zookeeper

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/internal/tenure"
)

// Options are the settings of a source.
type Options struct {
	// Servers are the ensemble's host:port. Required.
	Servers []string
	// TTL is the session timeout to ask for: how long the ensemble keeps the lock of a process that is gone. The servers change it to
	// something between 2 and 20 of their ticks (4 s and 40 s as shipped). Default 15 s.
	TTL time.Duration
	// Root is the node under which everything is kept, with a leading and no trailing slash; it is made if missing. Default "/fencing".
	Root string
	// ACL of the nodes made. Default: anybody may do anything.
	ACL []zk.ACL
	// Prepare is called with each new connection before its first request, for conn.AddAuth. Default: nothing.
	Prepare func(conn *zk.Conn) error
	// Dial connects to a server, for TLS. Default net.DialTimeout.
	Dial zk.Dialer
	// Epochs registers the ensemble's incarnation; nil issues every token in epoch 0, without a check.
	Epochs tokensrc.Epochs
	// SourceName is the name in the registry of Epochs. Default "zookeeper".
	SourceName string
	// Logger is told of lost locks and failed renewals; nil for none.
	Logger *slog.Logger
}

// Source implements [tokensrc.Source]. It holds no connection of its own and needs no closing.
type Source struct{ options Options }

var _ tokensrc.Source = (*Source)(nil)

// New returns a source of locks.
func New(options Options) (*Source, error) {
	if len(options.Servers) == 0 {
		return nil, errors.New("tokensrc/zookeeper: no servers given")
	}
	if options.TTL <= 0 {
		options.TTL = 15 * time.Second
	}
	if options.Root == "" {
		options.Root = "/fencing"
	}
	if !strings.HasPrefix(options.Root, "/") || strings.HasSuffix(options.Root, "/") {
		return nil, fmt.Errorf("tokensrc/zookeeper: root %q: want a leading slash and no trailing one", options.Root)
	}
	if options.ACL == nil {
		options.ACL = zk.WorldACL(zk.PermAll)
	}
	if options.Dial == nil {
		options.Dial = net.DialTimeout
	}
	if options.SourceName == "" {
		options.SourceName = "zookeeper"
	}
	options.Servers = slices.Clone(options.Servers)
	return &Source{options}, nil
}

// Acquire implements [tokensrc.Source].
func (s *Source) Acquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	return s.acquire(ctx, name, true)
}

// TryAcquire implements [tokensrc.Source].
func (s *Source) TryAcquire(ctx context.Context, name string) (tokensrc.Grant, error) {
	return s.acquire(ctx, name, false)
}

// A place is our node in a lock's queue.
type place struct {
	source  *Source
	session *session
	queue   string // path of the queue
	prefix  string // of our node's name, unique to this grant
	path    string // of our node
	stat    *zk.Stat
	sent    time.Time // before the request whose answer was stat
	closed  bool      // the session was closed by a release
}

func (s *Source) acquire(ctx context.Context, name string, wait bool) (tokensrc.Grant, error) {
	if err := tenure.CheckName(name); err != nil {
		return nil, err
	}
	wrap := func(err error) error { return fmt.Errorf("tokensrc/zookeeper: acquire %q: %w", name, err) }
	if ctx.Err() != nil {
		return nil, wrap(context.Cause(ctx))
	}
	session, err := openSession(&s.options)
	if err != nil {
		return nil, wrap(err)
	}
	p := &place{source: s, session: session, queue: s.options.Root + "/locks/" + nodeName(name), prefix: "lock-" + strings.ToLower(rand.Text()) + "-"}
	token, err := p.take(ctx, wait)
	if err != nil {
		// Closing the session deletes our node, also the one whose creation we had no answer to.
		session.close()
		return nil, wrap(err)
	}
	return tenure.Start(ctx, tenure.Config{
		Name: name, Token: token, TTL: p.ttl(), Since: p.sent, Logger: s.options.Logger,
		Gone: session.gone, GoneErr: session.lostBecause,
		Renew: func(ctx context.Context) (time.Duration, error) {
			if err := p.check(ctx); err != nil {
				return 0, err
			}
			return p.ttl(), nil
		},
		Check: p.check, Release: p.release,
	}), nil
}

// ttl is how long the lock is sure to last after a request that was answered: two thirds of the session timeout. The leader
// hears of a client's requests to a follower only with the follower's next ping; if the two are parted just then, the
// leader counts from an earlier request of ours, up to two ninths (our renewals' interval) before.
func (p *place) ttl() time.Duration { return time.Duration(p.session.ttl.Load()) * 2 / 3 }

// nodeName makes any name one path component.
func nodeName(name string) string {
	return strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
}

// begin waits until the session is there and prepared.
func (p *place) begin(ctx context.Context, s *session) error {
	select {
	case <-s.ready:
	case <-s.gone:
		return s.lostBecause()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	prepare := p.source.options.Prepare
	if prepare == nil {
		return nil
	}
	_, err := call(ctx, s, func(conn *zk.Conn) (struct{}, error) {
		var err error
		s.prepareOnce.Do(func() { err = prepare(conn) })
		return struct{}{}, err
	})
	return err
}

func (p *place) take(ctx context.Context, wait bool) (fenced.Token, error) {
	if err := p.begin(ctx, p.session); err != nil {
		return 0, err
	}
	incarnation, err := p.incarnation(ctx)
	if err != nil {
		return 0, err
	}
	if err := p.enqueue(ctx); err != nil {
		return 0, err
	}
	if err := p.waitForTurn(ctx, wait); err != nil {
		return 0, err
	}
	o := p.source.options
	return tenure.Stamp(ctx, o.Epochs, o.SourceName, incarnation, p.stat.Czxid)
}

// incarnation reads the ensemble's identity, and writes it when this is the first grant ever. An ensemble is not swapped under
// a session: the identity is that of the ensemble our node is created in.
func (p *place) incarnation(ctx context.Context) (string, error) {
	path := p.source.options.Root + "/incarnation"
	for {
		data, err := call(ctx, p.session, func(conn *zk.Conn) ([]byte, error) {
			data, _, err := conn.Get(path)
			return data, err
		})
		if !errors.Is(err, zk.ErrNoNode) {
			return string(data), err
		}
		if err := p.create(ctx, path, []byte(rand.Text()), zk.FlagPersistent); err != nil {
			return "", err
		}
	}
}

// create makes a node and the nodes above it; that it exists already is fine.
func (p *place) create(ctx context.Context, path string, data []byte, flag int32) error {
	acl := p.source.options.ACL
	_, err := call(ctx, p.session, func(conn *zk.Conn) (string, error) {
		if flag == zk.FlagContainer {
			return conn.CreateContainer(path, data, flag, acl)
		}
		return conn.Create(path, data, flag, acl)
	})
	if above := path[:strings.LastIndexByte(path, '/')]; errors.Is(err, zk.ErrNoNode) && above != "" {
		if err := p.create(ctx, above, nil, zk.FlagPersistent); err != nil {
			return err
		}
		return p.create(ctx, path, data, flag)
	}
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// enqueue creates our node. The queue is a container, which the ensemble removes some time after it was last used; that may
// happen just before we use it.
func (p *place) enqueue(ctx context.Context) error {
	for {
		path, err := call(ctx, p.session, func(conn *zk.Conn) (string, error) {
			return conn.Create(p.queue+"/"+p.prefix, nil, zk.FlagEphemeralSequential, p.source.options.ACL)
		})
		if !errors.Is(err, zk.ErrNoNode) {
			p.path = path
			return err
		}
		if err := p.create(ctx, p.queue, nil, zk.FlagContainer); err != nil {
			return err
		}
	}
}

// waitForTurn returns when no node in the queue is older than ours, having read ours again after that.
func (p *place) waitForTurn(ctx context.Context, wait bool) error {
	for {
		before, err := p.predecessor(ctx)
		if err != nil {
			return err
		}
		if before == "" {
			return p.read(ctx)
		}
		if !wait {
			return tokensrc.ErrHeld
		}
		// Watching the node just before ours wakes one waiter and not all.
		type watched struct {
			exists bool
			events <-chan zk.Event
		}
		w, err := call(ctx, p.session, func(conn *zk.Conn) (watched, error) {
			exists, _, events, err := conn.ExistsW(p.queue + "/" + before)
			return watched{exists, events}, err
		})
		if err != nil {
			if retry := p.pause(ctx, err); retry != nil {
				return retry
			}
			continue
		}
		if !w.exists {
			continue
		}
		select {
		case <-w.events: // also when the session ends: the next look says so
		case <-p.session.gone:
			return p.session.lostBecause()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pause lets a waiter outlast a broken connection, for as long as its session does.
func (p *place) pause(ctx context.Context, err error) error {
	select {
	case <-p.session.gone:
		return p.session.lostBecause()
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, final := range []error{zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrInvalidPath, zk.ErrAPIError, zk.ErrBadArguments, zk.ErrSessionExpired} {
		if errors.Is(err, final) {
			return err
		}
	}
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-p.session.gone:
		return p.session.lostBecause()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// predecessor is the node just before ours, or "".
func (p *place) predecessor(ctx context.Context) (string, error) {
	for {
		nodes, err := call(ctx, p.session, func(conn *zk.Conn) ([]string, error) {
			nodes, _, err := conn.Children(p.queue)
			return nodes, err
		})
		if errors.Is(err, zk.ErrNoNode) {
			return "", tenure.ErrNotHeld
		}
		if err != nil {
			if retry := p.pause(ctx, err); retry != nil {
				return "", retry
			}
			continue
		}
		slices.SortFunc(nodes, func(a, b string) int { return cmp.Compare(sequence(a), sequence(b)) })
		i := slices.Index(nodes, p.path[len(p.queue)+1:])
		switch i {
		case -1:
			return "", fmt.Errorf("%w: its node is gone", tenure.ErrNotHeld)
		case 0:
			return "", nil
		}
		return nodes[i-1], nil
	}
}

// sequence is the ten digits that the server appended to a node's name.
func sequence(node string) string { return node[strings.LastIndexByte(node, '-')+1:] }

// read confirms our node with a quorum and notes its czxid.
func (p *place) read(ctx context.Context) error {
	p.sent = time.Now()
	if err := p.check(ctx); err != nil {
		return err
	}
	stat, err := call(ctx, p.session, func(conn *zk.Conn) (*zk.Stat, error) {
		_, stat, err := conn.Get(p.path)
		return stat, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: its node is gone", tenure.ErrNotHeld)
	}
	p.stat = stat
	return err
}

// check is a transaction that only checks that our node is there. Unlike a read, which a follower that is cut off answers from what it
// remembers, it is answered by a quorum; unlike a write, it wakes nobody who watches the node.
func (p *place) check(ctx context.Context) error {
	_, err := call(ctx, p.session, func(conn *zk.Conn) (struct{}, error) {
		_, err := conn.Multi(&zk.CheckVersionRequest{Path: p.path, Version: 0})
		return struct{}{}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: its node is gone", tenure.ErrNotHeld)
	}
	return err
}

// release deletes our node and ends the session. When that failed, a later call deletes the node in a session of its own: the
// node's name is this grant's alone.
func (p *place) release(ctx context.Context) error {
	session := p.session
	if p.closed {
		var err error
		if session, err = openSession(&p.source.options); err != nil {
			return err
		}
	}
	// In any case no more pings: a session that nobody closes would keep the lock.
	defer session.close()
	p.closed = true
	err := p.begin(ctx, session)
	if err == nil {
		_, err = call(ctx, session, func(conn *zk.Conn) (struct{}, error) {
			return struct{}{}, conn.Delete(p.path, -1)
		})
	}
	if errors.Is(err, zk.ErrNoNode) || (session == p.session && errors.Is(err, zk.ErrSessionExpired)) {
		return nil // the node went, with the session that it belonged to
	}
	return err
}
