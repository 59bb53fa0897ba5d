package interleave

import (
	"fmt"
	"slices"
	"strings"
)

// A Script is a scenario in one order of its steps. As text it is one step a line:
//
//	fixture named
//	design guards
//	old: begin read committed; present 33
//	new: claim nightly 34
//	old: write item 1      # waits for new
//
// Everything behind a # is a comment.
type Script struct {
	Scenario *Scenario
	Order    []int // for each step that is sent, its session
}

// ParseScript reads a script. A session's steps are its lines.
func ParseScript(text string) (*Script, error) {
	s := &Script{Scenario: &Scenario{Name: "script"}}
	for n, line := range slices.Collect(strings.Lines(text)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := s.parseLine(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	if s.Scenario.Fixture == nil || s.Scenario.Design == nil || len(s.Order) == 0 {
		return nil, fmt.Errorf("a script names a fixture and a design, and has steps")
	}
	for _, session := range s.Scenario.Sessions {
		if err := session.validate(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Script) parseLine(line string) error {
	if name, ok := strings.CutPrefix(line, "fixture "); ok {
		s.Scenario.Fixture = fixtureNamed(strings.TrimSpace(name))
		if s.Scenario.Fixture == nil {
			return fmt.Errorf("no such fixture: %s", name)
		}
		return nil
	}
	if name, ok := strings.CutPrefix(line, "design "); ok {
		s.Scenario.Design = designNamed(strings.TrimSpace(name))
		if s.Scenario.Design == nil {
			return fmt.Errorf("no such design: %s", name)
		}
		return nil
	}
	name, text, ok := strings.Cut(line, ":")
	if !ok || !nameWord.MatchString(name) {
		return fmt.Errorf("%q is not SESSION: STEP", line)
	}
	step, err := parseStep(strings.TrimSpace(text))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.Scenario.Sessions, func(known Session) bool { return known.Name == name })
	if i < 0 {
		i = len(s.Scenario.Sessions)
		if i == maxSessions {
			return fmt.Errorf("more than %d sessions", maxSessions)
		}
		s.Scenario.Sessions = append(s.Scenario.Sessions, Session{Name: name})
	}
	s.Scenario.Sessions[i].Steps = append(s.Scenario.Sessions[i].Steps, step)
	s.Order = append(s.Order, i)
	return nil
}

// Script is what happened, as a script: it can be replayed, and its comments say what came of each step. Steps that were
// left out because their transaction had failed are left out here too.
func (h *History) Script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# scenario: %s\nfixture %s\ndesign %s\n", h.Scenario.Name, h.Scenario.Fixture.Name, h.Scenario.Design.Name)
	for _, v := range h.Violations {
		fmt.Fprintf(&b, "# VIOLATION %s\n", v)
	}
	for _, e := range h.Events {
		line := h.Scenario.Sessions[e.Session].Name + ": " + h.step(e).String()
		fmt.Fprintf(&b, "%-48s # %s\n", line, h.outcome(e))
	}
	return b.String()
}

// outcome says in words what came of a step.
func (h *History) outcome(e *Event) string {
	var text string
	switch a := h.step(e)[0]; {
	case e.SQLState != "":
		text = e.SQLState + " " + e.Message
	case a.Verb == Read && e.Rows == 0:
		text = "no row"
	case a.Verb == Read:
		text = "reads " + e.Note
	case e.Verdict != "":
		text = "says " + e.Verdict
	case a.Verb.writes() && e.Rows == 0:
		text = "no row"
	case a.Verb == Commit && e.RolledBack:
		text = "rolled back"
	default:
		text = "done"
	}
	if len(e.WaitedFor) > 0 {
		names := make([]string, len(e.WaitedFor))
		for i, s := range e.WaitedFor {
			names[i] = h.Scenario.Sessions[s].Name
		}
		text = "waits for " + strings.Join(names, " and ") + ", then " + text
		if by := h.releasedBy(e); by != nil {
			text = fmt.Sprintf("%s (after %s: %s)", text, h.Scenario.Sessions[by.Session].Name, h.step(by))
		}
	}
	return text
}
