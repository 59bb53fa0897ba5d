// Package zktest runs a real ZooKeeper server, one node, for a test.
package zktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencectl/fencectl/internal/service"
)

// Tick is the server's tickTime. It keeps sessions of 2 to 20 ticks.
const Tick = 200 * time.Millisecond

// A Server is one ZooKeeper process.
type Server struct{ process *service.Process }

// Start starts a server on a free port and stops it when the test ends. Where there is no Java or no ZooKeeper it skips the test.
func Start(t testing.TB) *Server {
	t.Helper()
	java, err := exec.LookPath("java")
	if err != nil {
		t.Skip("java is not installed, which ZooKeeper needs (apt-get install zookeeper, or make deps)")
	}
	classpath := classpath()
	if classpath == "" {
		t.Skip("ZooKeeper is not installed (apt-get install zookeeper, make deps, or set ZOOKEEPER_HOME)")
	}
	process, err := service.Start(t.Context(), service.Options{
		Name: "zookeeper",
		Command: func(port, dir string) (*exec.Cmd, error) {
			config := filepath.Join(dir, "zoo.cfg")
			text := fmt.Sprintf("tickTime=%d\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr,cons\n",
				Tick.Milliseconds(), filepath.Join(dir, "data"), port)
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				return nil, err
			}
			return exec.Command(java, "-Xmx256m", "-Dzookeeper.forceSync=no", "-cp", classpath, "org.apache.zookeeper.server.ZooKeeperServerMain", config), nil
		},
		Ready: func(_ context.Context, addr string) error {
			answer, err := command(addr, "srvr")
			if err == nil && !strings.Contains(answer, "Mode: ") {
				err = errors.New(answer)
			}
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &Server{process}
}

// classpath is where a ZooKeeper with what it depends on is: a distribution named by ZOOKEEPER_HOME, or Debian's package.
func classpath() string {
	jars := "/usr/share/java/zookeeper.jar"
	if home := os.Getenv("ZOOKEEPER_HOME"); home != "" {
		jars = filepath.Join(home, "lib", "*")
	}
	if found, err := filepath.Glob(jars); err != nil || len(found) == 0 {
		return ""
	}
	return jars
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return s.process.Addr() }

// Restart kills the server and starts it again with its data.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.process.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// RestartEmpty kills the server and starts it again without its data.
func (s *Server) RestartEmpty(t testing.TB) {
	t.Helper()
	if err := s.process.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Command sends one of ZooKeeper's four-letter commands, "srvr" or "cons".
func (s *Server) Command(word string) (string, error) { return command(s.Addr(), word) }

func command(addr, word string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(word)); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(bytes.TrimSpace(answer)), err
}
