//go:build linux || darwin || freebsd

package pgserver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/internal/pgserver"
)

func start(t *testing.T, opts *pgserver.Options) *pgserver.Server {
	t.Helper()
	server, err := pgserver.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, server) })
	return server
}

// value connects, runs one query and returns its single value as text.
func value(t *testing.T, dsn, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var text string
	if err := conn.QueryRow(ctx, "SELECT ("+sql+")::text").Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

func run(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestStartedServerAnswersAndStopLeavesNothing(t *testing.T) {
	t.Parallel()
	server := start(t, &pgserver.Options{Settings: map[string]string{"work_mem": "5MB"}})
	for name, dsn := range map[string]string{"socket": server.DSN("postgres"), "TCP": server.TCPDSN("postgres")} {
		if got := value(t, dsn, "current_setting('work_mem')"); got != "5MB" {
			t.Errorf("%s: work_mem is %s", name, got)
		}
		if got := value(t, dsn, "current_setting('server_version_num')::int / 10000"); got != strconv.Itoa(server.Version()) {
			t.Errorf("%s: the server says version %s, Version says %d", name, got, server.Version())
		}
	}
	pid, port := server.PID(), server.Port()

	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Errorf("the second Stop: %v", err)
	}
	if _, err := os.Stat(server.SocketDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory %s is still there: %v", server.SocketDir(), err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the postmaster %d is still there: %v", pid, err)
	}
	if conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second); err == nil {
		conn.Close()
		t.Errorf("something still listens on port %d", port)
	}
	if err := server.Restart(t.Context()); err == nil {
		t.Error("a stopped server was restarted")
	}
}

func TestTCPAsksForThePassword(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := fmt.Sprintf("postgres://%s@127.0.0.1:%d/postgres?sslmode=disable", pgserver.Superuser, server.Port())
	if _, err := pgx.Connect(t.Context(), dsn); err == nil {
		t.Error("any local user is a superuser over TCP")
	}
	info, err := os.Stat(server.SocketDir())
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the socket's directory is %v: other users can enter, and the socket trusts everybody", info.Mode())
	}
}

func TestAGivenPasswordIsAskedForEverywhere(t *testing.T) {
	t.Parallel()
	server := start(t, &pgserver.Options{Password: "p@ss/w:rd"})
	for _, dsn := range []string{server.DSN("postgres"), server.TCPDSN("postgres")} {
		if got := value(t, dsn, "current_user"); got != pgserver.Superuser {
			t.Errorf("connected as %s", got)
		}
	}
	dsn := fmt.Sprintf("host=%s port=%d user=%s dbname=postgres", server.SocketDir(), server.Port(), pgserver.Superuser)
	if _, err := pgx.Connect(t.Context(), dsn); err == nil {
		t.Error("the socket asks for no password")
	}
}

func TestServerNeverRunsAsRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root needs another account for the server")
	}
	server := start(t, nil)
	info, err := os.Stat(filepath.Join(server.DataDir(), "PG_VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid == 0 {
		t.Error("the data directory belongs to root")
	}
	process, err := os.Stat(fmt.Sprintf("/proc/%d", server.PID()))
	if err != nil {
		t.Skip("no /proc:", err)
	}
	if uid := process.Sys().(*syscall.Stat_t).Uid; uid == 0 {
		t.Error("the postmaster runs as root")
	}
}

func TestRestartAfterKillKeepsCommittedData(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable=%t", durable), func(t *testing.T) {
			t.Parallel()
			server := start(t, &pgserver.Options{Durable: durable})
			dsn := server.DSN("postgres")
			want := map[bool]string{false: "off", true: "on"}[durable]
			if got := value(t, dsn, "current_setting('fsync')"); got != want {
				t.Errorf("fsync is %s, want %s", got, want)
			}
			run(t, dsn, "CREATE TABLE public.kept AS SELECT generate_series(1, 1000) AS i")

			open, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close(context.Background())
			if _, err := open.Exec(t.Context(), "BEGIN; DELETE FROM public.kept"); err != nil {
				t.Fatal(err)
			}

			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if pid := server.PID(); pid != 0 {
				t.Errorf("PID is %d after Kill", pid)
			}
			if err := open.Ping(t.Context()); err == nil {
				t.Error("a session survived Kill")
			}
			if err := server.Kill(); err == nil {
				t.Error("a dead server was killed again")
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := server.DSN("postgres"); got != dsn {
				t.Errorf("the address changed from %s to %s", dsn, got)
			}
			if got := value(t, dsn, "SELECT count(*) FROM public.kept"); got != "1000" {
				t.Errorf("%s rows after the crash, want 1000: committed ones lost, or uncommitted work kept", got)
			}
		})
	}
}

func TestKillLeavesNoChildBehind(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	// A backend that computes does not notice that its postmaster is gone.
	busy := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT count(*) FROM generate_series(1, 1000000000000)")
		busy <- err
	}()
	active := fmt.Sprintf("SELECT state = 'active' FROM pg_stat_activity WHERE pid = %d", conn.PgConn().PID())
	eventually(t, func() error {
		if value(t, server.DSN("postgres"), active) != "true" {
			return errors.New("the query has not begun")
		}
		return nil
	})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-busy; err == nil {
		t.Error("the query ended well")
	}
	if err := syscall.Kill(int(conn.PgConn().PID()), 0); err == nil && !zombie(conn.PgConn().PID()) {
		t.Error("the backend is still there")
	}
}

func zombie(pid uint32) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestPausedServerDoesNotAnswerUntilResumed(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- conn.Ping(context.Background()) }()
	select {
	case err := <-answered:
		t.Errorf("a paused server answered: %v", err)
	case <-time.After(200 * time.Millisecond): // no wait can show that something will never come; this long is enough to be caught
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("the session was lost over the pause: %v", err)
	}

	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Errorf("stopping a paused server: %v", err)
	}
}

func TestGivenDataDirectoryIsKeptAndReused(t *testing.T) {
	t.Parallel()
	parent, err := os.MkdirTemp("/tmp", "pgserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(parent, "data")
	for i, sql := range []string{"CREATE TABLE public.kept (i int)", "INSERT INTO public.kept VALUES (1)"} {
		server := start(t, &pgserver.Options{DataDir: data})
		if server.DataDir() != data {
			t.Errorf("DataDir is %s, want %s", server.DataDir(), data)
		}
		run(t, server.DSN("postgres"), sql)
		if err := server.Stop(t.Context()); err != nil {
			t.Fatalf("stop %d: %v", i, err)
		}
	}
	if _, err := os.Stat(filepath.Join(data, "postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory was not shut down cleanly: %v", err)
	}
}

func TestFailedStartSaysWhatTheServerSaid(t *testing.T) {
	t.Parallel()
	_, err := pgserver.Start(t.Context(), &pgserver.Options{Settings: map[string]string{"work_mem": "plenty"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "work_mem"`) {
		t.Errorf("the error does not tell: %v", err)
	}
}

func TestLibrariesThatAreNotInstalledAreNotPreloaded(t *testing.T) {
	t.Parallel()
	server := start(t, &pgserver.Options{Preload: []string{"no_such_library"}})
	if got := value(t, server.DSN("postgres"), "current_setting('shared_preload_libraries')"); got != "" {
		t.Errorf("shared_preload_libraries is %q", got)
	}
}

// The next tests change the environment or the package, so they are not parallel.

func TestNobodyRunsTheServerWhereThereIsNoUserPostgres(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root needs another account for the server")
	}
	pgserver.OnlyAccount(t, "nobody")
	server := start(t, nil)
	if got := value(t, server.DSN("postgres"), "SELECT (pg_stat_file('PG_VERSION')).size > 0"); got != "true" {
		t.Errorf("the server does not read its own files: %s", got)
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(server.DataDir(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; strconv.FormatUint(uint64(uid), 10) != nobody.Uid {
		t.Errorf("the server runs as user %d, want %s", uid, nobody.Uid)
	}

	pgserver.OnlyAccount(t, "no-such-user")
	if _, err := pgserver.Start(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "useradd") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

func TestAPortThatIsTakenMeanwhileIsNotFatal(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	pgserver.OfferPort(t, port)
	server := start(t, nil)
	if server.Port() == port {
		t.Errorf("the server claims to listen on port %d, which is taken", port)
	}
	if got := value(t, server.TCPDSN("postgres"), "1"); got != "1" {
		t.Errorf("the server answers %s", got)
	}
}

func TestRootIsToldWhichDirectoryHidesTheBinaries(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root needs another account for the server")
	}
	installed, err := pgserver.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	hidden := t.TempDir() // its parent is closed to others
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.Symlink(filepath.Join(installed, name), filepath.Join(hidden, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(pgserver.BinDirVariable, hidden)
	_, err = pgserver.Start(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "chmod o+x "+filepath.Dir(hidden)) {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

func TestWithoutBinariesTheErrorSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(pgserver.BinDirVariable, "")
	pgserver.OnlySearch(t, filepath.Join(t.TempDir(), "*", "bin"))
	_, err := pgserver.Start(t.Context(), nil)
	var missing *pgserver.NotFoundError
	if !errors.As(err, &missing) {
		t.Fatalf("got %v, want a NotFoundError", err)
	}
	for _, want := range []string{"install", pgserver.BinDirVariable, "14"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %q: %v", want, err)
		}
	}
}

func TestAWrongVariableIsAnErrorAndNotIgnored(t *testing.T) {
	t.Setenv(pgserver.BinDirVariable, t.TempDir())
	if dir, err := pgserver.FindBinDir(); err == nil || !strings.Contains(err.Error(), pgserver.BinDirVariable) {
		t.Errorf("got %q, %v", dir, err)
	}
}

func TestTheNewestPackageWinsAndOldOnesArePassedOver(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(pgserver.BinDirVariable, "")
	root := t.TempDir()
	for _, major := range []string{"9", "13", "14", "16"} {
		bin := filepath.Join(root, major, "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"initdb", "postgres"} {
			script := fmt.Sprintf("#!/bin/sh\necho '%s (PostgreSQL) %s.3'\n", name, major)
			if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	pgserver.OnlySearch(t, filepath.Join(root, "*", "bin"))
	for _, want := range []string{"16", "14"} {
		got, err := pgserver.FindBinDir()
		if err != nil || got != filepath.Join(root, want, "bin") {
			t.Errorf("found %q, %v; want that of %s", got, err, want)
		}
		if err := os.RemoveAll(filepath.Join(root, want)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := pgserver.FindBinDir()
	var missing *pgserver.NotFoundError
	if !errors.As(err, &missing) || len(missing.TooOld) != 2 {
		t.Errorf("with only old ones: %v", err)
	}
}

// ownerVariable makes the test binary start a server, print where it is, and wait.
const ownerVariable = "PGSERVER_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerVariable) == "" {
		os.Exit(m.Run())
	}
	server, err := pgserver.Start(context.Background(), nil)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(server.PID(), server.WatchdogPID(), server.SocketDir())
	select {}
}

// owner is another process that started a server.
func owner(t *testing.T) (cmd *exec.Cmd, postmaster, watchdog int, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self)
	cmd.Env = append(os.Environ(), ownerVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if _, err := fmt.Fscan(out, &postmaster, &watchdog, &dir); err != nil {
		t.Fatal(err)
	}
	return cmd, postmaster, watchdog, dir
}

func TestNothingOutlivesAKilledOwner(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGQUIT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			cmd, postmaster, _, dir := owner(t)
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			eventually(t, func() error {
				if err := syscall.Kill(postmaster, 0); !errors.Is(err, syscall.ESRCH) && !zombie(uint32(postmaster)) {
					return fmt.Errorf("the postmaster %d still runs", postmaster)
				}
				if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
					return fmt.Errorf("%s is still there", dir)
				}
				return nil
			})
		})
	}
}

func TestNextStartRemovesWhatAKilledWatchdogLeft(t *testing.T) {
	t.Parallel()
	cmd, postmaster, watchdog, dir := owner(t)
	// Everything dies at once: the owner, the watchdog, the server.
	for _, pid := range []int{watchdog, cmd.Process.Pid, postmaster} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("there is nothing to remove: %v", err)
	}

	_, _, _, livingDir := owner(t)
	eventually(t, func() error {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is still there", dir)
		}
		return nil
	})
	start(t, nil)
	if _, err := os.Stat(livingDir); err != nil {
		t.Errorf("the directory of a living owner was removed: %v", err)
	}
}

// eventually waits for something that another process does in its own time.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // polls another process, with a deadline
	}
}
