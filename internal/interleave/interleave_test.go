package interleave_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/fencectl/fencectl/internal/interleave"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// databases are as many as runs go on at a time.
func databases(t *testing.T, n int) []string {
	t.Helper()
	var all []string
	for range n {
		all = append(all, pgtest.DSN(t, pgtest.New(t)))
	}
	return all
}

// seed is the one of the environment, so that a failure of this test can be repeated as a whole.
func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("FENCECTL_EXPLORE_SEED")
	if text == "" {
		return 1
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// P1 to P3 in every order of a small catalogue; `make explore` has the whole one.
func TestNoOrderBreaksAPromise(t *testing.T) {
	t.Parallel()
	result, err := interleave.Explore(t.Context(), interleave.Options{
		Databases: databases(t, 2), Scenarios: interleave.Scenarios(interleave.Small), Sample: 10, Seed: seed(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range result.Violations {
		t.Errorf("a promise is broken. To run it again: go run ./internal/interleave/explore -replay FILE\n%s", h.Script())
	}
	t.Logf("seed %d: %d interleavings of %d scenarios", seed(t), result.Interleavings, len(result.Scenarios))
}

func TestEveryWrongDesignIsCaught(t *testing.T) {
	t.Parallel()
	for _, d := range interleave.Designs() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			h, err := interleave.Catch(t.Context(), databases(t, 1)[0], d)
			if err != nil {
				t.Fatal(err)
			}
			if h == nil {
				t.Fatalf("no order breaks %s, though %s", d.Breaks, d.Hole)
			}
			t.Logf("%s\n%s", d.Hole, h.Script())
		})
	}
}
