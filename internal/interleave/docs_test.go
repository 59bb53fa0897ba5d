package interleave

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The page that says what is explored lists the designs as they are, and shows a script that does what it says.
func TestTheDocumentationIsRight(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	for _, d := range Designs() {
		if line := fmt.Sprintf("| `%s` | %s | %s |\n", d.Name, d.Breaks, d.Hole); !strings.Contains(page, line) {
			t.Errorf("docs/proof.md has no line %s", line)
		}
	}

	_, script, found := strings.Cut(page, "```text\n# scenario")
	script, _, closed := strings.Cut("# scenario"+script, "```")
	if !found || !closed {
		t.Fatal("docs/proof.md shows no script")
	}
	dsn := database(t)
	h, err := replayed(t, dsn, script)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(script, h.Script()); diff != "" {
		t.Errorf("(-shown +replayed):\n%s", diff)
	}
	_, err = replayed(t, dsn, strings.Replace(script, "design for-key-share", "design guards", 1))
	if err == nil || !strings.Contains(err.Error(), "new cannot go on here") {
		t.Errorf("under the guards the script ends with %v; the page says that its order cannot be", err)
	}
}
