package generate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A diff is right when git takes the one text to the other with it.
func TestGitAppliesTheDiff(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same texts each time
	text := func() string {
		var b strings.Builder
		for range random.IntN(40) {
			fmt.Fprintf(&b, "line %d\n", random.IntN(12))
		}
		if random.IntN(4) == 0 {
			b.WriteString("no newline at the end")
		}
		return b.String()
	}
	for i := range 60 {
		before, after := text(), text()
		if random.IntN(2) == 0 && before != "" { // a small change of a longer text
			lines := strings.SplitAfter(strings.Repeat(before, 3), "\n")
			before = strings.Join(lines, "")
			lines[random.IntN(len(lines))] = "changed\n"
			after = strings.Join(lines, "")
		}
		change := Change{Path: "file", Before: []byte(before), After: []byte(after)}
		diff := change.Diff()
		if before == after {
			if diff != "" {
				t.Errorf("%d: equal texts differ: %s", i, diff)
			}
			continue
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		apply := exec.CommandContext(t.Context(), git, "apply", "--unsafe-paths", "-")
		apply.Dir, apply.Stdin = dir, strings.NewReader(diff)
		apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
		if output, err := apply.CombinedOutput(); err != nil {
			t.Fatalf("%d: %v: %s\n%s", i, err, output, diff)
		}
		if got, _ := os.ReadFile(filepath.Join(dir, "file")); string(got) != after {
			t.Errorf("%d: git makes %q of it, want %q", i, got, after)
		}
	}
}

func TestNamesInGo(t *testing.T) {
	t.Parallel()
	taken := map[string]bool{"ctx": true}
	for name, want := range map[string]string{
		"job_id": "jobID", "id": "id", "Order Id": "orderId", "type": "type_", "string": "string_", "ctx": "ctx_", "2026": "x2026", "größe": "größe", "!": "x",
	} {
		if got := variable(name, map[string]bool{"ctx": true}); got != want {
			t.Errorf("%s is the variable %s, want %s", name, got, want)
		}
	}
	if first, second := variable("a b", taken), variable("a_b", taken); first == second {
		t.Errorf("two columns are both the variable %s", first)
	}
	for name, want := range map[string]string{
		"jobs": "fenced_jobs", "windows": "fenced_windows_table", "load_test": "fenced_load_test_table", "a.b": "fenced_a_b",
		"arm64": "fenced_arm64_table", apart("OrderItems"): "fenced_order_items", "x_linux_y": "fenced_x_linux_y",
	} {
		if got := fileStem(name); got != want {
			t.Errorf("%s is in %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]string{"_2026": "X2026", "Name": "Name", "名前": "X名前"} {
		if got := exported(name); got != want {
			t.Errorf("%s is exported as %s, want %s", name, got, want)
		}
	}
}

func TestGoOfAnotherQueryIsNoticed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ours, theirs string
		want         bool
	}{
		{"SELECT sqlc.arg(a), sqlc.arg('b')", "SELECT $1, $2", true},
		{"SELECT sqlc.arg(a), sqlc.arg(a)", "SELECT $1, $1", true},
		{"SELECT sqlc.arg(a), sqlc.arg(a)", "SELECT $1, $2", false},
		{"SELECT sqlc.arg(a)", "SELECT $1, 2", false},
		{"SELECT sqlc.arg(a), 2", "SELECT $1", false},
		{"SELECT 1", "SELECT 2", false},
		{"SELECT sqlc.arg(a)", "SELECT 'a'", false},
	} {
		if _, got := align(test.ours, test.theirs); got != test.want {
			t.Errorf("%s and %s: %t", test.ours, test.theirs, got)
		}
	}
}
