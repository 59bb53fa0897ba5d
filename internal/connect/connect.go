// Package connect opens fencectl's connections to PostgreSQL and turns every way in which that fails into one sentence
// with a next step. It owns where the connection comes from (flag, environment, libpq's variables and files), what is
// checked before a command runs, and that no password ever gets into a message. It leaves all other SQL to its callers.
package connect

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/catalogdb"
)

// ApplicationName is what fencectl calls itself in pg_stat_activity unless the connection settings name something else.
const ApplicationName = "fencectl"

// MinServerVersion is the oldest server that is supported, as server_version_num.
const MinServerVersion = 140000

// SchemaVersion is the newest fencing.version() that this program knows. A test compares it with the migrations.
const SchemaVersion = "0.1.0"

// defaultConnectTimeout bounds a connection attempt when connect_timeout is not set: without it a firewall that drops
// packets makes a command hang for minutes.
const defaultConnectTimeout = 15 * time.Second

// Options says where to connect to and what must be there. Nil means the defaults.
type Options struct {
	// DSN is a URL or a keyword/value string, as given on the command line. Default: FENCECTL_DSN, else DATABASE_URL, else
	// the libpq variables (PGHOST, PGSERVICE, ...), service file and password file.
	DSN string

	// Origin is what messages call the place that DSN comes from. Default: --dsn.
	Origin string

	// Getenv reads FENCECTL_DSN and DATABASE_URL. Default: neither is set. The libpq variables are always read from the
	// process's own environment, by pgx.
	Getenv func(string) string

	// Write demands a server that accepts writes: a standby is an error.
	Write bool

	// Installed demands the schema fencing, in a version that this program knows.
	Installed bool

	// Notice is called with each NOTICE or WARNING that the server sends, from the goroutine that runs the statement.
	// Default: they are dropped.
	Notice func(*pgconn.Notice)
}

// A Server is an open connection pool and what was found out about the other end. The caller closes it.
type Server struct {
	Pool *pgxpool.Pool

	Address         string // host:port or socket directory, for messages
	Database        string
	Role            string
	VersionNum      int    // server_version_num, such as 150018
	Version         string // server_version, such as "15.18"
	SchemaInstalled bool   // the schema fencing has our functions
	SchemaVersion   string // fencing.version(), such as "0.1.0"; "" when not installed or not the role's to call
}

// Close closes the pool.
func (s *Server) Close() { s.Pool.Close() }

// Open connects, checks what the options demand, and returns the open server. The error is an *Error unless the context
// ended first.
func Open(ctx context.Context, opts *Options) (*Server, error) {
	if opts == nil {
		opts = &Options{}
	}
	config, origin, err := parse(opts)
	if err != nil {
		return nil, err
	}
	address := addressOf(config.ConnConfig)

	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, explain(err, config.ConnConfig, origin)
	}
	server := &Server{Pool: pool, Address: address}
	if err := server.inspect(ctx, opts); err != nil {
		pool.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, explain(err, config.ConnConfig, origin)
	}
	return server, nil
}

// Target is where the options lead to, for a message about a database that could not be reached: its name, and its address as
// Server has it. Both are empty when that cannot be read.
func Target(opts *Options) (database, address string) {
	config, _, err := parse(opts)
	if err != nil {
		return "", ""
	}
	return cmp.Or(config.ConnConfig.Database, config.ConnConfig.User), addressOf(config.ConnConfig)
}

// origin names where a DSN comes from, for messages: a flag, a variable, or libpq's settings.
type origin string

func parse(opts *Options) (*pgxpool.Config, origin, error) {
	dsn, from := opts.DSN, origin(cmp.Or(opts.Origin, "--dsn"))
	if dsn == "" && opts.Getenv != nil {
		for _, name := range []string{"FENCECTL_DSN", "DATABASE_URL"} {
			if dsn = opts.Getenv(name); dsn != "" {
				from = origin(name)
				break
			}
		}
	}
	if dsn == "" {
		from = "the PG* variables, service file or password file"
	}

	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, from, badDSN(dsn, from, err)
	}
	// A URL of something else can pass for keyword=value, its password for part of a keyword.
	if scheme := urlScheme.FindStringSubmatch(dsn); scheme != nil && scheme[1] != "postgres" && scheme[1] != "postgresql" {
		return nil, from, badDSN(dsn, from, nil)
	}

	conn := config.ConnConfig
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = ApplicationName
	}
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = defaultConnectTimeout
	}
	// Without named prepared statements a command works through a connection pooler in transaction mode. Whoever sets
	// default_query_exec_mode in the DSN to something else than pgx's default gets it.
	if conn.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		conn.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	// On Ctrl-C ask the server to stop at once: a closed socket alone would leave it waiting for a lock, with others
	// queueing behind it. The connection itself is given up a second later.
	conn.BuildContextWatcherHandler = func(pc *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: pc, DeadlineDelay: time.Second}
	}
	if opts.Notice != nil {
		conn.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) { opts.Notice(notice) }
	}
	// A command needs one connection, and a second to look at who keeps the first one waiting.
	config.MaxConns, config.MinConns = 2, 0
	config.MaxConnLifetime, config.HealthCheckPeriod = time.Hour, time.Hour
	return config, from, nil
}

func (s *Server) inspect(ctx context.Context, opts *Options) error {
	queries := catalogdb.New(s.Pool)
	facts, err := queries.ServerFacts(ctx)
	if err != nil {
		return err
	}
	s.Database, s.Role = facts.DatabaseName, facts.RoleName
	s.VersionNum, s.Version = int(facts.VersionNum), facts.VersionText
	s.SchemaInstalled = facts.SchemaInstalled

	if err := checkVersion(s.VersionNum, s.Version, s.Address); err != nil {
		return err
	}
	if opts.Write {
		if err := checkWritable(facts.InRecovery, facts.ReadOnly, s.Address); err != nil {
			return err
		}
	}
	switch {
	case !facts.SchemaInstalled && opts.Installed:
		return &Error{
			Kind:    NotInstalled,
			Message: "the fencing schema is not installed in database " + s.Database,
			Next:    "run: fencectl install",
		}
	case !facts.SchemaInstalled:
		return nil
	case !facts.SchemaUsable && opts.Installed:
		return &Error{
			Kind:    NoPrivilege,
			Message: "role " + s.Role + " may not use the fencing schema",
			Next:    "as the schema's owner run: fencectl grant " + s.Role + " --for operate (or app, migrate, monitor)",
		}
	case !facts.SchemaUsable:
		return nil
	}
	if !facts.VersionCallable {
		// Nobody but the roles that fencectl grant has been run for may call more than present and presented. Whatever the
		// command is going to call says that better than a version check could.
		return nil
	}
	if s.SchemaVersion, err = queries.InstalledVersion(ctx); err != nil {
		return err
	}
	return checkSchemaVersion(s.SchemaVersion, SchemaVersion, s.Database)
}

var urlScheme = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*)://`)

// addressOf names where a connection goes, every host of several.
func addressOf(c *pgx.ConnConfig) string {
	var addresses []string
	add := func(host string, port uint16) {
		_, address := pgconn.NetworkAddress(host, port)
		if strings.HasPrefix(host, "/") {
			address = host + " (socket)"
		}
		if !slices.Contains(addresses, address) { // a fallback may be the same host without TLS
			addresses = append(addresses, address)
		}
	}
	add(c.Host, c.Port)
	for _, fallback := range c.Fallbacks {
		add(fallback.Host, fallback.Port)
	}
	return strings.Join(addresses, ", ")
}
