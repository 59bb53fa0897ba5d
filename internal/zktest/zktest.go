// Package zktest runs a real ZooKeeper server, one node, for a test.
package zktest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Tick is the server's tickTime. It keeps sessions of 2 to 20 ticks.
const Tick = 200 * time.Millisecond

// jars are where a ZooKeeper with what it depends on is found: Debian's package, or a distribution named by ZOOKEEPER_HOME.
var jars = []string{"/usr/share/java/zookeeper.jar"}

// A Server is one ZooKeeper process.
type Server struct {
	java, classpath, dir, addr string
	cmd                        *exec.Cmd
	exited                     chan struct{}
}

// Start starts a server on a free port and stops it when the test ends. Where there is no Java or no ZooKeeper it skips the test.
func Start(t testing.TB) *Server {
	t.Helper()
	java, err := exec.LookPath("java")
	if err != nil {
		t.Skip("java is not installed, which ZooKeeper needs (apt-get install zookeeper, or make deps)")
	}
	if home := os.Getenv("ZOOKEEPER_HOME"); home != "" {
		jars = []string{filepath.Join(home, "lib", "*")}
	}
	classpath := ""
	for _, jar := range jars {
		if found, _ := filepath.Glob(jar); len(found) > 0 {
			classpath = jar
		}
	}
	if classpath == "" {
		t.Skip("ZooKeeper is not installed (apt-get install zookeeper, make deps, or set ZOOKEEPER_HOME)")
	}
	s := &Server{java: java, classpath: classpath, dir: t.TempDir()}
	t.Cleanup(s.stop)
	for attempt := 0; ; attempt++ {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.addr = listener.Addr().String()
		listener.Close()
		if err = s.start(); err == nil {
			return s
		}
		if attempt == 4 { // another process may take the port between our closing it and the server's opening it
			t.Fatal(err)
		}
	}
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return s.addr }

// Restart kills the server and starts it again with its data.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.stop()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// RestartEmpty kills the server and starts it again without its data.
func (s *Server) RestartEmpty(t testing.TB) {
	t.Helper()
	s.stop()
	if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) start() error {
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	config := filepath.Join(s.dir, "zoo.cfg")
	text := fmt.Sprintf("tickTime=%d\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr,cons\n",
		Tick.Milliseconds(), filepath.Join(s.dir, "data"), port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	log, err := os.CreateTemp("", "zktest-*.log")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	s.cmd = exec.Command(s.java, "-Xmx256m", "-Dzookeeper.forceSync=no", "-cp", s.classpath, "org.apache.zookeeper.server.ZooKeeperServerMain", config)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait() // killed, as a rule
		close(exited)
	}(s.cmd, s.exited)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if answer, err := s.Command("srvr"); err == nil && strings.Contains(answer, "Mode: ") {
			return nil
		}
		select {
		case <-s.exited:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("ZooKeeper did not start:\n%s", text)
		default:
		}
		if time.Now().After(deadline) {
			s.stop()
			return fmt.Errorf("ZooKeeper does not answer after 30 s")
		}
	}
}

// Command sends one of ZooKeeper's four-letter commands, "srvr" or "cons".
func (s *Server) Command(word string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.addr, time.Second)
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

func (s *Server) stop() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		<-s.exited
		s.cmd = nil
	}
}
