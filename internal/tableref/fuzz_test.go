package tableref_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencectl/fencectl/internal/tableref"
)

// Any text is a pattern or a *SyntaxError, and a pattern without wildcards matches one spelling or two: as typed, and in lower
// case.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"jobs", "billing.*", `"Order Items"`, `"a""b".c`, `"`, ".", "a.b.c", "*", "?", "", "\x00", "\xff", `a"B"c`} {
		f.Add(text, "public", text)
	}
	f.Fuzz(func(t *testing.T, text, schema, name string) {
		p, err := tableref.Parse(text)
		var wrong *tableref.SyntaxError
		if err != nil {
			if !errors.As(err, &wrong) || err.Error() == "" {
				t.Fatalf("error %T %v, want a *SyntaxError", err, err)
			}
			return
		}
		if p.String() != text {
			t.Errorf("%q prints as %q", text, p)
		}
		matches := p.MatchTable(schema, name)
		if matches && !p.HasWildcard() && !strings.Contains(text, `"`) && !strings.EqualFold(text, name) && !strings.EqualFold(text, schema+"."+name) {
			t.Errorf("%q matches %q.%q", text, schema, name)
		}
	})
}

// A name in double quotes means exactly that table, whatever it is called.
func FuzzAQuotedNameIsThatTable(f *testing.F) {
	f.Add("public", "jobs", "Jobs")
	f.Add(`my"schema`, "a.b*?", "a.bcd")
	f.Fuzz(func(t *testing.T, schema, name, other string) {
		if schema == "" || name == "" || strings.ContainsRune(schema+name, 0) {
			t.Skip("no names of PostgreSQL's")
		}
		schema, name = strings.ToValidUTF8(schema, "x"), strings.ToValidUTF8(name, "x")
		quote := func(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
		p, err := tableref.Parse(quote(schema) + "." + quote(name))
		if err != nil {
			t.Fatal(err)
		}
		if !p.MatchTable(schema, name) || p.HasWildcard() {
			t.Errorf("%s does not mean %q.%q", p, schema, name)
		}
		if other = strings.ToValidUTF8(other, "x"); other != name && p.MatchTable(schema, other) {
			t.Errorf("%s means %q.%q too", p, schema, other)
		}
	})
}
