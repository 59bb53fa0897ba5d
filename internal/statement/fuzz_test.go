package statement_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/statement"
)

// What a statement writes does not depend on the comments and white space before and after it, nor on the case of its keywords
// where it quotes nothing.
func FuzzUsesKnowsCommentsAndCase(f *testing.F) {
	for _, text := range []string{
		"UPDATE a SET b = 1", "DELETE FROM a.b", "WITH x AS (INSERT INTO a VALUES (1)) SELECT FROM x FOR UPDATE", "COPY a FROM STDIN",
		"TRUNCATE a, b", "MERGE INTO a USING b ON true WHEN MATCHED THEN DELETE", "INSERT INTO größe DEFAULT VALUES", "UPDATE İ SET a = 1",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		plain := statement.Uses(text)
		if diff := cmp.Diff(plain, statement.Uses("/* DELETE FROM x /* y */ */ -- UPDATE z\n\t"+text)); diff != "" {
			t.Errorf("%q (-plain +after a comment):\n%s", text, diff)
		}
		if strings.ContainsAny(text, `"'$/-`) {
			return
		}
		if ascii := !slices.ContainsFunc([]rune(text), func(r rune) bool { return r > 127 }); ascii {
			if diff := cmp.Diff(plain, statement.Uses(strings.ToUpper(text))); diff != "" {
				t.Errorf("%q (-plain +in upper case):\n%s", text, diff)
			}
		}
	})
}

// A name is mentioned in what mentions it, wherever else the text goes on.
func FuzzMentions(f *testing.F) {
	f.Add("SELECT 1; ")
	f.Add("/* x")
	f.Add("E'")
	f.Fuzz(func(t *testing.T, text string) {
		_ = statement.Mentions(text, "fencing")
		if !statement.Mentions("fencing "+text, "fencing") {
			t.Errorf("not found in front of %q", text)
		}
		if statement.Mentions("-- fencing\n/* fencing */ $1", "fencing") {
			t.Error("found in a comment")
		}
	})
}
