package history

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/fencectl/fencectl/fenced"
)

const never = math.MaxInt64

// A Rule is a promise that can be broken, by its stable name.
type Rule string

// The rules, each with the promise that it is part of.
const (
	StaleWrite      Rule = "stale-write"      // P1: on one row, a write came after one with a newer token
	UnfencedWrite   Rule = "unfenced-write"   // P2: a write without a token was committed
	ClaimIgnored    Rule = "claim-ignored"    // P3: after a claim and a read, an older token wrote what had been read
	LostWrite       Rule = "lost-write"       // P4: an acknowledged write is gone
	LostClaim       Rule = "lost-claim"       // P4: the fence is older than an acknowledged claim
	TokenReissued   Rule = "token-reissued"   // P4: one token for two grants
	TokenWentBack   Rule = "token-went-back"  // P4: a grant was given a token older than one that had been given before it
	HalfWritten     Rule = "half-written"     // P5: a transaction had part of its effect
	RefusedWritten  Rule = "refused-written"  // P5: a write that was refused, or failed, had an effect
	WrittenTwice    Rule = "written-twice"    // a write had its effect twice
	LostUpdate      Rule = "lost-update"      // a write was made from what its holder had read, and another came between
	LogContradicted Rule = "log-contradicted" // a row and the log of its writes do not agree
	NotLinearizable Rule = "not-linearizable" // no order of the operations on a fence explains all of their answers
)

// Rules lists all rules, in the order of the promises.
func Rules() []Rule {
	return []Rule{
		StaleWrite, UnfencedWrite, ClaimIgnored, LostWrite, LostClaim, TokenReissued, TokenWentBack, HalfWritten, RefusedWritten,
		WrittenTwice, LostUpdate, LogContradicted, NotLinearizable,
	}
}

// Promise says what the rule is about.
func (r Rule) Promise() string {
	return map[Rule]string{
		StaleWrite:      "P1: no write with an older token follows one with a newer token",
		UnfencedWrite:   "P2: no write without a token commits",
		ClaimIgnored:    "P3: after a claim no older token writes, and what older tokens wrote can be read",
		LostWrite:       "P4: an acknowledged write survives kill -9 of the server",
		LostClaim:       "P4: an acknowledged claim survives kill -9 of the server",
		TokenReissued:   "P4: no token is issued twice",
		TokenWentBack:   "P4: tokens only grow",
		HalfWritten:     "P5: nothing is half-written",
		RefusedWritten:  "P5: what is refused has no effect",
		WrittenTwice:    "an accepted write has its effect once",
		LostUpdate:      "what a holder read after its claim is not changed by an older one",
		LogContradicted: "every write of a row is in the log, and the other way round",
		NotLinearizable: "the answers of a fence are those of a register that only grows",
	}[r]
}

// A Violation is a broken promise, with the operations that show it.
type Violation struct {
	Rule    Rule   `json:"rule"`
	Subject string `json:"subject"` // the row, the fence or the token source
	Text    string `json:"text"`
	// Ops are the operations that contradict each other. Around are those on the same lock just before, between and after, in the order of
	// invocation; only the first Shown violations of a rule have them.
	Ops    []string `json:"ops,omitempty"`
	Around []*Op    `json:"around,omitempty"`
}

// A Verdict is what Check found.
type Verdict struct {
	Violations []Violation
	// Lost is the number of acknowledged writes and claims that went with a promotion that was known to lose transactions. They are
	// no violations: asynchronous replication does not promise them.
	Lost int
	// Recovered is the number of writes of unknown outcome that turned out to have happened.
	Recovered int
	// Registers is the number of fences whose history is that of a register, Undecided of those for which the search took too long.
	Registers, Undecided int
}

// CheckOptions limit the search for an order that explains a fence's history. nil means the defaults.
type CheckOptions struct {
	// Search bounds the time of the whole search. Default one minute.
	Search time.Duration
}

// Check judges a history.
func Check(h *History, options *CheckOptions) *Verdict {
	search := time.Minute
	if options != nil && options.Search > 0 {
		search = options.Search
	}
	c := &checker{History: h, ops: map[string]*Op{}, effects: map[string][]Effect{}, chains: map[Target][]Effect{}, claims: map[tenure]*Op{}}
	for _, op := range h.Ops {
		c.ops[op.ID] = op
		if op.Kind == Claim && op.Outcome == OK {
			c.claims[tenure{op.Worker, op.Lock, op.Token}] = op
		}
	}
	for _, e := range h.Effects {
		c.effects[e.Op] = append(c.effects[e.Op], e)
		c.chains[e.Target] = append(c.chains[e.Target], e)
	}
	for _, chain := range c.chains {
		slices.SortStableFunc(chain, func(a, b Effect) int { return cmp.Compare(a.Version, b.Version) })
	}
	c.writes()
	c.rows()
	c.readsAfterClaims()
	c.claimsKept()
	c.tokens()
	c.registers(search)
	order := Rules()
	slices.SortStableFunc(c.verdict.Violations, func(a, b Violation) int { return cmp.Compare(slices.Index(order, a.Rule), slices.Index(order, b.Rule)) })
	shown := map[Rule]int{}
	for i := range c.verdict.Violations {
		v := &c.verdict.Violations[i]
		if shown[v.Rule]++; shown[v.Rule] <= Shown {
			c.surround(v)
		}
	}
	return &c.verdict
}

// Shown is how many violations of each rule come with the operations around them. Where there are more they look alike.
const Shown = 25

// A tenure is a worker's time under one grant.
type tenure struct {
	worker, lock string
	token        int64
}

type checker struct {
	*History
	ops     map[string]*Op
	effects map[string][]Effect // by operation
	chains  map[Target][]Effect // by row, in the order of the versions
	claims  map[tenure]*Op      // the accepted ones
	verdict Verdict
}

func (c *checker) violated(rule Rule, subject string, ops []string, format string, args ...any) {
	c.verdict.Violations = append(c.verdict.Violations, Violation{Rule: rule, Subject: subject, Ops: ops, Text: fmt.Sprintf(format, args...)})
}

// mayBeLost reports whether the operation was under way while a promotion was losing transactions.
func (c *checker) mayBeLost(op *Op) bool {
	return slices.ContainsFunc(c.Losses, func(l Loss) bool { return op.Invoked <= l.To && op.until() >= l.From })
}

// writes: exactly once what was acknowledged, not at all what was not, and in no case a half.
func (c *checker) writes() {
	for _, op := range c.Ops {
		if op.Kind != Write {
			continue
		}
		count := map[Target]int{}
		for _, e := range c.effects[op.ID] {
			count[e.Target]++
		}
		for target, n := range count {
			if n > 1 {
				c.violated(WrittenTwice, string(target), []string{op.ID}, "%s is in the log %d times", op.ID, n)
			}
		}
		written := len(count)
		switch {
		case written > 0 && written < len(op.Targets):
			c.violated(HalfWritten, op.Lock, []string{op.ID}, "%s wrote %d of its %d rows", op.ID, written, len(op.Targets))
		case written > 0 && (op.Outcome == Refused || op.Outcome == Failed):
			c.violated(RefusedWritten, string(op.Targets[0]), []string{op.ID}, "%s was answered with %q (%s), and yet it is in the log", op.ID, op.Outcome, cmp.Or(op.Refusal, op.Note))
		case written == 0 && op.Outcome == OK && c.mayBeLost(op):
			c.verdict.Lost++
		case written == 0 && op.Outcome == OK:
			c.violated(LostWrite, string(op.Targets[0]), []string{op.ID}, "%s was acknowledged, and is not in the log", op.ID)
		case written > 0 && op.Outcome == Unknown:
			c.verdict.Recovered++
		}
	}
	for _, e := range c.Effects {
		if c.ops[e.Op] == nil {
			c.violated(LogContradicted, string(e.Target), []string{e.Op}, "%s is in the log, and no worker says that it sent it", e.Op)
		}
	}
}

// rows follows each row through its versions.
func (c *checker) rows() {
	targets := slices.Sorted(maps.Keys(c.chains))
	for target := range c.Rows {
		if c.chains[target] == nil {
			targets = append(targets, target)
		}
	}
	for _, target := range targets {
		chain, before := c.chains[target], Effect{}
		var newest Effect // the newest token so far
		for _, e := range chain {
			if e.Version != before.Version+1 {
				c.violated(LogContradicted, string(target), ids(before, e), "version %d follows version %d", e.Version, before.Version)
			}
			switch {
			case e.Token == 0:
				c.violated(UnfencedWrite, string(target), ids(e), "%s wrote version %d without a token", e.Op, e.Version)
			case e.Token < newest.Token:
				c.violated(StaleWrite, string(target), ids(newest, e), "%s wrote version %d with token %v after %s had written version %d with token %v",
					e.Op, e.Version, fenced.Token(e.Token), newest.Op, newest.Version, fenced.Token(newest.Token))
			case target.Table() == Strict && e.Token == newest.Token:
				c.violated(StaleWrite, string(target), ids(newest, e), "%s wrote version %d with token %v, which %s had used for version %d of a strict row",
					e.Op, e.Version, fenced.Token(e.Token), newest.Op, newest.Version)
			default:
				newest = e
			}
			c.basis(target, before, e)
			before = e
		}
		if row, ok := c.Rows[target]; ok && (row.Version != before.Version || row.Op != before.Op) {
			c.violated(LogContradicted, string(target), ids(before), "the row is at version %d of %q, the log at version %d of %q", row.Version, row.Op, before.Version, before.Op)
		}
	}
}

// basis checks that what a write was made from was still there.
func (c *checker) basis(target Target, before, e Effect) {
	op := c.ops[e.Op]
	if op == nil {
		return
	}
	basis, has := op.Basis[target]
	if !has || basis == before.Op {
		return
	}
	// A holder that outlives a promotion remembers a write of its own that went with it. Its token is as good as before.
	if of := c.ops[basis]; of != nil && len(c.effects[basis]) == 0 && c.mayBeLost(of) {
		return
	}
	c.violated(LostUpdate, string(target), ids(before, e), "%s wrote version %d from what %s had left, and did not know of %s, which came between", e.Op, e.Version, named(basis), named(before.Op))
}

func named(op string) string {
	if op == "" {
		return "nobody"
	}
	return op
}

func ids(effects ...Effect) []string {
	var all []string
	for _, e := range effects {
		if e.Op != "" {
			all = append(all, e.Op)
		}
	}
	return all
}

// readsAfterClaims: whoever has claimed and then reads sees all that older tokens ever write.
func (c *checker) readsAfterClaims() {
	for _, op := range c.Ops {
		if op.Kind != Read || op.Outcome != OK {
			continue
		}
		claim := c.claims[tenure{op.Worker, op.Lock, op.Token}]
		if claim == nil || c.mayBeLost(claim) {
			continue // a claim that went with a promotion protects nothing
		}
		for _, target := range slices.Sorted(maps.Keys(op.Rows)) {
			for _, e := range c.chains[target] {
				if e.Version > op.Rows[target].Version && e.Token < op.Token && e.Token > 0 {
					c.violated(ClaimIgnored, string(target), []string{claim.ID, op.ID, e.Op}, "after claim %s with token %v, %s read version %d, and then %s wrote version %d with token %v",
						claim.ID, fenced.Token(op.Token), op.ID, op.Rows[target].Version, e.Op, e.Version, fenced.Token(e.Token))
					break // one for each row and reader
				}
			}
		}
	}
}

// claimsKept: a fence never falls behind an acknowledged claim.
func (c *checker) claimsKept() {
	newest := map[string]*Op{}
	for _, op := range c.Ops {
		if op.Kind != Claim || op.Outcome != OK {
			continue
		}
		if c.mayBeLost(op) {
			if op.Token > c.Fences[op.Lock] {
				c.verdict.Lost++
			}
			continue
		}
		if newest[op.Lock] == nil || op.Token > newest[op.Lock].Token {
			newest[op.Lock] = op
		}
	}
	for _, lock := range slices.Sorted(maps.Keys(newest)) {
		if op := newest[lock]; op.Token > c.Fences[lock] {
			c.violated(LostClaim, lock, []string{op.ID}, "claim %s of token %v was acknowledged, and in the end the fence holds %v", op.ID, fenced.Token(op.Token), fenced.Token(c.Fences[lock]))
		}
	}
}

// tokens: each is issued once, and a grant that was asked for after another had been given has the greater one.
func (c *checker) tokens() {
	grants := map[string][]*Op{}
	for _, op := range c.Ops {
		if op.Kind == Grant && op.Outcome == OK {
			grants[op.Source] = append(grants[op.Source], op)
		}
	}
	for _, source := range slices.Sorted(maps.Keys(grants)) {
		asked := grants[source] // in the order of invocation
		given := slices.SortedFunc(slices.Values(asked), func(a, b *Op) int { return cmp.Compare(a.Returned, b.Returned) })
		seen := map[int64]*Op{}
		var newest *Op // of those given before the next one was asked for
		for _, op := range asked {
			for len(given) > 0 && given[0].Returned < op.Invoked {
				if newest == nil || given[0].Token > newest.Token {
					newest = given[0]
				}
				given = given[1:]
			}
			first := seen[op.Token]
			seen[op.Token] = op
			switch {
			case first != nil:
				c.violated(TokenReissued, source, []string{first.ID, op.ID}, "token %v was given to %s for %q and to %s for %q", fenced.Token(op.Token), first.ID, first.Lock, op.ID, op.Lock)
			case newest != nil && op.Token < newest.Token:
				c.violated(TokenWentBack, source, []string{newest.ID, op.ID}, "%s was given token %v after %s had been given token %v", op.ID, fenced.Token(op.Token), newest.ID, fenced.Token(newest.Token))
			}
		}
	}
}

// surround adds what happened on the same lock around a violation.
func (c *checker) surround(v *Violation) {
	const before, after, most = 3, 3, 24
	var involved []*Op
	for _, id := range v.Ops {
		if op := c.ops[id]; op != nil {
			involved = append(involved, op)
		}
	}
	if len(involved) == 0 {
		return
	}
	locks := map[string]bool{}
	from, to := int64(never), int64(0)
	for _, op := range involved {
		locks[op.Lock] = true
		from, to = min(from, op.Invoked), max(to, op.Invoked)
	}
	var same []*Op
	first, last := -1, -1
	for _, op := range c.Ops {
		if !locks[op.Lock] {
			continue
		}
		if op.Invoked == from && first < 0 {
			first = len(same)
		}
		if op.Invoked <= to {
			last = len(same)
		}
		same = append(same, op)
	}
	same = same[max(0, first-before):min(len(same), last+after+1)]
	if len(same) > most {
		// The two ends and those involved tell the story.
		same = slices.DeleteFunc(slices.Clone(same), func(op *Op) bool {
			i := slices.Index(same, op)
			return i >= most/2 && i < len(same)-most/2 && !slices.Contains(involved, op)
		})
	}
	v.Around = same
}
