package connect

import (
	"strings"
	"testing"
)

func TestAServerOlderThan14IsNamedWithItsVersion(t *testing.T) {
	err := checkVersion(130023, "13.23", "db.example.com:5432")
	if err == nil {
		t.Fatal("13 must be refused")
	}
	for _, part := range []string{"db.example.com:5432", "PostgreSQL 13.23", "14", "upgrade"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %q: %v", part, err)
		}
	}
	if err := checkVersion(140000, "14.0", "x"); err != nil {
		t.Errorf("14 must be accepted: %v", err)
	}
}

func TestVersionsAreComparedByNumber(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"0.1.0", "0.1.0", false},
		{"0.1", "0.1.0", false},
		{"0.1.0", "0.1", false},
		{"0.2.0", "0.10.0", false},
		{"0.10.0", "0.2.0", true},
		{"1.0.0", "0.9.9", true},
		{"0.1.1", "0.1", true},
	} {
		if got := newer(tt.a, tt.b); got != tt.want {
			t.Errorf("newer(%s, %s) = %v", tt.a, tt.b, got)
		}
	}
}
