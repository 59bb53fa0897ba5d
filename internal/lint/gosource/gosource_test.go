package gosource_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/lint/gosource"
)

func load(t *testing.T, patterns ...string) *gosource.Source {
	t.Helper()
	source, err := gosource.Load(t.Context(), patterns)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// shown are the fragments, each with where it begins, and whether its transaction presents the token.
func shown(source *gosource.Source) []string {
	var all []string
	for _, f := range source.Fragments {
		begin := len(f.Text) - len(strings.TrimLeft(f.Text, " \t\n"))
		at := f.Place(begin)
		line := fmt.Sprintf("%s:%d:%d %s", at.File[strings.LastIndex(at.File, "/")+1:], at.Line, at.Column, strings.Join(strings.Fields(f.Text), " "))
		if f.PresentedBy != "" {
			line += " (presented)"
		}
		for _, d := range f.Directives {
			line += " (" + d.Rule + ")"
		}
		all = append(all, line)
	}
	return all
}

func TestSQLThatReachesADriverIsFound(t *testing.T) {
	t.Parallel()
	source := load(t, "./testdata/store")
	if diff := cmp.Diff([]string{
		"store.go:19:15 UPDATE jobs SET state = 'done ä' WHERE id = $1",
		"store.go:23:2 UPDATE jobs SET state = 'open'",
		"store.go:47:47 DELETE FROM jobs WHERE note = ' ä' AND id = $1",
		"store.go:52:12 UPDATE jobs SET state = 'local'",
		"store.go:57:15 DELETE FROM jobs",
		"store.go:59:15 DELETE FROM jobs WHERE state = 'new' (unfenced-write) (token-source)",
		`store.go:60:32 COPY "public"."jobs" FROM STDIN`,
		"store.go:70:31 SELECT $1",
		"store.go:76:30 UPDATE jobs SET state = 'in Run' (presented)",
		"store.go:92:26 UPDATE jobs SET state = 'in step' (presented)",
		"store.go:102:43 UPDATE jobs SET state = 'handed over' (presented)",
		"store.go:107:29 UPDATE jobs SET state = 'too early'",
		"store.go:113:26 UPDATE jobs SET state = 'after' (presented)",
	}, shown(source)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(source.Notes) > 0 {
		t.Errorf("%q", source.Notes)
	}
}

// A byte of a constant stands where it does in the source, whatever the constant is made of.
func TestEachByteKnowsItsPlace(t *testing.T) {
	t.Parallel()
	source := load(t, "./testdata/store")
	for _, want := range []struct {
		text, part   string
		line, column int
	}{
		{"'done ä'", "WHERE", 20, 25}, // in the second literal, past a letter of two bytes
		{"'done ä'", "jobs", 17, 16},  // in another constant
		{"'open'", "SET", 24, 5},      // on another line
		{"note", "AND id", 47, 88},    // past escapes, which are longer than what they stand for
	} {
		for _, f := range source.Fragments {
			if !strings.Contains(f.Text, want.text) {
				continue
			}
			if at := f.Place(strings.Index(f.Text, want.part)); at.Line != want.line || at.Column != want.column {
				t.Errorf("%s in %s is at %d:%d, want %d:%d", want.part, want.text, at.Line, at.Column, want.line, want.column)
			}
			if line := f.Line(strings.Index(f.Text, want.part)); !strings.Contains(line, want.part) {
				t.Errorf("%s is not in the line %q", want.part, line)
			}
			break
		}
	}
}

func TestAQueryIsPresentedWhereEveryCallIs(t *testing.T) {
	t.Parallel()
	source := load(t, "./testdata/store/...")
	for name, want := range map[string]gosource.Usage{
		"Mark":    {Known: true, Presented: true},
		"Twice":   {Known: true, Outside: "testdata/store/store.go:117"},
		"Never":   {Known: true},
		"Nothing": {},
	} {
		if diff := cmp.Diff(want, source.Query("jobs.sql", name)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := source.Query("other.sql", "Mark"); got.Known {
		t.Error("a file that nobody generated from")
	}
}

func TestAPackageThatDoesNotCompileIsReadAsFarAsItGoes(t *testing.T) {
	t.Parallel()
	source := load(t, "./testdata/broken")
	if diff := cmp.Diff([]string{"broken.go:10:17 DELETE FROM jobs", "broken.go:15:23 UPDATE jobs SET state = 1"}, shown(source)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(source.Notes) != 1 || !strings.Contains(source.Notes[0], "testdata/broken does not compile") {
		t.Errorf("%q", source.Notes)
	}
}

// GORM is in a module of its own, which its example is in.
func TestGORMsParametersAreUnderstood(t *testing.T) {
	t.Parallel()
	source := load(t, "../../../examples/gorm/...")
	if diff := cmp.Diff("SELECT fencing.present($1)", source.Fragments[0].Text); diff != "" {
		t.Error(diff)
	}
}
