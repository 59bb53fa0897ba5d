package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/fencectl/fencectl/internal/service"
)

// An etcdPlace is the etcd of a demo.
type etcdPlace struct {
	endpoints []string
	client    *clientv3.Client // the demo's own; workers have theirs
	prefix    string           // of every key, without a slash at the end
	what      string           // for people
}

// openEtcd connects to the etcd at the endpoints. Without any it starts one in this process.
func (p *place) openEtcd(ctx context.Context, endpoints []string, id string) error {
	e := &etcdPlace{endpoints: endpoints, prefix: strings.ReplaceAll(DatabasePrefix, "_", "-") + id}
	own := len(endpoints) == 0
	if own {
		if err := p.startEtcd(ctx, e); err != nil {
			return err
		}
	}
	where := strings.Join(e.endpoints, ",")
	client, err := e.connect(nil)
	if err != nil {
		return fmt.Errorf("etcd at %s: %w", where, err)
	}
	e.client = client
	var version string
	// A linearizable read needs a leader, as an election does.
	err = answers(ctx, func(ctx context.Context) error {
		if _, err := client.Get(ctx, e.prefix, clientv3.WithCountOnly()); err != nil {
			return err
		}
		status, err := client.Status(ctx, e.endpoints[0])
		if err == nil {
			version = status.Version
		}
		return err
	})
	if err != nil {
		client.Close()
		return unreachable(ctx, "etcd at "+where, err, "--etcd-endpoints")
	}
	p.later(func(ctx context.Context) error {
		defer client.Close()
		if own {
			return nil
		}
		if _, err := client.Delete(ctx, e.prefix+"/", clientv3.WithPrefix()); err != nil {
			return fmt.Errorf("the keys %s/* of etcd at %s could not be deleted, delete them by hand: %w", e.prefix, where, err)
		}
		return nil
	})
	if e.what = "etcd " + version + " at " + where; own {
		e.what = "etcd " + version + " in this process"
	}
	p.etcd = e
	return nil
}

// connect makes a client, of a worker that may be paused where it has a stillness.
func (e *etcdPlace) connect(still *stillness) (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: e.endpoints, DialTimeout: answerWithin, Logger: zap.NewNop()} // what goes wrong comes back as an error
	if still != nil {
		dial := still.over(new(net.Dialer).DialContext)
		config.DialOptions = []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }),
		}
	}
	return clientv3.New(config)
}

// startEtcd starts an etcd of one member in this process.
func (p *place) startEtcd(ctx context.Context, e *etcdPlace) error {
	dir, err := service.NewDir("etcd")
	if err != nil {
		return err
	}
	p.later(func(context.Context) error { return dir.Remove() })
	config := embed.NewConfig()
	config.Dir = dir.Path()
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.UnsafeNoFsync = true                // nothing of it is to survive
	config.TickMs, config.ElectionMs = 50, 500 // which allows leases of one second
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{local}, []url.URL{local} // there are no peers
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{local}, []url.URL{local}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	p.later(func(context.Context) error { server.Close(); return nil })
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fmt.Errorf("starting etcd: %w", err)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(30 * time.Second):
		return errors.New("etcd is not ready after 30 s")
	}
	e.endpoints = []string{server.Clients[0].Addr().String()}
	return nil
}
