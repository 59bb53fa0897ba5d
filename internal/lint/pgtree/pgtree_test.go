package pgtree_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/lint/pgtree"
)

func TestAStatementIsATreeOfNodes(t *testing.T) {
	t.Parallel()
	tree, err := pgtree.Parse(`UPDATE worker."Größe" AS g SET a = fencing.present($2) WHERE g.id = $1;`)
	if err != nil {
		t.Fatal(err)
	}
	relation := tree.Node("relation")
	if tree.Kind != "UpdateStmt" || relation.Text("schemaname") != "worker" || relation.Text("relname") != "Größe" || relation.Location() != len("UPDATE ") {
		t.Errorf("%s of %s.%s at %d", tree.Kind, relation.Text("schemaname"), relation.Text("relname"), relation.Location())
	}
	var calls [][]string
	tree.Walk(func(n pgtree.Node) bool {
		if n.Kind == "FuncCall" {
			calls = append(calls, n.Words("funcname"))
		}
		return true
	})
	if diff := cmp.Diff([][]string{{"fencing", "present"}}, calls); diff != "" {
		t.Error(diff)
	}
	if nothing, err := pgtree.Parse(" -- nothing\n"); err != nil || nothing.There() || nothing.Node("relation").There() || nothing.List("x") != nil {
		t.Errorf("%v, %v", nothing, err)
	}
}

// The parser counts characters, we count bytes.
func TestASyntaxErrorSaysWhere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]pgtree.SyntaxError{
		"SELECT 'ä' FORM jobs x": {`syntax error at or near "jobs"`, len("SELECT 'ä' FORM ")},
		"UPDATE jobs":            {"syntax error at end of input", len("UPDATE jobs")},
		"SELECT 'a":              {`unterminated quoted string at or near "'a"`, len("SELECT ")},
		"SELECT \x00":            {"a NUL character", len("SELECT ")},
	} {
		var got *pgtree.SyntaxError
		if _, err := pgtree.Parse(text); !errors.As(err, &got) || *got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestTheQueriesOfABody(t *testing.T) {
	t.Parallel()
	got, err := pgtree.ParseBody(`DO $$
DECLARE n integer := 1;
BEGIN
  n := n + 1;
  IF n > 1 THEN
    PERFORM fencing.protect('public.jobs');
  END IF;
  UPDATE jobs SET state = 'x'
   WHERE id = n;
  EXECUTE 'DELETE FROM jobs';
END $$`)
	if err != nil {
		t.Fatal(err)
	}
	var lines []pgtree.Query
	for _, q := range got {
		if tree, err := pgtree.Parse(q.Text); err != nil || !tree.There() {
			t.Errorf("%q: %v", q.Text, err)
		}
		if q.Line >= 6 {
			lines = append(lines, q)
		}
	}
	want := []pgtree.Query{
		{Text: "SELECT fencing.protect('public.jobs')", Line: 6},
		{Text: "UPDATE jobs SET state = 'x'\n   WHERE id = n", Line: 8},
		{Text: "SELECT 'DELETE FROM jobs'", Line: 10},
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("(-want +got):\n%s\nall: %+v", diff, got)
	}
	if _, err := pgtree.ParseBody("DO $$ BEGIN x y; END $$"); err == nil {
		t.Error("nonsense is no body")
	}
}
