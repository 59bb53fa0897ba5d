package main

import (
	"bytes"
	"encoding/json"
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
