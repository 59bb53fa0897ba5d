package interleave

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/pgtest"
)

func database(t *testing.T) string { return pgtest.DSN(t, pgtest.New(t)) }

func replayed(t *testing.T, dsn, text string) (*History, error) {
	t.Helper()
	script, err := ParseScript(text)
	if err != nil {
		t.Fatal(err)
	}
	return Replay(t.Context(), dsn, script)
}

func TestAReplaySaysWhoWaitedForWhom(t *testing.T) {
	t.Parallel()
	const script = `# scenario: script
fixture named
design guards
old: begin read committed; present 33            # done
old: write item 1                                # done
new: claim nightly 34                            # waits for old, then done (after old: commit)
old: commit                                      # done
new: begin read committed; present 34            # done
new: read item 1                                 # reads old.2
new: write item 9                                # no row
new: commit                                      # done
old: begin read committed; present 33            # done
old: write item 1                                # ZF001 stale fencing token 33: fence "nightly" (table named_under_guards.item) has accepted 34
old: commit                                      # rolled back
`
	h, err := replayed(t, database(t), script)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(script, h.Script()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The script of a violation does the same again, and violates the same.
func TestAViolationReplays(t *testing.T) {
	t.Parallel()
	d := designNamed("unclaimed-accepted") // its order has a wait in it
	dsn := database(t)
	h, err := Catch(t.Context(), dsn, d)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	again, err := replayed(t, database(t), h.Script())
	if err != nil {
		t.Fatal(err)
	}
	again.Scenario.Name = h.Scenario.Name
	if diff := cmp.Diff(h.Script(), again.Script()); diff != "" {
		t.Errorf("(-first +again):\n%s", diff)
	}
}

func TestAnOrderThatCannotBeIsNoReplay(t *testing.T) {
	t.Parallel()
	_, err := replayed(t, database(t), `fixture named
		design guards
		old: begin read committed; present 33
		old: write item 1
		new: claim nightly 34
		new: claim nightly 34
		old: commit`)
	if err == nil || !strings.Contains(err.Error(), "step 4: new cannot go on here") {
		t.Errorf("error %v, want one that says that new waits at step 4", err)
	}
}

// Under READ COMMITTED, and without inserts, nothing but a deadlock fails these.
func TestADeadlockIsAnOutcome(t *testing.T) {
	t.Parallel()
	sc := sessionsOf(t, "begin read committed; present 33\nwrite item 1\nwrite item 2\ncommit", "begin read committed; present 33\nwrite item 2\nwrite item 1\ncommit")
	result, err := Explore(t.Context(), Options{Databases: []string{database(t)}, Scenarios: []*Scenario{sc}})
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Scenarios[0]; got.Failed == 0 || got.Complete == 0 || len(got.Violated) > 0 {
		t.Errorf("%d orders with a deadlock, %d without, %d violations: want some, some, none", got.Failed, got.Complete, len(got.Violated))
	}
}

// sessionsOf makes a scenario on the fixture named.
func sessionsOf(t *testing.T, texts ...string) *Scenario {
	t.Helper()
	sc := &Scenario{Name: t.Name(), Fixture: fixtureNamed("named"), Design: guards}
	for i, text := range texts {
		s, err := parseSession(string(rune('a'+i)), text)
		if err != nil {
			t.Fatal(err)
		}
		sc.Sessions = append(sc.Sessions, s)
	}
	return sc
}

const reader = "begin read committed\nread item 1\ncommit"

func TestTwoSessionsThatDoNotWaitRunInEveryOrder(t *testing.T) {
	t.Parallel()
	result, err := Explore(t.Context(), Options{Databases: []string{database(t)}, Scenarios: []*Scenario{sessionsOf(t, reader, reader)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Interleavings; got != 20 { // 6 over 3
		t.Errorf("%d orders, want 20", got)
	}
}

// With a lock in the way, the orders that are left are these: everything of one before the other's write, or with the other
// waiting for its end.
func TestTwoSessionsThatWaitRunInEveryPossibleOrder(t *testing.T) {
	t.Parallel()
	sc := sessionsOf(t, "begin read committed; present 33\nwrite item 1\ncommit", "claim nightly 34")
	dsn := database(t)
	got := orders(t, dsn, sc, Options{})
	// a claim before the begin, between begin and write, during the write (waiting), after the commit
	want := []string{"a0a1a2b0", "a0a1b0a2", "a0b0a1a2", "b0a0a1a2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// orders explores one scenario and returns its distinct orders, sorted.
func orders(t *testing.T, dsn string, sc *Scenario, opts Options) []string {
	t.Helper()
	b, err := newBench(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	result, err := b.explore(context.WithoutCancel(t.Context()), sc, opts)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(result.orders)
	return result.orders
}

func TestASeedDecidesTheSample(t *testing.T) {
	t.Parallel()
	sc := sessionsOf(t, reader, reader, reader)
	dsn := database(t)
	first := orders(t, dsn, sc, Options{Seed: 7, Sample: 8})
	if again := orders(t, dsn, sc, Options{Seed: 7, Sample: 8}); !slices.Equal(first, again) {
		t.Errorf("one seed, two samples:\n%v\n%v", first, again)
	}
	if other := orders(t, dsn, sc, Options{Seed: 8, Sample: 8}); slices.Equal(first, other) {
		t.Errorf("two seeds, one sample: %v", first)
	}
	if len(first) != 8 {
		t.Errorf("%d orders, want 8", len(first))
	}
}

func TestAScriptThatIsNoneSaysWhere(t *testing.T) {
	t.Parallel()
	const head = "fixture named\ndesign guards\n"
	for script, says := range map[string]string{
		"":                                   "names a fixture and a design",
		"fixture castle":                     "line 1: no such fixture",
		"fixture named\ndesign none":         "line 2: no such design",
		head + "old write item 1":            "line 3",
		head + "old: begin chaos":            "no isolation level",
		head + "old: write":                  "a table is missing",
		head + "old: write item x":           "a key is missing",
		head + "old: write item 1 2":         `"2" is too much`,
		head + "old: fly":                    "no such step",
		head + "old: claim a'b 1":            "a fence is missing",
		head + "old: write item 1":           "no transaction is open",
		head + "old: begin serializable":     "leaves its transaction open",
		head + "old: read item 1; present 1": "sent at once",
		head + "old: begin serializable\nold: rollback to a\nold: commit":       "no such savepoint",
		head + "a: read item 1\nb: read item 1\nc: read item 1\nd: read item 1": "more than 3 sessions",
		head + "old: claim nightly 99999999999999999999":                        "out of range",
	} {
		if _, err := ParseScript(script); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v, want one that says %q", script, err, says)
		}
	}
}

// Every step of the catalogue reads back as it is written.
func TestStepsReadBack(t *testing.T) {
	t.Parallel()
	n := 0
	for _, sc := range Scenarios(Full) {
		for _, session := range sc.Sessions {
			for _, step := range session.Steps {
				n++
				if again, err := parseStep(step.String()); err != nil || !slices.Equal(step, again) {
					t.Errorf("%s: read back as %v, %v", step, again, err)
				}
			}
		}
	}
	if n < 1000 {
		t.Errorf("only %d steps", n)
	}
}
