package interleave

import (
	"fmt"
	"strings"
)

// An Extent says how much there is to explore.
type Extent int

// Extents.
const (
	Small Extent = iota // each family at one combination of isolation levels or two: seconds
	Full                // everything: minutes
)

// A family is a scenario at any isolation levels and on any of some fixtures. In its sessions {level} stands for the
// session's level.
type family struct {
	name     string
	fixtures []string
	sessions []string // each "name" and its steps, one a line
	// large families have some hundred orders for each combination; Small leaves out all but one of these.
	large bool
}

var (
	rowFences      = []string{"row-strict", "row-reentrant", "row-strict-partitioned", "row-reentrant-partitioned"}
	constantFences = []string{"named", "named-partitioned"}
	templateFences = []string{"template", "template-partitioned"}
)

// families are the catalogue. The old holder has token 33, its successors 34 and 35.
var families = []family{
	// One row fence for each row: no claim, so only P1 and P2.
	{"row-takeover", rowFences, []string{`old
		begin {level}; present 33
		read item 1
		write item 1
		commit`, `new
		begin {level}; present 34
		read item 1
		write item 1
		commit`}, false},
	{"row-explicit-column", rowFences[:2], []string{`old
		begin {level}
		set item 1 33
		set item 2 33
		commit`, `new
		begin {level}; present 34
		write item 2
		set item 1 35
		commit`}, false},
	{"row-two-rows", rowFences[:2], []string{`old
		begin {level}; present 33
		write item 1
		write item 2
		commit`, `new
		begin {level}; present 34
		write item 2
		write item 1
		commit`}, false},
	{"row-zombie-returns", rowFences[:2], []string{`old
		begin {level}; present 33
		write item 1
		commit
		begin {level}; present 33
		write item 1
		commit`, `new
		begin {level}; present 34
		write item 1
		commit`}, false},
	{"row-delete", rowFences, []string{`old
		begin {level}; present 33
		delete item 1
		commit
		begin {level}; present 33
		write item 1
		commit`, `new
		begin {level}; present 34
		write item 1
		commit`}, false},
	{"row-delete-and-insert", []string{"row-strict", "row-strict-required", "row-reentrant-partitioned"}, []string{`old
		begin {level}; present 33
		delete item 1
		insert item 1 1
		commit`, `new
		begin {level}; present 34
		upsert item 1 1
		write item 2
		commit`}, false},
	{"row-insert-race", []string{"row-strict", "row-strict-required", "row-reentrant"}, []string{`old
		begin {level}; present 33
		insert item 9 1
		write item 9
		commit`, `new
		begin {level}; present 34
		upsert item 9 1
		commit`}, false},
	{"row-unfenced", []string{"row-strict", "row-strict-required", "row-reentrant"}, []string{`old
		begin {level}; present 33
		write item 1
		commit`, `psql
		begin {level}
		upsert item 1 1
		commit
		begin {level}
		delete item 1
		commit`}, false},
	{"row-savepoint", rowFences[:2], []string{`old
		begin {level}; present 33
		savepoint a
		write item 1
		rollback to a
		write item 2
		commit`, `new
		begin {level}; present 34
		write item 1
		write item 2
		commit`}, true},
	{"row-savepoint-token", rowFences[:2], []string{`old
		begin {level}; present 33
		savepoint a
		present 36
		rollback to a
		write item 1
		commit`, `new
		begin {level}; present 34
		write item 1
		commit`}, true},
	{"row-partition-move", rowFences[2:], []string{`old
		begin {level}; present 33
		regroup item 1 2
		commit
		begin {level}; present 33
		regroup item 1 1
		commit`, `new
		begin {level}; present 34
		write item 1
		regroup item 1 2
		commit`}, false},

	// A named fence: the new holder claims in a transaction of its own.
	{"takeover", constantFences, []string{`old
		begin {level}; present 33
		read item 1
		write item 1
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 1
		write item 1
		commit`}, false},
	{"other-row", constantFences, []string{`old
		begin {level}; present 33
		write item 2
		write item 1
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 2
		write item 1
		commit`}, false},
	{"two-tables", constantFences, []string{`old
		begin {level}; present 33
		write ledger 1
		write item 1
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 1
		write ledger 1
		commit`}, false},
	{"first-claims", []string{"named-unclaimed"}, []string{`old
		claim nightly 33
		begin {level}; present 33
		write item 1
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 1
		write item 1
		commit`}, false},
	{"claim-in-a-transaction", []string{"named-unclaimed"}, []string{`old
		begin {level}
		claim nightly 33
		commit
		begin {level}; present 33
		write item 1
		commit`, `new
		begin {level}
		claim nightly 34
		commit
		begin {level}; present 34
		read item 1
		write item 1
		commit`}, true},
	{"claim-taken-back", []string{"named"}, []string{`old
		begin {level}; present 33
		write item 1
		commit`, `new
		begin {level}
		claim nightly 34
		rollback
		begin {level}; present 34
		write item 1
		commit`}, false},
	{"claim-and-savepoint", []string{"named"}, []string{`old
		begin {level}; present 33
		write item 1
		commit`, `new
		begin {level}; present 34
		savepoint a
		claim nightly 34
		rollback to a
		write item 1
		commit`}, true},
	{"zombie-returns", constantFences, []string{`old
		begin {level}; present 33
		write item 1
		commit
		begin {level}; present 33
		write item 2
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 2
		write item 1
		commit`}, true},
	{"delete-and-insert", constantFences, []string{`old
		begin {level}; present 33
		delete item 1
		insert item 1 1
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 1
		upsert item 1 1
		commit`}, false},
	{"deleted-by-the-new", constantFences, []string{`old
		begin {level}; present 33
		upsert item 1 1
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		delete item 1
		commit
		read item 1`}, false},
	{"savepoint", constantFences, []string{`old
		begin {level}; present 33
		savepoint a
		write item 1
		rollback to a
		write item 2
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 2
		write item 1
		commit`}, true},
	{"savepoint-after-a-check", constantFences[:1], []string{`old
		begin {level}; present 33
		write item 1
		savepoint a
		write item 2
		rollback to a
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 1
		commit`}, true},
	{"hold", []string{"named", "named-unclaimed"}, []string{`old
		begin {level}
		hold nightly 33
		read item 1
		write item 1
		commit`, `new
		claim nightly 34
		begin {level}
		hold nightly 34
		read item 1
		write item 1
		commit`}, false},
	{"hold-and-savepoint", []string{"template", "template-and-constant"}, []string{`old
		begin {level}; present 33
		savepoint a
		hold grp/1 33
		rollback to a
		write ledger 1
		write item 1
		commit`, `new
		claim grp/1 34
		begin {level}; present 34
		write item 1
		commit`}, true},
	{"unfenced", constantFences, []string{`psql
		begin {level}
		write item 1
		commit
		begin {level}
		insert item 9 1
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		write item 1
		commit`}, false},
	{"not-claimed", constantFences[:1], []string{`old
		begin {level}; present 33
		write item 1
		commit`, `hasty
		begin {level}; present 34
		write item 1
		commit
		claim nightly 34
		begin {level}; present 34
		write item 1
		commit`}, true},
	{"same-token-twice", constantFences[:1], []string{`one
		claim nightly 34
		begin {level}; present 34
		read item 1
		write item 1
		commit`, `two
		claim nightly 34
		begin {level}; present 34
		write item 1
		commit`}, false},
	{"partition-move", constantFences[1:], []string{`old
		begin {level}; present 33
		regroup item 1 2
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 1
		regroup item 1 2
		write item 1
		commit`}, false},

	// A fence for each group of rows.
	{"template-takeover", templateFences, []string{`old
		begin {level}; present 33
		read item 1
		write item 1
		write item 2
		commit`, `new
		claim grp/1 34
		begin {level}; present 34
		read item 2
		write item 1
		commit`}, true},
	{"template-first-claims", []string{"template-unclaimed"}, []string{`old
		claim grp/1 33
		begin {level}; present 33
		write item 1
		commit`, `new
		claim grp/1 34
		begin {level}; present 34
		read item 1
		write item 1
		commit`}, false},
	{"template-transfer", templateFences, []string{`old
		begin {level}; present 33 for grp/1; present 43 for grp/2
		write item 1
		write item 3
		commit`, `new
		claim grp/2 44
		begin {level}; present 33 for grp/1; present 44 for grp/2
		read item 3
		write item 3
		write item 1
		commit`}, true},
	{"template-and-constant", []string{"template-and-constant"}, []string{`old
		begin {level}; present 33
		write ledger 1
		write item 1
		commit`, `new
		claim grp/1 34
		begin {level}; present 34
		read item 1
		write ledger 1
		commit`}, false},
	{"template-two-claims", templateFences[:1], []string{`old
		begin {level}; present 33 for grp/1; present 43 for grp/2
		write item 3
		write item 1
		commit`, `new
		claim grp/1 34
		claim grp/2 44
		begin {level}; present 34 for grp/1; present 44 for grp/2
		read item 3
		write item 1
		commit`}, true},
	{"template-regroup", templateFences, []string{`old
		begin {level}; present 33 for grp/1; present 43 for grp/2
		regroup item 1 2
		commit`, `new
		claim grp/1 34
		begin {level}; present 34 for grp/1; present 43 for grp/2
		read item 1
		regroup item 1 2
		commit`}, false},
	{"template-delete-and-insert", templateFences, []string{`old
		begin {level}; present 33
		delete item 1
		insert item 1 1
		commit`, `new
		claim grp/1 34
		begin {level}; present 34
		upsert item 1 1
		commit`}, false},
	{"template-savepoint", templateFences[:1], []string{`old
		begin {level}; present 33
		write item 1
		savepoint a
		present 43 for grp/2
		rollback to a
		write item 3
		commit`, `new
		claim grp/1 34
		begin {level}; present 34
		write item 1
		commit`}, true},

	// Three sessions.
	{"row-three-holders", rowFences, []string{`old
		begin {level}; present 33
		write item 1
		write item 2
		commit`, `new
		begin {level}; present 34
		write item 2
		write item 1
		commit`, `newest
		begin {level}; present 35
		upsert item 1 1
		delete item 2
		commit`}, false},
	{"three-holders", constantFences, []string{`old
		begin {level}; present 33
		write item 1
		write item 2
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 2
		write item 1
		commit`, `newest
		claim nightly 35
		begin {level}; present 35
		read item 1
		write item 2
		commit`}, false},
	{"two-workers-of-the-old", constantFences, []string{`old
		begin {level}; present 33
		write item 1
		commit`, `helper
		begin {level}; present 33
		write item 2
		savepoint a
		delete ledger 1
		rollback to a
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		read item 1
		read item 2
		upsert item 1 1
		commit`}, false},
	{"template-three-holders", templateFences, []string{`old
		begin {level}; present 33 for grp/1; present 43 for grp/2
		write item 1
		write item 3
		commit`, `new
		claim grp/1 34
		begin {level}; present 34
		read item 1
		write item 1
		commit`, `newest
		claim grp/2 44
		begin {level}; present 44
		read item 3
		write item 3
		commit`}, false},
	{"first-claims-of-three", []string{"named-unclaimed"}, []string{`old
		claim nightly 33
		begin {level}; present 33
		write item 1
		commit`, `new
		claim nightly 34
		begin {level}; present 34
		write item 1
		commit`, `newest
		claim nightly 35
		begin {level}; present 35
		read item 1
		write item 1
		commit`}, false},
}

// claimWhileWriting is right under READ COMMITTED alone, where every statement has a snapshot of its own. Under the other
// levels it is a wrong design.
var claimWhileWriting = family{"claim-while-writing", []string{"named"}, []string{`old
	begin {level}; present 33
	write item 1
	commit`, `new
	begin {level}; present 34
	claim nightly 34
	read item 1
	write item 1
	commit`}, false}

// levels in the words of SQL.
var levels = []string{readCommitted, repeatableRead, serializable}

// Scenarios is the catalogue under the guards of the schema fencing.
func Scenarios(extent Extent) []*Scenario {
	var all []*Scenario
	for _, f := range families {
		for n, fixture := range f.fixtures {
			for i, combination := range combinations(len(f.sessions)) {
				if extent == Small && !smallTakes(f, n, i) {
					continue
				}
				all = append(all, f.scenario(fixture, guards, combination))
			}
		}
	}
	return append(all, claimWhileWriting.scenario("named", guards, []string{readCommitted, readCommitted}))
}

// smallTakes says which combinations the small extent has. In the first two, all sessions are at READ COMMITTED, or all at
// REPEATABLE READ.
func smallTakes(f family, fixture, combination int) bool {
	switch {
	case f.large:
		return fixture == 0 && combination == 0
	case fixture == 0:
		return combination < 2
	default:
		return combination == 0
	}
}

// combinations are the isolation levels that n sessions may have, those first in which all have the same. Of those with
// three sessions that differ there are too many: each level once is enough, in each rotation.
func combinations(n int) [][]string {
	var same, others [][]string
	for _, level := range levels {
		all := make([]string, n)
		for i := range all {
			all[i] = level
		}
		same = append(same, all)
	}
	for i := range levels {
		for j := range levels {
			switch {
			case n == 2 && i != j:
				others = append(others, []string{levels[i], levels[j]})
			case n == 3 && j == 0:
				others = append(others, []string{levels[i], levels[(i+1)%3], levels[(i+2)%3]})
			}
		}
	}
	return append(same, others...)
}

func (f family) scenario(fixture string, d *Design, combination []string) *Scenario {
	sc := &Scenario{Fixture: fixtureNamed(fixture), Design: d}
	var short []string
	for i, text := range f.sessions {
		name, steps, _ := strings.Cut(text, "\n")
		s, err := parseSession(name, strings.ReplaceAll(steps, "{level}", combination[i]))
		if err != nil {
			panic(fmt.Sprintf("scenario %s: %v", f.name, err)) // a mistake in this file
		}
		sc.Sessions = append(sc.Sessions, s)
		short = append(short, abbreviated[combination[i]])
	}
	sc.Name = fmt.Sprintf("%s/%s/%s", f.name, fixture, strings.Join(short, "-"))
	if d != guards {
		sc.Name = d.Name
	}
	return sc
}

var abbreviated = map[string]string{readCommitted: "rc", repeatableRead: "rr", serializable: "ser"}
