package stats_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/fencectl/fencectl/bench/internal/stats"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestQuantilesInterpolateBetweenRanks(t *testing.T) {
	values := []float64{40, 10, 30, 20} // unsorted, and left so
	for _, c := range []struct{ q, want float64 }{{0, 10}, {0.25, 17.5}, {0.5, 25}, {0.75, 32.5}, {1, 40}} {
		if got := stats.Quantile(values, c.q); !near(got, c.want) {
			t.Errorf("quantile %v is %v, want %v", c.q, got, c.want)
		}
	}
	if values[0] != 40 {
		t.Error("the caller's samples were sorted")
	}
	if !math.IsNaN(stats.Median(nil)) || stats.Median([]float64{7}) != 7 {
		t.Error("no sample, or one")
	}
}

func TestARatioComparesEachRepetitionWithItself(t *testing.T) {
	// The machine is ten times slower in the second half; within every repetition the one takes twice as long as the other.
	slow, fast := []float64{2, 4, 6, 20, 40, 60}, []float64{1, 2, 3, 10, 20, 30}
	if got := stats.Ratio([2][]float64{slow, fast}); !near(got.Value, 2) || !near(got.Low, 2) || !near(got.High, 2) {
		t.Errorf("%+v, want exactly 2", got)
	}
}

func TestARatioOverSeveralSetsIsTheirGeometricMean(t *testing.T) {
	one := []float64{1, 1, 1}
	got := stats.Ratio([2][]float64{{2, 2, 2}, one}, [2][]float64{{8, 8, 8}, one})
	if !near(got.Value, 4) || !near(got.Low, 4) || !near(got.High, 4) {
		t.Errorf("%+v, want exactly 4", got)
	}
}

func TestTheIntervalHoldsTheTruthAsOftenAsItSays(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	const runs, truth = 300, 1.3
	held := 0
	for range runs {
		var a, b []float64
		for range 15 {
			machine := math.Exp(0.5 * random.NormFloat64()) // what both have in common
			a = append(a, truth*machine*math.Exp(0.05*random.NormFloat64()))
			b = append(b, machine*math.Exp(0.05*random.NormFloat64()))
		}
		if r := stats.Ratio([2][]float64{a, b}); r.Low <= truth && truth <= r.High {
			held++
		}
	}
	if share := float64(held) / runs; share < 0.88 || share > 0.999 {
		t.Errorf("the interval held the true ratio in %.0f of 100 runs", 100*share)
	}
}

func TestSameSamplesGiveTheSameInterval(t *testing.T) {
	set := [2][]float64{{1, 3, 2, 5, 4}, {2, 2, 2, 3, 3}}
	if a, b := stats.Ratio(set), stats.Ratio(set); a != b {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestADifferenceMustExceedTheNoise(t *testing.T) {
	for name, c := range map[string]struct {
		estimate stats.Estimate
		noise    float64
		differs  bool
	}{
		"the interval holds 1":           {stats.Estimate{Value: 1.2, Low: 0.9, High: 1.4}, 1.01, false},
		"within what A against A shows":  {stats.Estimate{Value: 1.02, Low: 1.01, High: 1.03}, 1.05, false},
		"beyond it":                      {stats.Estimate{Value: 1.2, Low: 1.1, High: 1.3}, 1.05, true},
		"beyond it, below 1":             {stats.Estimate{Value: 0.8, Low: 0.7, High: 0.9}, 1.05, true},
		"within what A against A, below": {stats.Estimate{Value: 0.97, Low: 0.96, High: 0.98}, 1.05, false},
	} {
		if got := c.estimate.Differs(c.noise); got != c.differs {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := (stats.Estimate{Value: 1, Low: 0.8, High: 1.1}).Noise(); !near(got, 1.25) {
		t.Errorf("noise is %v, want 1.25", got)
	}
}
