// Package locksource opens the lock service that a command line names: the client, a look whether anybody answers, and the
// token source on it. It owns what the settings mean and that no password gets into a message; the locks are tokensrc's.
package locksource

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/postgres"
	"github.com/fencectl/fencectl/tokensrc/redis"
	"github.com/fencectl/fencectl/tokensrc/zookeeper"
)

// The kinds of lock service.
const (
	Postgres  = "postgres"
	Etcd      = "etcd"
	Redis     = "redis"
	ZooKeeper = "zookeeper"
)

// Kinds lists them, the default first.
func Kinds() []string { return []string{Postgres, Etcd, Redis, ZooKeeper} }

// Settings name a lock service.
type Settings struct {
	Kind   string        // one of Kinds
	TTL    time.Duration // how long the service keeps the lock of a process that is gone
	Logger *slog.Logger  // told of lost locks and failed renewals; nil for none

	Etcd             EtcdSettings
	RedisURL         string // redis://, rediss:// or unix://, with user, password and database as go-redis reads it
	ZooKeeperServers string // as ZooKeeper's own tools take it: host:port,…/chroot
}

// EtcdSettings are those of etcdctl.
type EtcdSettings struct {
	Endpoints         []string
	CACert, Cert, Key string // files; empty for none
	User, Password    string
}

// answerWithin is how long a service has to answer at all.
const answerWithin = 10 * time.Second

// Open connects, finds out whether the service answers, and returns the source. Tokens of services other than the database get
// the epoch that the database has on record. The caller calls closeSource when the grants are released; pool stays the caller's.
func Open(ctx context.Context, s *Settings, pool *pgxpool.Pool) (source tokensrc.Source, closeSource func(), err error) {
	switch s.Kind {
	case Postgres:
		return postgres.NewLease(pool, &postgres.LeaseOptions{TTL: s.TTL, Logger: s.Logger}), func() {}, nil
	case Etcd:
		return openEtcd(ctx, s, postgres.NewEpochs(pool))
	case Redis:
		return openRedis(ctx, s, postgres.NewEpochs(pool))
	case ZooKeeper:
		return openZooKeeper(ctx, s, postgres.NewEpochs(pool))
	}
	return nil, nil, fmt.Errorf("no such lock service: %s", s.Kind)
}

func openEtcd(ctx context.Context, s *Settings, epochs tokensrc.Epochs) (tokensrc.Source, func(), error) {
	where := strings.Join(s.Etcd.Endpoints, ",")
	var security *tls.Config
	if s.Etcd.CACert != "" || s.Etcd.Cert != "" || s.Etcd.Key != "" {
		files := transport.TLSInfo{TrustedCAFile: s.Etcd.CACert, CertFile: s.Etcd.Cert, KeyFile: s.Etcd.Key}
		var err error
		if security, err = files.ClientConfig(); err != nil {
			return nil, nil, fmt.Errorf("the certificates for etcd: %w", err)
		}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: s.Etcd.Endpoints, TLS: security, Username: s.Etcd.User, Password: s.Etcd.Password,
		DialTimeout: answerWithin, DialKeepAliveTime: answerWithin, DialKeepAliveTimeout: answerWithin,
		Logger: zap.NewNop(), // what goes wrong comes back as an error
	})
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to etcd at %s: %w", where, err)
	}
	// A linearizable read needs a leader, as the lock does.
	err = answers(ctx, func(ctx context.Context) error {
		_, err := client.Get(ctx, "fencing/mutex", clientv3.WithCountOnly())
		return err
	})
	if err != nil {
		client.Close()
		return nil, nil, away(ctx, "etcd at "+where, err, "see that it is up, and where: --etcd-endpoints")
	}
	return etcd.NewMutex(client, &etcd.Options{TTL: s.TTL, Epochs: epochs, Logger: s.Logger}), func() { client.Close() }, nil
}

func openRedis(ctx context.Context, s *Settings, epochs tokensrc.Epochs) (tokensrc.Source, func(), error) {
	options, err := goredis.ParseURL(s.RedisURL)
	if err != nil {
		// Not the error itself: it may repeat the URL, and a password with it.
		return nil, nil, errors.New("the address of Redis is not a URL such as redis://host:6379/0")
	}
	options.ContextTimeoutEnabled = true
	goredis.SetLogger(&logging.VoidLogger{}) // it writes to stderr, which is the command's; what goes wrong comes back as an error
	client := goredis.NewClient(options)
	if err := answers(ctx, func(ctx context.Context) error { return client.Ping(ctx).Err() }); err != nil {
		client.Close()
		return nil, nil, away(ctx, "redis at "+options.Addr, err, "see that it is up, and where: --redis-url")
	}
	return redis.New(client, &redis.Options{TTL: s.TTL, Epochs: epochs, Logger: s.Logger}), func() { client.Close() }, nil
}

func openZooKeeper(ctx context.Context, s *Settings, epochs tokensrc.Epochs) (tokensrc.Source, func(), error) {
	list, root, _ := strings.Cut(s.ZooKeeperServers, "/")
	options := zookeeper.Options{TTL: s.TTL, Epochs: epochs, Logger: s.Logger, Root: "/" + strings.Trim(root+"/fencing", "/")}
	for _, server := range strings.Split(list, ",") {
		if server = strings.TrimSpace(server); server == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(server); err != nil {
			server = net.JoinHostPort(strings.Trim(server, "[]"), "2181")
		}
		options.Servers = append(options.Servers, server)
	}
	source, err := zookeeper.New(options)
	if err != nil {
		return nil, nil, errors.New("the address of ZooKeeper is not a list such as host1:2181,host2:2181")
	}
	// One that answers is enough: the source itself goes on to the next where one does not.
	err = answers(ctx, func(ctx context.Context) error {
		var failures []error
		for _, server := range options.Servers {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", server)
			if err == nil {
				return conn.Close()
			}
			failures = append(failures, err)
		}
		return errors.Join(failures...)
	})
	if err != nil {
		return nil, nil, away(ctx, "zookeeper at "+s.ZooKeeperServers, err, "see that it is up, and where: --zookeeper-servers")
	}
	return source, func() {}, nil
}

// away is the error of a service that did not answer, in the words of the service: a connection that was refused is not the database's.
// An interruption stays what it is.
func away(ctx context.Context, service string, err error, next string) error {
	if ctx.Err() != nil {
		return err
	}
	return &connect.Error{Message: fmt.Sprintf("%s: %v", service, err), Next: next}
}

// answers limits the first request. What it was waiting for is not worth more words than that.
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

// Acquire takes the lock within wait: at once or not at all where that is 0, whenever it comes where it is negative. The error is
// tokensrc.ErrHeld when somebody else has it. ctx must last as long as the grant is to.
func Acquire(ctx context.Context, source tokensrc.Source, name string, wait time.Duration) (tokensrc.Grant, error) {
	switch {
	case wait < 0:
		return source.Acquire(ctx, name)
	case wait > 0:
		return tokensrc.AcquireWithin(ctx, source, name, wait)
	}
	// Trying once does not wait for the lock, but it could wait for a service that has gone silent.
	trying, cancel := context.WithCancelCause(ctx)
	silent := fmt.Errorf("the lock service gave no answer within %v", answerWithin)
	timer := time.AfterFunc(answerWithin, func() { cancel(silent) })
	grant, err := source.TryAcquire(trying, name)
	inTime := timer.Stop()
	if err == nil && !inTime {
		// The answer came in the moment the wait for it ended, and the grant has ended with that.
		err = errors.Join(silent, grant.Release(context.WithoutCancel(ctx)))
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	context.AfterFunc(grant.Context(), func() { cancel(nil) })
	return grant, nil
}
