package interleave

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// Options say where to explore, and how much.
type Options struct {
	// Databases are the addresses of databases with the schema fencing, one for each run at a time. Explore makes schemas in
	// them and leaves these behind; nobody else may use them meanwhile. At least one.
	Databases []string

	// Scenarios are what is explored. Default: Scenarios(Full).
	Scenarios []*Scenario

	// Sample is the number of orders that are tried of each scenario with more than two sessions; two sessions are tried in
	// every order. Default: 100.
	Sample int

	// Seed decides the sample. Two explorations with one seed try the same orders. Default: 0.
	Seed uint64

	// StopAt ends a scenario at the first order that breaks this promise, such as "P1". Default: no order ends it.
	StopAt string

	// Progress is called after each scenario, one at a time. Default: nobody is.
	Progress func(ScenarioResult)
}

// A ScenarioResult is what came of one scenario.
type ScenarioResult struct {
	Scenario *Scenario
	Orders   int // distinct orders that were run
	Waited   int // of them, those in which some session waited for another
	Refused  int // of them, those in which a guard refused a step (SQLSTATE ZF…)
	Failed   int // of them, those with a serialization failure, a deadlock or a duplicate key
	Complete int // of them, those in which every step went through
	Violated []*History

	orders []string // the distinct ones
}

// A Result is what came of all.
type Result struct {
	Scenarios     []ScenarioResult // in the order of Options.Scenarios
	Interleavings int
	Violations    []*History // those that break a promise
}

// Explore runs scenarios in their orders and checks each. An error says that something could not be done; a broken promise
// is no error, but in the result.
func Explore(ctx context.Context, opts Options) (*Result, error) {
	if opts.Scenarios == nil {
		opts.Scenarios = Scenarios(Full)
	}
	if opts.Sample == 0 {
		opts.Sample = 100
	}
	if len(opts.Databases) == 0 {
		return nil, errors.New("interleave: no database to explore in")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	result := &Result{Scenarios: make([]ScenarioResult, len(opts.Scenarios))}
	work := make(chan int)
	var mu sync.Mutex // guards result
	var workers sync.WaitGroup
	for _, dsn := range opts.Databases {
		workers.Go(func() {
			err := func() error {
				b, err := newBench(ctx, dsn)
				if err != nil {
					return err
				}
				defer b.close()
				for i := range work {
					found, err := b.explore(ctx, opts.Scenarios[i], opts)
					if err != nil {
						return fmt.Errorf("scenario %s: %w", opts.Scenarios[i].Name, err)
					}
					mu.Lock()
					result.Scenarios[i] = *found
					if opts.Progress != nil {
						opts.Progress(*found)
					}
					mu.Unlock()
				}
				return nil
			}()
			if err != nil {
				cancel(err)
			}
		})
	}
feed:
	for i := range opts.Scenarios {
		select {
		case work <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("interleave: %w", err)
	}
	for _, s := range result.Scenarios {
		result.Interleavings += s.Orders
		result.Violations = append(result.Violations, s.Violated...)
	}
	return result, nil
}

// explore runs one scenario in all its orders, or in a sample of them.
func (b *bench) explore(ctx context.Context, sc *Scenario, opts Options) (*ScenarioResult, error) {
	result := &ScenarioResult{Scenario: sc}
	seen := map[string]bool{}
	try := func(choose func([]int) (int, error)) error {
		h, err := b.run(ctx, sc, choose)
		if err != nil {
			return err
		}
		if key := h.order(); !seen[key] {
			seen[key] = true
			result.orders = append(result.orders, key)
			h.Violations = Check(h)
			result.add(h)
		}
		return nil
	}
	stop := func() bool { return result.breaks(opts.StopAt) != nil }

	if len(sc.Sessions) <= 2 {
		tree := &tree{}
		for more := true; more && !stop(); more = tree.next() {
			tree.depth = 0
			if err := try(tree.choose); err != nil {
				return nil, err
			}
		}
		return result, nil
	}
	// A sample with repetitions is tried for as long again, then the scenario may have no more orders.
	chance := rand.New(rand.NewPCG(opts.Seed, hash(sc.Name)))
	for attempts := 0; len(seen) < opts.Sample && attempts < 2*opts.Sample && !stop(); attempts++ {
		err := try(func(able []int) (int, error) { return able[chance.IntN(len(able))], nil })
		if err != nil {
			return nil, err
		}
	}
	return result, nil
}

// hash gives each scenario a sample of its own. FNV-1a, so that it is the same in every process.
func hash(name string) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// breaks is the first order that breaks a promise; nil when there is none.
func (s *ScenarioResult) breaks(promise string) *History {
	for _, h := range s.Violated {
		if slices.ContainsFunc(h.Violations, func(v Violation) bool { return v.Promise == promise }) {
			return h
		}
	}
	return nil
}

func (s *ScenarioResult) add(h *History) {
	s.Orders++
	var waited, refused, failed bool
	for _, e := range h.Events {
		waited = waited || e.WaitedFor != nil
		refused = refused || e.refused()
		failed = failed || e.SQLState != "" && !e.refused()
	}
	for _, count := range []struct {
		n    *int
		when bool
	}{{&s.Waited, waited}, {&s.Refused, refused}, {&s.Failed, failed}, {&s.Complete, !refused && !failed}} {
		if count.when {
			*count.n++
		}
	}
	if len(h.Violations) > 0 {
		s.Violated = append(s.Violated, h)
	}
}

// A tree is the tree of all choices, walked depth first: every run goes down along the choices made so far and takes the
// first one wherever it is new.
type tree struct {
	choices []choice
	depth   int // of the run that goes on
}

type choice struct {
	able  []int
	taken int // index in able
}

func (t *tree) choose(able []int) (int, error) {
	if t.depth == len(t.choices) {
		t.choices = append(t.choices, choice{able: slices.Clone(able)})
	}
	c := &t.choices[t.depth]
	if !slices.Equal(c.able, able) {
		// Which of the two sessions in a deadlock is the victim, the server decides by its clock. What is below this
		// choice was found under the other decision, and is found again under this one.
		*c = choice{able: slices.Clone(able)}
		t.choices = t.choices[:t.depth+1]
		c = &t.choices[t.depth]
	}
	t.depth++
	return c.able[c.taken], nil
}

// next goes to the next run; false when there is none.
func (t *tree) next() bool {
	t.choices = t.choices[:t.depth]
	for len(t.choices) > 0 {
		last := &t.choices[len(t.choices)-1]
		if last.taken++; last.taken < len(last.able) {
			return true
		}
		t.choices = t.choices[:len(t.choices)-1]
	}
	return false
}

// Catch explores the scenario of a wrong design until an order breaks the promise that the design is known to break, and
// returns that order; nil when there is none. The database is as [Options.Databases] describes them.
func Catch(ctx context.Context, database string, d *Design) (*History, error) {
	result, err := Explore(ctx, Options{Databases: []string{database}, Scenarios: []*Scenario{d.Scenario()}, StopAt: d.Breaks})
	if err != nil {
		return nil, err
	}
	return result.Scenarios[0].breaks(d.Breaks), nil
}

// Replay runs a script's order, once, in a database as [Options.Databases] describes them, and checks it. An order that
// cannot be taken, because a session waits where the script has it go on, is an error.
func Replay(ctx context.Context, database string, script *Script) (*History, error) {
	b, err := newBench(ctx, database)
	if err != nil {
		return nil, fmt.Errorf("interleave: %w", err)
	}
	defer b.close()
	n := 0
	h, err := b.run(ctx, script.Scenario, func(able []int) (int, error) {
		if n == len(script.Order) {
			return 0, fmt.Errorf("the script is over, and sessions are not")
		}
		next := script.Order[n]
		if n++; !slices.Contains(able, next) {
			return 0, fmt.Errorf("step %d: %s cannot go on here", n, script.Scenario.Sessions[next].Name)
		}
		return next, nil
	})
	if err != nil {
		return nil, fmt.Errorf("interleave: %w", err)
	}
	h.Violations = Check(h)
	return h, nil
}
