// Package wire is the SQL that fenced and fencedsql send, each statement once.
//
// What has to travel with BEGIN in one message goes through the simple query protocol, which has no parameters: names are quoted here.
package wire

import (
	_ "embed" // the eviction
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// EvictSQL ends the sessions that keep the backend $1 waiting for a fence, and returns their process ids.
//
//go:embed evict.sql
var EvictSQL string

// Named is a token and the fence it is for.
type Named struct {
	Fence string
	Token int64
}

// Bounds limit a transaction on the server; 0 is no limit.
type Bounds struct {
	Idle  time.Duration // idle_in_transaction_session_timeout
	Total time.Duration // transaction_timeout, from PostgreSQL 17 on
}

// Present is what presents tokens in the current transaction and bounds it: one statement, or two for several tokens. The first token is
// the transaction's own, which row fences are checked against; with several, each is also presented for its fence alone.
//
// The text is parsed with every transaction, so it is short; and it is a CALL because that is not planned, and answers with no row.
func Present(tokens []Named, bounds Bounds) (string, error) {
	if len(tokens) == 0 {
		return "", errors.New("no grant to present")
	}
	sql := fmt.Sprintf("CALL fencing.present(%d, %d, %d)", tokens[0].Token, milliseconds(bounds.Idle), milliseconds(bounds.Total))
	if len(tokens) == 1 {
		return sql, nil
	}
	calls := make([]string, len(tokens))
	for i, named := range tokens {
		fence, err := Quote(named.Fence)
		if err != nil {
			return "", err
		}
		calls[i] = fmt.Sprintf("fencing.present(%d, %s)", named.Token, fence)
	}
	return sql + "; SELECT " + strings.Join(calls, ", "), nil
}

// milliseconds is 0 for no limit only: a limit that has almost passed is not none.
func milliseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return max(1, d.Milliseconds())
}

// Claim is a claim that is a transaction of its own, in one message: several statements in one simple query are one transaction, unless
// they say otherwise. At any other isolation level than READ COMMITTED a claim that waited fails with 40001.
func Claim(named Named) (string, error) {
	call, err := ClaimCall(named)
	if err != nil {
		return "", err
	}
	return "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; " + call, nil
}

// ClaimCall is the claim alone.
func ClaimCall(named Named) (string, error) {
	fence, err := Quote(named.Fence)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("SELECT fencing.claim(%s, %d)", fence, named.Token), nil
}

// BoundedPID bounds the transaction of a claim that may have to evict, so that this process, paused between the claim and its COMMIT, does not
// block the next claim; and it returns the backend's process id, which behind a connection pooler is not the one a driver knows.
func BoundedPID(idle time.Duration) string {
	return fmt.Sprintf("SELECT pg_catalog.pg_backend_pid(), fencing.limit_transaction(%d, 0)", milliseconds(idle))
}

// Quote makes a string literal that reads the same under either standard_conforming_strings.
func Quote(text string) (string, error) {
	if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
		return "", errors.New("the name " + strconv.Quote(text) + " has a NUL character or is not UTF-8")
	}
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'", nil
}
