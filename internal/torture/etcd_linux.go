package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/grpclog"
)

// startLimit bounds the start of anything.
const startLimit = time.Minute

const etcdMembers = 3

// A memberSettings is what an etcd member is told at its start.
type memberSettings struct {
	Name, Dir, Cluster, Token, Peer, Client string
	Existing                                bool
}

// An etcdCluster is three members, each a process of its own.
type etcdCluster struct {
	spawner *spawner
	dir     string
	members [etcdMembers]memberSettings
	parts   [etcdMembers]*part
	life    int // counts the restores
	client  *clientv3.Client
	clients []string // the members' addresses for clients, which stay the same: all that leader may look at while members come and go
}

// newEtcd starts the cluster. The caller closes it.
func newEtcd(ctx context.Context, s *spawner, dir string) (_ *etcdCluster, err error) {
	c := &etcdCluster{spawner: s, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	var peers []string
	for i := range c.members {
		m := &c.members[i]
		m.Name = "m" + strconv.Itoa(i)
		if m.Peer, err = freeAddress(); err != nil {
			return nil, err
		}
		if m.Client, err = freeAddress(); err != nil {
			return nil, err
		}
		peers, c.clients = append(peers, m.Name+"=http://"+m.Peer), append(c.clients, m.Client)
	}
	for i := range c.members {
		c.members[i].Cluster = strings.Join(peers, ",")
	}
	c.lifeBegins()
	if err := c.startAll(ctx); err != nil {
		return nil, err
	}
	if c.client, err = newEtcdClient(c.clients); err != nil {
		return nil, err
	}
	return c, nil
}

// lifeBegins names what is new in each life of the cluster: its token, and with it its identity, and its directories.
func (c *etcdCluster) lifeBegins() {
	for i := range c.members {
		c.members[i].Token = "torture-" + strconv.Itoa(c.life)
		c.members[i].Dir = filepath.Join(c.dir, fmt.Sprintf("etcd-%d-%s", c.life, c.members[i].Name))
		c.members[i].Existing = false
	}
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// newEtcdClient connects again sooner than gRPC would by itself, which waits a second: as long as a lease lasts here.
func newEtcdClient(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}, MinConnectTimeout: time.Second,
		})},
	})
}

func (c *etcdCluster) startAll(ctx context.Context) error {
	// Each is ready only once most of them are.
	for i := range c.members {
		if err := c.launch(i); err != nil {
			return err
		}
	}
	for i := range c.members {
		if err := c.waitReady(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *etcdCluster) launch(i int) (err error) {
	c.parts[i], err = c.spawner.part(roleEtcd, c.members[i])
	c.members[i].Existing = true
	return err
}

// waitReady returns when the member has joined its cluster.
func (c *etcdCluster) waitReady(ctx context.Context, i int) error {
	p := c.parts[i]
	ready := make(chan bool, 1)
	go func() { ready <- p.stdout.Scan() && p.stdout.Text() == saysReady }()
	timer := time.NewTimer(startLimit)
	defer timer.Stop()
	select {
	case ok := <-ready:
		if !ok {
			return fmt.Errorf("etcd member %s ended: %s", c.members[i].Name, p.stderr)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("etcd member %s is not ready after %v: %s", c.members[i].Name, startLimit, p.stderr)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leader is the number of the member that leads, and the cluster's id.
func (c *etcdCluster) leader(ctx context.Context) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		for i, address := range c.clients {
			attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
			status, err := c.client.Status(attempt, address)
			cancel()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				return i, strconv.FormatUint(status.Header.ClusterId, 10), nil
			}
		}
		select {
		case <-ctx.Done():
			return 0, "", fmt.Errorf("etcd has no leader: %w", context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// killLeader kills the leader, leaves it dead for a while, and starts it again on its data.
func (c *etcdCluster) killLeader(ctx context.Context, dead time.Duration) (note string, err error) {
	i, _, err := c.leader(ctx)
	if err != nil {
		return "", err
	}
	if err := c.parts[i].kill(); err != nil {
		return "", err
	}
	if err := wait(ctx, dead); err != nil {
		return "", err
	}
	if err := c.launch(i); err != nil {
		return "", err
	}
	return c.members[i].Name, c.waitReady(ctx, i)
}

// restore takes a snapshot, lets the cluster go on for a while, kills all of it and starts another from the snapshot, under a new
// cluster token as etcd's documentation advises. It returns the new cluster's id.
func (c *etcdCluster) restore(ctx context.Context, age time.Duration) (cluster string, err error) {
	file := filepath.Join(c.dir, "snapshot.db")
	if err := c.save(ctx, file); err != nil {
		return "", fmt.Errorf("snapshot of etcd: %w", err)
	}
	if err := wait(ctx, age); err != nil {
		return "", err
	}
	for i, p := range c.parts {
		if err := p.kill(); err != nil {
			return "", err
		}
		if err := os.RemoveAll(c.members[i].Dir); err != nil {
			return "", err
		}
	}
	c.life++
	c.lifeBegins()
	for i := range c.members {
		m := &c.members[i]
		err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: file, Name: m.Name, OutputDataDir: m.Dir, PeerURLs: []string{"http://" + m.Peer}, InitialCluster: m.Cluster, InitialClusterToken: m.Token,
		})
		if err != nil {
			return "", fmt.Errorf("restoring etcd: %w", err)
		}
		m.Existing = true
	}
	if err := c.startAll(ctx); err != nil {
		return "", err
	}
	_, cluster, err = c.leader(ctx)
	return cluster, err
}

func (c *etcdCluster) save(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	reader, err := c.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, reader)
	return errors.Join(err, file.Close())
}

func (c *etcdCluster) close() error {
	var errs []error
	if c.client != nil {
		errs = append(errs, c.client.Close())
	}
	for _, p := range c.parts {
		if p != nil {
			errs = append(errs, p.kill()) // the data is thrown away
		}
	}
	return errors.Join(errs...)
}

// saysReady is what a member says when it is.
const saysReady = "ready"

// etcdMember is one member's process. It ends with its input.
func etcdMember(ctx context.Context, settings []byte, commands io.Reader, stdout io.Writer) error {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	var s memberSettings
	if err := json.Unmarshal(settings, &s); err != nil {
		return err
	}
	config := embed.NewConfig()
	config.Name, config.Dir, config.InitialCluster, config.InitialClusterToken = s.Name, s.Dir, s.Cluster, s.Token
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	// What a killed process has written is in the system's cache and survives it; only a machine that loses its power loses that.
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 50, 500 // leases of one second, and a new leader soon
	peer, client := url.URL{Scheme: "http", Host: s.Peer}, url.URL{Scheme: "http", Host: s.Client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	if s.Existing {
		config.ClusterState = embed.ClusterStateFlagExisting
	}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer etcd.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, commands) // there are none: only the end counts
		close(ended)
	}()
	ready := etcd.Server.ReadyNotify()
	for {
		select {
		case <-ready:
			ready = nil
			if _, err := io.WriteString(stdout, saysReady+"\n"); err != nil {
				return err
			}
		case err := <-etcd.Err():
			return err
		case <-ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// wait lets time pass.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
