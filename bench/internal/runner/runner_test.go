package runner_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencectl/fencectl/bench/internal/runner"
)

func TestVariantsAreInterleavedInAnOrderOfTheirOwnEachTime(t *testing.T) {
	var ran []string
	variant := func(name string, value float64) runner.Variant {
		return runner.Variant{
			Name:    name,
			Prepare: func(context.Context) error { ran = append(ran, "prepare "+name); return nil },
			Run:     func(context.Context) (float64, error) { ran = append(ran, name); value++; return value, nil },
		}
	}
	const repetitions = 20
	cell := runner.Cell{Name: "cell", Repetitions: repetitions, Variants: []runner.Variant{variant("a", 0), variant("b", 100), variant("c", 200)}}
	samples, err := runner.Run(t.Context(), cell, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	// The first run of each is the warm-up, and is not among the samples.
	if got := samples[1].Values; len(got) != repetitions || got[0] != 102 || !slices.IsSorted(got) {
		t.Errorf("b's samples are %v", got)
	}
	if samples[1].Median != 111.5 {
		t.Errorf("b's median is %v", samples[1].Median)
	}
	orders := map[string]bool{}
	for round := range slices.Chunk(ran, 6) { // three times prepare and run
		order := strings.Join(round, ",")
		orders[order] = true
		for _, name := range []string{"a", "b", "c"} {
			if !strings.Contains(order, "prepare "+name+","+name) {
				t.Fatalf("a repetition ran %s", order)
			}
		}
	}
	if len(orders) < 4 {
		t.Errorf("only %d of 6 orders in %d repetitions", len(orders), repetitions)
	}
}

func TestAFailureNamesItsVariantAndGivesNoSamples(t *testing.T) {
	broken := errors.New("broken")
	for name, variant := range map[string]runner.Variant{
		"run":       {Name: "v", Run: func(context.Context) (float64, error) { return 1, broken }},
		"prepare":   {Name: "v", Prepare: func(context.Context) error { return broken }},
		"no sample": {Name: "v", Run: func(context.Context) (float64, error) { return 0, nil }},
	} {
		samples, err := runner.Run(t.Context(), runner.Cell{Name: "cell", Repetitions: 1, Variants: []runner.Variant{variant}}, rand.New(rand.NewPCG(1, 1)))
		if err == nil || samples != nil || !strings.Contains(err.Error(), "cell: ") || !strings.Contains(err.Error(), "v") {
			t.Errorf("%s: %v, %v", name, samples, err)
		}
	}
}

func TestARateCountsWhatAllWorkersFinished(t *testing.T) {
	calls := make([]int, 4)
	rate, err := runner.Rate(4, 50*time.Millisecond, func(_ context.Context, worker int) error {
		calls[worker]++
		<-time.After(time.Millisecond)
		return nil
	})(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for worker, n := range calls {
		if n == 0 {
			t.Errorf("worker %d did nothing", worker)
		}
		total += n
	}
	// It lasted 50 ms at least, and the machine may be slow: an upper bound is all that is certain.
	if most := float64(total) / 0.05; rate <= 0 || rate > most {
		t.Errorf("%v in a second, of at most %v", rate, most)
	}
	broken := errors.New("broken")
	if _, err := runner.Rate(2, time.Hour, func(context.Context, int) error { return broken })(t.Context()); !errors.Is(err, broken) {
		t.Errorf("a failing worker: %v", err)
	}
}
