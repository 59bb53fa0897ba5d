package torture

import (
	"cmp"
	"slices"

	"github.com/fencectl/fencectl/internal/torture/history"
)

// An OperationCount is how often an operation had which outcome.
type OperationCount struct {
	Kind                         history.Kind
	OK, Refused, Failed, Unknown int
}

// Operations counts the operations by kind.
func (r *Report) Operations() []OperationCount {
	counts := []OperationCount{{Kind: history.Grant}, {Kind: history.Claim}, {Kind: history.Read}, {Kind: history.Write}}
	for _, op := range r.History.Ops {
		i := slices.IndexFunc(counts, func(c OperationCount) bool { return c.Kind == op.Kind })
		switch op.Outcome {
		case history.OK:
			counts[i].OK++
		case history.Refused:
			counts[i].Refused++
		case history.Failed:
			counts[i].Failed++
		default:
			counts[i].Unknown++
		}
	}
	return counts
}

// A RefusalCount is how often an operation was refused for which reason.
type RefusalCount struct {
	Kind    history.Kind
	Refusal string
	N       int
}

// refusalsExplained says what each means.
var refusalsExplained = map[string]string{
	"stale":       "an older token than the fence's",
	"unfenced":    "no token",
	"unclaimed":   "a token that has not claimed the fence",
	"invalid":     "no token at all, or one too far ahead",
	"unsupported": "not possible under this fence",
	"grant ended": "the worker noticed itself that its grant had ended",
	"held":        "somebody else holds the lock",
	"incarnation": "an etcd that nobody has adopted yet",
}

// What says what the refusal means.
func (c RefusalCount) What() string { return refusalsExplained[c.Refusal] }

// Refusals counts the refusals, the most frequent first for each kind of operation.
func (r *Report) Refusals() []RefusalCount {
	var counts []RefusalCount
	for _, op := range r.History.Ops {
		if op.Outcome != history.Refused {
			continue
		}
		i := slices.IndexFunc(counts, func(c RefusalCount) bool { return c.Kind == op.Kind && c.Refusal == op.Refusal })
		if i < 0 {
			i = len(counts)
			counts = append(counts, RefusalCount{Kind: op.Kind, Refusal: op.Refusal})
		}
		counts[i].N++
	}
	kinds := []history.Kind{history.Write, history.Claim, history.Read, history.Grant}
	slices.SortFunc(counts, func(a, b RefusalCount) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)), cmp.Compare(b.N, a.N), cmp.Compare(a.Refusal, b.Refusal))
	})
	return counts
}

// Refused is the number of writes and claims that a fence refused.
func (r *Report) Refused() (n int) {
	for _, c := range r.Refusals() {
		if (c.Kind == history.Write || c.Kind == history.Claim) && c.Refusal != "grant ended" {
			n += c.N
		}
	}
	return n
}

// A FaultCount is how often a kind of fault was planned, and how often it happened. Those that the run ended before did not.
type FaultCount struct {
	Kind              FaultKind
	Planned, Injected int
}

// Faults counts the faults by kind.
func (r *Report) Faults() []FaultCount {
	var counts []FaultCount
	at := func(kind FaultKind) *FaultCount {
		i := slices.IndexFunc(counts, func(c FaultCount) bool { return c.Kind == kind })
		if i < 0 {
			i = len(counts)
			counts = append(counts, FaultCount{Kind: kind})
		}
		return &counts[i]
	}
	for _, f := range r.Planned {
		at(f.Kind).Planned++
	}
	for _, f := range r.Injected {
		at(f.Kind).Injected++
	}
	order := []FaultKind{PauseWorker, KillWorker, StepClock, KillPostgres, FreezePostgres, PromoteStandby, KillEtcdLeader, RestoreEtcd, KillPooler}
	slices.SortFunc(counts, func(a, b FaultCount) int {
		return cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind))
	})
	return counts
}

// A RuleCount is how often a rule was broken.
type RuleCount struct {
	Rule history.Rule
	N    int
}

// Rules counts the violations of every rule, also of those that held.
func (r *Report) Rules() []RuleCount {
	var counts []RuleCount
	for _, rule := range history.Rules() {
		n := 0
		for _, v := range r.Verdict.Violations {
			if v.Rule == rule {
				n++
			}
		}
		counts = append(counts, RuleCount{rule, n})
	}
	return counts
}
