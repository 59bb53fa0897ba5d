package interleave

import (
	"fmt"
	"slices"
	"strings"
)

// A Scenario is what several sessions do, in no particular order.
type Scenario struct {
	Name     string
	Fixture  *Fixture
	Design   *Design
	Sessions []Session
}

// A Session is one connection, and what it does in this order. A step that fails aborts its transaction, as PostgreSQL has
// it; the steps up to the one that ends the transaction (or rolls back to a savepoint) are then left out, as a client leaves
// them out. The session goes on with its next transaction: a holder that was refused and does not stop.
type Session struct {
	Name  string
	Steps []Step
}

// parseSession reads steps, one a line.
func parseSession(name, text string) (Session, error) {
	s := Session{Name: name}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		step, err := parseStep(line)
		if err != nil {
			return s, fmt.Errorf("session %s: %w", name, err)
		}
		s.Steps = append(s.Steps, step)
	}
	return s, s.validate()
}

// validate says what makes the session's steps no session.
//
// Writes stand in transactions, because only then two sessions' writes of one row never answer at the same moment: the
// order of answers is the order of the row's versions, which is what [Check] builds on.
func (s Session) validate() error {
	open := false
	var savepoints []string
	for i, step := range s.Steps {
		var problem string
		switch a := step[0]; {
		case a.Verb == Begin && open:
			problem = "a transaction is open already"
		case a.Verb != Begin && a.Verb != Claim && a.Verb != Read && !open:
			problem = "no transaction is open"
		case a.Verb == RollbackTo && !slices.Contains(savepoints, a.Name):
			problem = "there is no such savepoint"
		case a.Verb == Begin:
			open, savepoints = true, nil
		case a.Verb == Commit || a.Verb == Rollback:
			open = false
		case a.Verb == Savepoint:
			savepoints = append(savepoints, a.Name)
		}
		if problem != "" {
			return fmt.Errorf("session %s, step %d, %s: %s", s.Name, i+1, step, problem)
		}
	}
	if open {
		return fmt.Errorf("session %s leaves its transaction open", s.Name)
	}
	return nil
}

// marker is the note that a step writes into a row.
func (s Session) marker(step int) string { return fmt.Sprintf("%s.%d", s.Name, step+1) }

// presented is the token that a step's transaction has presented before it, for statements that name it.
func (s Session) presented(step int) int64 {
	var token int64
	for _, earlier := range s.Steps[:step] {
		for _, a := range earlier {
			switch {
			case a.Verb == Begin:
				token = 0
			case a.Verb == Present && a.Fence == "":
				token = a.Token
			}
		}
	}
	return token
}
