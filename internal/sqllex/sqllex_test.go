package sqllex_test

import (
	"testing"

	"github.com/fencectl/fencectl/internal/sqllex"
)

func TestWhereTokensEnd(t *testing.T) {
	t.Parallel()
	type end struct {
		token string
		ended bool
	}
	for _, c := range []struct {
		name, text string
		read       func(string) (int, bool)
		want       end
	}{
		{"a comment", "/* a */ b", sqllex.Comment, end{"/* a */", true}},
		{"comments nest", "/* a /* b */ c */ d", sqllex.Comment, end{"/* a /* b */ c */", true}},
		{"a comment without end", "/* a /* b */ c", sqllex.Comment, end{"/* a /* b */ c", false}},
		{"a string", "'a' b", quoted('\'', false), end{"'a'", true}},
		{"a doubled quote is within", "'a''b' c", quoted('\'', false), end{"'a''b'", true}},
		{"a backslash is a character", `'a\' b'`, quoted('\'', false), end{`'a\'`, true}},
		{"a backslash escapes", `'a\' b' c`, quoted('\'', true), end{`'a\' b'`, true}},
		{"a quoted name", `"a""b".c`, quoted('"', false), end{`"a""b"`, true}},
		{"a string without end", "'a''", quoted('\'', false), end{"'a''", false}},
		{"a dollar-quoted string", "$$a$b$$ c", dollar, end{"$$a$b$$", true}},
		{"one with a tag", "$f1$ $$ $f1$ c", dollar, end{"$f1$ $$ $f1$", true}},
		{"a tag may be in any script", "$ф$ ' $ф$ c", dollar, end{"$ф$ ' $ф$", true}},
		{"a parameter is none", "$1 + $2", dollar, end{"", false}},
		{"one without end", "$a$ b", dollar, end{"$a$ b", false}},
		{"a word", "naïve_1$x.y", word, end{"naïve_1$x", true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, ended := c.read(c.text)
			if got := (end{c.text[:n], ended}); got != c.want {
				t.Errorf("%q begins with %+v, want %+v", c.text, got, c.want)
			}
		})
	}
}

func quoted(quote byte, backslashes bool) func(string) (int, bool) {
	return func(text string) (int, bool) { return sqllex.Quoted(text, quote, backslashes) }
}

func dollar(text string) (int, bool) {
	_, n, ended := sqllex.Dollar(text)
	return n, ended
}

func word(text string) (int, bool) { return sqllex.Word(text), true }

func TestOnlyARoutineHasBlocks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		depth           int
		statement, word string
		want            int
	}{
		{0, "CREATE FUNCTION f() BEGIN", "BEGIN", 1},
		{1, "CREATE OR REPLACE PROCEDURE f() BEGIN ATOMIC SELECT case", "case", 2},
		{0, "CREATE FUNCTION f() RETURN CASE", "CASE", 0},
		{1, "CREATE FUNCTION f() BEGIN ATOMIC END", "END", 0},
		{0, "CREATE FUNCTION f() RETURN CASE END", "END", 0},
		{0, "BEGIN", "BEGIN", 0},
	} {
		if got := sqllex.Blocks(c.depth, c.statement, c.word); got != c.want {
			t.Errorf("%q: %d blocks, want %d", c.statement, got, c.want)
		}
	}
}
