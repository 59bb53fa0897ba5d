package fenced_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencectl/fencectl/fenced"
)

// Whatever a server sends, the kind of the error is its SQLSTATE's, and the driver's error stays within reach.
func FuzzAnyRefusalKeepsItsKind(f *testing.F) {
	for _, detail := range []string{
		`{"fence": "nightly", "presented": 33, "stored": 34}`,
		`{"key": {"id": 1}, "presented": "33", "stored": null}`,
		`{"presented": 9223372036854775808}`, `{"presented": 1e3}`, `{"presented": {}}`, `{"fence": 7}`,
		`{"key": null}`, `{`, `[]`, `null`, `""`, "", "Key (id)=(1) already exists.", "{\"fence\":\"\xff\"}", `{"FENCE": "x"}`,
	} {
		for _, code := range []string{"ZF001", "ZF005", "23505", ""} {
			f.Add(code, "message", detail, "hint", "")
		}
	}
	kinds := map[string]error{
		fenced.SQLStateStale: fenced.ErrStale, fenced.SQLStateUnfenced: fenced.ErrUnfenced, fenced.SQLStateInvalidToken: fenced.ErrInvalidToken,
		fenced.SQLStateUnclaimed: fenced.ErrUnclaimed, fenced.SQLStateUnsupported: fenced.ErrUnsupported,
	}
	f.Fuzz(func(t *testing.T, code, message, detail, hint, table string) {
		cause := &pgconn.PgError{Code: code, Message: message, Detail: detail, Hint: hint, TableName: table}
		err := fenced.AsError(cause)
		var driver *pgconn.PgError
		if !errors.As(err, &driver) || driver != cause || fenced.SQLState(err) != code {
			t.Fatalf("the driver's error is lost in %#v", err)
		}
		for state, kind := range kinds {
			if errors.Is(err, kind) != (state == code) {
				t.Errorf("SQLSTATE %q: errors.Is(%v) is %t", code, kind, errors.Is(err, kind))
			}
		}
		if again := fenced.AsError(err); again != err {
			t.Errorf("typed twice: %v", again)
		}
		_ = err.Error()
		_ = fenced.Lost(err)
	})
}

// What the SQL layer puts into a DETAIL arrives: the fence, the key and both tokens, in whatever characters the names have.
func FuzzADetailArrivesWhole(f *testing.F) {
	f.Add("nightly", "id", int64(33), int64(34))
	f.Add(`a"b\c`, "größe \x00", int64(-1), int64(1<<62))
	f.Add("", "", int64(0), int64(0))
	f.Fuzz(func(t *testing.T, fence, column string, presented, stored int64) {
		if !utf8.ValidString(fence) || !utf8.ValidString(column) {
			t.Skip("no text of the server's")
		}
		key, err := json.Marshal(map[string]any{column: presented})
		if err != nil {
			t.Fatal(err)
		}
		detail, err := json.Marshal(map[string]any{"fence": fence, "key": json.RawMessage(key), "presented": presented, "stored": stored})
		if err != nil {
			t.Fatal(err)
		}
		var stale *fenced.StaleError
		if !errors.As(fenced.AsError(&pgconn.PgError{Code: fenced.SQLStateStale, Detail: string(detail)}), &stale) {
			t.Fatal("no *StaleError")
		}
		if stale.Fence != fence || !bytes.Equal(stale.Key, key) || stale.Presented != fenced.Token(presented) || stale.Stored != fenced.Token(stored) {
			t.Errorf("from %s: %+v", detail, stale.Refusal)
		}
		if want := presented == stored && presented > 0; stale.OwnWrite() != want {
			t.Errorf("presented %d, stored %d: OwnWrite() is %t", presented, stored, stale.OwnWrite())
		}
	})
}

// Composing a token and taking it apart are inverse, and order tokens by epoch first.
func FuzzEpochAndCounter(f *testing.F) {
	f.Add(0, int64(34), 1, int64(0))
	f.Add(fenced.MaxEpoch, int64(fenced.MaxSeq), 0, int64(1))
	f.Add(-1, int64(-1), 32768, int64(1<<48))
	f.Fuzz(func(t *testing.T, epoch int, seq int64, epoch2 int, seq2 int64) {
		valid := func(epoch int, seq int64) bool {
			return epoch >= 0 && epoch <= fenced.MaxEpoch && seq >= 0 && seq <= fenced.MaxSeq && (epoch > 0 || seq > 0)
		}
		token, err := fenced.NewToken(epoch, seq)
		if (err == nil) != valid(epoch, seq) {
			t.Fatalf("NewToken(%d, %d) = %d, %v", epoch, seq, token, err)
		}
		other, otherErr := fenced.NewToken(epoch2, seq2)
		if err != nil || otherErr != nil {
			return
		}
		if !token.Valid() || token.Epoch() != epoch || token.Seq() != seq {
			t.Errorf("NewToken(%d, %d) = %d: epoch %d, counter %d", epoch, seq, int64(token), token.Epoch(), token.Seq())
		}
		if want := epoch < epoch2 || epoch == epoch2 && seq < seq2; (token < other) != want {
			t.Errorf("%s < %s is %t", token, other, token < other)
		}
	})
}
