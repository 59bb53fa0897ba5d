package sqlfile_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/lint/sqlfile"
)

func statements(f *sqlfile.File) (texts []string) {
	for _, s := range f.Statements {
		text := f.Text[s.Start:s.End]
		if s.Name != "" {
			text = s.Name + ": " + text
		}
		if s.Direction != "" {
			text = string(s.Direction) + ": " + text
		}
		texts = append(texts, text)
	}
	return texts
}

func TestStatementsAreFoundAsTheirToolsFindThem(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what, name, text string
		kind             sqlfile.Kind
		want             []string
	}{
		{
			"a script of psql", "a.sql", "\\set ON_ERROR_STOP on\nSELECT 1; -- ;\nSELECT ';' /* ; */, \"a;b\", $q$;$q$, E'\\';';\n\\echo done", sqlfile.Script,
			[]string{"SELECT 1", "SELECT ';' /* ; */, \"a;b\", $q$;$q$, E'\\';'"},
		},
		{
			"a statement that \\gset sends", "a.sql", "SELECT fencing.next_token() AS token \\gset\nSELECT fencing.claim('a', :token);", sqlfile.Script,
			[]string{"SELECT fencing.next_token() AS token", "SELECT fencing.claim('a', _token)"},
		},
		{
			"psql's variables", "a.sql", `SELECT :'name', :"col", :x::int, a[1:n], b[(i):j], '{:no}', "a:b" FROM t WHERE f(n := 1)`, sqlfile.Script,
			[]string{`SELECT  'name',  "col", _x::int, a[1:n], b[(i):j], '{:no}', "a:b" FROM t WHERE f(n := 1)`},
		},
		{"data of COPY", "a.sql", "COPY t FROM stdin;\na;b\t'\n\\.\nSELECT 2;", sqlfile.Script, []string{"COPY t FROM stdin", "SELECT 2"}},
		{
			"sqlc's queries", "q.sql", "-- name: A :one\nSELECT @a::int;\n\n-- name: B :exec\nSELECT 2\n-- name: C :many\nSELECT 3;", sqlfile.Queries,
			[]string{"A: SELECT @a::int", "B: SELECT 2", "C: SELECT 3"},
		},
		{
			"goose's sections", "1_a.sql", "-- +goose Up\nSELECT 1;\n-- +goose StatementBegin\nDO $$ BEGIN PERFORM 1; END $$;\n-- +goose StatementEnd\n-- +goose Down\nSELECT 2;", sqlfile.Migration,
			[]string{"up: SELECT 1", "up: DO $$ BEGIN PERFORM 1; END $$", "down: SELECT 2"},
		},
		{"dbmate's sections", "1_a.sql", "-- migrate:up transaction:false\nSELECT 1;\n-- migrate:down\nSELECT 2;", sqlfile.Migration, []string{"up: SELECT 1", "down: SELECT 2"}},
		{"tern's sections", "1_a.sql", "SELECT 1;\n---- create above / drop below ----\nSELECT 2;", sqlfile.Migration, []string{"up: SELECT 1", "down: SELECT 2"}},
		{"golang-migrate's names", "db/1_a.down.sql", "SELECT 2;", sqlfile.Migration, []string{"down: SELECT 2"}},
		{"Flyway's names", "db/V1.2__a.sql", "SELECT 2;", sqlfile.Migration, []string{"up: SELECT 2"}},
		{
			"the body of a routine", "a.sql", "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END; SELECT 3", sqlfile.Script,
			[]string{"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END", "SELECT 3"},
		},
		{
			"a rule's commands", "a.sql", "CREATE RULE r AS ON UPDATE TO t DO ALSO (SELECT 1; SELECT 2); SELECT 3", sqlfile.Script,
			[]string{"CREATE RULE r AS ON UPDATE TO t DO ALSO (SELECT 1; SELECT 2)", "SELECT 3"},
		},
		{"a parenthesis that nobody closed", "a.sql", "SELECT (1; SELECT 2;", sqlfile.Script, []string{"SELECT (1", "SELECT 2"}},
		{"a string that nobody closed", "a.sql", "SELECT 'a; SELECT 2;", sqlfile.Script, []string{"SELECT 'a; SELECT 2;"}},
		{"a byte order mark", "a.sql", "\ufeffSELECT 1;", sqlfile.Script, []string{"SELECT 1"}},
		{"nothing", "a.sql", "-- nothing\n;;", sqlfile.Script, nil},
	} {
		f := sqlfile.Read(test.name, test.text)
		if diff := cmp.Diff(test.want, statements(f)); diff != "" || f.Kind != test.kind {
			t.Errorf("%s: kind %s (-want +got):\n%s", test.what, f.Kind, diff)
		}
		if len(f.Text) != len(test.text) || strings.Count(f.Text, "\n") != strings.Count(test.text, "\n") {
			t.Errorf("%s: the places of the text have moved:\n%q\n%q", test.what, test.text, f.Text)
		}
	}
}

func TestAVariableIsKnownByItsPlace(t *testing.T) {
	t.Parallel()
	f := sqlfile.Read("a.sql", "SELECT :'name', :x, 'name'")
	for text, want := range map[string]bool{"'name',": true, "_x": true, "'name'": true} {
		if got := f.IsVariable(strings.Index(f.Text, text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	if f.IsVariable(strings.LastIndex(f.Text, "'name'")) {
		t.Error("a string is no variable")
	}
}

func TestPlacesAreLinesAndCharacters(t *testing.T) {
	t.Parallel()
	f := sqlfile.Read("a.sql", "SELECT 'ä',\n  'ö', x;\n")
	for offset, want := range map[int][2]int{0: {1, 1}, strings.Index(f.Text, "x"): {2, 8}, len(f.Text): {3, 1}} {
		if line, column := f.Place(offset); line != want[0] || column != want[1] {
			t.Errorf("%d is %d:%d, want %d:%d", offset, line, column, want[0], want[1])
		}
	}
}

func TestADirectiveIsForTheStatementItIsAt(t *testing.T) {
	t.Parallel()
	f := sqlfile.Read("a.sql", `-- fencectl:ignore-file claim-order read by hand
-- fencectl:ignore unfenced-write the first
SELECT 0;
SELECT 1; -- fencectl:ignore unfenced-write behind
SELECT 2
  /* fencectl:presented within */ + 2;

-- fencectl:ignore
SELECT 3;
-- fencectl:ignore unfenced-write
-- fencectl:ignores x y
-- see fencectl:ignore
`)
	type found struct {
		Verb, Rule, Reason string
		Statement          int
	}
	var got []found
	for _, d := range f.Directives {
		got = append(got, found{d.Verb, d.Rule, d.Reason, d.Statement})
		if !strings.HasPrefix(f.Text[d.Offset:], "fencectl:") {
			t.Errorf("%+v is not where it is said to be", d)
		}
	}
	if diff := cmp.Diff([]found{
		{"ignore-file", "claim-order", "read by hand", 0},
		{"ignore", "unfenced-write", "the first", 0},
		{"ignore", "unfenced-write", "behind", 1},
		{"presented", "", "within", 2},
		{"ignore", "", "", 3},
		{"ignore", "unfenced-write", "", -1},
		{"ignores", "", "x y", -1},
	}, got); diff != "" {
		t.Error(diff)
	}
}

// Whatever is in a file, reading it neither fails nor moves anything.
func FuzzRead(f *testing.F) {
	for _, text := range []string{"SELECT E'\\'", "/*", "$a$", "\"", ":'", "-- name: A :one\n", "\\", "COPY a FROM stdin;\n\\.", ":{?x}", "-- +goose Down", "--fencectl:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file := sqlfile.Read("x.sql", text)
		if len(file.Text) != len(text) {
			t.Fatalf("%q became %q", text, file.Text)
		}
		end := 0
		for _, s := range file.Statements {
			if s.Start < end || s.End < s.Start || s.End > len(text) {
				t.Fatalf("%+v in %q", file.Statements, text)
			}
			end = s.End
			file.Place(s.Start)
		}
	})
}
