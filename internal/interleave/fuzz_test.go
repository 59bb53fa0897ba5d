package interleave

import "testing"

// A script is read or refused, and what was read reads the same again.
func FuzzParseScript(f *testing.F) {
	f.Add("fixture named\ndesign guards\nold: begin read committed; present 33\nold: write item 1 # done\nold: commit\nnew: claim nightly 34")
	f.Add("fixture row-strict\ndesign guards\nold: begin serializable\nold: savepoint a\nold: rollback to a\nold: rollback")
	f.Add("fixture\ndesign\n: ;\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScript(text)
		if err != nil {
			return
		}
		h := &History{Scenario: s.Scenario}
		next := make([]int, len(s.Scenario.Sessions))
		for _, session := range s.Order {
			h.Events = append(h.Events, &Event{Session: session, Step: next[session]})
			next[session]++
		}
		again, err := ParseScript(h.Script())
		if err != nil {
			t.Fatalf("%q, printed: %v\n%s", text, err, h.Script())
		}
		h.Scenario = again.Scenario
		h.Scenario.Name = s.Scenario.Name
		if first, second := (&History{Scenario: s.Scenario, Events: h.Events}).Script(), h.Script(); first != second {
			t.Errorf("read, printed and read again:\n%s\n%s", first, second)
		}
	})
}
