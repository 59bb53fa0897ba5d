package docs_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// action is the part of action.yml that a composite action has.
type action struct {
	Name, Description string
	Branding          map[string]string
	Inputs            map[string]struct{ Description, Default string }
	Runs              struct {
		Using string
		Steps []struct {
			Name, Uses, Shell, Run string
			WorkingDirectory       string `yaml:"working-directory"`
			With, Env              map[string]string
		}
	}
}

func readAction(t *testing.T) action {
	t.Helper()
	var a action
	decoder := yaml.NewDecoder(strings.NewReader(read(t, "action.yml")))
	decoder.KnownFields(true)
	if err := decoder.Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

// yamlBlocks are the YAML blocks of docs/ci.md, decoded.
func yamlBlocks(t *testing.T) []yaml.Node {
	t.Helper()
	all, _ := blocks(t, "docs/ci.md")
	var documents []yaml.Node
	for _, b := range all {
		if b.language != "yaml" {
			continue
		}
		var document yaml.Node
		if err := yaml.Unmarshal([]byte(b.text), &document); err != nil {
			t.Errorf("%s: %v", b, err)
			continue
		}
		documents = append(documents, document)
	}
	return documents
}

// walk visits every mapping and scalar of a document.
func walk(node *yaml.Node, visit func(*yaml.Node)) {
	visit(node)
	for _, below := range node.Content {
		walk(below, visit)
	}
}

func TestTheCIRecipesUseWhatThereIs(t *testing.T) {
	binary := fencectl(t)
	inputs := slices.Sorted(maps.Keys(readAction(t).Inputs))
	var hooks []struct{ ID, Entry string }
	if err := yaml.Unmarshal([]byte(read(t, ".pre-commit-hooks.yaml")), &hooks); err != nil {
		t.Fatal(err)
	}
	documents := yamlBlocks(t)
	var definition yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, ".pre-commit-hooks.yaml")), &definition); err != nil {
		t.Fatal(err)
	}
	commands, uses, ids := 0, 0, 0
	for _, document := range append(documents, definition) {
		walk(&document, func(node *yaml.Node) {
			if node.Kind == yaml.ScalarNode && (strings.HasPrefix(node.Value, "fencectl audit ") || strings.HasPrefix(node.Value, "fencectl lint")) {
				commands++
				shell := exec.CommandContext(t.Context(), "bash", "-c", node.Value+" --help")
				shell.Env = append(withoutDatabase(os.Environ()), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
				if output, err := shell.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", node.Value, err, output)
				}
			}
			if node.Kind != yaml.MappingNode {
				return
			}
			var step struct {
				Uses, ID string
				Args     []string
				With     map[string]any
			}
			if err := node.Decode(&step); err != nil {
				return // a mapping of something else
			}
			if strings.HasPrefix(step.Uses, "fencectl/fencectl@") {
				uses++
				for name := range step.With {
					if !slices.Contains(inputs, name) {
						t.Errorf("the action has no input %s; it has %q", name, inputs)
					}
				}
			}
			if step.ID != "" && step.Args != nil {
				ids++
				i := slices.IndexFunc(hooks, func(h struct{ ID, Entry string }) bool { return h.ID == step.ID })
				if i < 0 {
					t.Fatalf("there is no hook %s", step.ID)
				}
				words := append(strings.Fields(hooks[i].Entry)[1:], append(step.Args, "--help")...)
				if output, err := exec.CommandContext(t.Context(), binary, words...).CombinedOutput(); err != nil {
					t.Errorf("the hook's %q: %v\n%s", words, err, output)
				}
			}
		})
	}
	if commands < 6 || uses < 3 || ids != 2 {
		t.Errorf("only %d commands, %d uses of the action and %d of the hook were found", commands, uses, ids)
	}
}

func TestTheActionsInputsAreDeclaredUsedAndDocumented(t *testing.T) {
	a := readAction(t)
	if a.Runs.Using != "composite" || a.Name == "" || a.Description == "" {
		t.Errorf("%+v is no composite action", a)
	}
	used := map[string]bool{}
	for _, step := range a.Runs.Steps {
		if (step.Run == "") == (step.Uses == "") || (step.Run != "") != (step.Shell != "") {
			t.Errorf("step %+v has not exactly one of uses, and run with shell", step)
		}
		// Within a script an input would be part of it.
		if strings.Contains(step.Run, "${{") {
			t.Errorf("step %s has an expression in its script", step.Name)
		}
		for _, value := range step.Env {
			for _, match := range regexp.MustCompile(`\$\{\{ inputs\.([a-z-]+) \}\}`).FindAllStringSubmatch(value, -1) {
				used[match[1]] = true
			}
		}
		for name := range step.Env {
			if !strings.Contains(step.Run, "$"+name) {
				t.Errorf("step %s does not use %s", step.Name, name)
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(a.Inputs)), slices.Sorted(maps.Keys(used))); diff != "" {
		t.Errorf("inputs (-declared +used):\n%s", diff)
	}
	page := read(t, "docs/ci.md")
	for name := range a.Inputs {
		if !strings.Contains(page, "| `"+name+"` |") {
			t.Errorf("docs/ci.md does not have the input %s", name)
		}
	}
}

// The step that audits, as GitHub runs it: its script in bash, with the inputs in its variables.
func TestTheActionAudits(t *testing.T) {
	a := readAction(t)
	step := a.Runs.Steps[len(a.Runs.Steps)-1]
	temp := t.TempDir()
	if err := os.MkdirAll(filepath.Join(temp, "fencectl"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fencectl(t), filepath.Join(temp, "fencectl", "fencectl")); err != nil {
		t.Fatal(err)
	}
	pool, other := pgtest.New(t), pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	dir := t.TempDir()
	settings := "audit: {required: [jobs]}\nenvironments: {production: {audit: {severities: {unfenced-table: off}}}}\n"
	if err := os.WriteFile(filepath.Join(dir, "settings.yaml"), []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	audit := func(inputs map[string]string, job ...string) (status int, output string) {
		t.Helper()
		shell := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.Run)
		shell.Dir = dir
		shell.Env = append(withoutDatabase(os.Environ()), "RUNNER_TEMP="+temp)
		shell.Env = append(shell.Env, job...)
		for variable, value := range step.Env {
			for name, input := range a.Inputs {
				given, ok := inputs[name]
				if !ok {
					given = input.Default
				}
				value = strings.ReplaceAll(value, "${{ inputs."+name+" }}", given)
			}
			shell.Env = append(shell.Env, variable+"="+value)
		}
		out, err := shell.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return shell.ProcessState.ExitCode(), string(out)
	}
	one, two := pgtest.DSN(t, pool), pgtest.DSN(t, other)
	const nowhere = "postgres://app@127.0.0.1:1/gone"

	if status, out := audit(map[string]string{"dsn": one}); status != 0 || !strings.Contains(out, "\n::warning title=unfenced-table%3A public.jobs::") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	if status, out := audit(map[string]string{"fail-on": "warning"}, "DATABASE_URL="+one); status != 1 || !strings.Contains(out, "::warning title=unfenced-table") {
		t.Errorf("by the job's variable: exit status %d:\n%s", status, out)
	}
	if status, out := audit(map[string]string{"dsn": one + "\n", "config": "settings.yaml", "env": "production"}); status != 1 ||
		!strings.HasPrefix(out, "::notice title=fencectl audit::1 table, 0 fenced; 1 error\n") {
		t.Errorf("with the project's file: exit status %d:\n%s", status, out)
	}
	status, out := audit(map[string]string{"dsn": one + "\n" + two + "\n" + nowhere, "sarif": "audit.sarif", "html": "audit page.html"})
	if status != 2 || !strings.Contains(out, "::error title=cannot audit gone on 127.0.0.1%3A1::") || !strings.Contains(out, "::warning title=unfenced-table") {
		t.Errorf("several: exit status %d:\n%s", status, out)
	}
	sarif, err := os.ReadFile(filepath.Join(dir, "audit.sarif"))
	if err != nil || !json.Valid(sarif) {
		t.Errorf("%v in:\n%s", err, sarif)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "audit page.html")); err != nil || !strings.HasPrefix(string(page), "<!DOCTYPE html>") {
		t.Errorf("%v in:\n%s", err, page)
	}
	if status, out := audit(map[string]string{"dsn": two, "html": filepath.Join("none", "audit.html")}); status != 2 || !strings.Contains(out, "no such file or directory") {
		t.Errorf("a report that could not be written: exit status %d:\n%s", status, out)
	}
}

// docs/json.md has the fields that only an audit of several databases, or one with a project's file, prints.
func TestJSONPageNamesEveryFieldOfAnAuditOfSeveral(t *testing.T) {
	binary := fencectl(t)
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	config := filepath.Join(t.TempDir(), "fencectl.yaml")
	settings := "audit: {exempt: [{table: jobs, reason: r, until: 2020-01-01}, {key: k, reason: r, until: 2020-01-01}]}"
	if err := os.WriteFile(config, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), binary, "audit", "--format", "json", "--config", config,
		"--dsn", pgtest.DSN(t, pool), "--dsn", "postgres://app@127.0.0.1:1/gone")
	run.Env = withoutDatabase(os.Environ())
	out, err := run.Output()
	if run.ProcessState.ExitCode() != 2 {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(out, &document); err != nil {
		t.Fatalf("%v in:\n%s", err, out)
	}
	_, section, _ := strings.Cut(read(t, "docs/json.md"), "## `fencectl audit`")
	section, _, _ = strings.Cut(section, "\n## ")
	named := fields(document, false)
	for _, field := range named {
		if !strings.Contains(section, "`"+field+"`") {
			t.Errorf("docs/json.md does not name the field %s", field)
		}
	}
	for _, field := range []string{"error", "failed", "ended_exemptions", "until", "table", "key"} {
		if !slices.Contains(named, field) {
			t.Errorf("the document has no %s:\n%s", field, out)
		}
	}
}

// The step that lints, as GitHub runs it.
func TestTheActionLints(t *testing.T) {
	a := readAction(t)
	step := a.Runs.Steps[len(a.Runs.Steps)-2]
	if step.Name != "Lint" {
		t.Fatalf("the step before the audit is %s", step.Name)
	}
	temp, dir := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(temp, "fencectl"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fencectl(t), filepath.Join(temp, "fencectl", "fencectl")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"my db/1_tables.sql": "CREATE TABLE jobs (id bigint); SELECT fencing.protect('jobs');",
		"queries.sql":        "-- name: A :exec\nUPDATE jobs SET id = 1;\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		paths, failOn string
		status        int
		printed       string
	}{
		{"", "error", 0, ""},
		{"my db\nqueries.sql\n", "error", 1, "::error file=queries.sql,line=2,col=8,title=unfenced-write::"},
		{"my db\nqueries.sql", "never", 0, "::error file=queries.sql"},
		{"none", "error", 2, "none: there is no such file or directory"},
	} {
		shell := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.Run)
		shell.Dir = dir
		shell.Env = append(withoutDatabase(os.Environ()), "RUNNER_TEMP="+temp, "LINT_PATHS="+test.paths, "LINT_FAIL_ON="+test.failOn, "LINT_CONFIG=", "LINT_SARIF=lint.sarif")
		out, err := shell.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if status := shell.ProcessState.ExitCode(); status != test.status || !strings.Contains(string(out), test.printed) {
			t.Errorf("%q: exit status %d:\n%s", test.paths, status, out)
		}
	}
	if sarif, err := os.ReadFile(filepath.Join(dir, "lint.sarif")); err != nil || !json.Valid(sarif) {
		t.Errorf("%v in:\n%s", err, sarif)
	}
}
