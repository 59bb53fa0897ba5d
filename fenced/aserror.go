package fenced

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// AsError turns a guard's refusal into its typed error, whatever driver it came through: pgx, pgx's database/sql driver, or
// lib/pq. The typed error wraps err, so errors.As still finds the driver's own. Any other error, nil, and an error that
// is already typed come back as they are.
func AsError(err error) error {
	if err == nil {
		return nil
	}
	code, fields, ok := serverError(err)
	if !ok || !isFencing(code) || isTyped(err) {
		return err
	}
	r := fields.refusal()
	r.cause = err
	switch code {
	case SQLStateStale:
		return &StaleError{Refusal: r}
	case SQLStateUnfenced:
		return &UnfencedError{r}
	case SQLStateInvalidToken:
		return &InvalidTokenError{r}
	case SQLStateUnclaimed:
		return &UnclaimedError{r}
	default:
		return &UnsupportedError{r}
	}
}

// SQLState is the SQLSTATE of the server's error in err's chain, whatever the driver; empty when there is none.
func SQLState(err error) string {
	code, _, _ := serverError(err)
	return code
}

func isFencing(code string) bool {
	switch code {
	case SQLStateStale, SQLStateUnfenced, SQLStateInvalidToken, SQLStateUnclaimed, SQLStateUnsupported:
		return true
	}
	return false
}

func isTyped(err error) bool {
	for _, sentinel := range []error{ErrStale, ErrUnfenced, ErrInvalidToken, ErrUnclaimed, ErrUnsupported} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

// errorFields are the fields of PostgreSQL's ErrorResponse that a refusal is made of.
type errorFields struct {
	message, detail, hint, schema, table, column string
}

// serverError finds the server's error in err's chain. lib/pq's *pq.Error is recognised by its methods, so that
// programs which do not use lib/pq do not compile it. An error that has nothing but SQLState still tells its kind.
func serverError(err error) (code string, fields errorFields, ok bool) {
	var pge *pgconn.PgError
	if errors.As(err, &pge) {
		return pge.Code, errorFields{pge.Message, pge.Detail, pge.Hint, pge.SchemaName, pge.TableName, pge.ColumnName}, true
	}
	var byField interface {
		error
		SQLState() string
		Get(field byte) string
	}
	if errors.As(err, &byField) {
		get := byField.Get // the letters are those of the wire protocol's ErrorResponse
		return byField.SQLState(), errorFields{get('M'), get('D'), get('H'), get('s'), get('t'), get('c')}, true
	}
	var byCode interface {
		error
		SQLState() string
	}
	if errors.As(err, &byCode) {
		return byCode.SQLState(), errorFields{}, true
	}
	return "", errorFields{}, false
}

func (f errorFields) refusal() Refusal {
	r := Refusal{Schema: f.schema, Table: f.table, Column: f.column, Message: f.message, Hint: f.hint}
	var detail struct {
		Fence     string          `json:"fence"`
		Key       json.RawMessage `json:"key"`
		Presented json.RawMessage `json:"presented"`
		Stored    json.RawMessage `json:"stored"`
	}
	// A detail in another shape costs the numbers, not the kind of the error, which is the SQLSTATE's.
	if json.Unmarshal([]byte(f.detail), &detail) != nil {
		return r
	}
	r.Fence = detail.Fence
	if !bytes.Equal(detail.Key, []byte("null")) {
		r.Key = detail.Key
	}
	r.Presented, r.Stored = jsonToken(detail.Presented), jsonToken(detail.Stored)
	return r
}

// jsonToken is 0 for what is not an integer: an invalid token may be any text.
func jsonToken(raw json.RawMessage) Token {
	n, err := strconv.ParseInt(string(bytes.Trim(raw, `"`)), 10, 64)
	if err != nil {
		return 0
	}
	return Token(n)
}
