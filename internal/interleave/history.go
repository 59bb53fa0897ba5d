package interleave

import (
	"fmt"
	"slices"
	"strings"
)

// A History is what happened in one run, as the sessions saw it, and what was left in the tables.
type History struct {
	Scenario   *Scenario
	Events     []*Event // in the order in which the steps were sent; the round of the first is 1
	Final      map[rowID]finalRow
	Fences     map[string]int64
	Violations []Violation // filled in by whoever checks
}

// An Event is a step that was sent, and its answer.
type Event struct {
	Session, Step int
	// Sent and Done are rounds. A round is what follows from sending one step: its answer, and the answers of steps that had
	// waited for a lock which it let go.
	Sent, Done int
	WaitedFor  []int // the sessions it was seen waiting for; nil when it never waited
	SQLState   string
	Message    string
	Rows       int    // that a write has written, or a read has found
	Note       string // what a read has read
	Verdict    string // of a design that classifies its own refusals
	RolledBack bool   // a commit that the server answered with a rollback
}

// refused tells whether a guard or a claim has said no.
func (e *Event) refused() bool { return strings.HasPrefix(e.SQLState, "ZF") }

// finalRow is a row in the end.
type finalRow struct {
	group int
	note  string
	token int64 // -1 where there is no column for it
}

// A moment orders what took effect: by round, and within a round the end of a transaction comes before everything else,
// because what else answers in that round had waited for a lock that the end let go, when its effect was complete. Of two
// steps that had both waited, neither is known to be first.
type moment struct {
	round int
	end   bool // the step ended a transaction block
}

func (m moment) before(other moment) bool {
	return m.round < other.round || m.round == other.round && m.end && !other.end
}

// done is the moment at which an event took effect.
func (h *History) done(e *Event) moment {
	verb := h.step(e)[0].Verb
	return moment{e.Done, verb == Commit || verb == Rollback}
}

func (h *History) step(e *Event) Step { return h.Scenario.Sessions[e.Session].Steps[e.Step] }

// answered lists the events in the order in which they took effect.
func (h *History) answered() []*Event {
	events := slices.Clone(h.Events)
	slices.SortStableFunc(events, func(a, b *Event) int {
		switch {
		case h.done(a).before(h.done(b)):
			return -1
		case h.done(b).before(h.done(a)):
			return 1
		default:
			return 0
		}
	})
	return events
}

// releasedBy is the step that let go what an event waited for; nil where a deadlock was broken instead.
func (h *History) releasedBy(e *Event) *Event {
	for _, other := range h.Events {
		if other.Sent == e.Done && other != e {
			return other
		}
	}
	return nil
}

// order is what tells one run of a scenario from another: which step was sent when.
func (h *History) order() string {
	var key []byte
	for _, e := range h.Events {
		key = append(key, byte('a'+e.Session), byte('0'+e.Step))
	}
	return string(key)
}

// A Violation is a broken promise.
type Violation struct {
	Promise string // P1, P2, P3, P5 as in the documentation
	What    string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s", v.Promise, v.What) }
