// Package pgserver runs a throwaway PostgreSQL server from the binaries that are installed on this machine.
//
// It owns the whole life of such a server: finding the binaries, initdb, an unprivileged account when the caller is root,
// start, crash, restart, a standby, and the removal of every trace, also when the calling process is killed. What runs
// inside the server (databases, roles, migrations) belongs to the callers: internal/pgtest for tests, the demo for people.
//
// # Safety
//
// Local connections go through a Unix socket in a directory that only the server's account (and root) can enter, and need
// no password unless Options.Password is set. TCP listens on 127.0.0.1 only and always asks for a password (SCRAM): a
// superuser that any local user could reach over loopback would hand them the caller's account.
//
// # Leaving nothing behind
//
// A watchdog process holds one end of a pipe. When the process that called Start ends, however it ends, the kernel closes
// the other end, and the watchdog shuts the server down and removes its files. Directories that outlive even the watchdog
// (a machine that lost power) are removed by the next Start on the same machine.
package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Superuser is the name of the bootstrap superuser of every server that Start creates.
const Superuser = "postgres"

// OldestMajor is the oldest major version of PostgreSQL that Start accepts.
const OldestMajor = 14

// startTimeout bounds initdb and start together when the caller's context has no deadline of its own: a server that is
// not ready by then is not going to be.
const startTimeout = 2 * time.Minute

// stopTimeout is how long a shutdown may take before the next harsher one is tried.
const stopTimeout = 20 * time.Second

// Options say how to run a server. The zero value, or nil, runs a fast server in a temporary directory.
type Options struct {
	// BinDir is the directory that holds initdb and postgres. Default: what FindBinDir finds.
	BinDir string

	// DataDir is the data directory. One that holds a cluster is started as it is, an empty or absent one is
	// initialised, and neither is removed by Stop. When the caller is root its files are given to the account that runs
	// the server, and every directory above must let that account through. Default: a temporary directory, removed by Stop.
	DataDir string

	// Settings are server settings (postgresql.conf names and values), passed on the command line, so that they win over
	// the configuration files. They override the package's own choices, except for where the server listens.
	Settings map[string]string

	// Preload names libraries for shared_preload_libraries; those that are not installed are left out without an error.
	Preload []string

	// Password is the superuser's password. When it is set, the Unix socket asks for it too (SCRAM). Default: a random
	// password, which only TCP connections need.
	Password string

	// Durable keeps fsync and full_page_writes on, as in production. Default: both off, which no crash of the *server*
	// (Kill) can turn into lost data, only a crash of the operating system could. synchronous_commit is never touched.
	Durable bool

	// Logger receives what the package does, at debug level. Default: discarded.
	Logger *slog.Logger
}

// Server is one PostgreSQL server. Its methods may be called from several goroutines. The caller owns it and must Stop it.
type Server struct {
	opts     Options
	log      *slog.Logger
	bin      string
	major    int
	account  *account // nil: the server runs as the caller
	dir      *workDir
	data     string
	password string
	watchdog *watchdog

	mu       sync.Mutex // guards everything below and serialises start, stop, kill and restart
	port     int
	postgres *process // nil before the first start and after a stop
	stopped  bool
}

// Start runs a server and returns when it accepts connections. The context bounds the start alone; two minutes when it
// has no deadline. Where no usable binaries are found the error is a *NotFoundError that says what to install. The
// caller stops the server with Stop.
func Start(ctx context.Context, opts *Options) (*Server, error) {
	return start(ctx, opts, (*Server).initialise)
}

// start is Start with a choice of what makes the data directory.
func start(ctx context.Context, opts *Options, fill func(*Server, context.Context) error) (_ *Server, err error) {
	s := &Server{log: slog.New(slog.DiscardHandler)}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Logger != nil {
		s.log = s.opts.Logger
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, startTimeout)
		defer cancel()
	}

	if err := supported(); err != nil {
		return nil, err
	}
	if s.bin = s.opts.BinDir; s.bin == "" {
		if s.bin, err = FindBinDir(); err != nil {
			return nil, err
		}
	}
	if s.account, err = serverAccount(); err != nil {
		return nil, err
	}
	if s.account != nil {
		if blocked := s.account.blockedAt(filepath.Join(s.bin, "postgres")); blocked != "" {
			return nil, fmt.Errorf("pgserver: PostgreSQL refuses to run as root, and user %s, who would run it instead, may not enter %s: "+
				"run 'chmod o+x %s', or set %s to binaries that every user can reach", s.account.name, blocked, blocked, BinDirVariable)
		}
	}
	if s.major, err = majorVersion(ctx, s.bin); err != nil {
		return nil, err
	}
	if s.major < OldestMajor {
		return nil, &NotFoundError{TooOld: []string{fmt.Sprintf("%s (PostgreSQL %d)", s.bin, s.major)}}
	}

	removeAbandoned(s.account, s.log)
	if s.dir, err = newWorkDir(s.account); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		}
	}()

	if s.data = s.opts.DataDir; s.data == "" {
		s.data = filepath.Join(s.dir.path, "data")
	}
	if s.data, err = filepath.Abs(s.data); err != nil {
		return nil, fmt.Errorf("pgserver: data directory: %w", err)
	}
	if s.watchdog, err = startWatchdog(s.account, s.dir.path, s.data); err != nil {
		return nil, err
	}
	if s.password = s.opts.Password; s.password == "" {
		s.password = rand.Text()
	}
	if err := fill(s, ctx); err != nil {
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.startOnFreePort(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// initialise makes the data directory a cluster, unless it is one.
func (s *Server) initialise(ctx context.Context) error {
	_, err := os.Stat(filepath.Join(s.data, "PG_VERSION"))
	switch {
	case err == nil:
		return s.account.own(s.data)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("pgserver: data directory: %w", err)
	}
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		return fmt.Errorf("pgserver: data directory: %w", err)
	}
	if err := s.account.own(s.data); err != nil {
		return err
	}
	if blocked := s.account.blockedAt(s.data); blocked != "" {
		return fmt.Errorf("pgserver: user %s, who runs the server because the caller is root, may not enter %s: choose another data directory",
			s.account.name, blocked)
	}

	// The password travels in a file that is gone before the server starts: arguments can be read by every user.
	passwordFile := filepath.Join(s.dir.path, "password")
	if err := os.WriteFile(passwordFile, []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("pgserver: initdb: %w", err)
	}
	defer os.Remove(passwordFile)
	if err := s.account.own(passwordFile); err != nil {
		return err
	}
	localAuth := "trust"
	if s.opts.Password != "" {
		localAuth = "scram-sha-256"
	}
	started := time.Now()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"),
		"--pgdata="+s.data, "--username="+Superuser, "--pwfile="+passwordFile,
		"--auth-local="+localAuth, "--auth-host=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir, cmd.Env = s.dir.path, environment(s.account)
	runAs(cmd, s.account)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgserver: initdb from %s failed: %w\n%s", s.bin, err, tail(out))
	}
	s.log.DebugContext(ctx, "initialised", "data", s.data, "took", time.Since(started))
	return nil
}

// startOnFreePort starts the server on a port that nobody listens on. Between finding the port and the server's bind
// another process may take it, so a refused bind leads to another attempt with another port.
func (s *Server) startOnFreePort(ctx context.Context) error {
	const attempts = 5
	var err error
	for range attempts {
		if s.port, err = findPort(); err != nil {
			return fmt.Errorf("pgserver: %w", err)
		}
		if err = s.run(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
		s.log.DebugContext(ctx, "port was taken meanwhile", "port", s.port)
	}
	return err
}

// errPortTaken is what run returns, wrapped, when the server could not bind its port.
var errPortTaken = errors.New("the port is in use")

// run starts postgres on s.port and waits until it accepts connections. The caller holds s.mu.
func (s *Server) run(ctx context.Context) error {
	logFile, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	defer logFile.Close()
	logStart, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}

	started := time.Now()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), s.arguments()...)
	cmd.Dir, cmd.Env = s.dir.path, environment(s.account)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	runAs(cmd, s.account)
	p, err := startProcess(cmd)
	if err != nil {
		return fmt.Errorf("pgserver: starting %s: %w", cmd.Path, err)
	}
	s.watchdog.guard(p.pid)
	s.postgres = p
	// A caller that never stops the server may forget it. The garbage collector would then close the watchdog's pipe and
	// the lock, which both mean "the owner is gone".
	go func() {
		<-p.exited
		runtime.KeepAlive(s)
	}()

	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if s.ready(p.pid) {
			tick.Stop()
			s.log.DebugContext(ctx, "ready", "data", s.data, "port", s.port, "pid", p.pid, "took", time.Since(started))
			return nil
		}
		select {
		case <-tick.C:
			continue
		case <-p.exited:
			err = fmt.Errorf("postgres ended while starting (%s)", p.status)
		case <-ctx.Done():
			err = errors.Join(fmt.Errorf("postgres is not ready: %w", context.Cause(ctx)), p.killTree())
			<-p.exited
		}
		tick.Stop()
		s.watchdog.guard(0)
		s.postgres = nil
		output := readFrom(s.LogFile(), logStart)
		if strings.Contains(output, "could not create any TCP/IP sockets") {
			err = fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return fmt.Errorf("pgserver: %w; its log ends with:\n%s", err, tail([]byte(output)))
	}
}

// arguments are the server's settings, as command-line arguments in a stable order.
func (s *Server) arguments() []string {
	settings := map[string]string{
		"max_connections": "300",
		// The kernel's default budget of semaphores and shared memory is small on some systems; nothing here needs more.
		"shared_buffers":             "64MB",
		"dynamic_shared_memory_type": dynamicSharedMemory,
		"logging_collector":          "off",
		"log_line_prefix":            "%m [%p] %q%u@%d %a ",
		"log_timezone":               "UTC",
		"timezone":                   "UTC",
	}
	if !s.opts.Durable {
		// synchronous_commit stays on: without fsync it costs nothing, and a killed server keeps what it acknowledged.
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	var preload []string
	for _, library := range s.opts.Preload {
		if hasLibrary(s.bin, library) {
			preload = append(preload, library)
		}
	}
	if len(preload) > 0 {
		settings["shared_preload_libraries"] = strings.Join(preload, ",")
	}
	maps.Copy(settings, s.opts.Settings)
	settings["port"] = strconv.Itoa(s.port)
	settings["listen_addresses"] = "127.0.0.1"
	settings["unix_socket_directories"] = s.dir.path

	arguments := []string{"-D", s.data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		arguments = append(arguments, "-c", name+"="+settings[name])
	}
	return arguments
}

// ready tells whether the postmaster with this pid has said, in its pid file, that it accepts connections. The pid file
// of a crashed predecessor says "ready" too, hence the pid.
func (s *Server) ready(pid int) bool {
	const pidLine, statusLine = 0, 7 // miscadmin.h: LOCK_FILE_LINE_PID, LOCK_FILE_LINE_PM_STATUS, counted from 1 there
	content, err := os.ReadFile(filepath.Join(s.data, "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(content), "\n")
	return len(lines) > statusLine && lines[pidLine] == strconv.Itoa(pid) && strings.TrimSpace(lines[statusLine]) == "ready"
}

// DSN is a connection URL for the database, through the Unix socket, as the superuser. It always has a query part, so
// that a caller may append "&application_name=…". The database need not exist yet.
func (s *Server) DSN(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(Superuser), Path: "/" + database}
	if s.opts.Password != "" {
		u.User = url.UserPassword(Superuser, s.opts.Password)
	}
	u.RawQuery = url.Values{"host": {s.dir.path}, "port": {strconv.Itoa(s.Port())}, "sslmode": {"disable"}}.Encode()
	return u.String()
}

// TCPDSN is a connection URL for the database through 127.0.0.1, with the superuser's password: for a proxy in between,
// or for a client that knows no Unix sockets.
func (s *Server) TCPDSN(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(Superuser, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())), Path: "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port is the TCP port on 127.0.0.1, and the number in the Unix socket's name. It stays the same across Restart.
func (s *Server) Port() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.port
}

// Version is the server's major version: 14, 15, …
func (s *Server) Version() int { return s.major }

// DataDir is the absolute path of the data directory.
func (s *Server) DataDir() string { return s.data }

// SocketDir is the directory of the Unix socket, libpq's PGHOST.
func (s *Server) SocketDir() string { return s.dir.path }

// BinDir is the directory of the server's binaries.
func (s *Server) BinDir() string { return s.bin }

// LogFile is the path of the server's log. Stop removes it.
func (s *Server) LogFile() string { return filepath.Join(s.dir.path, "postgres.log") }

// PID is the postmaster's process id, 0 while the server is down.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return 0
	}
	return s.postgres.pid
}

// running tells whether the postmaster is alive. The caller holds s.mu.
func (s *Server) running() bool {
	if s.postgres == nil {
		return false
	}
	select {
	case <-s.postgres.exited:
		return false
	default:
		return true
	}
}

// Restart shuts the server down if it is up (sessions are ended, the data is flushed) and starts it again on the same
// data directory, port and socket, so that every DSN stays valid. After Kill it is the recovery from the crash.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("pgserver: restart after stop")
	}
	if err := s.shutdown(ctx, fastShutdown); err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, startTimeout)
		defer cancel()
	}
	return s.run(ctx)
}

// Kill ends the postmaster and all its children at one instant with SIGKILL, as a power failure would: nothing is
// flushed, nothing is said to clients. It returns when all of them are gone. Restart brings the server back.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return errors.New("pgserver: kill: the server is not running")
	}
	if err := s.postgres.killTree(); err != nil {
		return fmt.Errorf("pgserver: kill: %w", err)
	}
	<-s.postgres.exited
	s.watchdog.guard(0)
	s.postgres = nil
	return nil
}

// Pause freezes the postmaster and all its children (SIGSTOP): connections stay open and nothing answers. Resume thaws
// them. A paused server can be killed and stopped.
func (s *Server) Pause() error { return s.signalTree("pause", (*process).stopTree) }

// Resume undoes Pause.
func (s *Server) Resume() error { return s.signalTree("resume", (*process).continueTree) }

func (s *Server) signalTree(what string, send func(*process) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return fmt.Errorf("pgserver: %s: the server is not running", what)
	}
	if err := send(s.postgres); err != nil {
		return fmt.Errorf("pgserver: %s: %w", what, err)
	}
	return nil
}

// Stop ends the server, whatever state it is in, and removes everything that Start created. A data directory that the
// caller gave is shut down cleanly and kept. The context bounds the shutdown; when it ends, harsher means follow, so the
// server is down when Stop returns. Stopping twice is no error.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	how := immediateShutdown // the data is thrown away: a checkpoint would be wasted time
	if s.opts.DataDir != "" {
		how = fastShutdown
	}
	err := s.shutdown(ctx, how)
	return errors.Join(err, s.dir.remove(), s.watchdog.stop())
}

// shutdown asks the postmaster to end, then insists, then kills. The caller holds s.mu.
func (s *Server) shutdown(ctx context.Context, how shutdown) error {
	if s.postgres == nil {
		return nil
	}
	defer func() {
		s.watchdog.guard(0)
		s.postgres = nil
	}()
	p := s.postgres
	_ = p.continueTree() // a paused server could not hear the request; one that has ended has nothing to continue
	for _, step := range []shutdown{how, immediateShutdown} {
		if err := p.shutdown(step); err != nil {
			break
		}
		timeout := time.NewTimer(stopTimeout)
		select {
		case <-p.exited:
			timeout.Stop()
			return nil
		case <-timeout.C:
		case <-ctx.Done():
			timeout.Stop()
		}
		s.log.DebugContext(ctx, "still running after the request to stop", "pid", p.pid, "request", step)
	}
	select {
	case <-p.exited:
		return nil
	default:
	}
	err := p.killTree()
	<-p.exited
	if err != nil {
		return fmt.Errorf("pgserver: stop: %w", err)
	}
	return nil
}

// environment is what the server's processes inherit. libpq's variables would redirect initdb and confuse postgres, and
// another account has no business with the caller's secrets, so that the list says what is kept, not what is dropped.
func environment(a *account) []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	keep := []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"}
	if a == nil {
		keep = append(keep, "HOME", "TMPDIR")
	}
	for _, name := range keep {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// findPort is freePort, but for the test of a port that is taken between the two steps.
var findPort = freePort

// freePort is a TCP port on 127.0.0.1 that nobody listens on at this moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// readFrom is what a file holds from the offset on, or why it cannot be read: it only ever feeds error messages.
func readFrom(path string, offset int64) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content[min(offset, int64(len(content))):])
}

// tail is the last lines of some output, indented, for an error message.
func tail(output []byte) string {
	const most = 20
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	lines = lines[max(0, len(lines)-most):]
	return "\t" + strings.Join(lines, "\n\t")
}
