//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/etcdtest"
	"github.com/fencectl/fencectl/internal/netfault"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/internal/redistest"
	"github.com/fencectl/fencectl/internal/zktest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

// patience is for a machine that is busy with other tests. Nothing waits that long when it works.
const patience = 90 * time.Second

// locker runs fencectl lock as processes, against a database of its own.
type locker struct {
	t    *testing.T
	pool *pgxpool.Pool
	bin  string // has fencectl
	dir  string // where it runs
	env  []string
}

func newLocker(t *testing.T) *locker {
	t.Helper()
	pool, _ := shop(t)
	l := &locker{t: t, pool: pool, bin: installed(t), dir: t.TempDir()}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "FENCING_") {
			l.env = append(l.env, variable)
		}
	}
	l.env = append(l.env, "FENCECTL_DSN="+pgtest.DSN(t, pool), "PATH="+l.bin+":"+os.Getenv("PATH"))
	return l
}

// file puts a file into the directory that the commands run in.
func (l *locker) file(name, content string, mode os.FileMode) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, name), []byte(content), mode); err != nil {
		l.t.Fatal(err)
	}
}

// A locked is one process of fencectl lock, in a session of its own, so that no terminal has a say.
type locked struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	lines  chan string // of its standard output, and its command's
	errors string      // the file with its standard error
	ended  chan struct{}
}

func (l *locker) start(args ...string) *locked {
	l.t.Helper()
	return l.exec(filepath.Join(l.bin, "fencectl"), append([]string{"lock"}, args...)...)
}

func (l *locker) exec(program string, args ...string) *locked {
	l.t.Helper()
	r := &locked{t: l.t, name: strings.Join(args, " "), lines: make(chan string, 1000), errors: filepath.Join(l.t.TempDir(), "stderr"), ended: make(chan struct{})}
	stderr, err := os.Create(r.errors)
	if err != nil {
		l.t.Fatal(err)
	}
	// A pipe, and not a buffer: what a command leaves running would keep Wait waiting.
	output, stdout, err := os.Pipe()
	if err != nil {
		l.t.Fatal(err)
	}
	r.cmd = exec.Command(program, args...)
	r.cmd.Dir, r.cmd.Env, r.cmd.Stdout, r.cmd.Stderr = l.dir, l.env, stdout, stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := r.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	stdout.Close()
	stderr.Close()
	go func() {
		defer close(r.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			r.lines <- scanner.Text()
		}
	}()
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // its status is what is looked at
	}()
	l.t.Cleanup(func() {
		r.cmd.Process.Kill()
		<-r.ended
		output.Close()
	})
	return r
}

// line is the next line of output.
func (r *locked) line() string {
	r.t.Helper()
	select {
	case line, ok := <-r.lines:
		if !ok {
			r.t.Fatalf("%s: no more output; its errors:\n%s", r.name, r.stderr())
		}
		return line
	case <-time.After(patience):
		r.t.Fatalf("%s: no output; its errors:\n%s", r.name, r.stderr())
	}
	return ""
}

func (r *locked) expect(want string) {
	r.t.Helper()
	if line := r.line(); line != want {
		r.t.Fatalf("%s: output %q, want %q; its errors:\n%s", r.name, line, want, r.stderr())
	}
}

// number is the next line of output, a number.
func (r *locked) number() int {
	r.t.Helper()
	n, err := strconv.Atoi(r.line())
	if err != nil {
		r.t.Fatalf("%s: %v", r.name, err)
	}
	return n
}

func (r *locked) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

func (r *locked) stderr() string {
	text, err := os.ReadFile(r.errors)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// status waits for the end, and returns the exit status.
func (r *locked) status() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.t.Fatalf("%s: does not end; its errors:\n%s", r.name, r.stderr())
	}
	return r.cmd.ProcessState.ExitCode()
}

// ends waits for the end and checks the exit status and that every part is in what was said on stderr, or that nothing was.
func (r *locked) ends(status int, parts ...string) {
	r.t.Helper()
	if got := r.status(); got != status {
		r.t.Errorf("%s: exit status %d, want %d; its errors:\n%s", r.name, got, status, r.stderr())
	}
	stderr := r.stderr()
	if len(parts) == 0 && stderr != "" {
		r.t.Errorf("%s: wants to be silent, and says:\n%s", r.name, stderr)
	}
	for _, part := range parts {
		if !strings.Contains(stderr, part) {
			r.t.Errorf("%s: says nothing of %q:\n%s", r.name, part, stderr)
		}
	}
}

// eventually polls for what sends no message: the state of other processes.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(10 * time.Millisecond); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("does not come about: %s", what)
		}
	}
}

// hold takes a lock for the test itself.
func hold(t *testing.T, pool *pgxpool.Pool, name string) tokensrc.Grant {
	t.Helper()
	grant, err := postgres.NewLease(pool, nil).Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { grant.Release(context.Background()) })
	return grant
}

// leased: the lock is held by somebody. The lease's time may be over.
func leased(t *testing.T, pool *pgxpool.Pool, name string) bool {
	t.Helper()
	return pgtest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM fencing.lease WHERE name = $1 AND expires_at > pg_catalog.clock_timestamp())", name)
}

func TestLockPassesTheCommandsExitStatusOn(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	l.file("plain", "exit 5\n", 0o755)
	l.file("data", "exit 5\n", 0o644)
	l.file("orphan", "#!/no/such/interpreter\n", 0o755)
	l.env = append(l.env, "PATH="+l.bin+":"+os.Getenv("PATH")+":"+l.dir)
	for _, tt := range []struct {
		command string
		status  int
		says    []string
	}{
		{"true", 0, nil},
		{"false", 1, nil},
		{"sh -c 'exit 7'", 7, nil},
		{"sh -c 'exit 255'", 255, nil},
		{"sh -c 'kill -KILL $$'", 137, nil},
		{"sh -c 'kill -TERM $$'", 143, nil},
		{"./plain", 5, nil}, // as execvp has it, a shell runs what names no interpreter
		{"no-such-command", 127, []string{"fencectl: cannot run no-such-command: command not found\n"}},
		{"./no-such-command", 127, []string{"fencectl: cannot run ./no-such-command: no such file or directory\n"}},
		{"./data", 126, []string{"fencectl: cannot run ./data: permission denied\n"}},
		{"data", 126, []string{"fencectl: cannot run data: permission denied\n"}},
		{"/", 126, []string{"fencectl: cannot run /: is a directory\n"}},
		{"./orphan", 127, []string{"fencectl: cannot run ./orphan: no such file or directory\n"}},
	} {
		l.exec("sh", "-c", "exec fencectl lock jobs/nightly -- "+tt.command).ends(tt.status, tt.says...)
		if leased(t, l.pool, "jobs/nightly") {
			t.Errorf("%s: the lock was not given back", tt.command)
		}
	}
}

func TestLockGivesTheCommandItsStandardStreams(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	r := l.exec("sh", "-c", "echo input | fencectl lock jobs/nightly -- sh -c 'cat; echo error >&2'")
	r.expect("input")
	r.ends(0, "error\n")
}

func TestLockThatIsHeldIsStatus75AndNothingRuns(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	grant := hold(t, l.pool, "jobs/nightly")
	l.start("jobs/nightly", "--wait", "0", "--", "touch", "ran").ends(75, "fencectl: lock jobs/nightly is held\n")
	l.start("jobs/nightly", "--wait", "100ms", "--", "touch", "ran").ends(75, "fencectl: lock jobs/nightly is held, and was not free within 100ms\n")
	if _, err := os.Stat(filepath.Join(l.dir, "ran")); err == nil {
		t.Error("the command ran without the lock")
	}
	if err := grant.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.start("jobs/nightly", "--wait", "0", "--", "touch", "ran").ends(0)
	if _, err := os.Stat(filepath.Join(l.dir, "ran")); err != nil {
		t.Error(err)
	}
}

// listening: somebody waits for a lease, on a connection that hears of releases.
func listening(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, "somebody waits for the lock", func() bool { return listens(t, pool) })
}

func listens(t *testing.T, pool *pgxpool.Pool) bool {
	t.Helper()
	return pgtest.Value[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
		WHERE datname = pg_catalog.current_database() AND query ILIKE 'LISTEN%')`)
}

func TestLockWaitsForAsLongAsItTakes(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	grant := hold(t, l.pool, "jobs/nightly")
	r := l.start("jobs/nightly", "--", "sh", "-c", "echo $FENCING_TOKEN")
	listening(t, l.pool)
	if err := grant.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if token := r.number(); token <= int(grant.Token()) {
		t.Errorf("token %d after %d", token, grant.Token())
	}
	r.ends(0)
}

func TestASignalEndsTheWaitingForALock(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	hold(t, l.pool, "jobs/nightly")
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		r := l.start("jobs/nightly", "--", "touch", "ran")
		listening(t, l.pool)
		r.signal(s)
		r.ends(128+int(s), "fencectl: interrupted\n")
		// The server may notice later than the process is gone, and the next one is not to be taken for waiting because of it.
		eventually(t, "nobody waits for the lock any more", func() bool { return !listens(t, l.pool) })
	}
	if _, err := os.Stat(filepath.Join(l.dir, "ran")); err == nil {
		t.Error("the command ran without the lock")
	}
}

func TestALockServiceThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	for _, service := range []struct{ name, flag string }{{"redis", "--redis-url=redis://app:hunter2@127.0.0.1:1"}, {"zookeeper", "--zookeeper-servers=127.0.0.1:1"}} {
		flag, _, _ := strings.Cut(service.flag, "=")
		fencectl.fails(2, []string{service.name + " at 127.0.0.1:1", "connection refused", flag}, "lock", "a", "--source", service.name, service.flag, "--", "true")
	}
}

func TestLockRefusesCommandLinesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	for _, tt := range []struct {
		args  string
		parts []string
	}{
		{"", []string{"the name of one lock"}},
		{"a", []string{"a command"}},
		{"a --", []string{"a command"}},
		{"-- true", []string{"the name of one lock"}},
		{"a b -- true", []string{"the name of one lock"}},
		{"a true", []string{"fencectl lock a -- true"}},
		{"a --wait -1s -- true", []string{"--wait"}},
		{"a --ttl 10ms -- true", []string{"--ttl", "1s"}},
		{"a --ttl 15s --grace 6s -- true", []string{"--grace", "--ttl 18s"}},
		{"a --evict 0 -- true", []string{"--evict"}},
		{"a --evict 1s --no-claim -- true", []string{"--evict", "--no-claim"}},
		{"a --source mysql -- true", []string{"postgres or etcd or redis or zookeeper"}},
		{"a --redis-url redis://x -- true", []string{"--redis-url is for --source redis"}},
		{"a --source etcd -- true", []string{"--etcd-endpoints", "ETCDCTL_ENDPOINTS"}},
		{"a --source redis -- true", []string{"--redis-url", "REDIS_URL"}},
		{"a --source zookeeper -- true", []string{"--zookeeper-servers", "ZOOKEEPER_SERVERS"}},
		{"a --waitt 3s -- true", []string{"did you mean --wait"}},
	} {
		fencectl.fails(statusError, append(tt.parts, "fencectl lock --help"), append([]string{"lock"}, strings.Fields(tt.args)...)...)
	}
}

func TestASilentOrMissingLockServiceIsNamedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	for _, args := range []string{
		"--source redis --redis-url redis://:s3cret@127.0.0.1:1/0",
		"--source redis --redis-url http://:s3cret@127.0.0.1:1/0",
		"--source zookeeper --zookeeper-servers 127.0.0.1:1/s3cret",
	} {
		line := fencectl.fails(statusError, nil, append(append([]string{"lock", "a"}, strings.Fields(args)...), "--", "true")...)
		if strings.Contains(line, "s3cret@") {
			t.Errorf("it gives the password away: %s", line)
		}
	}
}

func TestSignalsArePassedOnToTheCommand(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	r := l.start("jobs/nightly", "--", "bash", "-c", `trap 'kill $! 2>&-; exit 9' TERM; for s in HUP INT QUIT USR1 USR2 ALRM WINCH; do trap "echo $s" $s; done
		echo ready; while :; do sleep 1000 & wait; done`)
	r.expect("ready")
	for _, s := range []struct {
		signal syscall.Signal
		name   string
	}{
		{syscall.SIGHUP, "HUP"},
		{syscall.SIGINT, "INT"},
		{syscall.SIGQUIT, "QUIT"},
		{syscall.SIGUSR1, "USR1"},
		{syscall.SIGUSR2, "USR2"},
		{syscall.SIGALRM, "ALRM"},
		{syscall.SIGWINCH, "WINCH"},
		{syscall.SIGINT, "INT"},
	} {
		r.signal(s.signal)
		r.expect(s.name)
	}
	r.signal(syscall.SIGTERM)
	r.ends(9) // and not 130, for the signals that fencectl has seen
	if leased(t, l.pool, "jobs/nightly") {
		t.Error("the lock was not given back")
	}
}

func TestASignalReachesWhatTheCommandHasStarted(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	r := l.start("jobs/nightly", "--", "sh", "-c", `trap "wait; exit 4" TERM; sh -c 'trap "echo child; exit" TERM; echo ready; sleep 1000 & wait' & wait`)
	r.expect("ready")
	r.signal(syscall.SIGTERM)
	r.expect("child")
	r.ends(4)
}

func TestASignalThatFencectlWasStartedToIgnoreStaysIgnored(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	r := l.exec("sh", "-c", `trap "" HUP; exec fencectl lock jobs/nightly -- sh -c 'trap "echo usr1; exit 0" USR1; echo ready; sleep 1000 & wait'`)
	r.expect("ready")
	r.signal(syscall.SIGHUP)
	r.signal(syscall.SIGUSR1)
	r.expect("usr1")
	r.ends(0)
}

// lose gives somebody's lock to somebody else. The next renewal says so.
func lose(t *testing.T, pool *pgxpool.Pool, name string) {
	t.Helper()
	if tag := pgtest.Exec(t, pool, "UPDATE fencing.lease SET owner = gen_random_uuid() WHERE name = $1", name); tag.RowsAffected() != 1 {
		t.Fatalf("nobody has the lock %s", name)
	}
}

// gone: nobody is left in the process group.
func gone(t *testing.T, group int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process group %d is empty", group), func() bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) })
}

func TestALostLockEndsTheCommandsWholeGroup(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	r := l.start("jobs/nightly", "--ttl", "3s", "--", "sh", "-c", `trap "wait; exit 4" TERM; echo $$; sh -c 'trap "echo child; exit" TERM; echo ready; sleep 1000 & wait' & wait`)
	group := r.number()
	r.expect("ready")
	lose(t, l.pool, "jobs/nightly")
	r.expect("child")
	r.ends(76, "fencectl: lock jobs/nightly is lost: the service says that the lock is not this grant's; ending the command\n")
	gone(t, group)
}

func TestACommandThatIgnoresTheEndIsKilledAfterTheGracePeriod(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	for name, command := range map[string]string{
		"itself":                `trap "echo term" TERM; echo $$; while :; do sleep 1000 & wait; done`,
		"what it leaves behind": `sh -c 'trap "echo term" TERM; echo ready; while :; do sleep 1000 & wait; done' & echo $$; wait`,
		"when it was suspended": `trap "echo term" TERM; echo $$; kill -STOP $$; while :; do sleep 1000 & wait; done`,
	} {
		t.Run(name, func(t *testing.T) {
			r := l.start("jobs/nightly", "--ttl", "3s", "--grace", "300ms", "--", "sh", "-c", command)
			group := 0
			for group == 0 { // the two lines of the second command come in either order
				group, _ = strconv.Atoi(r.line())
			}
			lose(t, l.pool, "jobs/nightly")
			if line := r.line(); line == "ready" {
				r.expect("term")
			}
			r.ends(76, "is lost")
			gone(t, group)
			pgtest.Exec(t, l.pool, "DELETE FROM fencing.lease")
		})
	}
}

// The lock service is away. The command has ended, gently, while the lock was still nobody else's.
func TestACommandIsGoneBeforeALockThatCannotBeRenewedIsFree(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	server := redistest.Start(t)
	link := netfault.New(t, server.Addr())
	r := l.start("jobs/nightly", "--source", "redis", "--redis-url", "redis://"+link.Addr(), "--ttl", "9s", "--grace", "3s", "--",
		"sh", "-c", `trap "echo term; exit" TERM; echo $$; sleep 1000 & wait`)
	group := r.number()
	link.Stall()
	r.expect("term")
	gone(t, group)
	left, err := server.Client(t, server.Addr()).PTTL(t.Context(), "{fencing}:lock:jobs/nightly").Result()
	if err != nil {
		t.Fatal(err)
	}
	if left <= 0 {
		t.Errorf("the lock had %v left when the command had ended", left)
	}
	r.ends(76, "fencectl: lock jobs/nightly is lost: it could not be renewed, and would soon be free for somebody else; ending the command\n")
}

func TestLockAddsToPGOPTIONSWhatPresentsTheToken(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	l.env = append(l.env, "PGOPTIONS=-c statement_timeout=12345", "FENCING_TOKEN=1", "FENCING_LOCK=another")
	r := l.start("jobs/nightly", "--", "sh", "-c", `echo "$FENCING_LOCK"; echo "$FENCING_TOKEN"; printenv FENCING_TOKENS PGOPTIONS
		psql "$FENCECTL_DSN" -XAtc "SELECT fencing.presented(), current_setting('statement_timeout'), (SELECT token FROM fencing.fence WHERE name = 'jobs/nightly')"`)
	r.expect("jobs/nightly")
	token := r.line()
	r.expect(`{"jobs/nightly":` + token + `}`)
	r.expect("-c statement_timeout=12345 -c fencing.token=" + token)
	r.expect(token + "|12345ms|" + token)
	r.ends(0)
}

func TestALockWithinALockPresentsEachTokenForItsOwnFence(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	// Names that a careless quoting would break.
	outer, middle := `out er\"é😀'$x`, "middle\tand\nmore"
	pgtest.Exec(t, l.pool, fmt.Sprintf("SELECT fencing.protect('public.orders', fence => %s), fencing.protect('public.jobs', fence => 'inner')", literal(outer)))
	l.env = append(l.env, "OUTER="+outer, "MIDDLE="+middle)
	l.file("nested.sql", `
		SELECT fencing.presented(:'outer'), fencing.presented(:'middle'), fencing.presented('inner'), fencing.presented();
		INSERT INTO public.orders VALUES (1, 1);
		UPDATE public.jobs SET state = 'done';
	`, 0o600)
	r := l.exec("sh", "-c", `exec fencectl lock "$OUTER" -- fencectl lock "$MIDDLE" -- fencectl lock inner -- sh -c '
		printenv FENCING_LOCK FENCING_TOKENS; psql "$FENCECTL_DSN" -XAtq -v ON_ERROR_STOP=1 -v outer="$OUTER" -v middle="$MIDDLE" -f nested.sql'`)
	r.expect("inner")
	var tokens map[string]int64
	if err := json.Unmarshal([]byte(r.line()), &tokens); err != nil {
		t.Fatal(err)
	}
	if len(tokens) != 3 || tokens[outer] <= 0 || tokens[middle] <= tokens[outer] || tokens["inner"] <= tokens[middle] {
		t.Fatalf("tokens: %v", tokens)
	}
	r.expect(fmt.Sprintf("%d|%d|%d|%d", tokens[outer], tokens[middle], tokens["inner"], tokens["inner"]))
	r.ends(0)
	if got := pgtest.Value[string](t, l.pool, "SELECT (SELECT count(*) FROM public.orders) || ' ' || string_agg(state, ',') FROM public.jobs"); got != "1 done,done" {
		t.Errorf("written: %s", got)
	}
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

func TestALockWithinItselfIsWarnedOf(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	l.start("a", "--", "fencectl", "lock", "a", "--wait", "0", "--", "true").ends(75, "warning: this already runs under the lock a", "lock a is held")
	l.env = append(l.env, "FENCING_TOKENS=[1]")
	l.start("a", "--", "true").ends(2, "FENCING_TOKENS")
}

func TestAFenceThatANewerTokenHasClaimedIsARefusal(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	pgtest.Exec(t, l.pool, "SELECT fencing.claim('jobs/nightly', 99999999)")
	l.start("jobs/nightly", "--", "touch", "ran").ends(1, "the source postgres has gone back", "fencectl fence show jobs/nightly")
	if _, err := os.Stat(filepath.Join(l.dir, "ran")); err == nil {
		t.Error("the command ran without the fence")
	}
	if leased(t, l.pool, "jobs/nightly") {
		t.Error("the lock was not given back")
	}
	l.start("jobs/nightly", "--no-claim", "--", "true").ends(0)
}

// stuck is an older holder in the middle of a transaction: its lock has passed on, and it holds the fence until it ends.
func stuck(t *testing.T, l *locker) pgx.Tx {
	t.Helper()
	pgtest.Exec(t, l.pool, "SELECT fencing.protect('public.jobs', fence => 'jobs/nightly')")
	old := hold(t, l.pool, "jobs/nightly")
	if err := fenced.Claim(t.Context(), l.pool, old); err != nil {
		t.Fatal(err)
	}
	conn := pgtest.Conn(t, l.pool)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "SELECT fencing.present($1)", int64(old.Token()))
	pgtest.Exec(t, tx, "UPDATE public.jobs SET state = 'old'")
	if err := old.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestLockEndsAnOlderHoldersSessionWhenToldTo(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	tx := stuck(t, l)
	l.start("jobs/nightly", "--evict", "100ms", "--", "psql", pgtest.DSN(t, l.pool), "-Xqc", "UPDATE public.jobs SET state = 'new'").ends(0, "fencectl: ended pid ")
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the old holder's transaction was committed")
	}
	if got := pgtest.Value[string](t, l.pool, "SELECT string_agg(state, ',') FROM public.jobs"); got != "new,new" {
		t.Errorf("written: %s", got)
	}
}

func TestASignalEndsTheWaitingForAFenceAndTheLockIsGivenBack(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	tx := stuck(t, l)
	r := l.start("jobs/nightly", "--", "touch", "ran")
	pgtest.WaitBlockedBy(t, l.pool, tx.Conn().PgConn().PID())
	r.signal(syscall.SIGTERM)
	r.ends(143, "fencectl: interrupted\n")
	if leased(t, l.pool, "jobs/nightly") {
		t.Error("the lock was not given back")
	}
	if _, err := os.Stat(filepath.Join(l.dir, "ran")); err == nil {
		t.Error("the command ran without the fence")
	}
}

func TestALockThatIsLostBeforeTheFenceIsClaimedRunsNothing(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	tx := stuck(t, l)
	r := l.start("jobs/nightly", "--ttl", "3s", "--", "touch", "ran")
	pgtest.WaitBlockedBy(t, l.pool, tx.Conn().PgConn().PID())
	lose(t, l.pool, "jobs/nightly")
	r.ends(76, "fencectl: lock jobs/nightly is lost: the service says that the lock is not this grant's; the command was not run\n")
	if _, err := os.Stat(filepath.Join(l.dir, "ran")); err == nil {
		t.Error("the command ran without the lock")
	}
}

func TestLockNeedsNoMoreThanFencectlGrantGives(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	role := pgtest.Role(t, l.pool, "SELECT, UPDATE ON public.jobs")
	pgtest.Exec(t, l.pool, "SELECT fencing.protect('public.jobs', fence => 'jobs/nightly')")
	l.env = append(l.env, "FENCECTL_DSN="+role.DSN)
	l.start("jobs/nightly", "--", "true").ends(2, "fencectl grant")
	newCLI(t, pgtest.DSN(t, l.pool)).ok("grant", role.Name)
	write := []string{"--evict", "5s", "--", "psql", role.DSN, "-Xqc", "UPDATE public.jobs SET state = 'done'"}
	l.start(append([]string{"jobs/nightly"}, write...)...).ends(0)
	redis := redistest.Start(t)
	l.start("jobs/weekly", "--source", "redis", "--redis-url", "redis://"+redis.Addr(), "--", "true").ends(0)
	if got := pgtest.Value[string](t, l.pool, "SELECT string_agg(state, ',') FROM public.jobs"); got != "done,done" {
		t.Errorf("written: %s", got)
	}
}

func TestEverySourceLocksClaimsAndFences(t *testing.T) {
	t.Parallel()
	for source, flags := range map[string]func(t *testing.T) []string{
		"postgres": func(*testing.T) []string { return nil },
		"etcd": func(t *testing.T) []string {
			return []string{"--etcd-endpoints", strings.Join(etcdtest.Start(t, 1).Endpoints(), ",")}
		},
		"redis": func(t *testing.T) []string {
			return []string{"--redis-url", "redis://" + redistest.Start(t).Addr() + "/1"}
		},
		"zookeeper": func(t *testing.T) []string { return []string{"--zookeeper-servers", zktest.Start(t).Addr() + "/app"} },
	} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			l := newLocker(t)
			pgtest.Exec(t, l.pool, "SELECT fencing.protect('public.jobs', fence => 'jobs/nightly')")
			args := func(more ...string) []string {
				return append(append([]string{"jobs/nightly", "--source", source}, flags(t)...), more...)
			}
			given := args()
			with := func(more ...string) []string { return append(given[:len(given):len(given)], more...) }

			holder := l.start(with("--", "sh", "-c", `psql "$FENCECTL_DSN" -Xqc "UPDATE public.jobs SET state = 'done'" && echo $FENCING_TOKEN && read -r line < go`)...)
			fifo(t, l, "go")
			token := holder.number()
			if got := pgtest.Value[int64](t, l.pool, "SELECT token FROM fencing.fence WHERE name = 'jobs/nightly'"); got != int64(token) {
				t.Errorf("the fence stands at %d, the command had %d", got, token)
			}
			if got := pgtest.Value[string](t, l.pool, "SELECT string_agg(state, ',') FROM public.jobs"); got != "done,done" {
				t.Errorf("written: %s", got)
			}
			l.start(with("--wait", "0", "--", "true")...).ends(75, "lock jobs/nightly is held")
			l.start(with("--wait", "200ms", "--", "true")...).ends(75, "lock jobs/nightly is held")
			next := l.start(with("--", "sh", "-c", "echo $FENCING_TOKEN")...)
			l.open("go")
			holder.ends(0)
			if got := next.number(); got <= token {
				t.Errorf("token %d after %d", got, token)
			}
			next.ends(0)
			if source != "postgres" {
				if got := pgtest.Value[int](t, l.pool, "SELECT epoch FROM fencing.source WHERE name = $1", source); got != 0 {
					t.Errorf("epoch %d", got)
				}
				// Another cluster under the same name would start its numbers again.
				pgtest.Exec(t, l.pool, "UPDATE fencing.source SET incarnation = 'another' WHERE name = $1", source)
				l.start(with("--", "true")...).ends(1, "fencectl epoch adopt "+source)
			}
		})
	}
}

// fifo makes a named pipe, at which a command can wait for the test.
func fifo(t *testing.T, l *locker, name string) {
	t.Helper()
	if err := syscall.Mkfifo(filepath.Join(l.dir, name), 0o600); err != nil {
		t.Fatal(err)
	}
}

// open lets whoever reads from the named pipe go on.
func (l *locker) open(name string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, name), []byte("\n"), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// Whoever is in the critical section owns the directory "section": mkdir fails for a second one.
func TestContendersNeverRunAtTheSameTime(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	const section = `mkdir section || exit 9; echo $FENCING_TOKEN; [ -z "$WAIT" ] || read -r line < go; rmdir section`

	// The control: under another lock the section is entered although somebody is in it, and that is noticed.
	fifo(t, l, "go")
	plain := l.env
	l.env = append(plain[:len(plain):len(plain)], "WAIT=1")
	inside := l.start("one", "--", "sh", "-c", section)
	first := inside.number()
	l.env = plain
	l.start("another", "--", "sh", "-c", section).ends(9, "mkdir")

	const contenders = 6
	waiting := make([]*locked, contenders)
	for i := range waiting {
		waiting[i] = l.start("one", "--", "sh", "-c", section)
	}
	listening(t, l.pool)
	l.open("go")
	inside.ends(0)
	seen := map[int]bool{}
	for _, w := range waiting {
		token := w.number()
		if token <= first || seen[token] {
			t.Errorf("token %d, after %d and %v", token, first, seen)
		}
		seen[token] = true
		w.ends(0)
	}
}

// The whole point. A batch is paused in the middle, with fencectl itself; its lock passes on, the next holder writes; the batch wakes up and writes.
func TestABatchThatSleptThroughTheEndOfItsLockWritesNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, protect, result string
		says                  []string
	}{
		{"without a guard, for comparison", "SELECT", "old holder", nil},
		{"named fence", "SELECT fencing.protect('public.jobs', fence => 'jobs/nightly')", "new holder", []string{"ZF001"}},
		{"row fence", "SELECT fencing.protect('public.jobs', mode => 'reentrant')", "new holder", []string{"ZF001"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLocker(t)
			pgtest.Exec(t, l.pool, tt.protect)
			gate := pgtest.Conn(t, l.pool)
			pgtest.Exec(t, gate, "SELECT pg_advisory_lock(7)")
			l.file("batch.sql", `\! echo $PPID
				UPDATE public.jobs SET state = 'begun' WHERE id = 1;
				DO 'BEGIN PERFORM pg_advisory_lock(7); END';
				UPDATE public.jobs SET state = 'old holder' WHERE id = 1;
				\echo done
			`, 0o600)
			r := l.start("jobs/nightly", "--ttl", "2s", "--", "psql", pgtest.DSN(t, l.pool), "-Xq", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-f", "batch.sql")
			batch := r.number()
			pgtest.WaitBlockedBy(t, l.pool, gate.PgConn().PID())

			// The machine freezes.
			r.signal(syscall.SIGSTOP)
			if err := syscall.Kill(-batch, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			grant := hold(t, l.pool, "jobs/nightly") // as soon as the lease has run out
			if err := fenced.Claim(t.Context(), l.pool, grant); err != nil {
				t.Fatal(err)
			}
			err := fenced.Run(t.Context(), l.pool, grant, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "UPDATE public.jobs SET state = 'new holder' WHERE id = 1")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, gate, "SELECT pg_advisory_unlock(7)")

			// It thaws; the batch is a little faster than what watches over it.
			if err := syscall.Kill(-batch, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if len(tt.says) > 0 {
				eventually(t, "the batch is refused", func() bool { return strings.Contains(r.stderr(), "ZF001") })
			} else {
				r.expect("done")
			}
			r.signal(syscall.SIGCONT)
			r.ends(76, append(tt.says, "fencectl: lock jobs/nightly is lost")...)
			if got := pgtest.Value[string](t, l.pool, "SELECT state FROM public.jobs WHERE id = 1"); got != tt.result {
				t.Errorf("the row has %q, want %q", got, tt.result)
			}
			if err := grant.Release(t.Context()); err != nil {
				t.Errorf("the next holder's lock: %v", err)
			}
		})
	}
}

func TestVerboseSaysWhatHappens(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	l.start("jobs/nightly", "--verbose", "--", "true").ends(0, "fencectl: took the lock jobs/nightly after ", "fencectl: claimed the fence jobs/nightly (before: 0)", "fencectl: the command has ended with status 0")
}
