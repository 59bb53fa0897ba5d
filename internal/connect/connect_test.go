package connect_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// refused opens with the options, expects an Error of the kind whose single line has all the parts, and returns that line.
// Passwords in these tests have "secret" in them, and no error of the chain may.
func refused(t *testing.T, opts *connect.Options, kind connect.Kind, parts ...string) (line string) {
	t.Helper()
	server, err := connect.Open(t.Context(), opts)
	if err == nil {
		server.Close()
		t.Fatalf("Open succeeded, want %s", kind)
	}
	var e *connect.Error
	if !errors.As(err, &e) {
		t.Fatalf("want a *connect.Error, got %T: %v", err, err)
	}
	if e.Kind != kind {
		t.Errorf("kind %q, want %q: %v", e.Kind, kind, err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has several lines:\n%v", err)
	}
	if e.Next == "" {
		t.Errorf("the error names no next step: %v", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %q: %v", part, err)
		}
	}
	for err := error(e); err != nil; err = errors.Unwrap(err) {
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("an error of the chain tells the password: %v", err)
		}
	}
	return e.Error()
}

func change(t *testing.T, dsn string, f func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	f(u)
	return u.String()
}

func TestTheFlagWinsOverTheEnvironmentAndFencectlsVariableOverDatabaseURL(t *testing.T) {
	t.Parallel()
	a, b, c := pgtest.DSN(t, pgtest.NewEmpty(t)), pgtest.DSN(t, pgtest.NewEmpty(t)), pgtest.DSN(t, pgtest.NewEmpty(t))
	for _, tt := range []struct {
		name string
		flag string
		env  map[string]string
		want string
	}{
		{"flag", a, map[string]string{"FENCECTL_DSN": b, "DATABASE_URL": c}, a},
		{"FENCECTL_DSN", "", map[string]string{"FENCECTL_DSN": b, "DATABASE_URL": c}, b},
		{"DATABASE_URL", "", map[string]string{"DATABASE_URL": c}, c},
	} {
		server, err := connect.Open(t.Context(), &connect.Options{DSN: tt.flag, Getenv: func(name string) string { return tt.env[name] }})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		config, err := pgx.ParseConfig(tt.want)
		if err != nil {
			t.Fatal(err)
		}
		if server.Database != config.Database {
			t.Errorf("%s: connected to %s, want %s", tt.name, server.Database, config.Database)
		}
		server.Close()
	}
}

func TestLibpqVariablesAreUsedWhenNoDSNIsGiven(t *testing.T) {
	pool := pgtest.NewEmpty(t)
	config := pool.Config().ConnConfig
	t.Setenv("PGHOST", config.Host)
	t.Setenv("PGPORT", pgtest.Value[string](t, pool, "SELECT current_setting('port')"))
	t.Setenv("PGUSER", config.User)
	t.Setenv("PGPASSWORD", config.Password)
	t.Setenv("PGDATABASE", config.Database)
	t.Setenv("PGSSLMODE", "disable")
	server, err := connect.Open(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if server.Database != config.Database {
		t.Errorf("connected to %s, want %s", server.Database, config.Database)
	}
}

func TestAServiceFileIsRead(t *testing.T) {
	config := pgtest.NewEmpty(t).Config().ConnConfig
	file := filepath.Join(t.TempDir(), "pg_service.conf")
	content := fmt.Sprintf("[shop]\nhost=%s\nport=%d\nuser=%s\npassword=%s\ndbname=%s\nsslmode=disable\n", config.Host, config.Port, config.User, config.Password, config.Database)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGSERVICEFILE", file)
	server, err := connect.Open(t.Context(), &connect.Options{DSN: "service=shop"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if server.Database != config.Database {
		t.Errorf("connected to %s, want %s", server.Database, config.Database)
	}
}

func TestEveryHostOfSeveralIsNamed(t *testing.T) {
	t.Parallel()
	refused(t, &connect.Options{DSN: "postgres://app@127.0.0.1:1,127.0.0.1:2/shop"}, connect.Unreachable, "127.0.0.1:1, 127.0.0.1:2")
}

func TestAPasswordMayLookLikeAURL(t *testing.T) {
	t.Parallel()
	refused(t, &connect.Options{DSN: "host=127.0.0.1 port=1 password=secret://x dbname=shop"}, connect.Unreachable, "127.0.0.1:1")
}

func TestSessionsAreCalledFencectlUnlessTheDSNNamesThem(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t, pgtest.NewEmpty(t))
	named := change(t, dsn, func(u *url.URL) {
		q := u.Query()
		q.Set("application_name", "release-pipeline")
		u.RawQuery = q.Encode()
	})
	for dsn, want := range map[string]string{dsn: "fencectl", named: "release-pipeline"} {
		server, err := connect.Open(t.Context(), &connect.Options{DSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		if got := pgtest.Value[string](t, server.Pool, "SELECT current_setting('application_name')"); got != want {
			t.Errorf("application_name %q, want %q", got, want)
		}
		server.Close()
	}
}

func TestAConnectionStringThatCannotBeReadIsNamedAndNotQuoted(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://app:se%zzcret@localhost/shop",
		"postgres://app:secret/more@localhost:5432/shop",
		"postgres://app:secret@localhost:70000/shop",
		"host=localhost password=secret dbname",
		"host=localhost password='secret",
		"just-a-word-with-secret",
		"mysql://app:secret@localhost/shop",
		"mysql://app:secret@localhost/shop?ssl=true",
		"postgres://app:secret@localhost/shop?sslmode=perhaps",
	} {
		// An unquoted host-like DSN must not be taken for something that connects, either.
		line := refused(t, &connect.Options{DSN: dsn}, connect.BadDSN, "--dsn")
		for _, secret := range []string{"secret", "se%zz", "cret", "more"} {
			if strings.Contains(line, secret) {
				t.Errorf("the error for %s quotes %q: %s", dsn, secret, line)
			}
		}
	}
	refused(t, &connect.Options{Getenv: func(name string) string {
		return map[string]string{"DATABASE_URL": "postgres://x:y@h:notaport/d"}[name]
	}}, connect.BadDSN, "DATABASE_URL")
}

func TestNobodyListening(t *testing.T) {
	t.Parallel()
	// A port that was free a moment ago: nothing of ours listens on it.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	refused(t, &connect.Options{DSN: "postgres://app:secret@" + address + "/shop"}, connect.Unreachable, address, "refused", "--dsn")
}

func TestAServerThatNeverAnswersIsGivenUp(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	refused(t, &connect.Options{DSN: "postgres://app:secret@" + listener.Addr().String() + "/shop?connect_timeout=1&sslmode=disable"},
		connect.Unreachable, listener.Addr().String(), "no answer")
}

func TestAnUnknownHostAndAMissingSocketAreNamed(t *testing.T) {
	t.Parallel()
	refused(t, &connect.Options{DSN: "postgres://app@database.invalid/shop"}, connect.Unreachable, "database.invalid")
	directory := t.TempDir()
	refused(t, &connect.Options{DSN: "host=" + directory + " dbname=shop"}, connect.Unreachable, directory)
}

func TestAWrongPasswordNamesUserAndServerAndNoPassword(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	role := pgtest.Role(t, pool)
	config, err := pgx.ParseConfig(role.DSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn := role.DSN
	if strings.HasPrefix(config.Host, "/") {
		// The test server trusts its socket; passwords are asked for over TCP.
		server, err := pgserver.Start(t.Context(), &pgserver.Options{Password: "right"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := server.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
		dsn = server.TCPDSN("postgres")
	}
	const wrong = "wrong-secret"
	wrongDSN := change(t, dsn, func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), wrong) })
	config, err = pgx.ParseConfig(wrongDSN)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, &connect.Options{DSN: wrongDSN}, connect.Unauthorized, "user "+config.User, config.Host, "--dsn")
}

func TestAnUnknownDatabaseIsNamed(t *testing.T) {
	t.Parallel()
	dsn := change(t, pgtest.DSN(t, pgtest.NewEmpty(t)), func(u *url.URL) { u.Path = "/no_such_shop" })
	refused(t, &connect.Options{DSN: dsn}, connect.NoDatabase, "no_such_shop")
}

func TestARoleThatMayNotConnectIsTold(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	role := pgtest.Role(t, pool)
	pgtest.Exec(t, pool, "REVOKE CONNECT ON DATABASE "+pool.Config().ConnConfig.Database+" FROM PUBLIC")
	refused(t, &connect.Options{DSN: role.DSN}, connect.NoPrivilege, role.Name, "CONNECT")
}

func TestTheSchemaIsAskedForOnlyWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t, pgtest.NewEmpty(t))
	server, err := connect.Open(t.Context(), &connect.Options{DSN: dsn, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	refused(t, &connect.Options{DSN: dsn, Installed: true}, connect.NotInstalled, "fencectl install")
}

func TestTheKnownSchemaVersionIsTheOneThatIsInstalled(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if got := pgtest.Value[string](t, pool, "SELECT fencing.version()"); got != connect.SchemaVersion {
		t.Errorf("fencing.version() is %s, connect.SchemaVersion is %s", got, connect.SchemaVersion)
	}
	server, err := connect.Open(t.Context(), &connect.Options{DSN: pgtest.DSN(t, pool), Installed: true, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if server.SchemaVersion != connect.SchemaVersion {
		t.Errorf("SchemaVersion is %q", server.SchemaVersion)
	}
}

func TestASchemaFromANewerFencectlIsRefused(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"99.0.0", "0.1.1", "0.10.0", "1"} {
		pool := pgtest.New(t)
		pgtest.Exec(t, pool, "CREATE OR REPLACE FUNCTION fencing.version() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT '"+version+"'::text $$")
		refused(t, &connect.Options{DSN: pgtest.DSN(t, pool)}, connect.NewerSchema, version, connect.SchemaVersion)
	}
	// An older one is no error: install brings it up to date.
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE OR REPLACE FUNCTION fencing.version() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT '0.0.9'::text $$")
	server, err := connect.Open(t.Context(), &connect.Options{DSN: pgtest.DSN(t, pool), Installed: true})
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
}

func TestReadOnlyTransactionsAreAnErrorOnlyWhereSomethingIsWritten(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	dsn := change(t, pgtest.DSN(t, pool), func(u *url.URL) {
		q := u.Query()
		q.Set("default_transaction_read_only", "on")
		u.RawQuery = q.Encode()
	})
	refused(t, &connect.Options{DSN: dsn, Write: true}, connect.ReadOnly, "default_transaction_read_only")
	server, err := connect.Open(t.Context(), &connect.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
}

func TestAStandbyIsReadButNotWritten(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	// A server that finds standby.signal and no primary to follow is a standby all the same.
	if err := os.WriteFile(filepath.Join(server.DataDir(), "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	dsn := server.DSN("postgres")
	refused(t, &connect.Options{DSN: dsn, Write: true}, connect.ReadOnly, "standby", "primary")
	reading, err := connect.Open(t.Context(), &connect.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	reading.Close()
}

func TestTheEndOfTheContextIsNoConnectionError(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	reason := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		conn, err := listener.Accept() // fencectl is connecting: now it is interrupted
		if err == nil {
			defer conn.Close()
		}
		cancel(reason)
		<-t.Context().Done()
	}()
	_, err = connect.Open(ctx, &connect.Options{DSN: "postgres://app@" + listener.Addr().String() + "/shop?sslmode=disable"})
	if !errors.Is(err, reason) {
		t.Errorf("want the context's cause, got %v", err)
	}
}

// Ctrl-C must reach the server: a statement that waits for a lock would go on waiting, and everybody behind it.
func TestTheEndOfTheContextStopsTheStatementOnTheServer(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs ()")
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, holder, "LOCK TABLE public.jobs")
	pid := pgtest.Value[int32](t, holder, "SELECT pg_backend_pid()")

	server, err := connect.Open(t.Context(), &connect.Options{DSN: pgtest.DSN(t, pool)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := server.Pool.Exec(ctx, "SELECT FROM public.jobs")
		failed <- err
	}()
	waiting := pgtest.WaitBlockedBy(t, pool, uint32(pid))
	cancel()
	// query_canceled when the server's answer comes in time, else the context's own error.
	if err := <-failed; pgtest.SQLState(err) != "57014" && !errors.Is(err, context.Canceled) {
		t.Errorf("want the cancellation, got %v", err)
	}
	// The statement's end may follow the error by a moment; the lock is held throughout, so only the cancellation ends it.
	deadline := time.Now().Add(30 * time.Second)
	for pgtest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = $1)", waiting) {
		if time.Now().After(deadline) {
			t.Fatal("the statement still waits on the server")
		}
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestNoticesOfTheServerAreHandedOn(t *testing.T) {
	t.Parallel()
	var got []string
	server, err := connect.Open(t.Context(), &connect.Options{
		DSN:    pgtest.DSN(t, pgtest.NewEmpty(t)),
		Notice: func(n *pgconn.Notice) { got = append(got, n.Message) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	pgtest.Exec(t, server.Pool, "DO $$ BEGIN RAISE WARNING 'mind the gap'; END $$")
	if len(got) != 1 || got[0] != "mind the gap" {
		t.Errorf("notices: %q", got)
	}
}

func TestATargetIsNamedWithoutConnecting(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string][2]string{
		"postgres://app:secret@127.0.0.1:1/shop":      {"shop", "127.0.0.1:1"},
		"host=127.0.0.1 port=1 user=app":              {"app", "127.0.0.1:1"},
		"postgres://app@127.0.0.1:1,127.0.0.1:2/shop": {"shop", "127.0.0.1:1, 127.0.0.1:2"},
		"mysql://app:secret@localhost/shop":           {},
		"postgres://app:se%zzcret@localhost/shop":     {},
	} {
		if database, address := connect.Target(&connect.Options{DSN: dsn}); [2]string{database, address} != want {
			t.Errorf("%s: got %q and %q, want %q", dsn, database, address, want)
		}
	}
}

func TestMessagesNameTheOriginOfTheConnectionString(t *testing.T) {
	t.Parallel()
	refused(t, &connect.Options{DSN: "just-a-word-with-secret", Origin: "databases.txt:3"}, connect.BadDSN, "connection string of databases.txt:3 cannot")
	refused(t, &connect.Options{DSN: "postgres://app:secret@127.0.0.1:1/shop", Origin: "databases.txt:3"}, connect.Unreachable, "port in databases.txt:3")
}
