package fenced_test

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/fencectl/fencectl/fenced"
)

// drivers make the same server error as each driver would report it.
var drivers = map[string]func(code, detail string) error{
	"pgx": func(code, detail string) error {
		return &pgconn.PgError{Code: code, Message: "refused", Detail: detail, Hint: "do this", SchemaName: "public", TableName: "jobs", ColumnName: "last_fencing_token"}
	},
	"lib/pq": func(code, detail string) error {
		return &pq.Error{Code: pqerror.Code(code), Message: "refused", Detail: detail, Hint: "do this", Schema: "public", Table: "jobs", Column: "last_fencing_token"}
	},
}

const fullDetail = `{"fence": "jobs/nightly", "key": {"id": 7, "day": "mon"}, "presented": 33, "stored": 281474976710690}`

func TestEverySQLSTATEHasItsTypeThroughEveryDriver(t *testing.T) {
	sentinels := map[string]error{
		fenced.SQLStateStale:        fenced.ErrStale,
		fenced.SQLStateUnfenced:     fenced.ErrUnfenced,
		fenced.SQLStateInvalidToken: fenced.ErrInvalidToken,
		fenced.SQLStateUnclaimed:    fenced.ErrUnclaimed,
		fenced.SQLStateUnsupported:  fenced.ErrUnsupported,
	}
	want := fenced.Refusal{
		Schema: "public", Table: "jobs", Column: "last_fencing_token", Fence: "jobs/nightly", Key: []byte(`{"id": 7, "day": "mon"}`),
		Presented: 33, Stored: 1<<48 + 34, Message: "refused", Hint: "do this",
	}
	for name, makeError := range drivers {
		for code := range sentinels {
			t.Run(name+" "+code, func(t *testing.T) {
				cause := fmt.Errorf("mark job running: %w", makeError(code, fullDetail))
				err := fenced.AsError(cause)
				for other, sentinel := range sentinels {
					if is := errors.Is(err, sentinel); is != (other == code) {
						t.Errorf("errors.Is(%v, %v) = %v", err, sentinel, is)
					}
				}
				if errors.Is(err, fenced.ErrNotFound) || errors.Is(err, fenced.ErrSourceBehind) {
					t.Errorf("%v is also not-found or source-behind", err)
				}
				if !errors.Is(err, cause) {
					t.Error("the driver's error is no longer in the chain")
				}
				if fenced.SQLState(err) != code {
					t.Errorf("SQLState = %q, want %q", fenced.SQLState(err), code)
				}
				got := refusalOf(t, err)
				if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(fenced.Refusal{})); diff != "" {
					t.Errorf("refusal (-want +got):\n%s", diff)
				}
				if again := fenced.AsError(err); again != err {
					t.Error("a typed error was wrapped a second time")
				}
			})
		}
	}
}

func refusalOf(t *testing.T, err error) fenced.Refusal {
	t.Helper()
	var (
		stale       *fenced.StaleError
		unfenced    *fenced.UnfencedError
		invalid     *fenced.InvalidTokenError
		unclaimed   *fenced.UnclaimedError
		unsupported *fenced.UnsupportedError
	)
	switch {
	case errors.As(err, &stale):
		return stale.Refusal
	case errors.As(err, &unfenced):
		return unfenced.Refusal
	case errors.As(err, &invalid):
		return invalid.Refusal
	case errors.As(err, &unclaimed):
		return unclaimed.Refusal
	case errors.As(err, &unsupported):
		return unsupported.Refusal
	}
	t.Fatalf("%v (%T) is none of the typed errors", err, err)
	return fenced.Refusal{}
}

func TestDriverErrorStaysReachable(t *testing.T) {
	var pge *pgconn.PgError
	if err := fenced.AsError(drivers["pgx"](fenced.SQLStateStale, fullDetail)); !errors.As(err, &pge) {
		t.Errorf("no *pgconn.PgError in the chain of %v", err)
	}
	var pqe *pq.Error
	if err := fenced.AsError(drivers["lib/pq"](fenced.SQLStateStale, fullDetail)); !errors.As(err, &pqe) {
		t.Errorf("no *pq.Error in the chain of %v", err)
	}
}

func TestOtherErrorsPassThroughUnchanged(t *testing.T) {
	for _, err := range []error{nil, io.EOF, pgx.ErrNoRows, sql.ErrNoRows, &pgconn.PgError{Code: "40001"}, &pq.Error{Code: "23505"}} {
		if got := fenced.AsError(err); got != err {
			t.Errorf("AsError(%v) = %v", err, got)
		}
	}
}

func TestKindIsKnownWithoutADetail(t *testing.T) {
	for _, detail := range []string{"", "not JSON", `[1]`, `{"presented": "twelve", "stored": null, "key": null}`} {
		var stale *fenced.StaleError
		if err := fenced.AsError(drivers["pgx"](fenced.SQLStateStale, detail)); !errors.As(err, &stale) {
			t.Fatalf("detail %q: %v is no StaleError", detail, err)
		}
		if stale.Presented != 0 || stale.Stored != 0 || stale.Fence != "" || stale.Key != nil || stale.OwnWrite() {
			t.Errorf("detail %q: made up %+v", detail, stale.Refusal)
		}
	}
}

type codeOnly string

func (c codeOnly) Error() string    { return "some driver: " + string(c) }
func (c codeOnly) SQLState() string { return string(c) }

func TestUnknownDriverThatTellsTheSQLSTATE(t *testing.T) {
	if err := fenced.AsError(codeOnly(fenced.SQLStateUnclaimed)); !errors.Is(err, fenced.ErrUnclaimed) {
		t.Errorf("%v is not ErrUnclaimed", err)
	}
}

func TestStaleTellsOwnEarlierWriteFromNewerHolder(t *testing.T) {
	var own, newer *fenced.StaleError
	errors.As(fenced.AsError(drivers["pgx"](fenced.SQLStateStale, `{"presented": 34, "stored": 34}`)), &own)
	errors.As(fenced.AsError(drivers["pgx"](fenced.SQLStateStale, `{"presented": 33, "stored": 34}`)), &newer)
	if !own.OwnWrite() || !strings.Contains(own.Error(), "own earlier write") {
		t.Errorf("equal tokens: OwnWrite %v, %q", own.OwnWrite(), own)
	}
	if newer.OwnWrite() || !strings.Contains(newer.Error(), "newer holder has written under 34") {
		t.Errorf("greater stored token: OwnWrite %v, %q", newer.OwnWrite(), newer)
	}
}

func TestNotFoundIsNoRowsAndNeverStale(t *testing.T) {
	for _, target := range []error{fenced.ErrNotFound, pgx.ErrNoRows, sql.ErrNoRows} {
		if !errors.Is(fmt.Errorf("get: %w", fenced.ErrNotFound), target) {
			t.Errorf("ErrNotFound is not %v", target)
		}
	}
	if errors.Is(fenced.ErrNotFound, fenced.ErrStale) || errors.Is(&fenced.StaleError{}, fenced.ErrNotFound) {
		t.Error("not-found and stale are confused")
	}
}

func TestErrorTextSaysWhatWasRefusedAndWhatToDo(t *testing.T) {
	err := fenced.AsError(drivers["pgx"](fenced.SQLStateStale, fullDetail))
	want := `fenced: stale token 33: a newer holder has written under 1:34 (table public.jobs, row {"id": 7, "day": "mon"}, fence "jobs/nightly"): do this`
	if err.Error() != want {
		t.Errorf("\n got %s\nwant %s", err, want)
	}
}
