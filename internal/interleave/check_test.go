package interleave

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// historyOf makes the history that a script and its comments tell: "# ZF001" for a failure, "# reads X", "# no row", "# says X",
// "# rolled back", "# after N" for a step that waited and answered in the round of step N; anything else went through. What is left in the
// tables is what the committed writes have made.
func historyOf(t *testing.T, text string) *History {
	t.Helper()
	script, err := ParseScript(text)
	if err != nil {
		t.Fatal(err)
	}
	h := &History{Scenario: script.Scenario}
	next := make([]int, maxSessions)
	var lines []string
	for line := range strings.Lines(text) {
		if step, _, _ := strings.Cut(line, "#"); strings.Contains(step, ": ") {
			lines = append(lines, line)
		}
	}
	for i, session := range script.Order {
		e := &Event{Session: session, Step: next[session], Sent: i + 1, Done: i + 1}
		next[session]++
		h.Events = append(h.Events, e)
		_, comment, _ := strings.Cut(lines[i], "#")
		comment = strings.TrimSpace(comment)
		if after, ok := strings.CutPrefix(comment, "after "); ok {
			round, rest, _ := strings.Cut(after, " ")
			e.Done, e.WaitedFor, comment = number([]byte(round)), []int{1 - session}, rest
		}
		verb := h.step(e)[0].Verb
		switch {
		case regexp.MustCompile(`^[0-9A-Z]{5}$`).MatchString(comment):
			e.SQLState = comment
		case comment == "no row":
		case comment == "rolled back":
			e.RolledBack = true
		case strings.HasPrefix(comment, "says "):
			e.Verdict = comment[len("says "):]
		case strings.HasPrefix(comment, "reads "):
			e.Note, e.Rows = comment[len("reads "):], 1
		case verb.writes():
			e.Rows = 1
		}
	}
	c := newChecker(h)
	c.collect()
	c.buildRows()
	h.Final, h.Fences = map[rowID]finalRow{}, map[string]int64{}
	for row, chain := range c.versions {
		if last := chain[len(chain)-1]; last.exists {
			h.Final[row] = finalRow{last.group, last.note, last.stored}
		}
	}
	for fence, token := range h.Scenario.Fixture.Claimed {
		h.Fences[fence] = token
	}
	for _, made := range c.claims() {
		h.Fences[made.fence] = max(h.Fences[made.fence], made.token)
	}
	return h
}

const namedFence = "fixture named\ndesign guards\n"

func TestCheckAccusesWhatBreaksAPromise(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, breaks string }{
		"P1, an older token after a newer one on a row": {`fixture row-reentrant
			design guards
			new: begin read committed; present 34
			new: write item 1
			new: commit
			old: begin read committed; present 33
			old: write item 1
			old: commit`, "P1"},
		"P1, the same by the column": {`fixture row-reentrant
			design guards
			new: begin read committed
			new: set item 1 34
			new: commit
			old: begin read committed
			old: set item 1 33
			old: commit`, "P1"},
		"P1, one token twice on a strict row": {`fixture row-strict
			design guards
			new: begin read committed; present 34
			new: write item 1
			new: write item 1
			new: commit`, "P1"},
		"P1, an older token deletes": {`fixture row-strict
			design guards
			old: begin read committed; present 29
			old: delete item 1
			old: commit`, "P1"},
		"P1, an older token commits last on a named fence, on another row": {namedFence + `
			old: begin read committed; present 33
			old: write item 1
			new: claim nightly 34
			new: begin read committed; present 34
			new: write item 2
			new: commit
			old: commit`, "P1 P3"},
		"P1, in one transaction": {namedFence + `
			new: begin read committed; present 34
			new: claim nightly 34
			new: write item 1
			new: present 33
			new: write item 2
			new: commit`, "P1"},
		"P2, an update": {`fixture row-strict
			design guards
			psql: begin read committed
			psql: write item 1
			psql: commit`, "P2"},
		"P2, an upsert of a row that is there": {`fixture row-strict
			design guards
			psql: begin read committed
			psql: upsert item 1 1
			psql: commit`, "P2"},
		"P2, an insert where a token is required": {`fixture row-strict-required
			design guards
			psql: begin read committed
			psql: insert item 9 1
			psql: commit`, "P2"},
		"P2, a token for another fence": {`fixture template
			design guards
			psql: begin read committed; present 43 for grp/2
			psql: write item 1
			psql: commit`, "P2"},
		"P2, a token that a savepoint took back": {`fixture row-strict
			design guards
			psql: begin read committed
			psql: savepoint a
			psql: present 34
			psql: rollback to a
			psql: write item 1
			psql: commit`, "P2"},
		"P3, an older write commits after the claim": {namedFence + `
			old: begin read committed; present 33
			old: write item 1
			new: claim nightly 34
			old: commit`, "P3"},
		"P3, an older claim commits after a newer": {namedFence + `
			new: claim nightly 35
			old: claim nightly 34`, "P3"},
		"P3, the new holder reads what is older than the old one's write": {namedFence + `
			old: begin read committed; present 33
			old: write item 1
			old: commit
			new: claim nightly 34
			new: begin read committed; present 34
			new: read item 1 # reads initial
			new: commit`, "P3"},
		"P3, in the transaction of the claim": {namedFence + `
			new: begin repeatable read; present 34
			old: begin read committed; present 33
			old: write item 1
			old: commit
			new: claim nightly 34
			new: read item 1 # reads initial
			new: commit`, "P3"},
		"P3, the old one writes after the new one's read": {namedFence + `
			new: claim nightly 34
			new: begin read committed; present 34
			new: read item 1 # reads initial
			old: begin read committed; present 33
			old: write item 1
			old: commit
			new: commit`, "P3"},
		"P3, a claim while the fence is held": {namedFence + `
			old: begin read committed
			old: hold nightly 33
			new: claim nightly 34
			old: commit`, "P3"},
		"P5, a hold refused without a newer claim": {namedFence + `
			old: begin read committed
			old: hold nightly 33 # ZF001
			old: rollback`, "P5"},
		"P3, a token that nobody claimed": {namedFence + `
			new: begin read committed; present 34
			new: write item 1
			new: commit`, "P3"},
		"P5, refused as stale without a newer token": {namedFence + `
			old: begin read committed; present 33
			old: write item 1 # ZF001
			old: rollback`, "P5"},
		"P5, refused as unfenced with a token": {`fixture row-strict
			design guards
			old: begin read committed; present 33
			old: write item 1 # ZF002
			old: rollback`, "P5"},
		"P5, refused as unclaimed after the claim": {namedFence + `
			new: claim nightly 34
			new: begin read committed; present 34
			new: write item 1 # ZF004
			new: rollback`, "P5"},
		"P5, a claim refused without a newer one": {namedFence + `
			new: claim nightly 34 # ZF001`, "P5"},
		"P5, a row taken for missing": {`fixture row-strict
			design cte-classification
			old: begin read committed; present 33
			old: write item 1 # says missing
			old: commit`, "P5"},
		"a version that nobody has written": {namedFence + `
			new: read item 1 # reads old.1`, "history"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var broken []string
			for _, v := range Check(historyOf(t, c.script)) {
				if !slices.Contains(broken, v.Promise) {
					broken = append(broken, v.Promise)
				}
			}
			slices.Sort(broken)
			if got := strings.Join(broken, " "); got != c.breaks {
				t.Errorf("breaks %q, want %q", got, c.breaks)
			}
		})
	}
}

func TestCheckAccusesNobodyWithoutCertainty(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"a takeover": namedFence + `
			old: begin read committed; present 33
			old: read item 1 # reads initial
			old: write item 1
			new: claim nightly 34 # after 5
			old: commit
			new: begin read committed; present 34
			new: read item 1 # reads old.3
			new: write item 1
			new: commit
			old: begin read committed; present 33
			old: write item 1 # ZF001
			old: rollback`,
		"an old transaction that writes nothing": namedFence + `
			old: begin repeatable read; present 33
			old: read item 1 # reads initial
			new: claim nightly 34
			old: commit`,
		"a write that a savepoint took back": namedFence + `
			old: begin read committed; present 33
			old: savepoint a
			old: write item 1
			old: rollback to a
			new: claim nightly 34
			old: commit`,
		"a commit that was none": namedFence + `
			old: begin read committed; present 33
			old: write item 1
			new: claim nightly 34
			old: commit # rolled back`,
		"a hold that a savepoint took back": namedFence + `
			old: begin read committed
			old: savepoint a
			old: hold nightly 33
			old: rollback to a
			new: claim nightly 34
			old: commit`,
		"a hold that presents for what is written": namedFence + `
			old: begin read committed
			old: hold nightly 33
			old: write item 1
			old: commit
			old: begin read committed
			old: hold nightly 34 # ZF004
			old: rollback`,
		"two claims of unknown order": namedFence + `
			old: begin read committed; present 33
			old: write item 1
			new: claim nightly 35 # after 5
			mid: claim nightly 34 # after 5
			old: commit`,
		"a snapshot from before the claim": namedFence + `
			old: begin read committed; present 33
			new: begin repeatable read
			old: write item 1
			old: commit
			mid: claim nightly 34
			new: read item 1 # reads initial
			new: commit`,
		"a second life of a row": `fixture row-strict
			design guards
			new: begin read committed; present 34
			new: delete item 1
			new: commit
			old: begin read committed; present 33
			old: insert item 1 1
			old: commit`,
		"an unfenced insert where it is allowed": `fixture row-strict
			design guards
			psql: begin read committed
			psql: insert item 9 1
			psql: commit`,
		"two writes of a reentrant holder": `fixture row-reentrant
			design guards
			new: begin read committed; present 34
			new: write item 1
			new: write item 1
			new: commit`,
		"another fence": `fixture template
			design guards
			old: begin read committed; present 43
			new: claim grp/1 44
			old: write item 3
			old: commit`,
		"a refusal by a claim of its own that was taken back": namedFence + `
			new: begin read committed; present 33
			new: claim nightly 34
			new: write item 1 # ZF001
			new: rollback`,
		"a refusal by an own write that was taken back": `fixture row-strict
			design guards
			new: begin read committed; present 34
			new: write item 1
			new: write item 1 # ZF001
			new: rollback`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff([]Violation(nil), Check(historyOf(t, script))); diff != "" {
				t.Errorf("accused (-want +got):\n%s", diff)
			}
		})
	}
}

// The check of the checker: what the sessions saw has to be what is left.
func TestCheckComparesWithWhatIsLeft(t *testing.T) {
	t.Parallel()
	const script = `
		new: claim nightly 34
		new: begin read committed; present 34
		new: write item 1
		new: commit`
	for name, spoil := range map[string]func(*History){
		"history": func(h *History) { h.Final[rowID{"item", 1}] = finalRow{1, "somebody.1", -1} },
		"P3":      func(h *History) { h.Fences["nightly"] = heldToken },
	} {
		h := historyOf(t, namedFence+script)
		spoil(h)
		if found := Check(h); len(found) != 1 || found[0].Promise != name {
			t.Errorf("found %v, want one violation of %q", found, name)
		}
	}
	h := historyOf(t, strings.ReplaceAll("fixture row-strict\ndesign guards\n"+script, "new: claim nightly 34", ""))
	h.Final[rowID{"item", 1}] = finalRow{1, "new.2", rowToken}
	if found := Check(h); len(found) != 1 || found[0].Promise != "P1" {
		t.Errorf("a row that stores another token than it was written under: found %v", found)
	}
}
