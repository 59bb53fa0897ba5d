package interleave

import (
	"fmt"
	"slices"
)

// Check says which promises a history breaks. A history under the guards of the schema fencing must break none.
//
// What it takes for certain, and why it may:
//
//   - A write has happened when its statement reported the row, and counts when its transaction's COMMIT was acknowledged
//     as one and no savepoint took it back.
//   - Transactions commit in the order of the rounds in which their COMMIT was sent, because a round is over before the next
//     step is sent. A claim without a transaction block commits with its own statement; where it had waited, it
//     commits after the step that released it. Two such claims that one step released are in no known order, and nothing
//     is concluded from either.
//   - The versions of one row are in the order in which their writes answered: a writer holds its row until its transaction
//     ends, so that the next one answers in a later round, or in the same round after that end. What is left in the tables in
//     the end is compared with the last version, so a mistake here would not go unseen.
//
// The promises:
//
//   - P1, row fences: along the versions of a row, from its insertion to its deletion, the tokens of the committed
//     writes never decrease; in strict mode they increase. What the row stores in the end is the last of them (under the
//     guards of the schema fencing; a design may keep its fence elsewhere).
//     Named fences: no transaction that wrote under an older token commits after one that wrote under a newer.
//   - P2: every committed write had a token; under row fences that do not require it, an insert need not.
//   - P3: no write and no claim with an older token commits after a claim, and no claim commits while an older token is
//     held; and who starts reading after the claim (in a
//     transaction that began later, or in the claiming session) reads no row version that is older than one that was
//     written, at any time, under an older token. So a write that slips in after the read breaks it, too. And nothing is
//     written under a token that nobody has claimed.
//   - P5: every refusal has its reason in the history, and the SQLSTATE for it. A design that tells its refusals in
//     another way does not take one for a missing row.
//
// A history that is impossible in itself (a read of a version that nobody wrote) is reported as "history": then the explorer
// is wrong, or PostgreSQL.
func Check(h *History) []Violation {
	c := newChecker(h)
	c.collect()
	c.buildRows()
	c.checkTokens()
	c.checkRowFences()
	c.checkNamedFences()
	c.checkReads()
	c.checkUnclaimed()
	c.checkRefusals()
	c.checkVerdicts()
	c.checkFinal()
	return c.violations
}

// transaction is one that a session ran, with what it did and did not take back.
type transaction struct {
	session   string
	began     int // the round in which its first step was sent
	committed bool
	ended     moment
	tokens    tokens
	writes    []*write
	claims    []*claim
	holds     []*claim // of what hold has presented
	reads     []*read
	marks     []mark
	refusals  []*refusal
	// With what was taken back later: the transaction itself has met it.
	everWritten []*write
	everClaimed []*claim
}

// tokens are what a transaction presents: under the name of a fence for it alone, under "" for all others.
type tokens map[string]int64

func (t tokens) of(fence string) int64 {
	if token, ok := t[fence]; ok {
		return token
	}
	return t[""]
}

// mark is a savepoint: how far the transaction had come.
type mark struct {
	name                  string
	writes, claims, holds int
	tokens                tokens
}

// write is one that has reported its row.
type write struct {
	tx     *transaction
	event  *Event
	action Action
	row    rowID
	marker string
	tokens tokens
	// Filled in along the row's versions:
	inserts bool
	fences  []string // the named fences it was under
	version int
	before  string // the marker of the version it replaced
}

type claim struct {
	tx    *transaction
	event *Event
	fence string
	token int64
	at    moment
}

type read struct {
	tx    *transaction
	event *Event
	row   rowID
	note  string // "" for no row
	found bool
}

// version is one state of a row. The first is the fixture's.
type version struct {
	write  *write // nil for the first
	note   string
	group  int
	exists bool
	stored int64 // under row fences
}

type checker struct {
	h            *History
	fixture      *Fixture
	transactions []*transaction
	versions     map[rowID][]version
	violations   []Violation
}

func newChecker(h *History) *checker {
	return &checker{h: h, fixture: h.Scenario.Fixture, versions: map[rowID][]version{}}
}

func (c *checker) report(promise, format string, args ...any) {
	c.violations = append(c.violations, Violation{promise, fmt.Sprintf(format, args...)})
}

// collect reads the sessions' transactions out of the history.
func (c *checker) collect() {
	for i, session := range c.h.Scenario.Sessions {
		var tx *transaction
		for _, e := range c.h.Events {
			if e.Session != i {
				continue
			}
			block := tx != nil
			if !block {
				tx = &transaction{session: session.Name, began: e.Sent, tokens: tokens{}}
				c.transactions = append(c.transactions, tx)
			}
			opens := c.apply(tx, e, session)
			if !block && !opens { // a single statement
				tx.committed, tx.ended = e.SQLState == "", c.h.done(e)
			}
			if tx.ended.round > 0 {
				tx = nil
			}
		}
	}
}

// apply adds to a transaction what a step did, and tells whether the step opens a transaction block.
func (c *checker) apply(tx *transaction, e *Event, session Session) (opens bool) {
	for _, a := range c.h.step(e) {
		switch a.Verb {
		case Begin:
			opens = true
		case Commit, Rollback:
			tx.ended = c.h.done(e)
			tx.committed = a.Verb == Commit && e.SQLState == "" && !e.RolledBack
			for _, made := range tx.everClaimed {
				made.at = tx.ended
			}
			continue
		default:
		}
		if e.SQLState != "" {
			if e.refused() {
				presented := tx.tokens
				if a.Verb == Hold {
					presented = presented.holding(a)
				}
				tx.refusals = append(tx.refusals, &refusal{tx: tx, event: e, action: a, tokens: presented})
			}
			continue
		}
		switch a.Verb {
		case Present:
			tx.tokens = cloneTokens(tx.tokens)
			tx.tokens[a.Fence] = a.Token
		case Hold:
			tx.tokens = tx.tokens.holding(a)
			tx.holds = append(tx.holds, &claim{tx: tx, event: e, fence: a.Fence, token: a.Token, at: c.h.done(e)})
		case Claim:
			made := &claim{tx: tx, event: e, fence: a.Fence, token: a.Token, at: c.h.done(e)}
			tx.claims, tx.everClaimed = append(tx.claims, made), append(tx.everClaimed, made)
		case Read:
			tx.reads = append(tx.reads, &read{tx: tx, event: e, row: rowID{a.Table, a.Key}, note: e.Note, found: e.Rows > 0})
		case Savepoint:
			tx.marks = append(tx.marks, mark{a.Name, len(tx.writes), len(tx.claims), len(tx.holds), tx.tokens})
		case RollbackTo:
			at := slices.IndexFunc(tx.marks, func(m mark) bool { return m.name == a.Name })
			to := tx.marks[at]
			tx.marks = tx.marks[:at+1]
			tx.writes, tx.claims, tx.tokens = tx.writes[:to.writes:to.writes], tx.claims[:to.claims:to.claims], to.tokens
			tx.holds = tx.holds[:to.holds:to.holds]
		default:
			if a.Verb.writes() && e.Rows > 0 {
				w := &write{tx: tx, event: e, action: a, row: rowID{a.Table, a.Key}, marker: session.marker(e.Step), tokens: tx.tokens}
				tx.writes, tx.everWritten = append(tx.writes, w), append(tx.everWritten, w)
			}
		}
	}
	return opens
}

// holding is what is presented after a hold: its token for its fence, and for everything else where there was nothing.
func (t tokens) holding(a Action) tokens {
	t = cloneTokens(t)
	if t[""] == 0 {
		t[""] = a.Token
	}
	t[a.Fence] = a.Token
	return t
}

func cloneTokens(t tokens) tokens {
	clone := tokens{}
	for fence, token := range t {
		clone[fence] = token
	}
	return clone
}

// token is what a write was made under, for a fence; 0 for nothing. Row fences take the column before what is presented,
// and what is presented for one named fence is nothing to them.
func (w *write) token(fence string) int64 {
	if w.action.Verb == Set {
		return w.action.Token
	}
	return w.tokens.of(fence)
}

// buildRows follows each row through its committed versions.
func (c *checker) buildRows() {
	for row, group := range rows {
		c.versions[row] = []version{{note: initialNote, group: group, exists: true, stored: rowToken}}
	}
	position := map[*Event]int{}
	for i, e := range c.h.answered() {
		position[e] = i
	}
	var writes []*write
	for _, tx := range c.transactions {
		if tx.committed {
			writes = append(writes, tx.writes...)
		}
	}
	slices.SortFunc(writes, func(a, b *write) int { return position[a.event] - position[b.event] })

	for _, w := range writes {
		if c.versions[w.row] == nil {
			c.versions[w.row] = []version{{}} // a row that is not there at first
		}
		chain := c.versions[w.row]
		last := chain[len(chain)-1]
		next := version{write: w, note: w.marker, group: last.group, exists: w.action.Verb != Delete}
		w.inserts, w.version, w.before = !last.exists, len(chain), last.note
		switch w.action.Verb {
		case Insert, Upsert:
			if !last.exists {
				next.group = w.action.Group
			}
		case Regroup:
			next.group = w.action.Group
		default:
		}
		if w.inserts != (w.action.Verb == Insert || w.action.Verb == Upsert && !last.exists) {
			c.report("history", "%s: the row was there: %t", w, last.exists)
		}
		if last.exists {
			w.fences = append(w.fences, c.fixture.fenceOf(w.row.table, last.group))
		}
		if fence := c.fixture.fenceOf(w.row.table, next.group); next.exists && !slices.Contains(w.fences, fence) {
			w.fences = append(w.fences, fence)
		}
		if next.stored = last.stored; w.inserts {
			next.stored = 0
		}
		if token := w.token(""); token != 0 {
			next.stored = token
		}
		c.versions[w.row] = append(chain, next)
	}
}

func (w *write) String() string {
	return fmt.Sprintf("%s's %s", w.tx.session, w.action)
}

// eachWrite visits the committed writes, row by row.
func (c *checker) eachWrite(visit func(*write)) {
	for _, tx := range c.transactions {
		if tx.committed {
			for _, w := range tx.writes {
				visit(w)
			}
		}
	}
}

// checkTokens is P2.
func (c *checker) checkTokens() {
	c.eachWrite(func(w *write) {
		if !c.fixture.named() && w.inserts && !c.fixture.RequireInserts {
			return
		}
		for _, fence := range w.fences {
			if w.token(fence) == 0 {
				c.report("P2", "%s has committed without a token", w)
			}
		}
	})
}

// checkRowFences is P1 for rows.
func (c *checker) checkRowFences() {
	if c.fixture.named() {
		return
	}
	c.eachWrite(func(w *write) {
		earlier := c.versions[w.row][w.version-1]
		token := w.token("")
		if w.inserts || token == 0 { // a life of its own begins; a write without a token is P2's
			return
		}
		switch {
		case token < earlier.stored:
			c.report("P1", "%s under token %d has committed on a row that had accepted %d", w, token, earlier.stored)
		case token == earlier.stored && c.fixture.Strict:
			c.report("P1", "%s under token %d has committed on a strict row that had accepted it already", w, token)
		}
	})
}

// checkNamedFences is P1 for named fences, and P3 as far as it is about commits.
func (c *checker) checkNamedFences() {
	if !c.fixture.named() {
		return
	}
	c.eachWrite(func(newer *write) {
		c.eachWrite(func(older *write) {
			for _, fence := range newer.fences {
				if !slices.Contains(older.fences, fence) || older.token(fence) == 0 || older.token(fence) >= newer.token(fence) {
					continue
				}
				follows := newer.tx.ended.before(older.tx.ended)
				if newer.tx == older.tx {
					follows = newer.event.Sent < older.event.Sent
				}
				if follows {
					c.report("P1", "%s under token %d has committed after %s under token %d of the same fence, %s",
						older, older.token(fence), newer, newer.token(fence), fence)
				}
			}
		})
	})
	for _, made := range c.claims() {
		c.eachWrite(func(w *write) {
			if slices.Contains(w.fences, made.fence) && w.token(made.fence) < made.token && w.token(made.fence) != 0 && made.at.before(w.tx.ended) {
				c.report("P3", "%s under token %d has committed after %s's claim of %s with token %d",
					w, w.token(made.fence), made.tx.session, made.fence, made.token)
			}
		})
		for _, tx := range c.transactions {
			for _, held := range tx.holds {
				if tx.committed && held.fence == made.fence && held.token < made.token && held.at.before(made.at) && made.at.before(tx.ended) {
					c.report("P3", "%s's claim of %s with token %d has committed while %s held the fence under token %d",
						made.tx.session, made.fence, made.token, tx.session, held.token)
				}
			}
		}
		for _, other := range c.claims() {
			if other.fence == made.fence && other.token < made.token && made.at.before(other.at) {
				c.report("P3", "%s's claim of %s with token %d has committed after %s's with token %d",
					other.tx.session, other.fence, other.token, made.tx.session, made.token)
			}
		}
	}
}

// claims are the committed ones.
func (c *checker) claims() []*claim {
	var claims []*claim
	for _, tx := range c.transactions {
		if tx.committed {
			claims = append(claims, tx.claims...)
		}
	}
	return claims
}

// checkReads is P3 as far as it is about what a new holder sees.
func (c *checker) checkReads() {
	for _, tx := range c.transactions {
		for _, r := range tx.reads {
			at, ok := c.versionRead(r)
			if !ok || !c.fixture.named() {
				continue
			}
			for _, made := range c.claims() {
				own := made.tx.session == tx.session && made.event.Sent < r.event.Sent
				if !own && made.at.round >= tx.began {
					continue
				}
				for _, later := range c.versions[r.row][at+1:] {
					token := later.write.token(made.fence)
					if slices.Contains(later.write.fences, made.fence) && token < made.token && later.write.tx != tx {
						c.report("P3", "%s's %s, after the claim of %s with token %d, has not seen %s under token %d, which has committed",
							tx.session, c.h.step(r.event), made.fence, made.token, later.write, token)
					}
				}
			}
		}
	}
}

// versionRead finds which version of its row a read has seen; not ok where it was one that its own transaction wrote and
// that is in no chain. A read that found no row has seen the last version in which there was none: the choice that accuses nobody.
func (c *checker) versionRead(r *read) (at int, ok bool) {
	chain := c.versions[r.row]
	if chain == nil {
		chain = []version{{}}
	}
	for i := len(chain) - 1; i >= 0; i-- {
		if chain[i].exists == r.found && (!r.found || chain[i].note == r.note) {
			return i, true
		}
	}
	// What the transaction itself has written, and taken back later, it may have seen.
	for step, s := range c.sessionNamed(r.tx.session).Steps {
		own := c.sessionNamed(r.tx.session).marker(step)
		if s[0].Verb == Delete && !r.found || s[0].Verb.writes() && own == r.note {
			return 0, false
		}
	}
	c.report("history", "%s's %s has seen %q, which nobody has committed", r.tx.session, c.h.step(r.event), r.note)
	return 0, false
}

func (c *checker) sessionNamed(name string) Session {
	i := slices.IndexFunc(c.h.Scenario.Sessions, func(s Session) bool { return s.Name == name })
	return c.h.Scenario.Sessions[i]
}

// checkVerdicts is P5: a row that was there all the time is not missing.
func (c *checker) checkVerdicts() {
	for _, e := range c.h.Events {
		if e.Verdict != "missing" {
			continue
		}
		a := c.h.step(e)[0]
		if chain := c.versions[rowID{a.Table, a.Key}]; len(chain) > 0 && !slices.ContainsFunc(chain, func(v version) bool { return !v.exists }) {
			c.report("P5", "%s's %s was refused, and is told that its row is missing, which was there all the time", c.h.Scenario.Sessions[e.Session].Name, a)
		}
	}
}

// checkFinal compares what is left in the tables with what the sessions saw.
func (c *checker) checkFinal() {
	for row, chain := range c.versions {
		last := chain[len(chain)-1]
		found, exists := c.h.Final[row]
		switch {
		case exists != last.exists, exists && (found.note != last.note || found.group != last.group):
			c.report("history", "%s %d is %+v in the end (there: %t), and the last committed write has made it %+v", row.table, row.id, found, exists, last)
		case exists && !c.fixture.named() && c.h.Scenario.Design == guards && found.token != last.stored:
			c.report("P1", "%s %d stores token %d in the end, and was last written under %d", row.table, row.id, found.token, last.stored)
		}
	}
	for row := range c.h.Final {
		if c.versions[row] == nil {
			c.report("history", "%s %d is there in the end, and nobody has committed it", row.table, row.id)
		}
	}
	expected := map[string]int64{}
	for fence, token := range c.fixture.Claimed {
		expected[fence] = token
	}
	for _, made := range c.claims() {
		expected[made.fence] = max(expected[made.fence], made.token)
	}
	for fence, token := range expected {
		if c.h.Fences[fence] != token {
			c.report("P3", "fence %s stands at %d in the end, and %d was claimed", fence, c.h.Fences[fence], token)
		}
	}
}

// checkRefusals holds the guards to what they refuse: each refusal has its reason in the history. A guard that refuses too
// much would keep every other promise.
//
// It never accuses a refusal that may be right: a fence may stand at whatever was claimed by the time of the answer, and a
// row may belong to any fence that it ever belongs to.
func (c *checker) checkRefusals() {
	if c.h.Scenario.Design != guards {
		return
	}
	for _, tx := range c.transactions {
		for _, r := range tx.refusals {
			var justified bool
			switch {
			case r.action.Verb == Claim:
				justified = r.event.SQLState == "ZF001" && slices.ContainsFunc(c.standings(r, r.action.Fence), func(at int64) bool { return at > r.action.Token })
			case r.action.Verb == Hold:
				justified = c.refusesNamed(r, r.action.Fence)
			case c.fixture.named():
				justified = slices.ContainsFunc(c.fencesEver(r), func(fence string) bool { return c.refusesNamed(r, fence) })
			default:
				justified = c.refusesRow(r)
			}
			if !justified {
				c.report("P5", "%s's %s under %v was refused with %s (%s), and nothing in the history says why",
					tx.session, r.action, r.tokens, r.event.SQLState, r.event.Message)
			}
		}
	}
}

// refusal is a step that a guard, or a claim, has refused.
type refusal struct {
	tx     *transaction
	event  *Event
	action Action
	tokens tokens
}

// standings are the tokens at which a fence may have stood when a step was refused: what was there at first, what had been
// claimed by then, and what its own transaction has claimed.
func (c *checker) standings(r *refusal, fence string) []int64 {
	all := []int64{c.fixture.Claimed[fence]}
	for _, tx := range c.transactions {
		for _, made := range tx.everClaimed {
			if made.fence == fence && (tx == r.tx || tx.committed && !c.h.done(r.event).before(made.at)) {
				all = append(all, made.token)
			}
		}
	}
	return all
}

func (c *checker) refusesNamed(r *refusal, fence string) bool {
	token := r.tokens.of(fence)
	switch r.event.SQLState {
	case "ZF001":
		return token != 0 && slices.Max(c.standings(r, fence)) > token
	case "ZF002":
		return token == 0
	case "ZF004":
		// Whatever is certain to have been claimed when the step was sent.
		stood := c.fixture.Claimed[fence]
		for _, made := range c.claims() {
			if made.fence == fence && made.at.round < r.event.Sent {
				stood = max(stood, made.token)
			}
		}
		return token > stood
	default:
		return false
	}
}

// fencesEver are the fences that a row may belong to at some time.
func (c *checker) fencesEver(r *refusal) []string {
	fences := []string{c.fixture.fenceOf(r.action.Table, r.action.Group)}
	for _, v := range c.versions[rowID{r.action.Table, r.action.Key}] {
		fences = append(fences, c.fixture.fenceOf(r.action.Table, v.group))
	}
	return fences
}

func (c *checker) refusesRow(r *refusal) bool {
	token := r.tokens.of("")
	if r.action.Verb == Set {
		token = r.action.Token
	}
	row := rowID{r.action.Table, r.action.Key}
	switch r.event.SQLState {
	case "ZF001":
		stale := func(stored int64) bool { return token < stored || token == stored && c.fixture.Strict }
		return token != 0 && (slices.ContainsFunc(c.versions[row], func(v version) bool {
			return v.exists && stale(v.stored) && (v.write == nil || !c.h.done(r.event).before(v.write.tx.ended))
		}) || slices.ContainsFunc(r.tx.everWritten, func(w *write) bool { return w.row == row && stale(w.token("")) }))
	case "ZF002":
		return token == 0
	default:
		return false
	}
}

// checkUnclaimed: a token that nobody has claimed writes nothing.
func (c *checker) checkUnclaimed() {
	c.eachWrite(func(w *write) {
		for _, fence := range w.fences {
			if !c.fixture.named() || w.token(fence) == 0 {
				continue
			}
			if at := c.standings(&refusal{tx: w.tx, event: w.event}, fence); !slices.Contains(at, w.token(fence)) {
				c.report("P3", "%s under token %d has committed, which nobody had claimed for %s", w, w.token(fence), fence)
			}
		}
	})
}
