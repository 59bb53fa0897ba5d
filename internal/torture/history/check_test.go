package history_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/torture/history"
)

// A story is a history that is written down step by step: each operation begins after the one before it has returned, unless it
// is said to be different.
type story struct {
	history.History
	clock int64
}

const lockName = "l"

var (
	item      = history.NewTarget(history.Named, lockName, 0)
	other     = history.NewTarget(history.Named, lockName, 1)
	reentrant = history.NewTarget(history.Reentrant, lockName, 0)
	strict    = history.NewTarget(history.Strict, lockName, 0)
)

func newStory() *story {
	return &story{History: history.History{Rows: map[history.Target]history.Row{}, Fences: map[string]int64{}}}
}

func (s *story) add(worker string, op history.Op) *history.Op {
	s.clock += 10
	op.ID, op.Worker, op.Lock = fmt.Sprintf("%s#%d", worker, len(s.Ops)+1), worker, lockName
	op.Invoked, op.Returned = s.clock, s.clock+5
	if op.Outcome == "" {
		op.Outcome = history.OK
	}
	s.Ops = append(s.Ops, &op)
	return &op
}

func (s *story) grant(worker string, token int64) *history.Op {
	return s.add(worker, history.Op{Kind: history.Grant, Source: "postgres", Token: token})
}

func (s *story) claim(worker string, token int64) *history.Op {
	s.Fences[lockName] = max(s.Fences[lockName], token)
	return s.add(worker, history.Op{Kind: history.Claim, Token: token})
}

func (s *story) read(worker string, token int64, targets ...history.Target) *history.Op {
	rows := map[history.Target]history.Row{}
	for _, target := range targets {
		rows[target] = s.Rows[target]
	}
	return s.add(worker, history.Op{Kind: history.Read, Token: token, Rows: rows})
}

// write has its effect, whether it should have been refused or not.
func (s *story) write(worker string, token int64, targets ...history.Target) *history.Op {
	op := s.add(worker, history.Op{Kind: history.Write, Token: token, Targets: targets, Basis: map[history.Target]string{}})
	for _, target := range targets {
		version := s.Rows[target].Version + 1
		s.Effects = append(s.Effects, history.Effect{Op: op.ID, Target: target, Version: version, Token: token})
		s.Rows[target] = history.Row{Version: version, Op: op.ID}
	}
	return op
}

func (s *story) refused(worker string, token, stored int64, target history.Target) *history.Op {
	return s.add(worker, history.Op{Kind: history.Write, Token: token, Targets: []history.Target{target}, Outcome: history.Refused, Refusal: history.Stale, Stored: stored})
}

// undo takes back the last effect, as a promotion does that loses it.
func (s *story) undo() {
	last := s.Effects[len(s.Effects)-1]
	s.Effects = s.Effects[:len(s.Effects)-1]
	row := history.Row{Version: last.Version - 1}
	for _, e := range s.Effects {
		if e.Target == last.Target {
			row.Op = e.Op
		}
	}
	s.Rows[last.Target] = row
}

// violated lists the rules that the checker finds broken.
func violated(s *story) []history.Rule {
	rules := []history.Rule{}
	for _, v := range history.Check(&s.History, &history.CheckOptions{Search: 10 * time.Second}).Violations {
		if !slices.Contains(rules, v.Rule) {
			rules = append(rules, v.Rule)
		}
	}
	return rules
}

func TestAHistoryWithoutFaultIsAccepted(t *testing.T) {
	s := newStory()
	s.grant("a", 1)
	s.claim("a", 1)
	s.read("a", 1, item, other)
	first := s.write("a", 1, item, other)
	s.write("a", 1, item).Basis[item] = first.ID
	s.write("a", 1, reentrant)
	s.write("a", 1, strict)
	s.add("a", history.Op{Kind: history.Write, Token: 1, Targets: []history.Target{strict}, Outcome: history.Refused, Refusal: history.Stale, Stored: 1})
	s.add("a", history.Op{Kind: history.Write, Targets: []history.Target{item}, Outcome: history.Refused, Refusal: "unfenced"})
	s.grant("b", 2)
	s.claim("b", 2)
	s.refused("a", 1, 2, item)
	s.read("b", 2, item, other)
	s.write("b", 2, reentrant)
	s.refused("a", 1, 2, reentrant)
	s.write("b", 2, strict)
	if got := violated(s); len(got) > 0 {
		t.Errorf("found %v", got)
	}
}

func TestEveryBrokenPromiseIsFound(t *testing.T) {
	for name, test := range map[string]struct {
		story func(*story)
		want  []history.Rule
	}{
		"an older token writes a row after a newer one": {func(s *story) {
			s.write("b", 2, reentrant)
			s.write("a", 1, reentrant)
		}, []history.Rule{history.StaleWrite, history.NotLinearizable}},
		"a token writes a strict row twice": {func(s *story) {
			s.write("a", 1, strict)
			s.write("a", 1, strict)
		}, []history.Rule{history.StaleWrite, history.NotLinearizable}},
		"no token": {func(s *story) {
			s.write("a", 0, item)
		}, []history.Rule{history.UnfencedWrite}},
		"an older token writes a row that the new holder has read and not written": {func(s *story) {
			s.claim("a", 1)
			s.claim("b", 2)
			s.read("b", 2, item, other)
			s.write("b", 2, item)
			s.write("a", 1, other)
		}, []history.Rule{history.ClaimIgnored, history.NotLinearizable}},
		"a write is acknowledged and gone": {func(s *story) {
			s.write("a", 1, reentrant)
			s.undo()
		}, []history.Rule{history.LostWrite}},
		"a claim is acknowledged and gone": {func(s *story) {
			s.claim("a", 7)
			s.Fences[lockName] = 3
		}, []history.Rule{history.LostClaim}},
		"a token is given twice": {func(s *story) {
			s.grant("a", 5)
			s.grant("b", 5)
		}, []history.Rule{history.TokenReissued}},
		"a token goes back": {func(s *story) {
			s.grant("a", 5)
			s.grant("b", 4)
		}, []history.Rule{history.TokenWentBack}},
		"half of a transaction": {func(s *story) {
			s.claim("a", 1)
			s.write("a", 1, item, other)
			s.undo()
		}, []history.Rule{history.HalfWritten}},
		"a refused write has an effect": {func(s *story) {
			s.write("b", 2, reentrant)
			op := s.write("c", 3, reentrant)
			op.Outcome, op.Refusal = history.Refused, "unfenced"
		}, []history.Rule{history.RefusedWritten}},
		"a failed write has an effect": {func(s *story) {
			s.write("b", 2, reentrant).Outcome = history.Failed
		}, []history.Rule{history.RefusedWritten}},
		"a write has its effect twice": {func(s *story) {
			op := s.write("a", 1, reentrant)
			s.Effects = append(s.Effects, history.Effect{Op: op.ID, Target: reentrant, Version: 2, Token: 1})
			s.Rows[reentrant] = history.Row{Version: 2, Op: op.ID}
		}, []history.Rule{history.WrittenTwice}},
		"a write between what its holder read and what it wrote": {func(s *story) {
			s.claim("a", 2)
			s.read("a", 2, item)
			s.write("b", 2, item)
			s.write("a", 2, item).Basis[item] = ""
		}, []history.Rule{history.LostUpdate}},
		"a row that the log knows nothing of": {func(s *story) {
			s.write("a", 1, reentrant)
			s.Rows[reentrant] = history.Row{Version: 2, Op: "somebody"}
		}, []history.Rule{history.LogContradicted}},
		"a log with a gap": {func(s *story) {
			s.write("a", 1, reentrant)
			s.Rows[reentrant] = history.Row{Version: 2, Op: s.Rows[reentrant].Op}
			s.write("a", 1, reentrant)
		}, []history.Rule{history.LogContradicted, history.NotLinearizable}},
		"an effect that nobody sent": {func(s *story) {
			s.Effects = append(s.Effects, history.Effect{Op: "nobody#1", Target: item, Version: 1, Token: 1})
			s.Rows[item] = history.Row{Version: 1, Op: "nobody#1"}
		}, []history.Rule{history.LogContradicted}},
		"a refusal for a fence that was never so high": {func(s *story) {
			s.claim("a", 1)
			s.refused("a", 1, 9, item)
			s.claim("b", 2)
		}, []history.Rule{history.NotLinearizable}},
		"a refusal of the token that has claimed": {func(s *story) {
			s.claim("a", 2)
			s.add("a", history.Op{Kind: history.Write, Token: 2, Targets: []history.Target{item}, Outcome: history.Refused, Refusal: history.Unclaimed, Stored: 2})
		}, []history.Rule{history.NotLinearizable}},
		"a claim that succeeds after a newer one": {func(s *story) {
			s.claim("b", 2)
			s.claim("a", 1)
		}, []history.Rule{history.NotLinearizable}},
		"a read that misses a write": {func(s *story) {
			s.claim("a", 1)
			s.write("a", 1, item)
			s.add("a", history.Op{Kind: history.Read, Token: 1, Rows: map[history.Target]history.Row{item: {Version: 0}}})
			s.write("a", 1, item)
		}, []history.Rule{history.NotLinearizable}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			test.story(s)
			if diff := cmp.Diff(test.want, violated(s)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatAPromotionMayLoseIsNoViolation(t *testing.T) {
	s := newStory()
	s.claim("a", 1)
	kept := s.write("a", 1, item)
	lost := s.write("a", 1, item)
	lost.Basis[item] = kept.ID
	s.undo()
	s.Losses = []history.Loss{{From: lost.Invoked + 1, To: lost.Returned + 1}}
	s.write("a", 1, item).Basis[item] = lost.ID // its holder outlives the promotion, and remembers what is gone
	if got := violated(s); len(got) > 0 {
		t.Errorf("found %v", got)
	}

	t.Run("but what had been acknowledged before it must stay", func(t *testing.T) {
		s.Losses = []history.Loss{{From: lost.Returned + 1, To: lost.Returned + 3}}
		if got := violated(s); !slices.Contains(got, history.LostWrite) || !slices.Contains(got, history.LostUpdate) {
			t.Errorf("found %v", got)
		}
	})
	t.Run("and what was sent after it", func(t *testing.T) {
		s.Losses = []history.Loss{{From: lost.Invoked - 3, To: lost.Invoked - 1}}
		if got := violated(s); !slices.Contains(got, history.LostWrite) {
			t.Errorf("found %v", got)
		}
	})
}

func TestAClaimThatWentWithAPromotionProtectsNothing(t *testing.T) {
	s := newStory()
	s.claim("a", 1)
	claim := s.claim("b", 2)
	s.read("b", 2, item)
	s.Fences[lockName] = 1
	s.Losses = []history.Loss{{From: claim.Invoked, To: s.clock + 6}}
	s.write("a", 1, item)
	if got := violated(s); len(got) > 0 {
		t.Errorf("found %v", got)
	}
	s.Losses = nil
	if got := violated(s); !slices.Contains(got, history.ClaimIgnored) || !slices.Contains(got, history.LostClaim) {
		t.Errorf("without the promotion it found %v", got)
	}
}

func TestTokensOfGrantsThatOverlapMayComeInEitherOrder(t *testing.T) {
	s := newStory()
	slow := s.grant("a", 2)
	s.grant("b", 3)
	s.grant("c", 1)
	slow.Returned = s.clock + 100
	if got := violated(s); !slices.Equal(got, []history.Rule{history.TokenWentBack}) { // c after b
		t.Errorf("found %v", got)
	}
	s.Ops[2].Invoked = s.Ops[1].Returned // at once
	if got := violated(s); len(got) > 0 {
		t.Errorf("found %v", got)
	}
}

func TestAWriteOfUnknownOutcomeMayHaveHappenedOrNot(t *testing.T) {
	for _, happened := range []bool{false, true} {
		s := newStory()
		op := s.write("a", 1, reentrant)
		op.Outcome, op.Returned = history.Unknown, 0
		if !happened {
			s.undo()
		}
		s.write("b", 2, reentrant)
		v := history.Check(&s.History, nil)
		if len(v.Violations) > 0 || v.Recovered != map[bool]int{true: 1}[happened] {
			t.Errorf("happened %v: %+v", happened, v)
		}
	}
}

func TestAViolationComesWithWhatHappenedAroundIt(t *testing.T) {
	s := newStory()
	for range 50 {
		s.write("c", 1, reentrant)
	}
	newer := s.write("b", 2, reentrant)
	stale := s.write("a", 1, reentrant)
	for range 50 {
		s.write("b", 2, reentrant)
	}
	for _, v := range history.Check(&s.History, nil).Violations {
		if v.Rule != history.StaleWrite {
			continue
		}
		if !slices.Equal(v.Ops, []string{newer.ID, stale.ID}) {
			t.Errorf("it names %q", v.Ops)
		}
		if !slices.Contains(v.Around, newer) || !slices.Contains(v.Around, stale) || len(v.Around) < 6 || len(v.Around) > 24 {
			t.Errorf("there are %d operations around it", len(v.Around))
		}
		return
	}
	t.Error("no stale write was found")
}

func TestWhatAKilledWorkerHadWrittenIsRead(t *testing.T) {
	dir := t.TempDir()
	r, err := history.NewRecorder(dir, "a.1")
	if err != nil {
		t.Fatal(err)
	}
	done := &history.Op{ID: "a.1#1", Worker: "a.1", Kind: history.Write, Token: 3, Targets: []history.Target{item}, Basis: map[history.Target]string{item: "x"}, Invoked: 10}
	open := &history.Op{ID: "a.1#2", Worker: "a.1", Kind: history.Read, Invoked: 30}
	if err := r.Invoked(done); err != nil {
		t.Fatal(err)
	}
	done.Returned, done.Outcome, done.Rows = 20, history.OK, map[history.Target]history.Row{item: {Version: 4, Op: done.ID}}
	if err := r.Returned(done); err != nil {
		t.Fatal(err)
	}
	if err := r.Invoked(open); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := history.NewRecorder(dir, "a.1"); err == nil {
		t.Error("two workers of one name")
	}
	file, err := os.OpenFile(filepath.Join(dir, "a.1.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(`{"id":"a.1#2","retur`); err != nil {
		t.Fatal(err)
	}
	ops, err := history.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	open.Outcome = history.Unknown
	if diff := cmp.Diff([]*history.Op{done, open}, ops); diff != "" {
		t.Error(diff)
	}
}
