// Package stats is the little statistics that the benchmarks need: quantiles, and the ratio of two sets of paired samples with a
// confidence interval. It knows nothing of what was measured.
package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Resamples is how many bootstrap samples an interval is made of.
const Resamples = 2000

// Quantile is the q-quantile (0 to 1) of values, interpolated linearly between the two nearest ranks; NaN without values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	position := q * float64(len(sorted)-1)
	below := int(math.Floor(position))
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (position-float64(below))*(sorted[above]-sorted[below])
}

// Median is the middle of values; NaN without values.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Estimate is a value with the interval that holds it in 95 of 100 cases.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Ratio estimates how many times as great as base the values are. Both have one sample for each repetition, in the same order, and each
// repetition is compared with itself: what disturbed the machine meanwhile disturbed both.
//
// The value is the geometric mean, over the sets, of the median ratio of the pairs. The interval is the percentile bootstrap over
// the repetitions, with a fixed seed: the same samples give the same interval.
func Ratio(sets ...[2][]float64) Estimate {
	logs := make([][]float64, len(sets))
	for i, set := range sets {
		n := min(len(set[0]), len(set[1]))
		for j := range n {
			logs[i] = append(logs[i], math.Log(set[0][j]/set[1][j]))
		}
	}
	value := math.Exp(meanOfMedians(logs))
	random := rand.New(rand.NewPCG(1, 2))
	means := make([]float64, Resamples)
	drawn := make([][]float64, len(logs))
	for r := range means {
		for i, l := range logs {
			drawn[i] = drawn[i][:0]
			for range l {
				drawn[i] = append(drawn[i], l[random.IntN(len(l))])
			}
		}
		means[r] = meanOfMedians(drawn)
	}
	return Estimate{Value: value, Low: math.Exp(Quantile(means, 0.025)), High: math.Exp(Quantile(means, 0.975))}
}

func meanOfMedians(sets [][]float64) float64 {
	sum := 0.0
	for _, set := range sets {
		sum += Median(set)
	}
	return sum / float64(len(sets))
}

// Noise is how far the estimate of a ratio that is 1 in truth can be from 1, as a factor of at least 1: the farther end of its
// interval.
func (e Estimate) Noise() float64 { return math.Max(1, math.Max(e.High, 1/e.Low)) }

// Differs tells whether the estimate shows a difference from 1 at all: its interval does not hold 1, and the value is outside what
// the noise alone brings about.
func (e Estimate) Differs(noise float64) bool {
	return (e.Low > 1 || e.High < 1) && math.Max(e.Value, 1/e.Value) > noise
}
