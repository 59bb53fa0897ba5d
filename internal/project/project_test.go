package project_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/project"
)

func TestSettingsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]audit.Options{
		"":                                 {},
		"# nothing yet\n":                  {},
		"audit:\n":                         {},
		"audit: {required: , exempt: []}":  {},
		"---\naudit: {required: [jobs]}\n": {Required: []string{"jobs"}},
		"audit: {required: ['billing.*', '\"Order Items\"', \"2026\"]}": {Required: []string{"billing.*", `"Order Items"`, "2026"}},
		`
audit:
  required: [jobs]
  exempt:
    - table: cache
      reason: &why rebuilt every night
    - key: observing:public.jobs
      reason: *why
`: {Required: []string{"jobs"}, Exempt: []audit.Exemption{
			{Table: "cache", Reason: "rebuilt every night"}, {Key: "observing:public.jobs", Reason: "rebuilt every night"},
		}},
	} {
		settings, err := project.Parse("fencectl.yaml", []byte(content))
		if err != nil {
			t.Errorf("%q: %v", content, err)
			continue
		}
		if diff := cmp.Diff(want, settings.Audit); diff != "" {
			t.Errorf("%q:\n%s", content, diff)
		}
	}
}

// The example in the documentation is one that works.
func TestTheDocumentedExampleIsRead(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/rules/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	settings, err := project.Parse("README.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	want := audit.Options{
		Required: []string{"jobs", "billing.*", `"Order Items"`},
		Exempt:   []audit.Exemption{{Table: "cache", Reason: "rebuilt every night"}, {Key: "observing:public.orders", Reason: "enforced from May on"}},
	}
	if diff := cmp.Diff(want, settings.Audit); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsNotUnderstoodIsAnErrorWithItsLine(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"audits: {}":                                       "fencectl.yaml:1: unknown key audits; did you mean audit?",
		"\n\nwhatever: 1":                                  "fencectl.yaml:3: unknown key whatever; known: audit",
		"audit:\n  require: [jobs]":                        "fencectl.yaml:2: unknown key require in audit; did you mean required?",
		"audit: {exempt: [{tabel: x}]}":                    "fencectl.yaml:1: unknown key tabel in an entry of audit.exempt; did you mean table?",
		"audit: []":                                        "fencectl.yaml:1: audit must be keys and values",
		"[]":                                               "fencectl.yaml:1: the file must be keys and values",
		"audit: {required: jobs}":                          "fencectl.yaml:1: audit.required must be a list",
		"audit: {required: [2026]}":                        "fencectl.yaml:1: a table in audit.required must be a text",
		"audit: {required: ['']}":                          "fencectl.yaml:1: a table in audit.required must be a text",
		"audit: {required: [[jobs]]}":                      "fencectl.yaml:1: a table in audit.required must be a text",
		"audit: {exempt: [jobs]}":                          "fencectl.yaml:1: an entry of audit.exempt must be keys and values",
		"audit: {exempt: [{table: jobs}]}":                 "fencectl.yaml:1: the exemption of jobs needs a reason",
		"audit: {exempt: [{reason: r}]}":                   "fencectl.yaml:1: an entry of audit.exempt names either a table or the key of a finding",
		"audit: {exempt: [{table: a, key: b, reason: r}]}": "fencectl.yaml:1: an entry of audit.exempt names either a table or the key of a finding",
		"audit: {exempt: [{table: a, reason: }]}":          "fencectl.yaml:1: reason must be a text",
		"audit: {}\naudit: {}":                             "fencectl.yaml:2: the key audit is there twice",
		"audit: {}\n---\naudit: {}":                        "fencectl.yaml:2: there is more than one document",
		"audit: {required: [":                              "fencectl.yaml: line 1: did not find expected node content",
	} {
		_, err := project.Parse("fencectl.yaml", []byte(content))
		var wrong *project.Error
		if !errors.As(err, &wrong) || err.Error() != want {
			t.Errorf("%q: got %v, want %s", content, err, want)
		}
	}
}

func TestTheFileIsFoundUpwards(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b")
	// A directory of the name is none.
	if err := os.MkdirAll(filepath.Join(deep, project.FileName), 0o755); err != nil {
		t.Fatal(err)
	}
	if path, err := project.Find(deep); err != nil || strings.HasPrefix(path, root) {
		t.Fatalf("found %q (%v) where there is none", path, err)
	}
	want := filepath.Join(root, project.FileName)
	if err := os.WriteFile(want, []byte("audit: {required: [jobs]}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if path, err := project.Find(deep); err != nil || path != want {
		t.Errorf("found %q (%v), want %s", path, err, want)
	}
	nearer := filepath.Join(root, "a", project.FileName)
	if err := os.WriteFile(nearer, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if path, err := project.Find(deep); err != nil || path != nearer {
		t.Errorf("found %q (%v), want the nearest, %s", path, err, nearer)
	}
	if settings, err := project.Read(want); err != nil || len(settings.Audit.Required) != 1 {
		t.Errorf("read %+v (%v)", settings, err)
	}
	if _, err := project.Read(filepath.Join(root, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading none: %v", err)
	}
}
