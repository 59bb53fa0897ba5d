package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Kind tells the ways in which there is nothing to work on apart.
type Kind string

// The kinds of Error.
const (
	BadDSN        Kind = "bad DSN"        // the connection string cannot be read
	Unreachable   Kind = "unreachable"    // nobody answers there
	Unauthorized  Kind = "unauthorized"   // the server does not let this role in
	NoDatabase    Kind = "no database"    // the server has no such database
	NotReady      Kind = "not ready"      // the server is starting, stopping or full
	OldServer     Kind = "old server"     // older than MinServerVersion
	ReadOnly      Kind = "read-only"      // a standby, or a server or role that is set read-only
	NotInstalled  Kind = "not installed"  // no schema fencing
	NewerSchema   Kind = "newer schema"   // the schema fencing comes from a newer fencectl
	NoPrivilege   Kind = "no privilege"   // the role may not do it
	ServerFailure Kind = "server failure" // anything else that the server reports
)

// An Error is one sentence that names the thing that is wrong, and the next step. It never contains a password.
type Error struct {
	Kind    Kind
	Message string // names the thing; no final period
	Next    string // what to do about it; may be empty
	err     error
}

func (e *Error) Error() string {
	if e.Next == "" {
		return e.Message
	}
	return e.Message + "; " + e.Next
}

func (e *Error) Unwrap() error { return e.err }

// badDSN deliberately says nothing of what the parser said: its errors quote the connection string, and in one that cannot
// be parsed nobody can tell which part is the password. Only what is certain to be harmless is told.
func badDSN(dsn string, from origin, err error) error {
	var (
		message = fmt.Sprintf("the connection string of %s cannot be read", from)
		next    = "write postgres://USER@HOST:PORT/DATABASE or 'host=... dbname=...', with special characters of a password percent-encoded in the URL form"
		pathErr *os.PathError
	)
	switch {
	case errors.As(err, &pathErr): // a certificate, a service file
		message += fmt.Sprintf(": %s: %v", pathErr.Path, pathErr.Err)
		next = "correct that path"
	case dsn == "":
		message = fmt.Sprintf("the connection settings from %s cannot be read", from)
		next = "check PGPORT, PGSSLMODE, PGSERVICE and their files, or pass --dsn"
	default:
		if u, parseErr := url.Parse(dsn); parseErr == nil && u.Scheme != "" && u.Opaque == "" && strings.Contains(dsn, "://") {
			if u.Scheme != "postgres" && u.Scheme != "postgresql" {
				message += ": " + strconv.Quote(u.Scheme+"://") + " is not PostgreSQL"
			} else if mode := u.Query().Get("sslmode"); mode != "" && !validSSLMode(mode) {
				message += ": sslmode " + strconv.Quote(mode) + " does not exist"
				next = "use disable, allow, prefer, require, verify-ca or verify-full"
			}
		}
	}
	// The parser's error is not wrapped either: whoever prints the chain would print the string.
	return &Error{Kind: BadDSN, Message: message, Next: next}
}

func validSSLMode(mode string) bool {
	switch mode {
	case "disable", "allow", "prefer", "require", "verify-ca", "verify-full":
		return true
	}
	return false
}

// explain turns a failed connection or first query into an *Error.
func explain(err error, c *pgx.ConnConfig, from origin) error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	address := addressOf(c)
	problem := func(kind Kind, next, format string, args ...any) error {
		return &Error{Kind: kind, Message: fmt.Sprintf(format, args...), Next: next, err: err}
	}

	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch pgErr.Code {
		case "28P01":
			return problem(Unauthorized, "check the user and the password in "+string(from)+" (or PGPASSWORD, or ~/.pgpass)",
				"the server at %s refused the password of user %s", address, c.User)
		case "28000":
			return problem(Unauthorized, "check the user in "+string(from)+" and the server's pg_hba.conf",
				"the server at %s does not let user %s into database %s (%s)", address, c.User, c.Database, pgErr.Message)
		case "3D000":
			return problem(NoDatabase, "check the database name in "+string(from)+"; psql -l lists the databases",
				"the server at %s has no database %s", address, c.Database)
		case "42501":
			return problem(NoPrivilege, "grant it CONNECT, or use another user in "+string(from),
				"user %s may not connect to database %s at %s", c.User, c.Database, address)
		case "53300", "57P03", "57P01", "57P02":
			return problem(NotReady, "try again when it accepts connections", "the server at %s is not accepting connections: %s", address, pgErr.Message)
		}
		return problem(ServerFailure, "", "the server at %s reports: %s (SQLSTATE %s)", address, pgErr.Message, pgErr.Code)
	}

	var (
		dnsErr  *net.DNSError
		certErr *tls.CertificateVerificationError
		hostErr x509.HostnameError
		netErr  net.Error
	)
	next := "check the host and the port in " + string(from) + ", and that PostgreSQL is running there"
	switch {
	case errors.As(err, &dnsErr):
		return problem(Unreachable, "check the host in "+string(from), "host %s is not known", c.Host)
	case errors.Is(err, syscall.ECONNREFUSED):
		return problem(Unreachable, next, "nothing is listening at %s (connection refused)", address)
	case errors.Is(err, syscall.ENOENT):
		return problem(Unreachable, "check the socket directory in "+string(from)+", or name a host", "there is no PostgreSQL socket in %s", c.Host)
	case errors.As(err, &certErr), errors.As(err, &hostErr):
		return problem(Unreachable, "check sslmode and sslrootcert in "+string(from), "the TLS certificate of the server at %s is not trusted", address)
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err), errors.As(err, &netErr) && netErr.Timeout():
		return problem(Unreachable, next, "no answer from %s in time", address)
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return problem(Unreachable, "check sslmode in "+string(from), "the server at %s does not speak TLS", address)
	}
	return problem(Unreachable, next, "cannot connect to %s: %s", address, withoutPassword(lastLine(err.Error()), c.Password))
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// withoutPassword is the second line of defence: no message that is known to contain the password gets out as it is.
func withoutPassword(text, password string) string {
	if password == "" {
		return text
	}
	return strings.ReplaceAll(text, password, "********")
}

func checkVersion(number int, text, address string) error {
	if number >= MinServerVersion {
		return nil
	}
	return &Error{
		Kind:    OldServer,
		Message: fmt.Sprintf("the server at %s is PostgreSQL %s, and fencectl needs %d or newer", address, text, MinServerVersion/10000),
		Next:    "upgrade the server",
	}
}

func checkWritable(inRecovery, readOnly bool, address string) error {
	switch {
	case inRecovery:
		return &Error{
			Kind:    ReadOnly,
			Message: fmt.Sprintf("the server at %s is a standby and accepts no writes", address),
			Next:    "connect to the primary (target_session_attrs=read-write finds it among several hosts)",
		}
	case readOnly:
		return &Error{
			Kind:    ReadOnly,
			Message: fmt.Sprintf("transactions on the server at %s are read-only", address),
			Next:    "look at default_transaction_read_only of the server, the database and the role",
		}
	}
	return nil
}

func checkSchemaVersion(installed, known, database string) error {
	if !newer(installed, known) {
		return nil
	}
	return &Error{
		Kind:    NewerSchema,
		Message: fmt.Sprintf("the fencing schema in database %s is version %s, and this fencectl knows up to %s", database, installed, known),
		Next:    "use the fencectl that installed it, or a newer one",
	}
}

// newer compares dotted version numbers; anything but a number in them counts as 0.
func newer(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return x > y
		}
	}
	return false
}
