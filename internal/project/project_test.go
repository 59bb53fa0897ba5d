package project_test

import (
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/appschema"
	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/generate"
	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/project"
)

var lastDay = time.Date(2027, 3, 31, 0, 0, 0, 0, time.UTC)

// understood are documents with what they say.
var understood = map[string]project.Settings{
	"":                                 {},
	"# nothing yet\n":                  {},
	"audit:\n":                         {},
	"audit: {required: , exempt: []}":  {},
	"---\naudit: {required: [jobs]}\n": {Audit: audit.Options{Required: []string{"jobs"}}},
	"audit: {required: ['billing.*', '\"Order Items\"', \"2026\"]}": {
		Audit: audit.Options{Required: []string{"billing.*", `"Order Items"`, "2026"}},
	},
	`
audit:
  required: [jobs]
  exempt:
    - table: cache
      reason: &why rebuilt every night
    - key: observing:public.jobs
      reason: *why
`: {Audit: audit.Options{Required: []string{"jobs"}, Exempt: []audit.Exemption{
		{Table: "cache", Reason: "rebuilt every night"}, {Key: "observing:public.jobs", Reason: "rebuilt every night"},
	}}},
	"audit: {exempt: [{table: cache, reason: r, until: 2027-03-31}]}": {
		Audit: audit.Options{Exempt: []audit.Exemption{{Table: "cache", Reason: "r", Until: lastDay}}},
	},
	"audit: {exempt: [{key: k, until: '2027-03-31', reason: r}]}": {
		Audit: audit.Options{Exempt: []audit.Exemption{{Key: "k", Reason: "r", Until: lastDay}}},
	},
	"audit: {severities: {unfenced-table: error, observing: off, unlogged-table: 'info', guard-not-last: warning}}": {
		Audit: audit.Options{Severities: map[string]audit.Severity{
			"unfenced-table": audit.Error, "observing": audit.Off, "unlogged-table": audit.Info, "guard-not-last": audit.Warning,
		}},
	},
	"schema: {migrations: [db/migrations, 'more/*.sql'], extensions: [citext], roles: [app]}": {Schema: appschema.Settings{
		Migrations: []string{"db/migrations", "more/*.sql"}, Extensions: []string{"citext"}, Roles: []string{"app"},
	}},
	"schema: {migrations: }":                        {},
	"generate: {tables: {jobs: , 'billing.*': {}}}": {Generate: generate.Settings{Tables: []generate.Table{{Pattern: "jobs"}, {Pattern: "billing.*"}}}},
	`
generate:
  sqlc: db/sqlc.yaml
  command: [go, tool, sqlc, generate]
  queries: db/queries
  tables:
    jobs:
      name: Work
      insert: [id, payload]
      updates:
        Rename: {set: [title, subtitle]}
        MarkRunning: {set: {status: "'running'", worker: , attempt: 1}, where: "status = 'queued'"}
`: {Generate: generate.Settings{
		SQLC: "db/sqlc.yaml", Command: []string{"go", "tool", "sqlc", "generate"}, Queries: "db/queries",
		Tables: []generate.Table{{Pattern: "jobs", Name: "Work", Insert: []string{"id", "payload"}, Updates: []generate.Update{
			{Name: "Rename", Set: []generate.Assignment{{Column: "title"}, {Column: "subtitle"}}},
			{
				Name: "MarkRunning", Where: "status = 'queued'",
				Set: []generate.Assignment{{Column: "status", Expression: "'running'"}, {Column: "worker"}, {Column: "attempt", Expression: "1"}},
			},
		}}},
	}},
	"lint: {paths: [db, ./...], exclude: ['**/old'], severities: {unfenced-write: off}}": {Lint: lint.Options{
		Paths: []string{"db", "./..."}, Exclude: []string{"**/old"}, Severities: map[string]audit.Severity{"unfenced-write": audit.Off},
	}},
	"lint: {presented: [{paths: [q, 's/*.sql'], reason: r}]}": {Lint: lint.Options{Presented: []lint.Presented{{Paths: []string{"q", "s/*.sql"}, Reason: "r"}}}},
	"lint: {paths: , presented: []}":                          {},
	"audit: {severities: }":                                   {Audit: audit.Options{Severities: map[string]audit.Severity{}}},
	"environments:":                                           {Environments: map[string]project.Environment{}},
	"environments: {staging: , production: {audit: {required: [jobs]}}}": {Environments: map[string]project.Environment{
		"staging": {}, "production": {Audit: audit.Options{Required: []string{"jobs"}}},
	}},
}

// refused are documents with what is wrong with them.
var refused = map[string]string{
	"audits: {}":                                                              "fencectl.yaml:1: unknown key audits; did you mean audit?",
	"\n\nwhatever: 1":                                                         "fencectl.yaml:3: unknown key whatever; known: audit, environments, generate, lint, schema",
	"audit:\n  require: [jobs]":                                               "fencectl.yaml:2: unknown key require in audit; did you mean required?",
	"audit: {exempt: [{tabel: x}]}":                                           "fencectl.yaml:1: unknown key tabel in an entry of audit.exempt; did you mean table?",
	"audit: []":                                                               "fencectl.yaml:1: audit must be keys and values",
	"[]":                                                                      "fencectl.yaml:1: the file must be keys and values",
	"audit: {required: jobs}":                                                 "fencectl.yaml:1: audit.required must be a list",
	"audit: {required: [2026]}":                                               "fencectl.yaml:1: a table in audit.required must be a text",
	"audit: {required: ['']}":                                                 "fencectl.yaml:1: a table in audit.required must be a text",
	"audit: {required: [[jobs]]}":                                             "fencectl.yaml:1: a table in audit.required must be a text",
	"audit: {exempt: [jobs]}":                                                 "fencectl.yaml:1: an entry of audit.exempt must be keys and values",
	"audit: {exempt: [{table: jobs}]}":                                        "fencectl.yaml:1: the exemption of jobs needs a reason",
	"audit: {exempt: [{reason: r}]}":                                          "fencectl.yaml:1: an entry of audit.exempt names either a table or the key of a finding",
	"audit: {exempt: [{table: a, key: b, reason: r}]}":                        "fencectl.yaml:1: an entry of audit.exempt names either a table or the key of a finding",
	"audit: {exempt: [{table: a, reason: }]}":                                 "fencectl.yaml:1: reason must be a text",
	"lint: {path: [a]}":                                                       "fencectl.yaml:1: unknown key path in lint; did you mean paths?",
	"lint: {paths: a}":                                                        "fencectl.yaml:1: lint.paths must be a list",
	"lint: {exclude: ['[a']}":                                                 "fencectl.yaml:1: lint.exclude: [a is no pattern of paths: a [ in it is not closed",
	"lint: {exclude: [/a]}":                                                   "fencectl.yaml:1: lint.exclude: /a is absolute; patterns are relative to the directory of fencectl.yaml",
	"lint: {presented: [{paths: [a]}]}":                                       "fencectl.yaml:1: an entry of lint.presented needs a reason: how the token is presented",
	"lint: {presented: [{reason: r}]}":                                        "fencectl.yaml:1: an entry of lint.presented names no paths",
	"lint: {presented: [{paths: [], reason: r}]}":                             "fencectl.yaml:1: an entry of lint.presented names no paths",
	"lint: {severities: {unfenced-writes: off}}":                              "fencectl.yaml:1: unknown key unfenced-writes in lint.severities; did you mean unfenced-write?",
	"lint: {severities: {unfenced-write: fatal}}":                             "fencectl.yaml:1: the severity of unfenced-write must be one of error, warning, info, off",
	"generate: {table: {}}":                                                   "fencectl.yaml:1: unknown key table in generate; did you mean tables?",
	"generate: {tables: [jobs]}":                                              "fencectl.yaml:1: generate.tables must be keys and values",
	"generate: {tables: {a.b.c: }}":                                           `fencectl.yaml:1: a.b.c is not a table name: it has more than one dot; put a schema or table whose name contains a dot in double quotes, as in '"my.schema".jobs'`,
	"generate: {tables: {t: {name: jobs}}}":                                   "fencectl.yaml:1: generate.tables.t.name must be a name that Go exports, such as MarkRunning",
	"generate: {tables: {t: {updates: {mark: {set: [a]}}}}}":                  "fencectl.yaml:1: the name of an update in generate.tables.t.updates must be a name that Go exports, such as MarkRunning",
	"generate: {tables: {t: {updates: {Mark: {where: x}}}}}":                  "fencectl.yaml:1: generate.tables.t.updates.Mark needs a set: the columns that it sets",
	"generate: {tables: {t: {updates: {Mark: {set: []}}}}}":                   "fencectl.yaml:1: generate.tables.t.updates.Mark needs a set: the columns that it sets",
	"generate: {tables: {t: {updates: {Mark: {set: {a: ''}}}}}}":              "fencectl.yaml:1: generate.tables.t.updates.Mark.set.a must be an SQL expression, or nothing for a parameter",
	"generate: {tables: {t: {updates: {Mark: }}}}":                            "fencectl.yaml:1: generate.tables.t.updates.Mark needs a set: the columns that it sets",
	"generate: {tables: {t: {updates: {Mark: {set: a}}}}}":                    "fencectl.yaml:1: generate.tables.t.updates.Mark.set must be keys and values",
	"generate: {command: sqlc}":                                               "fencectl.yaml:1: generate.command must be a list",
	"schema: {migration: [m]}":                                                "fencectl.yaml:1: unknown key migration in schema; did you mean migrations?",
	"schema: {migrations: m}":                                                 "fencectl.yaml:1: schema.migrations must be a list",
	"schema: {roles: [1]}":                                                    "fencectl.yaml:1: a role in schema.roles must be a text",
	"audit: {}\naudit: {}":                                                    "fencectl.yaml:2: the key audit is there twice",
	"audit: {}\n---\naudit: {}":                                               "fencectl.yaml:2: there is more than one document",
	"audit: {required: [":                                                     "fencectl.yaml: line 1: did not find expected node content",
	"audit: {required: ['\"x']}":                                              "fencectl.yaml:1: \"x is not a table name: the double quote is never closed",
	"audit: {exempt: [{table: a.b.c, reason: r}]}":                            `fencectl.yaml:1: a.b.c is not a table name: it has more than one dot; put a schema or table whose name contains a dot in double quotes, as in '"my.schema".jobs'`,
	"audit:\n  exempt:\n  - table: a\n    untl: 2027-03-31\n    reason: r":    "fencectl.yaml:4: unknown key untl in an entry of audit.exempt; did you mean until?",
	"audit: {exempt: [{table: a, reason: r, until: 2027-02-30}]}":             "fencectl.yaml:1: until must be a date, such as 2027-03-31",
	"audit: {exempt: [{table: a, reason: r, until: '2027-03-31T00:00:00Z'}]}": "fencectl.yaml:1: until must be a date, such as 2027-03-31",
	"audit: {exempt: [{table: a, reason: r, until: soon}]}":                   "fencectl.yaml:1: until must be a date, such as 2027-03-31",
	"audit: {exempt: [{table: a, reason: r, until: }]}":                       "fencectl.yaml:1: until must be a date, such as 2027-03-31",
	"audit: {exempt: [{table: a, reason: r, until: [2027-03-31]}]}":           "fencectl.yaml:1: until must be a date, such as 2027-03-31",
	"audit: {severities: {unfenced-tables: error}}":                           "fencectl.yaml:1: unknown key unfenced-tables in audit.severities; did you mean unfenced-table?",
	"audit: {severities: {observing: fatal}}":                                 "fencectl.yaml:1: the severity of observing must be one of error, warning, info, off",
	"audit: {severities: {observing: }}":                                      "fencectl.yaml:1: the severity of observing must be one of error, warning, info, off",
	"audit: {severities: {observing: false}}":                                 "fencectl.yaml:1: the severity of observing must be one of error, warning, info, off",
	"audit: {severities: [observing]}":                                        "fencectl.yaml:1: audit.severities must be keys and values",
	"environments: [production]":                                              "fencectl.yaml:1: environments must be keys and values",
	"environments: {production: {audits: {}}}":                                "fencectl.yaml:1: unknown key audits in environments.production; did you mean audit?",
	"environments: {production: {audit: {exempted: []}}}":                     "fencectl.yaml:1: unknown key exempted in environments.production.audit; did you mean exempt?",
	"environments: {' ': {}}":                                                 "fencectl.yaml:1: the name of an environment must be a text",
	"environments:\n  a: {}\n  a: {}":                                         "fencectl.yaml:3: the key a is there twice",
}

// documents are all of them.
func documents() iter.Seq[string] {
	return func(yield func(string) bool) {
		for content := range understood {
			if !yield(content) {
				return
			}
		}
		for content := range refused {
			if !yield(content) {
				return
			}
		}
	}
}

func TestSettingsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for content, want := range understood {
		settings, err := project.Parse("fencectl.yaml", []byte(content))
		if err != nil {
			t.Errorf("%q: %v", content, err)
			continue
		}
		if diff := cmp.Diff(&want, settings); diff != "" {
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
	want := &project.Settings{
		Audit: audit.Options{
			Required: []string{"jobs", "billing.*", `"Order Items"`},
			Exempt: []audit.Exemption{
				{Table: "cache", Reason: "rebuilt every night"},
				{Key: "observing:public.orders", Reason: "enforced from May on", Until: time.Date(2027, 5, 31, 0, 0, 0, 0, time.UTC)},
			},
			Severities: map[string]audit.Severity{"observing": audit.Info},
		},
		Environments: map[string]project.Environment{"production": {Audit: audit.Options{
			Required: []string{"orders"}, Severities: map[string]audit.Severity{"observing": audit.Error},
		}}},
	}
	if diff := cmp.Diff(want, settings); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsNotUnderstoodIsAnErrorWithItsLine(t *testing.T) {
	t.Parallel()
	for content, want := range refused {
		_, err := project.Parse("fencectl.yaml", []byte(content))
		var wrong *project.Error
		if !errors.As(err, &wrong) || err.Error() != want {
			t.Errorf("%q: got %v, want %s", content, err, want)
		}
	}
}

func TestAnEnvironmentAddsToWhatHoldsEverywhere(t *testing.T) {
	t.Parallel()
	settings, err := project.Parse("fencectl.yaml", []byte(`
audit:
  required: [jobs]
  exempt: [{table: cache, reason: rebuilt every night}]
  severities: {observing: info, unfenced-table: info}
environments:
  production:
    audit:
      required: [orders]
      exempt: [{table: archive, reason: append-only}]
      severities: {observing: error}
  staging:
    audit: {severities: {observing: off}}
`))
	if err != nil {
		t.Fatal(err)
	}
	exempt := []audit.Exemption{{Table: "cache", Reason: "rebuilt every night"}, {Table: "archive", Reason: "append-only"}}
	for name, want := range map[string]*audit.Options{
		"": {
			Required: []string{"jobs"}, Exempt: exempt[:1],
			Severities: map[string]audit.Severity{"observing": audit.Info, "unfenced-table": audit.Info},
		},
		"production": {
			Required: []string{"jobs", "orders"}, Exempt: exempt,
			Severities: map[string]audit.Severity{"observing": audit.Error, "unfenced-table": audit.Info},
		},
		"staging": {
			Required: []string{"jobs"}, Exempt: exempt[:1],
			Severities: map[string]audit.Severity{"observing": audit.Off, "unfenced-table": audit.Info},
		},
	} {
		got, err := settings.AuditIn(name)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", name, err, diff)
		}
	}
	for name, want := range map[string]string{
		"prodution": "there is no environment prodution; did you mean production?",
		"test":      "there is no environment test; there are: production, staging",
	} {
		if _, err := settings.AuditIn(name); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	if _, err := (&project.Settings{}).AuditIn("test"); err == nil || err.Error() != "there is no environment test: there are none" {
		t.Errorf("without environments: %v", err)
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
