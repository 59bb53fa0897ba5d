// Package redisserver runs a real redis-server, from the binary that is installed on this machine, on a free port of 127.0.0.1. It
// knows the server's arguments and when it is ready; the process is package service's.
package redisserver

import (
	"context"
	"errors"
	"os/exec"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencectl/fencectl/internal/service"
)

// ErrNotInstalled says that there is no redis-server in PATH.
var ErrNotInstalled = errors.New("redis-server is not installed")

// Start starts a server, which the caller stops. With durable it appends every write to disk before it answers; without it
// keeps nothing, and is empty whenever it is started again. The context bounds the start alone.
func Start(ctx context.Context, durable bool) (*service.Process, error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNotInstalled
	}
	return service.Start(ctx, service.Options{
		Name: "redis-server",
		Command: func(port, dir string) (*exec.Cmd, error) {
			arguments := []string{"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "no"}
			if durable {
				arguments = append(arguments[:len(arguments)-1], "yes", "--appendfsync", "always")
			}
			return exec.Command(binary, arguments...), nil
		},
		Ready: func(ctx context.Context, addr string) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			client := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1})
			defer client.Close()
			return client.Ping(ctx).Err()
		},
	})
}
