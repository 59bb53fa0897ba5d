package history

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A fence is a register that only grows: a claim, or a write under a row fence, sets it; a write under an older token is refused and
// told what it holds. Whether some order of the operations, each somewhere between its invocation and its return, explains all
// answers is what Porcupine decides (Horn and Kroening, "Faster linearizability checking via P-compositionality", 2015). Fences are
// independent of each other, so that each is a problem of its own.

// registers asks, for each fence, whether its history is that of a register.
func (c *checker) registers(limit time.Duration) {
	histories := c.byFence()
	deadline := time.Now().Add(limit)
	for _, fence := range slices.Sorted(maps.Keys(histories)) {
		c.verdict.Registers++
		// Each gets its share of what is left: one that is hard to decide must not keep the others from being decided.
		share := max(time.Until(deadline)/4, 100*time.Millisecond)
		switch porcupine.CheckOperationsTimeout(register, histories[fence], share) {
		case porcupine.Illegal:
			c.violated(NotLinearizable, fence, c.contradiction(histories[fence], share), "no order of its %d operations explains their answers", len(histories[fence]))
		case porcupine.Unknown:
			c.verdict.Undecided++
		case porcupine.Ok:
		}
	}
}

// contradiction narrows an illegal history down, for people: to the last operations of a beginning of it that is illegal, where the
// one shorter by an operation is not.
func (c *checker) contradiction(ops []porcupine.Operation, limit time.Duration) []string {
	legal, illegal := 0, len(ops)
	for deadline := time.Now().Add(limit); illegal-legal > 1 && time.Now().Before(deadline); {
		middle := (legal + illegal) / 2
		if porcupine.CheckOperationsTimeout(register, ops[:middle], time.Until(deadline)) == porcupine.Illegal {
			illegal = middle
		} else {
			legal = middle
		}
	}
	var last []string
	for _, op := range ops[max(0, illegal-3):illegal] {
		if id := op.Input.(request).id; id != "" {
			last = append(last, id)
		}
	}
	return last
}

// byFence makes a history of each fence, in the order of invocation.
func (c *checker) byFence() map[string][]porcupine.Operation {
	histories := map[string][]porcupine.Operation{}
	clients := map[string]int{}
	for _, op := range c.Ops {
		fence, in, ok := c.request(op)
		if !ok {
			continue
		}
		if _, known := clients[op.Worker]; !known {
			clients[op.Worker] = len(clients) + 1
		}
		until := op.until()
		if op.Outcome == Unknown {
			until = never // it may take effect long after its worker has given up, or died
		}
		histories[fence] = append(histories[fence], porcupine.Operation{ClientId: clients[op.Worker], Input: in, Call: op.Invoked, Return: until})
	}
	for fence, ops := range histories {
		for _, loss := range c.Losses {
			ops = append(ops, porcupine.Operation{Input: request{kind: forget}, Call: loss.From, Return: loss.To})
		}
		slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return int(min(max(a.Call-b.Call, -1), 1)) })
		histories[fence] = ops
	}
	return histories
}

// request is what an operation asks of which fence, and how it was answered; ok is false for what asks nothing of any.
func (c *checker) request(op *Op) (fence string, in request, ok bool) {
	in = request{id: op.ID, kind: op.Kind, token: op.Token, outcome: op.Outcome, refusal: op.Refusal, stored: op.Stored, versions: unknownVersions}
	lossy := c.mayBeLost(op)
	switch op.Kind {
	case Claim:
		return "fence " + op.Lock, in, op.Outcome != Failed
	case Read:
		if op.Outcome != OK {
			return "", in, false
		}
		for target, row := range op.Rows {
			if !lossy {
				in.versions[target.Item()] = row.Version
			}
		}
		return "fence " + op.Lock, in, true
	case Write:
	default:
		return "", in, false
	}
	if op.Outcome == Refused && op.Refusal != Stale && op.Refusal != Unclaimed {
		return "", in, false // a write without a token is none of the register's business
	}
	effects := c.effects[op.ID]
	switch {
	case op.Outcome == Failed:
		return "", in, false
	case op.Outcome == Unknown && len(effects) == 0 && !lossy:
		return "", in, false // it did not happen
	case op.Outcome == Unknown && len(effects) > 0:
		in.outcome = OK // it did
	}
	for _, target := range op.Targets {
		in.writes[target.Item()] = true
	}
	if !lossy && in.outcome == OK {
		for _, e := range effects {
			in.versions[e.Target.Item()] = e.Version
		}
	}
	in.table = op.Targets[0].Table()
	if in.table == Named {
		return "fence " + op.Lock, in, true
	}
	return "row " + string(op.Targets[0]), in, true
}

// forget is the kind of a promotion that loses transactions: what the register holds after it is not known.
const forget Kind = "forget"

// A request is an operation's input and output together: both are known, only the order is not.
type request struct {
	id       string
	kind     Kind
	table    Table
	token    int64
	outcome  Outcome
	refusal  string
	stored   int64
	writes   [Items]bool
	versions [Items]int64
}

// unknown is a token or a version that is not known: of the register at the beginning and after a loss, of an answer that went with one.
const unknown = -1

var unknownVersions = [Items]int64{unknown, unknown, unknown, unknown}

// A state is what the register holds.
type state struct {
	token    int64
	versions [Items]int64
}

var register = porcupine.Model{
	Init: func() any { return state{unknown, unknownVersions} },
	Step: func(s, in, _ any) (bool, any) {
		ok, next := step(s.(state), in.(request))
		return ok, next
	},
	DescribeOperation: func(in, _ any) string {
		r := in.(request)
		return fmt.Sprintf("%s %s token %d: %s %s %d", r.id, r.kind, r.token, r.outcome, r.refusal, r.stored)
	},
}

// step says whether the register could have answered so, and what it holds then.
func step(s state, r request) (bool, state) {
	if r.kind == forget {
		return true, state{unknown, unknownVersions}
	}
	if r.outcome == Unknown {
		// It happened if it was allowed to. That it never did is the same as that it comes after everything else.
		if may(s, r) {
			s.token = r.token
			for i, writes := range r.writes {
				if writes {
					s.versions[i] = unknown
				}
			}
		}
		return true, s
	}
	if r.outcome == Refused {
		if r.stored > 0 {
			if s.token != unknown && s.token != r.stored {
				return false, s
			}
			s.token = r.stored
		}
		return s.token == unknown || !may(s, r), s
	}
	if r.kind == Read {
		for i, v := range r.versions {
			if v == unknown {
				continue
			}
			if s.versions[i] != unknown && s.versions[i] != v {
				return false, s
			}
			s.versions[i] = v
		}
		return true, s
	}
	if s.token != unknown && !may(s, r) {
		return false, s
	}
	s.token = r.token
	for i, writes := range r.writes {
		if !writes {
			continue
		}
		if s.versions[i] != unknown && r.versions[i] != unknown && r.versions[i] != s.versions[i]+1 {
			return false, s
		}
		s.versions[i] = r.versions[i]
	}
	return true, s
}

// may reports whether the register, when it is known, lets the token through.
func may(s state, r request) bool {
	switch {
	case s.token == unknown:
		return true
	case r.kind == Claim, r.table == Reentrant:
		return r.token >= s.token
	case r.table == Strict:
		return r.token > s.token
	default: // under a named fence only the one that has claimed writes
		return r.token == s.token
	}
}
