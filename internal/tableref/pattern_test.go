package tableref_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencectl/fencectl/internal/tableref"
)

func TestPatternsMatchAsPsqlWould(t *testing.T) {
	for _, tt := range []struct {
		pattern      string
		schema, name string
		want         bool
	}{
		{"jobs", "public", "jobs", true},
		{"JOBS", "public", "jobs", true},
		{"Jobs", "public", "Jobs", true},    // the shell took the quotes
		{`"Jobs"`, "public", "jobs", false}, // quoted names do not fold
		{`"Jobs"`, "public", "Jobs", true},
		{"jobs", "public", "Jobs", false},
		{"Order Items", "public", "Order Items", true},
		{`"say ""hi"""`, "public", `say "hi"`, true},
		{"billing.jobs", "billing", "jobs", true},
		{"billing.jobs", "public", "jobs", false},
		{`"my.schema".jobs`, "my.schema", "jobs", true},
		{`my"."schema.jobs`, "my.schema", "jobs", true},
		{"billing.*", "billing", "anything at all", true},
		{"billing.*", "billing2", "jobs", false},
		{"*.jobs", "a", "jobs", true},
		{"*.*", "a", "b", true},
		{"j?bs", "public", "jobs", true},
		{"j?bs", "public", "jbs", false},
		{"gr?ße", "public", "größe", true}, // a letter, not a byte
		{"GRÖßE", "public", "grÖße", true}, // PostgreSQL folds ASCII only
		{"GRÖßE", "public", "größe", false},
		{`billing."*"`, "billing", "jobs", false}, // literal in quotes
		{`billing."*"`, "billing", "*", true},
		{"*_2026_*", "public", "events_2026_01", true},
		{"*a*b", "public", "aXbXab", true},
		{"*a*b", "public", "ba", false},
		{"select", "public", "select", true},
		{strings.Repeat("x", 63), "public", strings.Repeat("x", 63), true},
	} {
		p, err := tableref.Parse(tt.pattern)
		if err != nil {
			t.Errorf("Parse(%s): %v", tt.pattern, err)
			continue
		}
		if got := p.MatchTable(tt.schema, tt.name); got != tt.want {
			t.Errorf("%s matches %s.%s: %v, want %v", tt.pattern, tt.schema, tt.name, got, tt.want)
		}
	}
}

func TestWhatIsNoTableNameIsSaid(t *testing.T) {
	for text, part := range map[string]string{
		"":              "write NAME",
		".":             "write NAME",
		"billing.":      "write NAME",
		".jobs":         "write NAME",
		"a.b.c":         "double quotes",
		`"jobs`:         "never closed",
		`billing."a""`:  "never closed",
		`""`:            "write NAME",
		"jobs\x00where": "NUL",
	} {
		_, err := tableref.Parse(text)
		var syntax *tableref.SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("Parse(%q): want a *SyntaxError, got %v", text, err)
			continue
		}
		if !strings.Contains(err.Error(), part) {
			t.Errorf("Parse(%q): the error does not say %q: %v", text, part, err)
		}
	}
}

func TestNoPatternTakesExponentialTime(t *testing.T) {
	p, err := tableref.Parse(strings.Repeat("*a", 31) + "*b")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if p.MatchTable("public", strings.Repeat("a", 63)) {
		t.Error("there is no b to match")
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("matching took %s", took)
	}
}
