// Package redistest runs a real redis-server for a test: to restart with its data, and to restart empty.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// A Server is one redis-server process that appends every write to disk before it answers.
type Server struct {
	binary, dir, addr string
	cmd               *exec.Cmd
	exited            chan struct{}
}

// Start starts a server on a free port and stops it when the test ends. Where there is no redis-server it skips the test.
func Start(t testing.TB) *Server {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed (apt-get install redis-server, or make deps)")
	}
	s := &Server{binary: binary, dir: t.TempDir()}
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

// Client returns a client of addr, the server or a link to it, and closes it when the test ends.
func (s *Server) Client(t testing.TB, addr string) *goredis.Client {
	t.Helper()
	client := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	return client
}

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
	files, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
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
	log, err := os.CreateTemp("", "redistest-*.log")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	s.cmd = exec.Command(s.binary, "--bind", "127.0.0.1", "--port", port, "--dir", s.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait() // killed, as a rule
		close(exited)
	}(s.cmd, s.exited)
	client := goredis.NewClient(&goredis.Options{Addr: s.addr})
	defer client.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := client.Ping(ctx).Err()
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("redis-server did not start:\n%s", text)
		default:
		}
		if time.Now().After(deadline) {
			s.stop()
			return fmt.Errorf("redis-server does not answer after 20 s: %w", err)
		}
	}
}

func (s *Server) stop() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		<-s.exited
		s.cmd = nil
	}
}
