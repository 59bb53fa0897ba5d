package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const poolerPort = 6432

// A pooler is a PgBouncer in transaction mode between some of the workers and the relay.
type pooler struct {
	spawner *spawner
	binary  string
	dir     string
	owner   *syscall.Credential
	cmd     *exec.Cmd
	log     *lastLines
	exited  chan struct{}
}

// findPooler is the program, or "" where there is none.
func findPooler() string {
	if binary, err := exec.LookPath("pgbouncer"); err == nil {
		return binary
	}
	const debian = "/usr/sbin/pgbouncer" // is not on everybody's PATH
	if _, err := os.Stat(debian); err == nil {
		return debian
	}
	return ""
}

// newPooler starts it. Its sockets are in dir, which belongs to owner; nil is the caller.
func newPooler(ctx context.Context, s *spawner, binary, dir string, owner *syscall.Credential) (*pooler, error) {
	config := fmt.Sprintf(`[databases]
%[1]s = host=%[2]s port=%[3]d user=%[4]s
[pgbouncer]
listen_addr =
unix_socket_dir = %[2]s
listen_port = %[5]d
auth_type = any
pool_mode = transaction
default_pool_size = 8
max_client_conn = 500
server_login_retry = 0.2
server_connect_timeout = 2
query_wait_timeout = 5
ignore_startup_parameters = extra_float_digits, search_path, options
`, databaseName, dir, relayPort, workerRole, poolerPort)
	p := &pooler{spawner: s, binary: binary, dir: dir, owner: owner}
	if err := os.WriteFile(p.config(), []byte(config), 0o600); err != nil {
		return nil, err
	}
	if owner != nil {
		if err := os.Chown(p.config(), int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, err
		}
	}
	err := p.start(ctx)
	return p, err
}

func (p *pooler) config() string { return filepath.Join(p.dir, "pgbouncer.ini") }

// start starts it, and returns when it accepts connections.
func (p *pooler) start(ctx context.Context) error {
	socket := socketName(p.dir, poolerPort)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) { // a killed one leaves it
		return err
	}
	p.cmd, p.log, p.exited = exec.Command(p.binary, p.config()), &lastLines{}, make(chan struct{})
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.owner}
	if err := p.spawner.start(p.cmd); err != nil {
		return fmt.Errorf("pgbouncer: %w", err)
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait() // what it had to say is in the log
		close(exited)
	}(p.cmd, p.exited)
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		if conn, err := net.Dial("unix", socket); err == nil {
			return conn.Close()
		}
		select {
		case <-p.exited:
			return fmt.Errorf("pgbouncer ended: %s", p.log)
		case <-ctx.Done():
			return fmt.Errorf("pgbouncer does not accept connections: %w\n%s", context.Cause(ctx), p.log)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *pooler) kill() error {
	if p.cmd.Process == nil {
		return nil // it could not even be started
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return nil
}
