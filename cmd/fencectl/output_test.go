package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPeriodsKnowDaysAndWeeks(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for text, want := range map[string]time.Duration{"7d": 7 * day, "2w": 14 * day, "1.5d": 36 * time.Hour, "36h": 36 * time.Hour, "90s": 90 * time.Second} {
		var p period
		if err := p.Set(text); err != nil || time.Duration(p) != want {
			t.Errorf("Set(%s) = %v, %v; want %v", text, time.Duration(p), err, want)
		}
	}
	for _, text := range []string{"", "d", "0d", "-1d", "7", "1e9w", "NaNd", "Infd", "yesterday"} {
		var p period
		if err := p.Set(text); err == nil {
			t.Errorf("Set(%q) = %v, want an error", text, time.Duration(p))
		}
	}
}

func TestTextIsWrappedAtSpacesAndCutWhereItMustBe(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text  string
		width int
		want  []string
	}{
		{"two  spaces stay", 20, []string{"two  spaces stay"}},
		{"one two three", 7, []string{"one two", "three"}},
		{"abcdefghij", 4, []string{"abcd", "efgh", "ij"}},
		{"größe größe", 5, []string{"größe", "größe"}},
		{"日本語 日本", 4, []string{"日本", "語", "日本"}}, // two columns a letter
		{"", 10, []string{""}},
	} {
		if diff := cmp.Diff(tt.want, wrapText(tt.text, tt.width)); diff != "" {
			t.Errorf("%q at %d (-want +got):\n%s", tt.text, tt.width, diff)
		}
	}
}

func TestNothingFromADatabaseReachesTheTerminalAsACommand(t *testing.T) {
	t.Parallel()
	if got := oneLine("a\x1b[2Jb\nc\td\u0085e\x00f"); strings.ContainsAny(got, "\x1b\n\t\u0085\x00") || got != "a [2Jb c d e f" {
		t.Errorf("%q", got)
	}
}

func TestATemplateYieldsTheFencesThatItCouldName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		template, name string
		want           bool
	}{
		{"jobs/nightly", "jobs/nightly", true},
		{"jobs/nightly", "jobs/nightly2", false},
		{"jobs.nightly", "jobsXnightly", false},
		{"account/{id}", "account/17", true},
		{"account/{id}", "accounts/17", false},
		{"{a}/{b}", "x/y", true},
		{"{a}/{b}", "xy", false},
		{"account/{id}", "account/a\nb", true},
	} {
		if got := templateYields(tt.template, tt.name); got != tt.want {
			t.Errorf("%s yields %q: %v", tt.template, tt.name, got)
		}
	}
}

func TestWordsCanBePastedIntoAShell(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"public.jobs": "public.jobs", `public."Order Items"`: `'public."Order Items"'`, "it's": `'it'\''s'`, "": "''", "*.*": "'*.*'"} {
		if got := shellQuote(word); got != want {
			t.Errorf("shellQuote(%s) = %s, want %s", word, got, want)
		}
	}
}
