// Package service runs the server of a lock service (Redis, ZooKeeper) as a process on a free port of 127.0.0.1, to be killed and
// started again, with its data or without.
//
// It owns the process: its port, its directory, its log, and that nothing of it is left, also when the calling process is killed.
// What the server is, and when it is ready, the caller says. PostgreSQL, which asks for more, has package pgserver.
package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Options say what to run.
type Options struct {
	// Name is the server's, for messages and for its directory: "redis-server".
	Name string
	// Command makes the command that runs the server in the foreground, on a port of 127.0.0.1, with its data in dir. It is
	// called for every start.
	Command func(port, dir string) (*exec.Cmd, error)
	// Ready returns nil when the server at addr (host:port) does its work. It is called until then.
	Ready func(ctx context.Context, addr string) error
	// Within is how long a start may take. Default 30 s.
	Within time.Duration
}

// A Process is one server. Its methods are for one goroutine at a time. The caller owns it and must Stop it.
type Process struct {
	opts     Options
	dir      string
	addr     string
	cmd      *exec.Cmd // nil while the server is down
	exited   chan struct{}
	watchdog *watchdog
}

// Start runs a server on a free port, in a temporary directory, and returns when it is ready. The context bounds the start alone.
func Start(ctx context.Context, opts Options) (_ *Process, err error) {
	if opts.Within <= 0 {
		opts.Within = 30 * time.Second
	}
	p := &Process{opts: opts}
	if p.dir, err = os.MkdirTemp("", "fencectl-"+opts.Name+"-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Stop())
		}
	}()
	const attempts = 5
	for range attempts {
		if p.addr, err = freeAddr(); err != nil {
			return nil, err
		}
		// Another process may take the port between our closing it and the server's opening it.
		if err = p.start(ctx); err == nil || !errors.Is(err, errEnded) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

func freeAddr() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// Addr is the server's host:port. It stays the same when the server is started again.
func (p *Process) Addr() string { return p.addr }

// Dir is the directory of the server's data. Stop removes it.
func (p *Process) Dir() string { return p.dir }

// Kill ends the server at once (SIGKILL), and returns when it is gone. It keeps its data.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	// The watchdog first: once the server is gone, its process id may become another's.
	p.watchdog.stop()
	_ = p.cmd.Process.Kill()
	<-p.exited
	p.cmd = nil
}

// Restart kills the server and starts it again with its data.
func (p *Process) Restart(ctx context.Context) error {
	p.Kill()
	return p.start(ctx)
}

// RestartEmpty kills the server and starts it again without its data.
func (p *Process) RestartEmpty(ctx context.Context) error {
	p.Kill()
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(p.dir, entry.Name())); err != nil {
			return err
		}
	}
	return p.start(ctx)
}

// Stop kills the server and removes its directory. Stopping it again does nothing.
func (p *Process) Stop() error {
	p.Kill()
	return os.RemoveAll(p.dir)
}

// errEnded is what start returns, wrapped, when the server ended by itself.
var errEnded = errors.New("it ended while starting")

func (p *Process) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.opts.Within, fmt.Errorf("it is not ready after %v", p.opts.Within))
	defer cancel()
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		return err
	}
	cmd, err := p.opts.Command(port, p.dir)
	if err != nil {
		return fmt.Errorf("%s: %w", p.opts.Name, err)
	}
	// Beside the directory: a server that starts empty is to find nothing in it.
	log, err := os.CreateTemp("", "fencectl-"+p.opts.Name+"-*.log")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.opts.Name, err)
	}
	p.cmd, p.exited = cmd, make(chan struct{})
	go func(exited chan struct{}) {
		_ = cmd.Wait() // killed, as a rule
		close(exited)
	}(p.exited)
	if p.watchdog, err = watch(cmd.Process.Pid, p.dir); err != nil {
		p.Kill()
		return fmt.Errorf("%s: %w", p.opts.Name, err)
	}

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		notReady := p.opts.Ready(ctx, p.addr)
		if notReady == nil {
			return nil
		}
		select {
		case <-tick.C:
			continue
		case <-p.exited:
			err = errEnded
		case <-ctx.Done():
			err = errors.Join(context.Cause(ctx), notReady)
		}
		p.Kill()
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%s did not start: %w; it said:\n%s", p.opts.Name, err, strings.TrimSpace(string(said)))
	}
}
