package fenced_test

import (
	"database/sql"
	"database/sql/driver"
	"math"
	"testing"

	"github.com/fencectl/fencectl/fenced"
)

func TestNewTokenRefusesWhatDoesNotFit(t *testing.T) {
	tests := []struct {
		name  string
		epoch int
		seq   int64
		want  fenced.Token
		ok    bool
	}{
		{"epoch 0 is the plain counter", 0, 34, 34, true},
		{"epoch 1", 1, 34, 1<<48 + 34, true},
		{"greatest token is the greatest bigint", fenced.MaxEpoch, fenced.MaxSeq, math.MaxInt64, true},
		{"a new epoch may start at counter 0", 1, 0, 1 << 48, true},
		{"zero is no token", 0, 0, 0, false},
		{"counter runs into the epoch", 0, fenced.MaxSeq + 1, 0, false},
		{"epoch runs into the sign", fenced.MaxEpoch + 1, 1, 0, false},
		{"negative counter", 0, -1, 0, false},
		{"negative epoch", -1, 1, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := fenced.NewToken(tt.epoch, tt.seq)
			if (err == nil) != tt.ok || got != tt.want {
				t.Fatalf("NewToken(%d, %d) = %d, %v; want %d, ok %v", tt.epoch, tt.seq, int64(got), err, int64(tt.want), tt.ok)
			}
			if tt.ok && (got.Epoch() != tt.epoch || got.Seq() != tt.seq || !got.Valid()) {
				t.Fatalf("split back into epoch %d, counter %d, valid %v", got.Epoch(), got.Seq(), got.Valid())
			}
		})
	}
}

func TestAnyTokenOfALaterEpochIsGreater(t *testing.T) {
	last, err := fenced.NewToken(0, fenced.MaxSeq)
	if err != nil {
		t.Fatal(err)
	}
	first, err := fenced.NewToken(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if first <= last {
		t.Fatalf("%v is not greater than %v", first, last)
	}
}

func TestParseTokenReadsWhatStringWrites(t *testing.T) {
	for _, token := range []fenced.Token{1, 34, fenced.MaxSeq, 1 << 48, 1<<48 + 34, math.MaxInt64} {
		got, err := fenced.ParseToken(token.String())
		if err != nil || got != token {
			t.Errorf("ParseToken(%q) = %d, %v; want %d", token.String(), int64(got), err, int64(token))
		}
	}
	if got, err := fenced.ParseToken("281474976710690"); err != nil || got.String() != "1:34" {
		t.Errorf("the plain decimal form reads as %v, %v; want 1:34", got, err)
	}
}

func TestParseTokenRefusesWhatIsNoToken(t *testing.T) {
	for _, text := range []string{
		"", "0", "-1", "+34", " 34", "34 ", "0x22", "1:", ":1", "1:-3", "1:+3", "0:0", "1:2:3", "1.5", "32768:1", "0:281474976710656",
		"9223372036854775808", "99999999999999999999:1", "00000000000000000034", "0:00000000000000000034",
	} {
		if got, err := fenced.ParseToken(text); err == nil {
			t.Errorf("ParseToken(%q) = %v, want an error", text, got)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("34")
	f.Add("1:34")
	f.Add("007:00")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := fenced.ParseToken(text)
		if err != nil {
			return
		}
		if !token.Valid() {
			t.Fatalf("ParseToken(%q) accepted %d, which is no token", text, int64(token))
		}
		again, err := fenced.ParseToken(token.String())
		if err != nil || again != token {
			t.Fatalf("ParseToken(%q) = %v, whose String reads back as %v, %v", text, token, again, err)
		}
	})
}

func TestTokenIsABigintToDatabaseSQL(t *testing.T) {
	var _ driver.Valuer = fenced.Token(0)
	var _ sql.Scanner = new(fenced.Token)

	if v, err := fenced.Token(34).Value(); err != nil || v != int64(34) {
		t.Errorf("Value() = %v, %v; want int64 34", v, err)
	}
	for _, src := range []any{int64(34), "34", []byte("34")} {
		var token fenced.Token
		if err := token.Scan(src); err != nil || token != 34 {
			t.Errorf("Scan(%T) = %v, %v; want 34", src, token, err)
		}
	}
	var token fenced.Token
	if err := token.Scan(int64(0)); err != nil {
		t.Errorf("a row that no fenced write has touched holds 0 and must be readable: %v", err)
	}
	for _, src := range []any{nil, 3.5, "x", true} {
		if err := token.Scan(src); err == nil {
			t.Errorf("Scan(%v) succeeded", src)
		}
	}
}
