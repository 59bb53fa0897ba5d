package report_test

import (
	"encoding/xml"
	"flag"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/bench/internal/report"
	"github.com/fencectl/fencectl/bench/internal/results"
)

var update = flag.Bool("update", false, "write the expected files anew")

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func sample(t *testing.T) *results.Results {
	t.Helper()
	r, err := results.Read("testdata/results.json")
	if err != nil {
		t.Fatal(err)
	}
	r.Figures = results.Evaluate(ratios, r.Measured)
	return r
}

// The files hold two workloads of made-up samples: rates with a difference, one within the noise and a missing service; and times by
// size.
func TestThePageAndThePlotsFollowFromTheResultsAlone(t *testing.T) {
	files := report.Files(sample(t))
	expected := "testdata/expected"
	if *update {
		if err := os.RemoveAll(expected); err != nil {
			t.Fatal(err)
		}
		for path, content := range files {
			if err := results.Replace(filepath.Join(expected, path), content); err != nil {
				t.Fatal(err)
			}
		}
	}
	var names []string
	if err := filepath.WalkDir(expected, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, relErr := filepath.Rel(expected, path)
			names, err = append(names, filepath.ToSlash(name)), relErr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(names)), slices.Sorted(maps.Keys(files))); diff != "" {
		t.Fatalf("files (-expected +made):\n%s", diff)
	}
	for _, name := range names {
		if diff := cmp.Diff(read(t, filepath.Join(expected, name)), string(files[name])); diff != "" {
			t.Errorf("%s (-expected +made; go test -update writes it anew):\n%s", name, diff)
		}
	}
}

func TestEveryPlotIsAnXMLDocumentInsideItsFrame(t *testing.T) {
	plots := 0
	for name, content := range report.Files(sample(t)) {
		if filepath.Ext(name) != ".svg" {
			continue
		}
		plots++
		decoder := xml.NewDecoder(strings.NewReader(string(content)))
		for {
			_, err := decoder.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if strings.Contains(string(content), "NaN") || strings.Contains(string(content), "Inf") {
			t.Errorf("%s has something that is no number", name)
		}
		if !strings.Contains(string(content), "prefers-color-scheme:dark") {
			t.Errorf("%s has no colours for a dark page", name)
		}
	}
	if plots < 3 {
		t.Errorf("only %d plots", plots)
	}
}

func repository(t *testing.T, readme string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range map[string]string{"README.md": readme, "docs/benchmarks/gone.svg": "<svg/>", "docs/other.md": "other"} {
		if err := results.Replace(filepath.Join(root, path), []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestWritingReplacesTheFiguresInTheReadmeAndLeavesTheRest(t *testing.T) {
	const begin, end = "<!-- figures: made by make bench -->\n", "<!-- end of figures -->\n"
	root := repository(t, "# Title\n"+begin+"- old\n"+end+"after\n")
	for range 2 {
		if err := report.Write(root, sample(t)); err != nil {
			t.Fatal(err)
		}
		want := "# Title\n" + begin +
			"- single-row transactions whose statement sets the token: **0.90** times the rate of those with the hand-written predicate\n" +
			end + "after\n"
		if diff := cmp.Diff(want, read(t, filepath.Join(root, "README.md"))); diff != "" {
			t.Errorf("README (-want +got):\n%s", diff)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "docs/benchmarks/gone.svg")); !os.IsNotExist(err) {
		t.Errorf("the plot of a workload that is gone is still there (%v)", err)
	}
	if read(t, filepath.Join(root, "docs/other.md")) != "other" {
		t.Error("another page was changed")
	}
}

func TestAQuickRunGivesTheReadmeNoFiguresAndThePageAWarning(t *testing.T) {
	const begin, end = "<!-- figures: made by make bench -->\n", "<!-- end of figures -->\n"
	root := repository(t, begin+"- old\n"+end)
	r := sample(t)
	r.Run.Quick = true
	if err := report.Write(root, r); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, filepath.Join(root, "README.md")), begin+"- not measured in full yet: `make bench`\n"+end; got != want {
		t.Errorf("README: %q", got)
	}
	if !strings.Contains(read(t, filepath.Join(root, "docs/benchmarks.md")), "**This page is of a quick run") {
		t.Error("the page does not say that it is of a quick run")
	}
}

func TestAReadmeWithoutMarksChangesNothing(t *testing.T) {
	root := repository(t, "# Title\n")
	if err := report.Write(root, sample(t)); err == nil || !strings.Contains(err.Error(), "README.md") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "docs/benchmarks.md")); !os.IsNotExist(err) {
		t.Errorf("the page was written all the same (%v)", err)
	}
}
