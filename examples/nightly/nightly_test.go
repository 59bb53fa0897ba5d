//go:build unix

// Package nightly_test runs the script.
package nightly_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// bin is where fencectl is.
var bin string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) (status int) {
	var err error
	if bin, err = os.MkdirTemp("", "fencectl-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(bin)
	if output, err := exec.Command("go", "build", "-o", bin, "github.com/fencectl/fencectl/cmd/fencectl").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// A night is a database with sales and refunds, and what the script needs to run.
type night struct {
	pool *pgxpool.Pool
	env  []string
}

func newNight(t *testing.T) *night {
	t.Helper()
	path := bin + ":" + os.Getenv("PATH")
	if binDir, err := pgserver.FindBinDir(); err == nil {
		path += ":" + binDir // not everybody has psql on the path
	}
	n := &night{pool: pgtest.New(t)}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "FENC") {
			n.env = append(n.env, variable)
		}
	}
	n.env = append(n.env, "PATH="+path, "DATABASE_URL="+pgtest.DSN(t, n.pool), "LC_ALL=C.UTF-8")
	schema, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, n.pool, string(schema))
	pgtest.Exec(t, n.pool, `INSERT INTO nightly.sale (day, cents) VALUES ('2026-01-01', 100), ('2026-01-01', 50), ('2026-01-02', 70)`)
	pgtest.Exec(t, n.pool, `INSERT INTO nightly.refund (day, cents) VALUES ('2026-01-01', 20)`)
	return n
}

// A run is the script at work.
type run struct {
	*exec.Cmd
	stderr bytes.Buffer
}

func (n *night) start(t *testing.T) *run {
	t.Helper()
	script, err := filepath.Abs("nightly.sh")
	if err != nil {
		t.Fatal(err)
	}
	r := &run{Cmd: exec.CommandContext(t.Context(), script)}
	r.Env, r.Stderr = n.env, &r.stderr
	r.Dir = t.TempDir() // cron's working directory is not the script's
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// status waits for the script's end.
func (r *run) status(t *testing.T) int {
	t.Helper()
	err := r.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return r.ProcessState.ExitCode()
}

// A line is one of the report, and the run that wrote it last.
type line struct {
	Day            string
	Sold, Refunded int64
	Run            int64
}

func (n *night) report(t *testing.T) []line {
	t.Helper()
	rows, err := n.pool.Query(t.Context(), `SELECT day::text, sold, refunded, run FROM nightly.report ORDER BY day`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[line])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// holdRefunds locks the refunds, so that runs wait in front of their second statement until release.
func (n *night) holdRefunds(t *testing.T) (pid uint32, release func()) {
	t.Helper()
	conn := pgtest.Conn(t, n.pool)
	pgtest.Exec(t, conn, `BEGIN`)
	pgtest.Exec(t, conn, `LOCK TABLE nightly.refund IN ACCESS EXCLUSIVE MODE`)
	return conn.PgConn().PID(), func() { pgtest.Exec(t, conn, `COMMIT`) }
}

// awaitHeld returns when so many sessions wait for the one with this process id.
func (n *night) awaitHeld(t *testing.T, pid uint32, sessions int64) {
	t.Helper()
	const waiting = `SELECT count(*) FROM pg_catalog.pg_stat_activity
		WHERE datname = pg_catalog.current_database() AND $1::integer = ANY (pg_catalog.pg_blocking_pids(pid))`
	for deadline := time.Now().Add(time.Minute); pgtest.Value[int64](t, n.pool, waiting, int32(pid)) < sessions; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there are not %d runs that wait for their second statement", sessions)
		}
	}
}

func TestTheReportIsMadeByOneOfSeveralAtATime(t *testing.T) {
	n := newNight(t)
	pid, release := n.holdRefunds(t)
	first := n.start(t)
	n.awaitHeld(t, pid, 1)
	second := n.start(t)
	if status := second.status(t); status != 75 {
		t.Errorf("the second one exits with %d, want 75:\n%s", status, &second.stderr)
	}
	release()
	if status := first.status(t); status != 0 {
		t.Errorf("the first one exits with %d:\n%s", status, &first.stderr)
	}
	if diff := cmp.Diff([]line{{"2026-01-01", 150, 20, 1}, {"2026-01-02", 70, 0, 1}}, n.report(t)); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
	if third := n.start(t); third.status(t) != 0 {
		t.Errorf("the lock was not given back:\n%s", &third.stderr)
	}
}

func TestARunThatWasFrozenWritesNothingAfterItsSuccessorHasBegun(t *testing.T) {
	n := newNight(t)
	status, said := n.freeze(t)
	// Which of the two it hears first is a matter of chance: psql's end, or the loss of the lock.
	if status != 3 && status != 76 {
		t.Errorf("the frozen one exits with %d, want psql's 3 or fencectl's 76", status)
	}
	if !strings.Contains(said, "stale fencing token 1") {
		t.Errorf("the frozen one was not refused; it said:\n%s", said)
	}
	if diff := cmp.Diff([]line{{"2026-01-01", 150, 20, 2}, {"2026-01-02", 70, 0, 2}}, n.report(t)); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
}

// The control: the same without the fence.
func TestWithoutTheFenceAFrozenRunWrites(t *testing.T) {
	n := newNight(t)
	pgtest.Exec(t, n.pool, `SELECT fencing.unprotect('nightly.report')`)
	if _, said := n.freeze(t); strings.Contains(said, "ERROR") {
		t.Errorf("something else than the fence stops it:\n%s", said)
	}
}

// freeze stops a run between its two statements, for so long that another one takes over. It returns the status that the first exits
// with, and what it said.
func (n *night) freeze(t *testing.T) (status int, said string) {
	t.Helper()
	pid, release := n.holdRefunds(t)
	frozen := n.start(t)
	n.awaitHeld(t, pid, 1)
	// Its machine stops: the lock is not renewed, and nobody ends the psql that has its second statement before it.
	if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, n.pool, `UPDATE fencing.lease SET expires_at = pg_catalog.clock_timestamp()`)
	successor := n.start(t)
	n.awaitHeld(t, pid, 2) // it has claimed, and done its first statement

	release() // both go on
	if status := successor.status(t); status != 0 {
		t.Errorf("the successor exits with %d:\n%s", status, &successor.stderr)
	}
	if err := frozen.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	status = frozen.status(t)
	return status, frozen.stderr.String()
}
