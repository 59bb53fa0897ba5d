// Package servers runs the lock services that are compared with each other, each as one process on this machine that writes to disk
// before it answers, as PostgreSQL does. PostgreSQL itself has internal/pgserver.
package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/fencectl/fencectl/internal/redisserver"
	"github.com/fencectl/fencectl/internal/service"
)

// ErrNotInstalled says that a service's program is not on this machine.
var ErrNotInstalled = errors.New("not installed")

// Redis starts a redis-server that appends every write to disk before it answers. The caller stops it.
func Redis(ctx context.Context) (*service.Process, error) {
	p, err := redisserver.Start(ctx, true)
	if errors.Is(err, redisserver.ErrNotInstalled) {
		return nil, fmt.Errorf("redis-server: %w", ErrNotInstalled)
	}
	return p, err
}

// ZooKeeper starts one node of ZooKeeper. The caller stops it.
func ZooKeeper(ctx context.Context) (*service.Process, error) {
	java, err := exec.LookPath("java")
	jars := "/usr/share/java/zookeeper.jar"
	if home := os.Getenv("ZOOKEEPER_HOME"); home != "" {
		jars = filepath.Join(home, "lib", "*")
	}
	if found, globErr := filepath.Glob(jars); err != nil || globErr != nil || len(found) == 0 {
		return nil, fmt.Errorf("ZooKeeper: %w", ErrNotInstalled)
	}
	return service.Start(ctx, service.Options{
		Name: "zookeeper",
		Command: func(port, dir string) (*exec.Cmd, error) {
			config := filepath.Join(dir, "zoo.cfg")
			text := fmt.Sprintf("dataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n", filepath.Join(dir, "data"), port)
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				return nil, err
			}
			return exec.Command(java, "-Xmx256m", "-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain", config), nil
		},
		Ready: func(_ context.Context, addr string) error {
			conn, err := net.DialTimeout("tcp", addr, time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
				return err
			}
			if _, err := conn.Write([]byte("srvr")); err != nil {
				return err
			}
			answer, err := io.ReadAll(conn)
			if err == nil && !strings.Contains(string(answer), "Mode: ") {
				err = errors.New(string(answer))
			}
			return err
		},
	})
}

const serveEtcd = "serve-etcd"

// Etcd starts one member of etcd, in a process of its own: this program once more, which has etcd inside. The caller stops it.
func Etcd(ctx context.Context) (*service.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return service.Start(ctx, service.Options{
		Name: "etcd",
		Command: func(port, dir string) (*exec.Cmd, error) {
			return exec.Command(self, serveEtcd, port, dir), nil
		},
		Ready: func(ctx context.Context, addr string) error {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err = client.Get(ctx, "ready") // linearizable: there is a leader
			return err
		},
	})
}

// Main is to be called first by programs that call Etcd, with os.Args. When the program was started to be a server it does not return
// before that has ended; isServer is then true.
func Main(args []string) (isServer bool, err error) {
	if len(args) != 4 || args[1] != serveEtcd {
		return false, nil
	}
	config := embed.NewConfig()
	config.Dir = filepath.Join(args[3], "etcd")
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client := url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", args[2])}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // a single member talks to no peer, but wants an address for them
	if err != nil {
		return true, err
	}
	peer := url.URL{Scheme: "http", Host: listener.Addr().String()}
	if err := listener.Close(); err != nil {
		return true, err
	}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return true, err
	}
	return true, <-etcd.Err() // until it is killed
}
