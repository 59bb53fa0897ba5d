package fenced

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Sentinels for errors.Is. Each typed error below is one of the first five.
var (
	// ErrStale: the token is older than the fence, or equal to it where a token writes once. See [StaleError].
	ErrStale = errors.New("fenced: stale token")
	// ErrUnfenced: a write presented no token. See [UnfencedError].
	ErrUnfenced = errors.New("fenced: no token presented")
	// ErrInvalidToken: the token is no token. See [InvalidTokenError].
	ErrInvalidToken = errors.New("fenced: invalid token")
	// ErrUnclaimed: the token is newer than the named fence, which nobody claimed for it. See [UnclaimedError].
	ErrUnclaimed = errors.New("fenced: token not claimed")
	// ErrUnsupported: the statement is not possible under a row fence. See [UnsupportedError].
	ErrUnsupported = errors.New("fenced: not possible under a row fence")

	// ErrNotFound: the row that a fenced write was meant for does not exist. Never returned for a row that exists under a
	// newer token; that is [ErrStale]. It is also pgx.ErrNoRows and sql.ErrNoRows to errors.Is.
	ErrNotFound error = notFound{}

	// ErrSourceBehind: the lock is held, yet its token is older than the fence, so the source's numbers have gone back
	// (it lost data, or is not the source the fence was raised under). It comes with ErrStale, only from [Claim], and
	// only for grants that can be checked ([Checker]).
	ErrSourceBehind = errors.New("fenced: the token source has gone back")

	// ErrOutcomeUnknown: the connection broke while COMMIT was under way, or that of a pooler to the server, so whether the transaction committed
	// is not known to the client.
	ErrOutcomeUnknown = errors.New("fenced: the outcome of COMMIT is unknown")
)

// Lost reports whether err, from [Run] or [Claim] and their kin, says that the lock is gone: a newer token has been accepted ([ErrStale]), or
// this process noticed that its grant has ended ([ErrGrantEnded]). Whatever the program believes about what the lock guards is worthless
// then: drop it, and acquire the lock again.
//
// It is false for the two stale refusals in which no newer holder is involved: the caller's own earlier write
// ([StaleError.OwnWrite]), and a token source that has gone back ([ErrSourceBehind]), where acquiring again would only be refused again.
func Lost(err error) bool {
	var stale *StaleError
	if errors.As(err, &stale) {
		return !stale.OwnWrite() && !stale.SourceBehind
	}
	return errors.Is(err, ErrGrantEnded)
}

type notFound struct{}

func (notFound) Error() string { return "fenced: no such row" }

func (notFound) Is(target error) bool { return target == pgx.ErrNoRows || target == sql.ErrNoRows }

// A Refusal is what a guard says when it refuses. It is embedded in each typed error.
type Refusal struct {
	// Schema and Table name the protected table; empty when the refusal did not concern one (a claim).
	Schema, Table string
	// Column is the fence column for row fences, else empty.
	Column string
	// Fence is the named fence, or empty under a row fence.
	Fence string
	// Key is the primary key of the refused row as a JSON object, column to value; nil when unknown.
	Key json.RawMessage
	// Presented is the token that the write came with; 0 when none, or when it was not a number.
	Presented Token
	// Stored is the token that the fence holds; 0 when it has accepted none yet.
	Stored Token
	// Message is the server's one-line message.
	Message string
	// Hint says what to do next.
	Hint string

	cause error
}

// Unwrap returns the driver's error, a *pgconn.PgError or *pq.Error, with whatever it was wrapped in.
func (r *Refusal) Unwrap() error { return r.cause }

// subject names what was refused: a table, a row of it, a fence.
func (r *Refusal) subject() string {
	var parts []string
	if r.Table != "" {
		table := r.Table
		if r.Schema != "" {
			table = r.Schema + "." + table
		}
		parts = append(parts, "table "+table)
	}
	if len(r.Key) > 0 {
		parts = append(parts, "row "+string(r.Key))
	}
	if r.Fence != "" {
		parts = append(parts, fmt.Sprintf("fence %q", r.Fence))
	}
	return strings.Join(parts, ", ")
}

func (r *Refusal) sentence(what string) string {
	var b strings.Builder
	b.WriteString("fenced: ")
	b.WriteString(what)
	if s := r.subject(); s != "" {
		b.WriteString(" (" + s + ")")
	}
	if r.Hint != "" {
		b.WriteString(": " + r.Hint)
	}
	return b.String()
}

// A StaleError is the refusal of a token older than the fence (SQLSTATE ZF001): the caller's lock has passed to a newer
// holder. Stop: nothing under this grant can be written any more. The one exception is [StaleError.OwnWrite].
type StaleError struct {
	Refusal
	// SourceBehind: the lock is still held, so it is the token source that went back; see [ErrSourceBehind].
	SourceBehind bool
}

// OwnWrite reports that the fence holds the very token that was presented: the refused write is a second one under the same
// token on a strict fence, most often the retry of a write whose answer was lost. No newer holder is involved.
func (e *StaleError) OwnWrite() bool { return e.Presented > 0 && e.Presented == e.Stored }

func (e *StaleError) Error() string {
	switch {
	case e.SourceBehind:
		return e.sentence(fmt.Sprintf("the lock is held, but its token %v is older than %v, which the fence has accepted: the token source has gone back, "+
			"or is another one than before; see fencectl epoch adopt", e.Presented, e.Stored))
	case e.OwnWrite():
		return e.sentence(fmt.Sprintf("token %v has already written here: this is the caller's own earlier write, not a newer holder's", e.Presented))
	case e.Presented == 0 && e.Stored == 0:
		return e.sentence("stale token: a newer holder has written")
	default:
		return e.sentence(fmt.Sprintf("stale token %v: a newer holder has written under %v", e.Presented, e.Stored))
	}
}

// Is matches [ErrStale], and [ErrSourceBehind] when SourceBehind is set.
func (e *StaleError) Is(target error) bool {
	return target == ErrStale || (e.SourceBehind && target == ErrSourceBehind)
}

// An UnfencedError is the refusal of a write that presented no token (SQLSTATE ZF002): a code path that does not go
// through [Run] or [Present].
type UnfencedError struct{ Refusal }

func (e *UnfencedError) Error() string { return e.sentence("no token presented") }

// Is matches [ErrUnfenced].
func (e *UnfencedError) Is(target error) bool { return target == ErrUnfenced }

// An InvalidTokenError is the refusal of something that is not a token, or is too far ahead of the fence to be
// believed (SQLSTATE ZF003).
type InvalidTokenError struct{ Refusal }

func (e *InvalidTokenError) Error() string {
	if e.Message != "" {
		return e.sentence(e.Message)
	}
	return e.sentence("invalid token")
}

// Is matches [ErrInvalidToken].
func (e *InvalidTokenError) Is(target error) bool { return target == ErrInvalidToken }

// An UnclaimedError is the refusal of a token newer than the named fence (SQLSTATE ZF004): [Claim] was not called, or
// for another fence.
type UnclaimedError struct{ Refusal }

func (e *UnclaimedError) Error() string {
	if e.Presented == 0 {
		return e.sentence("token not claimed")
	}
	return e.sentence(fmt.Sprintf("token %v has not claimed the fence, which holds %v", e.Presented, e.Stored))
}

// Is matches [ErrUnclaimed].
func (e *UnclaimedError) Is(target error) bool { return target == ErrUnclaimed }

// An UnsupportedError is the refusal of a statement that a row fence cannot check (SQLSTATE ZF005), such as TRUNCATE.
type UnsupportedError struct{ Refusal }

func (e *UnsupportedError) Error() string {
	if e.Message != "" {
		return e.sentence(e.Message)
	}
	return e.sentence("not possible under a row fence")
}

// Is matches [ErrUnsupported].
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }
