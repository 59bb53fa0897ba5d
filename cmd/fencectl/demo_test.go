package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencectl/fencectl/internal/demo"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// demonstrate runs fencectl demo on the tests' server.
func demonstrate(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	pool := pgtest.NewEmpty(t)
	args = append([]string{"demo", "--dsn", pgtest.DSN(t, pool)}, args...)
	status = run(t.Context(), args, strings.NewReader(""), &out, &errs, func(string) string { return "" })
	return status, out.String(), errs.String()
}

func TestDemoEndsWithATableThatSaysWhatHappenedWithoutAndWith(t *testing.T) {
	t.Parallel()
	status, out, errs := demonstrate(t)
	if status != statusFine || errs != "" {
		t.Fatalf("status %d, stderr:\n%s", status, errs)
	}
	table := out[strings.LastIndex(out, "\n\n")+2:]
	if !regexp.MustCompile(`^SCENARIO +WITHOUT +WITH\n`).MatchString(table) {
		t.Errorf("the last part is no table:\n%s", table)
	}
	for _, s := range demo.Scenarios() {
		if !regexp.MustCompile(`(?m)^` + s.Name + ` +DAMAGED: .* +intact: `).MatchString(table) {
			t.Errorf("the table has no line that says %s was damaged without, and intact with protection:\n%s", s.Name, table)
		}
	}
	if !regexp.MustCompile(`(?m)^audit +[1-9]\d* findings? +0 findings$`).MatchString(table) {
		t.Errorf("the table does not say that the audit ended clean:\n%s", table)
	}
	if !strings.Contains(out, "REFUSED, SQLSTATE ZF001") {
		t.Error("the server's refusal is not shown")
	}
	for line := range strings.Lines(out) {
		if length := len([]rune(strings.TrimRight(line, "\n"))); length > 80 {
			t.Errorf("a line of %d characters: %s", length, line)
		}
	}
}

func TestDemoOfOneScenarioShowsItAlone(t *testing.T) {
	t.Parallel()
	status, out, errs := demonstrate(t, "sleeping-owner", "--format", "json")
	if status != statusFine || errs != "" {
		t.Fatalf("status %d, stderr:\n%s", status, errs)
	}
	var report demoReport
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in:\n%s", err, out)
	}
	if len(report.Scenarios) != 1 || report.Scenarios[0].Name != "sleeping-owner" || report.Audit != nil {
		t.Errorf("the report is of something else:\n%s", out)
	}
	if !report.Scenarios[0].Without.Damaged || report.Scenarios[0].With.Damaged || len(report.Problems) != 0 {
		t.Errorf("the report does not say what happened:\n%s", out)
	}
}

func TestDemoWritesItsPageAndSaysWhere(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "demo.html")
	if err := os.WriteFile(name, []byte("an older one"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, errs := demonstrate(t, "sleeping-owner", "token-apart", "--html", name)
	if status != statusFine || errs != "fencectl: the timelines are in "+name+": open it in a browser\n" {
		t.Fatalf("status %d, stderr:\n%s", status, errs)
	}
	if !strings.Contains(out, "DAMAGED") {
		t.Errorf("it does not tell what happens as well:\n%s", out)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`id="sleeping-owner"`, `id="token-apart"`, "refused, SQLSTATE ZF001", "</html>"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page has no %s", want)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(name)); err != nil || len(left) != 1 {
		t.Errorf("beside it there are %v, %v", left, err)
	}
}

func TestDemoThatFailsLeavesAnEarlierPageAsItWas(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "demo.html")
	if err := os.WriteFile(name, []byte("an older one"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, _, errs := demonstrate(t, "token-apart", "--html", name, "--redis-url", "redis://127.0.0.1:1")
	if status != statusError || !strings.Contains(errs, "redis at 127.0.0.1:1: ") || !strings.Contains(errs, "leave out --redis-url") {
		t.Errorf("status %d, stderr: %s", status, errs)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "an older one" {
		t.Errorf("the page is %.40q, %v", text, err)
	}
	if left, err := os.ReadDir(filepath.Dir(name)); err != nil || len(left) != 1 {
		t.Errorf("beside it there are %v, %v", left, err)
	}
}

func TestDemoRefusesWhatItCannotDoBeforeItBegins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"--html: " + dir + " is a directory":                           {"--html", dir},
		"--html: there is no directory " + dir + "/none":               {"--html", dir + "/none/demo.html"},
		"--list runs nothing: it takes no scenario and no --html":      {"--list", "--html", dir + "/demo.html"},
		"--redis-url is no URL such as redis://host:6379/0":            {"token-apart", "--redis-url", "not a URL: hunter2"},
		"unknown flag: --etcd-endpoint; did you mean --etcd-endpoints": {"--etcd-endpoint", "127.0.0.1:2379"},
	} {
		status, out, errs := demonstrate(t, args...)
		if status != statusError || !strings.Contains(errs, want) || out != "" || strings.Contains(errs, "hunter2") {
			t.Errorf("%q: status %d, stdout %.60q, stderr %q; want %q", args, status, out, errs, want)
		}
	}
}

func TestDemoSaysWhyItCannotUseTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	role := pgtest.Role(t, pool)
	for want, dsn := range map[string]string{
		"127.0.0.1:1":              "postgres://nobody@127.0.0.1:1/none?connect_timeout=2",
		"use a role with CREATEDB": role.DSN,
	} {
		var out, errs bytes.Buffer
		status := run(t.Context(), []string{"demo", "sleeping-owner", "--dsn", dsn}, strings.NewReader(""), &out, &errs, func(string) string { return "" })
		if status != statusError || !strings.Contains(errs.String(), want) {
			t.Errorf("status %d, stderr %q; want %q", status, errs.String(), want)
		}
	}
}

func TestDemoListNamesEveryScenario(t *testing.T) {
	t.Parallel()
	status, out, _ := demonstrate(t, "--list")
	if status != statusFine {
		t.Fatalf("status %d", status)
	}
	for _, s := range demo.Scenarios() {
		if !strings.Contains(out, s.Name) {
			t.Errorf("%s is missing from:\n%s", s.Name, out)
		}
	}
}

func TestDemoOfAnUnknownScenarioSuggestsOne(t *testing.T) {
	t.Parallel()
	status, _, errs := demonstrate(t, "sleping-owner")
	if status != statusError || !strings.Contains(errs, "did you mean sleeping-owner?") {
		t.Errorf("status %d, stderr: %s", status, errs)
	}
}

func TestDemoThatProvesNothingFails(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	a := &app{stderr: &errs}
	s := demo.Scenarios()[0]
	for name, r := range map[string]demo.Result{
		"the control shows no damage": {Scenario: s},
		"the fence lets it through":   {Scenario: s, Without: demo.Round{Damaged: true}, With: demo.Round{Damaged: true}},
	} {
		errs.Reset()
		err := a.judgeDemo(&demo.Report{Results: []demo.Result{r}})
		if status := statusOf(t.Context(), err); status != statusRefused {
			t.Errorf("%s: status %d, want %d", name, status, statusRefused)
		}
		if !strings.HasPrefix(errs.String(), "fencectl: not proven: "+s.Name) {
			t.Errorf("%s: it says %q", name, errs.String())
		}
	}
	if err := a.judgeDemo(&demo.Report{Results: []demo.Result{{Scenario: s, Without: demo.Round{Damaged: true}}}}); err != nil {
		t.Errorf("a demo that has shown everything fails: %v", err)
	}
}
