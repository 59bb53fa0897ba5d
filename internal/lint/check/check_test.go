package check_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/check"
)

// Each file in testdata is a repository, and in "want" what is found in it: a line for each finding, FILE:LINE:COLUMN: RULE: MESSAGE. A file
// "options" names the migrations, and tables with generated methods.
func TestWhatIsFoundAndWhere(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) < 5 {
		t.Fatal(archives, err)
	}
	found := map[string]bool{}
	for _, archive := range archives {
		content, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		repository := txtar.Parse(content)
		dir := t.TempDir()
		want := ""
		options := &check.Options{Dir: dir}
		for _, file := range repository.Files {
			switch file.Name {
			case "want":
				want = string(file.Data)
				continue
			case "options":
				readOptions(t, string(file.Data), dir, options)
				continue
			}
			write(t, filepath.Join(dir, file.Name), string(file.Data))
		}
		report, err := check.Run(t.Context(), []string{dir}, options)
		if err != nil {
			t.Errorf("%s: %v", archive, err)
			continue
		}
		var got strings.Builder
		for _, f := range report.Findings {
			found[f.Rule] = true
			name := strings.TrimPrefix(f.File, filepath.ToSlash(dir)+"/")
			fmt.Fprintf(&got, "%s:%d:%d: %s: %s\n", name, f.Line, f.Column, f.Rule, f.Message)
			if f.Fix == "" || f.Why == "" || f.Key == "" || !strings.HasSuffix(f.Docs, "/docs/lint/"+f.Rule+".md") {
				t.Errorf("%s: incomplete: %+v", archive, f)
			}
		}
		fmt.Fprintf(&got, "%d exempt, %d presented\n", report.Summary.Exempt, report.Summary.Presented)
		if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", archive, diff)
			if os.Getenv("UPDATE") != "" {
				update(t, archive, repository, got.String())
			}
		}
	}
	for _, rule := range lint.Rules() {
		if !found[rule.Name] {
			t.Errorf("nothing shows what %s finds", rule.Name)
		}
	}
}

// update writes what was found into an archive, for somebody to look at: UPDATE=1 go test.
func update(t *testing.T, path string, archive *txtar.Archive, want string) {
	t.Helper()
	for i := range archive.Files {
		if archive.Files[i].Name == "want" {
			archive.Files[i].Data = []byte(want)
		}
	}
	if err := os.WriteFile(path, txtar.Format(archive), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readOptions(t *testing.T, text, dir string, options *check.Options) {
	t.Helper()
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "migrations":
			for _, name := range words[1:] {
				options.Migrations = append(options.Migrations, filepath.Join(dir, name))
			}
		case "generated":
			options.Generated = func(table *catalog.Table) bool { return slices.Contains(words[1:], table.Label()) }
		case "presented":
			options.Project = &lint.Options{Presented: []lint.Presented{{Paths: words[1:2], Reason: strings.Join(words[2:], " ")}}}
		default:
			t.Fatalf("an option %q", line)
		}
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutAProtectedTableNothingIsSaidToBeWell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.sql"), "CREATE TABLE jobs (id int); UPDATE jobs SET id = 1;")
	var none *check.ErrNoTables
	if _, err := check.Run(t.Context(), []string{dir}, nil); !errors.As(err, &none) {
		t.Errorf("the error is %v", err)
	}
	var path *check.PathError
	if _, err := check.Run(t.Context(), []string{filepath.Join(dir, "none")}, nil); !errors.As(err, &path) {
		t.Errorf("the error is %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := check.Run(t.Context(), []string{filepath.Join(dir, "empty")}, nil); !errors.As(err, &path) {
		t.Errorf("the error is %v", err)
	}
}
