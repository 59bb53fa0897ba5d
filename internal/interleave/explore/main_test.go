package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The last line is what a CI job greps for.
func TestTheLastLineSaysWhatWasFound(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"-run", "^row-takeover/row-strict/rc-rc$", "-seed", "5", "-v"}, &stdout, &stderr); err != nil {
		t.Fatal(err, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if last := lines[len(lines)-1]; !regexp.MustCompile(`^explored [1-9]\d* interleavings, 0 violations, 0 of 0 wrong designs caught$`).MatchString(last) {
		t.Errorf("last line %q", last)
	}
	for _, want := range []string{"seed 5, 1 scenarios", "orders  row-takeover/row-strict/rc-rc"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, &stdout)
		}
	}
}

func TestAReplayedViolationIsAFinding(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "script")
	script := `fixture named
		design plain-select
		old: begin read committed; present 33
		old: write item 1
		new: claim nightly 34
		old: commit`
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"-replay", file}, &stdout, &stderr); exitStatus(err) != 1 {
		t.Errorf("error %v, want a finding", err)
	}
	if !strings.Contains(stdout.String(), "# VIOLATION P3: old's write item 1 under token 33 has committed after new's claim") {
		t.Errorf("printed:\n%s", &stdout)
	}
}

func TestWhatCannotBeDoneIsNoFinding(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-run", "no such scenario"}, {"-run", "("}, {"-replay", "/nowhere/script"}, {"-fly"}, {"surplus"}} {
		var stdout, stderr bytes.Buffer
		if err := run(t.Context(), args, &stdout, &stderr); exitStatus(err) != 2 {
			t.Errorf("%q: error %v", args, err)
		}
	}
}
