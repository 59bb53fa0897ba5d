package results_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/runner"
)

func groups(variants map[string]float64) []results.Group {
	cell := results.Cell{Name: "w/1", Unit: runner.Milliseconds}
	for name, value := range variants {
		cell.Variants = append(cell.Variants, runner.Samples{Variant: name, Values: []float64{value, value, value}})
	}
	return []results.Group{{Name: "w", Cells: []results.Cell{cell}}}
}

func TestATargetIsMetOnItsOwnSide(t *testing.T) {
	for name, c := range map[string]struct {
		took   float64
		atMost bool
		met    bool
	}{
		"below an upper bound": {1.2, true, true}, "at it": {1.25, true, true}, "above it": {1.3, true, false},
		"above a lower bound": {1.3, false, true}, "at a lower one": {1.25, false, true}, "below it": {1.2, false, false},
	} {
		ratio := results.Ratio{Name: "r", Cells: []string{"w/1"}, Variant: "ours", Base: "plain", Same: "plain", Target: 1.25, AtMost: c.atMost}
		figures := results.Evaluate([]results.Ratio{ratio}, groups(map[string]float64{"ours": c.took, "plain": 1, "plain" + results.Again: 1}))
		if len(figures) != 1 || figures[0].Met != c.met || !figures[0].Sure || figures[0].Noise != 1 {
			t.Errorf("%s: %+v", name, figures)
		}
	}
}

func TestARatioWhoseVariantIsMissingIsNoFigure(t *testing.T) {
	ratio := results.Ratio{Name: "r", Cells: []string{"w/1", "w/2"}, Variant: "ours", Base: "plain"}
	if figures := results.Evaluate([]results.Ratio{ratio}, groups(map[string]float64{"ours": 1, "plain": 1})); len(figures) > 0 {
		t.Errorf("%+v, although w/2 was not measured", figures)
	}
}

func TestAFileOfAnotherVersionIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "latest.json")
	if err := results.Replace(path, []byte(`{"version": 2}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := results.Read(path); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("the error is %v", err)
	}
}

func TestAFileIsReplacedWholeAndLeavesNothingBeside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	for _, content := range []string{"a long first version", "short"} {
		if err := results.Replace(filepath.Join(dir, "f"), []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(got) != content {
			t.Errorf("%q, %v", got, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}
