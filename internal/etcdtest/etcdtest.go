// Package etcdtest runs real etcd servers inside the test process: one node or several, to stop, to snapshot and to restore.
package etcdtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// MinTTL is the shortest lease of these servers, which follows from their election timeout.
const MinTTL = time.Second

// A Cluster is one or more etcd members in this process.
type Cluster struct {
	members []*member
	token   string
}

type member struct {
	config *embed.Config
	etcd   *embed.Etcd
}

// Start starts a cluster of n members and stops it when the test ends.
func Start(t testing.TB, n int) *Cluster {
	t.Helper()
	c := &Cluster{token: "etcdtest-" + strings.ReplaceAll(t.Name(), "/", "-")}
	var peers []string
	for i := range n {
		m := &member{config: newConfig(t, fmt.Sprintf("m%d", i), t.TempDir(), c.token)}
		peers = append(peers, m.config.Name+"="+m.config.AdvertisePeerUrls[0].String())
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		m.config.InitialCluster = strings.Join(peers, ",")
	}
	t.Cleanup(func() {
		for i := range c.members {
			c.StopMember(i)
		}
	})
	for _, m := range c.members {
		m.start(t)
	}
	for _, m := range c.members {
		m.waitReady(t)
	}
	return c
}

func newConfig(t testing.TB, name, dir, token string) *embed.Config {
	t.Helper()
	config := embed.NewConfig()
	config.Name, config.Dir, config.InitialClusterToken = name, dir, token
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.UnsafeNoFsync = true
	config.TickMs, config.ElectionMs = 50, 500 // leases of one second, and a new leader soon
	peer, client := freeURL(t), freeURL(t)
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	return config
}

func freeURL(t testing.TB) url.URL {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return url.URL{Scheme: "http", Host: listener.Addr().String()}
}

func (m *member) start(t testing.TB) {
	t.Helper()
	etcd, err := embed.StartEtcd(m.config)
	if err != nil {
		t.Fatalf("etcd %s: %v", m.config.Name, err)
	}
	m.etcd = etcd
}

func (m *member) waitReady(t testing.TB) {
	t.Helper()
	select {
	case <-m.etcd.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatalf("etcd %s is not ready after 30 s", m.config.Name)
	}
}

// Endpoints are the host:port of every member.
func (c *Cluster) Endpoints() []string {
	var all []string
	for _, m := range c.members {
		all = append(all, m.config.ListenClientUrls[0].Host)
	}
	return all
}

// Client returns a client of the given endpoints, or of all members, and closes it when the test ends.
func (c *Cluster) Client(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	if len(endpoints) == 0 {
		endpoints = c.Endpoints()
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		// gRPC waits a second before it connects again, which is all of MinTTL.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}, MinConnectTimeout: time.Second,
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// Leader is the index of the member that leads.
func (c *Cluster) Leader(t testing.TB) int {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for i, m := range c.members {
			if m.etcd != nil && m.etcd.Server.Leader() == m.etcd.Server.MemberID() {
				return i
			}
		}
	}
	t.Fatal("the cluster has no leader after 30 s")
	return -1
}

// StopMember stops a member; it keeps its data. Stopping it again does nothing.
func (c *Cluster) StopMember(i int) {
	if m := c.members[i]; m.etcd != nil {
		m.etcd.Close()
		m.etcd = nil
	}
}

// StartMember starts a stopped member on its data and its ports.
func (c *Cluster) StartMember(t testing.TB, i int) {
	t.Helper()
	c.members[i].config.ClusterState = embed.ClusterStateFlagExisting
	c.members[i].start(t)
	c.members[i].waitReady(t)
}

// Snapshot saves the first member's data to a file, as "etcdctl snapshot save" does.
func (c *Cluster) Snapshot(t testing.TB) string {
	t.Helper()
	reader, err := c.Client(t).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, reader); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// RestoreOptions are how a snapshot is restored.
type RestoreOptions struct {
	// NewToken restores under another --initial-cluster-token, as etcd's documentation advises; the cluster id changes.
	NewToken bool
	// Bump is --bump-revision (with --mark-compacted); 0 lets revisions go back.
	Bump uint64
}

// Restore stops the only member of a cluster and starts it again, on the same ports, with the snapshot's data.
func (c *Cluster) Restore(t testing.TB, snapshotPath string, options RestoreOptions) {
	t.Helper()
	if len(c.members) != 1 {
		t.Fatal("etcdtest: Restore is for clusters of one member")
	}
	m := c.members[0]
	c.StopMember(0)
	config := *m.config
	config.Dir = filepath.Join(t.TempDir(), "restored")
	if options.NewToken {
		c.token += "-restored"
		config.InitialClusterToken = c.token
	}
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: snapshotPath, Name: config.Name, OutputDataDir: config.Dir,
		PeerURLs: []string{config.AdvertisePeerUrls[0].String()}, InitialCluster: config.InitialCluster, InitialClusterToken: config.InitialClusterToken,
		RevisionBump: options.Bump, MarkCompacted: options.Bump > 0,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.config = &config
	m.config.ClusterState = embed.ClusterStateFlagExisting
	m.start(t)
	m.waitReady(t)
}
