package demo

import (
	"context"
	"fmt"
	"slices"
)

// A Scenario is one way in which data is lost although there is a lock. It is run twice: once as people have it, where the
// damage must happen, and once fenced, where it must not. A damage that does not show in the first run would make the second
// prove nothing.
type Scenario struct {
	// Name is what the command line calls it.
	Name string
	// Title says what it is about in a few words.
	Title string
	// Story explains, in one paragraph, what one is going to see.
	Story string
	// Lesson says, in a sentence or two, what made the difference.
	Lesson string

	needs         []need
	without, with form
}

// A need is a service beside the database that a scenario cannot do without.
type need string

const (
	needsRedis need = "Redis"
	needsEtcd  need = "etcd"
)

func needed(scenarios []Scenario, n need) bool {
	return slices.ContainsFunc(scenarios, func(s Scenario) bool { return slices.Contains(s.needs, n) })
}

// A form is one of a scenario's two runs.
type form struct {
	// label says in a few words what is in place.
	label string
	// setup makes the data and the protection what the run begins with, as the owner of the tables. It is one script: its
	// statements run in one transaction.
	setup string
	// fence reads the token that the fence of the story stands at. Empty where there is none.
	fence string
	// play lets the workers act, and finds out what became of the data.
	play func(ctx context.Context, s *stage) (verdict, error)
}

// A verdict is what became of the data, judged by reading it, not by what the workers were told.
type verdict struct {
	text    string // for the table
	damaged bool
}

func intact(format string, args ...any) verdict { return verdict{text: fmt.Sprintf(format, args...)} }

func damage(format string, args ...any) verdict {
	return verdict{text: fmt.Sprintf(format, args...), damaged: true}
}

// Scenarios are all scenarios, in the order in which they are shown.
func Scenarios() []Scenario {
	return []Scenario{
		sleepingOwner(), forgottenQuery(), lockHeldTwice(), foreignRelease(), tokenApart(), leaderRevision(), lostUpdate(), writerInFlight(),
	}
}
