package fenced_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/netfault"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// pooled returns a pool that reaches the database through a pgbouncer in transaction mode with two server connections.
func pooled(t *testing.T, direct *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	server := direct.Config().ConnConfig
	return pooledBy(t, direct, server.Host, server.Port)
}

// pooledBy is pooled where the pgbouncer knows the server by another address.
func pooledBy(t *testing.T, direct *pgxpool.Pool, host string, hostPort uint16) *pgxpool.Pool {
	t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed (apt-get install pgbouncer, or make deps)")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()

	server := direct.Config().ConnConfig
	dir, err := os.MkdirTemp("", "pooler") // t.TempDir is closed to the user that pgbouncer becomes when this is root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "pgbouncer.ini")
	password := ""
	if server.Password != "" {
		password = " password=" + server.Password
	}
	text := fmt.Sprintf("[databases]\ntest = host=%s port=%d dbname=%s user=%s%s\n"+
		"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n"+
		"ignore_startup_parameters = extra_float_digits, search_path, options\nmax_client_conn = 100\n",
		host, hostPort, server.Database, server.User, password, port)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	arguments := []string{config}
	if os.Geteuid() == 0 { // it refuses to run as root, and must reach the server's socket: the server's own user can
		owner, err := exec.Command("stat", "-c", "%U", server.Host).Output()
		if err != nil {
			t.Skipf("as root, the server's socket must be in a directory: %v", err)
		}
		arguments = append([]string{"-u", strings.TrimSpace(string(owner))}, arguments...)
	}
	command := exec.Command(binary, arguments...)
	var log strings.Builder
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // killed
	})

	client := direct.Config()
	client.ConnConfig.Host, client.ConnConfig.Port, client.ConnConfig.Database = "127.0.0.1", uint16(port), "test"
	client.ConnConfig.TLSConfig, client.ConnConfig.Fallbacks = nil, nil
	client.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepared statements are a session's
	client.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := pool.Ping(ctx)
		cancel()
		if err == nil {
			return pool
		}
		if time.Now().After(deadline) {
			t.Fatalf("pgbouncer does not answer: %v\n%s", err, log.String())
		}
	}
}

func TestThroughAPoolerInTransactionModeNoTokenLeaks(t *testing.T) {
	direct := pgtest.New(t)
	jobs(t, direct, ", fence => 'job/{id}'")
	pool := pooled(t, direct)
	ctx := t.Context()

	// Three holders and one that forgot, on two server connections: each must be judged by what it presents itself.
	var group sync.WaitGroup
	for id := int64(1); id <= 3; id++ {
		grant := fenced.NewGrant(fmt.Sprintf("job/%d", id), fenced.Token(10*id))
		if err := fenced.Claim(ctx, pool, grant); err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			for i := range 50 {
				if err := fenced.Run(ctx, pool, grant, func(tx pgx.Tx) error { return setState(ctx, tx, id, fmt.Sprint(i)) }); err != nil {
					t.Errorf("holder of %s: %v", grant.Name(), err)
				}
			}
		})
		group.Go(func() {
			for range 50 {
				_, err := fenced.Wrap(pool).Exec(ctx, `UPDATE public.jobs SET state = 'forgotten' WHERE id = $1`, id)
				if !errors.Is(err, fenced.ErrUnfenced) {
					t.Errorf("without a token, after others presented theirs: %v", err)
				}
			}
		})
	}
	group.Wait()
	var idle string
	if err := pool.QueryRow(ctx, `SELECT current_setting('idle_in_transaction_session_timeout')`).Scan(&idle); err != nil || idle != "0" {
		t.Errorf("the bound of a transaction outlived it: %s, %v", idle, err)
	}
}

func TestThroughAPoolerTheRightBackendIsEvicted(t *testing.T) {
	direct := pgtest.New(t)
	jobs(t, direct, ", fence => 'jobs'")
	pool := pooled(t, direct)
	ctx := t.Context()
	if err := fenced.Claim(ctx, pool, fenced.NewGrant("jobs", 1)); err != nil {
		t.Fatal(err)
	}
	paused := pgtest.Conn(t, direct)
	pgtest.Exec(t, paused, `BEGIN; SELECT fencing.present(1); UPDATE public.jobs SET state = 'zombie' WHERE id = 1`)
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := fenced.ClaimWith(limited, pool, []fenced.Grant{fenced.NewGrant("jobs", 2)}, &fenced.ClaimOptions{EvictAfter: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if _, err := paused.Exec(ctx, `COMMIT`); err == nil {
		t.Error("the paused holder committed")
	}
	if got := fence(t, direct, "jobs"); got != 2 {
		t.Errorf("the fence holds %v", got)
	}
}

// A pooler answers for a server that it has lost, with a SQLSTATE of its own: it does not know either what became of the COMMIT.
func TestAServerLostByThePoolerDuringCommitIsAnUnknownOutcome(t *testing.T) {
	direct := pgtest.New(t)
	jobs(t, direct, "")
	server := direct.Config().ConnConfig
	_, target := pgconn.NetworkAddress(server.Host, server.Port)
	link := netfault.New(t, target)
	host, port, err := net.SplitHostPort(link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	pool := pooledBy(t, direct, host, uint16(number))
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	ctx := t.Context()

	// A COMMIT that takes as long as the test wants: a deferred trigger waits for a lock.
	pgtest.Exec(t, direct, `CREATE FUNCTION public.waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(1); RETURN NULL; END $$`)
	pgtest.Exec(t, direct, `CREATE CONSTRAINT TRIGGER waits AFTER UPDATE ON public.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.waits()`)
	for id, run := range map[int64]func(id int64) error{
		1: func(id int64) error {
			return fenced.Run(ctx, pool, fenced.NewGrant("jobs", 5), func(tx pgx.Tx) error { return setState(ctx, tx, id, "done") })
		},
		2: func(id int64) error {
			return fenced.RunSQL(ctx, db, fenced.NewGrant("jobs", 5), func(tx *sql.Tx) error { return setStateSQL(ctx, tx, id, "done") })
		},
	} {
		blocker := pgtest.Conn(t, direct)
		pgtest.Exec(t, blocker, `SELECT pg_advisory_lock(1)`)
		pid := pgtest.Value[int32](t, blocker, `SELECT pg_backend_pid()`)
		result := make(chan error, 1)
		go func() { result <- run(id) }()
		pgtest.WaitBlockedBy(t, direct, uint32(pid))
		link.Cut()
		err := <-result
		if !errors.Is(err, fenced.ErrOutcomeUnknown) {
			t.Errorf("job %d: %v", id, err)
		}
		pgtest.Exec(t, blocker, `SELECT pg_advisory_unlock(1)`)
		// It did commit, as the server does not look at its client while it is at work.
		for deadline := time.Now().Add(30 * time.Second); state(t, direct, id) != "done"; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("job %d was not committed, so that the test shows nothing", id)
			}
		}
		link.Heal()
	}
}
