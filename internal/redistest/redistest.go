// Package redistest runs a real redis-server for a test: to restart with its data, and to restart empty.
package redistest

import (
	"errors"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencectl/fencectl/internal/redisserver"
	"github.com/fencectl/fencectl/internal/service"
)

// A Server is one redis-server process that appends every write to disk before it answers.
type Server struct{ process *service.Process }

// Start starts a server on a free port and stops it when the test ends. Where there is no redis-server it skips the test.
func Start(t testing.TB) *Server {
	t.Helper()
	process, err := redisserver.Start(t.Context(), true)
	if errors.Is(err, redisserver.ErrNotInstalled) {
		t.Skip("redis-server is not installed (apt-get install redis-server, or make deps)")
	}
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

// Addr is the server's host:port.
func (s *Server) Addr() string { return s.process.Addr() }

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
