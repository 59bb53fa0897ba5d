package demo

import (
	"time"

	"github.com/fencectl/fencectl/fenced"
)

// A Kind is what happens in an [Event].
type Kind string

// The kinds of events. Every actor's story is told in these words, whatever lock service it uses.
const (
	Waits    Kind = "waits"    // the actor asks for a lock that is held, or for a row that is locked
	Granted  Kind = "granted"  // the actor gets the lock and its token
	Expired  Kind = "expired"  // the time limit of a grant has passed
	Drew     Kind = "drew"     // the actor draws its token, in a step of its own
	Denied   Kind = "denied"   // the actor asks for the lock, and gets no token because its source is not the one on record
	Adopted  Kind = "adopted"  // an operator puts the source on record, in a new epoch
	Lost     Kind = "lost"     // the lock service loses its data
	Released Kind = "released" // the actor gives the lock back; Concerns is whose it was
	Notified Kind = "notified" // the actor writes to the lock service something that is not the lock
	Paused   Kind = "paused"   // the actor stops, and does not know it
	Resumed  Kind = "resumed"  // the actor goes on
	Claimed  Kind = "claimed"  // the actor raises a fence to its token
	Read     Kind = "read"     // the actor reads
	Wrote    Kind = "wrote"    // the actor writes; Outcome says with what result
	Finished Kind = "finished" // what the data looks like at the end
)

// An Outcome is the database's answer to a claim or a write.
type Outcome string

// The outcomes. An event that asks nothing of the database has none.
const (
	Accepted Outcome = "accepted" // committed
	NoRows   Outcome = "no rows"  // committed, and changed nothing
	Refused  Outcome = "refused"  // aborted, with the error's SQLSTATE and message in the event
)

// The actors that are no workers, and whom workers speak to.
const (
	Locks    = "lock"     // the lock service
	Data     = "data"     // the database
	Operator = "operator" // a person
)

// An Event is one thing that happened in a run.
type Event struct {
	// At is the time since the run began, on the demo's own monotonic clock.
	At time.Duration
	// Actor is who did it: a worker, Locks, Data or Operator. Events of one actor make one lane of a picture.
	Actor string
	Kind  Kind
	// Token is the fencing token that the actor held, or presented; 0 for none.
	Token fenced.Token
	// On is what it happened to, as a person would name it: a lock, a fence, a row. Empty where there is no such thing.
	On string
	// Text says in one clause what happened; with Actor as its subject it is a sentence.
	Text string
	// Toward says whom the actor spoke to: Locks, Data, or nobody.
	Toward string
	// Concerns is the worker whom it is about where that is not the actor: whose limit has passed, whose lock was released.
	Concerns string
	// Lasts is how long a grant lasts without being renewed.
	Lasts time.Duration
	// SQL is the statement, where there was one that matters.
	SQL     string
	Outcome Outcome
	// Stored is the token that the fence stood at after a claim or a write, as the database says; 0 where there is no fence.
	Stored fenced.Token
	// SQLState, Message and Hint are the server's own, of a refusal.
	SQLState, Message, Hint string
}

// A timeline records the events of one run and passes each on as it happens.
type timeline struct {
	began  time.Time
	events []Event
	tell   func(Event)
}

func newTimeline(tell func(Event)) *timeline { return &timeline{began: time.Now(), tell: tell} }

func (t *timeline) record(e Event) {
	e.At = time.Since(t.began)
	t.events = append(t.events, e)
	t.tell(e)
}
