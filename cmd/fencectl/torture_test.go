package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencectl/fencectl/internal/torture"
	"github.com/fencectl/fencectl/internal/torture/history"
)

// That a run works, with all its processes, is what the command's examples show.

func tortured(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), append([]string{"torture"}, args...), strings.NewReader(""), &out, &errs, func(string) string { return "" })
	return status, out.String(), errs.String()
}

func TestTorturePrintsThePlanOfASeed(t *testing.T) {
	t.Parallel()
	_, first, _ := tortured(t, "--plan", "--duration", "10m", "--seed", "7", "--format", "json")
	_, again, _ := tortured(t, "--plan", "--duration", "10m", "--seed", "7", "--format", "json", "--guards", "off")
	if first != again {
		t.Error("the same seed, another plan")
	}
	var plan torturePlanReport
	if err := json.Unmarshal([]byte(first), &plan); err != nil {
		t.Fatal(err)
	}
	if plan.Seed != 7 || len(plan.Faults) < 200 {
		t.Errorf("seed %d, %d faults", plan.Seed, len(plan.Faults))
	}
	status, table, _ := tortured(t, "--plan", "--duration", "1m", "--seed", "7")
	if status != statusFine || !strings.Contains(table, string(torture.PromoteStandby)) || !strings.HasSuffix(table, "faults from seed 7\n") {
		t.Errorf("status %d\n%s", status, table)
	}
}

func TestTortureWithoutASeedSaysWhichItTook(t *testing.T) {
	t.Parallel()
	seeds := map[uint64]bool{}
	for range 3 {
		_, out, _ := tortured(t, "--plan", "--format", "json")
		var plan torturePlanReport
		if err := json.Unmarshal([]byte(out), &plan); err != nil {
			t.Fatal(err)
		}
		seeds[plan.Seed] = true
	}
	if len(seeds) < 2 {
		t.Errorf("always the same: %v", seeds)
	}
}

func TestTortureRefusesWhatMakesNoRun(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--duration", "10ms"},
		{"--workers", "1"},
		{"--guards", "maybe"},
		{"--synchronous-commit", "maybe"},
		{"--duration", "soon"},
		{"extra"},
		{"--html", "/does/not/exist/torture.html"},
	} {
		if status, out, errs := tortured(t, args...); status != statusError || out != "" || errs == "" {
			t.Errorf("%q: status %d, %q, %q", args, status, out, errs)
		}
	}
}

// tortureExample is a report with something in every field.
func tortureExample() *torture.Report {
	const lock, worker = "postgres-1", "w1.1"
	row := history.NewTarget(history.Reentrant, lock, 0)
	h := &history.History{
		Ops: []*history.Op{
			{ID: "w1.1#1", Worker: worker, Kind: history.Grant, Lock: lock, Source: "postgres", Token: 2, Invoked: 1, Returned: 2, Outcome: history.OK},
			{ID: "w1.1#2", Worker: worker, Kind: history.Write, Lock: lock, Token: 2, Targets: []history.Target{row}, Invoked: 3, Returned: 4, Outcome: history.OK, Rows: map[history.Target]history.Row{row: {Version: 1, Op: "w1.1#2"}}},
			{ID: "w2.1#1", Worker: "w2.1", Kind: history.Write, Lock: lock, Token: 1, Targets: []history.Target{row}, Basis: map[history.Target]string{row: ""}, Invoked: 5, Returned: 6, Outcome: history.OK},
			{ID: "w2.1#2", Worker: "w2.1", Kind: history.Write, Lock: lock, Token: 1, Targets: []history.Target{row}, Invoked: 7, Returned: 8, Outcome: history.Refused, Refusal: history.Stale, Stored: 2, Note: "stale"},
		},
		Effects: []history.Effect{{Op: "w1.1#2", Target: row, Version: 1, Token: 2}, {Op: "w2.1#1", Target: row, Version: 2, Token: 1}},
		Rows:    map[history.Target]history.Row{row: {Version: 2, Op: "w2.1#1"}},
	}
	fault := torture.Fault{Lane: "worker 1", At: time.Second, Kind: torture.PauseWorker, Worker: 1, For: time.Second, By: time.Second}
	return &torture.Report{
		Options: torture.Options{Seed: 7, Duration: time.Minute, Workers: 2, GuardsOff: true}, ServerVersion: 15, Missing: []string{"a pooler"}, Took: time.Minute,
		Planned: []torture.Fault{fault, fault}, Injected: []torture.Injected{{Fault: fault, Began: time.Second, Ended: 2 * time.Second, Note: "it held a lock"}},
		History: h, Verdict: history.Check(h, nil),
	}
}

func TestTheReportOfATortureSaysWhatHappened(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{stdout: &out, getenv: func(string) string { return "" }}
	a.printTorture(tortureExample())
	for _, want := range []string{
		"Seed 7, 1m0s, 2 workers, PostgreSQL 15, guards OFF\n", "Not here: a pooler\n", "write       2        1", "stale: an older token than the fence's",
		"worker stopped past its lease (SIGSTOP, SIGCONT)        2         1\n", "stale-write, reentrant/postgres-1/0: ", "w2.1#1 write postgres-1 token 1 ",
		"4 operations, 1 refused, 1 fault, 3 violations.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}

func TestTheJSONOfATortureIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, report := range []any{reportOfTorture(tortureExample()), torturePlanReport{Faults: []torturePlannedFault{{ForMS: 1, ByMS: 1}}}} {
		text, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}
		var document any
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
		names := fieldNames(document)
		if len(names) < 4 {
			t.Errorf("only %q", names)
		}
		for _, name := range names {
			if !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("docs/json.md does not name the field %s", name)
			}
		}
	}
}

// fieldNames lists the names of all fields in a JSON document. Those that are data are the names of rows, and have a slash.
func fieldNames(document any) (names []string) {
	switch d := document.(type) {
	case map[string]any:
		for name, value := range d {
			if !strings.Contains(name, "/") {
				names = append(names, name)
			}
			names = append(names, fieldNames(value)...)
		}
	case []any:
		for _, value := range d {
			names = append(names, fieldNames(value)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
