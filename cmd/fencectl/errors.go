package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/connect"
)

// The exit statuses. A signal's is 128 and its number, as shells have it.
const (
	statusFine    = 0
	statusRefused = 1
	statusError   = 2
	statusSignal  = 128
)

// usageError is a command line that means nothing.
type usageError struct {
	cmd     *cobra.Command
	message string
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%s (see: %s --help)", strings.TrimSuffix(e.message, "."), e.cmd.CommandPath())
}

// refusal is the answer no: what was asked for is understood and possible to ask for, and must not or may not happen in
// the state that things are in.
type refusal struct{ err error }

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

func refuse(format string, args ...any) error { return &refusal{fmt.Errorf(format, args...)} }

// reported is an error of which everything has been said already.
type reported struct{ status int }

func (e *reported) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// exitError is an error with an exit status of its own: that of the command which fencectl lock ran, without an error to tell.
type exitError struct {
	status int
	err    error // nil: nothing is printed
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// interrupted is the cause of the context's end after a signal.
type interrupted struct{ signal os.Signal }

func (e interrupted) Error() string { return "interrupted" }

func (e interrupted) status() int {
	if number, ok := e.signal.(syscall.Signal); ok {
		return statusSignal + int(number)
	}
	return statusSignal + int(syscall.SIGINT)
}

// report prints the error, one line, and returns the exit status.
func (a *app) report(ctx context.Context, err error) int {
	if err == nil {
		return statusFine
	}
	status := statusOf(ctx, err)
	var done *reported
	var exit *exitError
	switch {
	case errors.As(err, &done), errors.As(err, &exit) && exit.err == nil:
	case status > statusSignal:
		fmt.Fprintln(a.stderr, "fencectl: interrupted")
	default:
		fmt.Fprintf(a.stderr, "fencectl: %s\n", describe(err))
	}
	return status
}

func statusOf(ctx context.Context, err error) int {
	// What became of a command is its own answer to the signals that were passed on to it.
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.status
	}
	// Whatever error comes out of a command that was interrupted, the interruption is the reason.
	var stop interrupted
	if errors.As(err, &stop) || (ctx.Err() != nil && errors.As(context.Cause(ctx), &stop)) {
		return stop.status()
	}
	var done *reported
	if errors.As(err, &done) {
		return done.status
	}
	var no *refusal
	if errors.As(err, &no) {
		return statusRefused
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && refusedByFencing(pgErr) {
		return statusRefused
	}
	return statusError
}

// refusedByFencing tells the SQL layer's refusals (the guards', and protect's of a table in a state that it cannot take)
// from the server's own errors.
func refusedByFencing(e *pgconn.PgError) bool {
	switch e.Code {
	case fenced.SQLStateStale, fenced.SQLStateUnfenced, fenced.SQLStateInvalidToken, fenced.SQLStateUnclaimed, fenced.SQLStateUnsupported:
		return true
	case "55000", // object_not_in_prerequisite_state
		"0A000", // feature_not_supported
		"42804", // datatype_mismatch: the column is there, and not a bigint
		"42P10", // invalid_column_reference: the column of a template may be NULL, or is generated
		"23502", // not_null_violation: the column is there, and has NULLs
		"23514": // check_violation: or negative numbers
		return e.Routine == "exec_stmt_raise"
	case "2BP01": // dependent_objects_still_exist: something of the user's is built on the fencing schema
		return true
	}
	return false
}

// describe is the error as one line that ends with the next step.
func describe(err error) string {
	var (
		own    *connect.Error
		pgErr  *pgconn.PgError
		signal interrupted
	)
	switch {
	case errors.As(err, &signal):
		return "interrupted"
	case errors.As(err, &own):
		return oneLine(own.Error())
	case errors.As(err, &pgErr):
		// What our own code put in front of the server's words (the table, the step) stays.
		before := strings.TrimSuffix(err.Error(), pgErr.Error())
		if before == err.Error() {
			return oneLine(before)
		}
		return oneLine(before + describeServerError(pgErr))
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case lostConnection(err):
		return "the connection to the server was lost; run the command again when the server is back"
	}
	return oneLine(err.Error())
}

// lostConnection: the server went away, or something between it and us, without a word.
func lostConnection(err error) bool {
	var netErr *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &netErr)
}

func describeServerError(e *pgconn.PgError) string {
	text, next := e.Message, e.Hint
	switch e.Code {
	case "42501":
		switch {
		case strings.Contains(e.Message, "for database"):
			next = "let the database's owner run: GRANT CREATE ON DATABASE ... TO ..., or connect as that owner"
		case strings.HasPrefix(e.Message, "must be owner"):
			next = "connect as the owner"
		case e.Hint == "":
			next = "connect as the owner of the fencing schema, or let that role run: fencectl grant ROLE --for migrate (or app, monitor, operate)"
		}
	case "2BP01":
		text += " (" + e.Detail + ")"
		next = "change or drop those first"
	case "25006":
		next = "connect to a server that accepts writes"
	case "57P01", "57P02", "57P03":
		next = "run the command again when the server is back"
	case "3F000", "42883", "42P01":
		if strings.Contains(e.Message, fenced.SchemaName) {
			next = "the fencing schema is missing or incomplete: run fencectl install"
		}
	}
	if next != "" {
		text = strings.TrimSuffix(text, ".") + "; " + lowerFirst(strings.TrimSuffix(next, "."))
	}
	return fmt.Sprintf("%s (SQLSTATE %s)", text, e.Code)
}

// lowerFirst makes a hint the second half of a sentence, unless it begins with something written in capitals.
func lowerFirst(text string) string {
	letters := []rune(text)
	if len(letters) > 1 && unicode.IsUpper(letters[0]) && (unicode.IsLower(letters[1]) || letters[1] == ' ') {
		letters[0] = unicode.ToLower(letters[0])
	}
	return string(letters)
}

// oneLine keeps an error on one line, and a terminal from being told anything by names and texts out of a database.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.Join(strings.Fields(text), " "))
}
