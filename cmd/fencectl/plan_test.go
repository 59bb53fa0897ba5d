package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// The plan is a script, and a script is what somebody runs: all of it, from a database without the schema.
func TestAPlanIsAScriptThatObservesEverything(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, tables)
	pgtest.Exec(t, pool, `CREATE TABLE public."it's $(odd) `+"`# {x}"+`" (id bigint PRIMARY KEY, "order" bigint NOT NULL REFERENCES public.orders ON DELETE CASCADE)`)
	fencectl := newCLI(t, pgtest.DSN(t, pool))
	script := fencectl.ok("plan")
	if !strings.HasPrefix(script, "fencectl install\n\n") || !strings.Contains(script, "\n# Not looked at: statements: pg_stat_statements is not installed") {
		t.Errorf("script:\n%s", script)
	}
	for line := range strings.Lines(script) {
		if len([]rune(strings.TrimRight(line, "\n"))) > 80 && !strings.HasPrefix(line, "fencectl ") {
			t.Errorf("wider than a terminal: %s", line)
		}
	}
	shell := exec.CommandContext(t.Context(), "sh", "-e")
	shell.Stdin = strings.NewReader(script)
	shell.Env = append(os.Environ(), "PATH="+installed(t)+":"+os.Getenv("PATH"), "FENCECTL_DSN="+pgtest.DSN(t, pool))
	if output, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, output, script)
	}
	if diff := cmp.Diff(`billing.accounts row strict allow observe
billing.events row strict allow observe
public."Order Items" row strict allow observe
public."it's $(odd) `+"`# {x}"+`" named public.orders/{order} observe
public.jobs row strict allow observe
public.orders named public.orders/{id} observe`, protection(t, pool)); diff != "" {
		t.Errorf("%s\n%s", diff, script)
	}
	if out := fencectl.ok("plan"); !strings.HasPrefix(out, "# 0 tables without a fence.\n") {
		t.Errorf("afterwards:\n%s", out)
	}
	if o := fencectl.run("plan", "public.jobs"); o.status != 0 || o.stderr != "fencectl: table public.jobs has a fence already: nothing to propose\n" {
		t.Errorf("of a protected table: %+v", o)
	}
	fencectl.fails(2, []string{"did you mean public.jobs?"}, "plan", "public.job")
}

func TestAPlanAsJSON(t *testing.T) {
	t.Parallel()
	_, fencectl := shop(t)
	var report map[string]any
	if err := json.Unmarshal([]byte(fencectl.ok("plan", `public."Order Items"`, "--format", "json")), &report); err != nil {
		t.Fatal(err)
	}
	delete(report, "counted_since")
	want := map[string]any{
		"version": 1.0, "installed": true,
		"proposals": []any{map[string]any{
			"schema": "public", "table": "Order Items", "kind": "row", "mode": "strict", "inserted": 0.0, "updated": 0.0, "deleted": 0.0,
			"reasons":  []any{"No write was seen: there is nothing but its definition to go by. A token in each row needs no claim, and shows who writes."},
			"cautions": []any{}, "command": `fencectl protect 'public."Order Items"' --observe`,
		}},
		"not_seen": []any{map[string]any{
			"what": "statements", "reason": "pg_stat_statements is not installed in this database (CREATE EXTENSION pg_stat_statements)",
		}},
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Error(diff)
	}
}
