package spelling_test

import (
	"testing"

	"github.com/fencectl/fencectl/internal/spelling"
)

func TestClosestSuggestsOnlyWhatSomebodyCouldHaveMeant(t *testing.T) {
	names := []string{"jobs", "orders", "accounts", "Größe"}
	for _, tt := range []struct {
		in, want string
		ok       bool
	}{
		{"job", "jobs", true},
		{"josb", "jobs", true},
		{"JOBS", "jobs", true},
		{"acounts", "accounts", true},
		{"größen", "Größe", true},
		{"invoices", "", false},
		{"x", "", false},
		{"", "", false},
	} {
		got, ok := spelling.Closest(tt.in, names)
		if ok != tt.ok || (ok && got != tt.want) {
			t.Errorf("Closest(%q) = %q, %v; want %q, %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
	if got, _ := spelling.Closest("jobz", []string{"jobs", "joby"}); got != "jobs" {
		t.Errorf("of equally close names the first must win, got %q", got)
	}
}
