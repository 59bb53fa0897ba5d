// Package runner measures variants of one workload against each other: interleaved, in random order, warm. It knows neither
// databases nor results' files; what is run belongs to package workload.
package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencectl/fencectl/bench/internal/stats"
)

// Unit is what a sample counts.
type Unit string

// The units. Of rates more is better, of times less.
const (
	PerSecond    Unit = "1/s"
	Milliseconds Unit = "ms"
)

// A Variant is one way to do a workload's work.
type Variant struct {
	Name string
	// Prepare brings the variant's data into the state in which every sample begins. It is not measured. It may be nil.
	Prepare func(ctx context.Context) error
	// Run does the work once and returns the sample.
	Run func(ctx context.Context) (float64, error)
}

// A Cell is one workload under one set of circumstances, in several variants.
type Cell struct {
	Name        string // unique
	Unit        Unit
	Repetitions int
	Variants    []Variant
	// BeforeRepetition is run, unmeasured, before each repetition of all variants; it may be nil.
	BeforeRepetition func(ctx context.Context) error
}

// Samples are a variant's, one for each repetition, in order.
type Samples struct {
	Variant string    `json:"variant"`
	Values  []float64 `json:"samples"`
	Median  float64   `json:"median"`
	Q1      float64   `json:"q1"`
	Q3      float64   `json:"q3"`
}

// Run measures a cell. Every variant is run once without being counted. Then each repetition runs all variants once, in an
// order of its own, so that neither the warmth of the machine nor what the predecessor left behind favours any.
func Run(ctx context.Context, cell Cell, random *rand.Rand) ([]Samples, error) {
	all := make([]Samples, len(cell.Variants))
	for i, v := range cell.Variants {
		all[i].Variant = v.Name
	}
	for repetition := -1; repetition < cell.Repetitions; repetition++ {
		if cell.BeforeRepetition != nil {
			if err := cell.BeforeRepetition(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", cell.Name, err)
			}
		}
		for _, i := range random.Perm(len(cell.Variants)) {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			v := cell.Variants[i]
			if v.Prepare != nil {
				if err := v.Prepare(ctx); err != nil {
					return nil, fmt.Errorf("%s: preparing %s: %w", cell.Name, v.Name, err)
				}
			}
			value, err := v.Run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", cell.Name, v.Name, err)
			}
			if !(value > 0) { // also NaN: no logarithm could be taken of it later
				return nil, fmt.Errorf("%s: %s: a sample of %v", cell.Name, v.Name, value)
			}
			if repetition >= 0 {
				all[i].Values = append(all[i].Values, value)
			}
		}
	}
	for i := range all {
		all[i].Median = stats.Median(all[i].Values)
		all[i].Q1, all[i].Q3 = stats.Quantile(all[i].Values, 0.25), stats.Quantile(all[i].Values, 0.75)
	}
	return all, nil
}

// Elapsed is a Run that measures how many milliseconds f takes, divided by the number of times that it does the work.
func Elapsed(times int, f func(ctx context.Context) error) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		begun := time.Now()
		err := f(ctx)
		return float64(time.Since(begun)) / float64(time.Millisecond) / float64(times), err
	}
}

// Rate is a Run that has workers do the work over and over for the given time, and returns how often they did it in a second. Each
// call of f gets its worker's number. Whatever is under way when the time is over is finished, and counted, as is the time that takes.
func Rate(workers int, duration time.Duration, f func(ctx context.Context, worker int) error) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		var wg sync.WaitGroup
		var done atomic.Int64
		errs := make([]error, workers)
		begin := make(chan struct{})
		var deadline time.Time
		for worker := range workers {
			wg.Go(func() {
				<-begin
				count := int64(0)
				for time.Now().Before(deadline) {
					if errs[worker] = f(ctx, worker); errs[worker] != nil {
						break
					}
					count++
				}
				done.Add(count)
			})
		}
		begun := time.Now()
		deadline = begun.Add(duration)
		close(begin)
		wg.Wait()
		took := time.Since(begun)
		return float64(done.Load()) / took.Seconds(), errors.Join(errs...)
	}
}
