package interleave

import (
	"embed"
	"fmt"
	"slices"
)

// A Design is what stands between a write and the tables: the guards of the schema fencing, or something that people build
// instead of them.
type Design struct {
	Name string
	// Hole says in one sentence what is wrong with it; "" for the guards.
	Hole string
	// Breaks is the promise that it breaks; "" for the guards.
	Breaks string
	// setup runs when a fixture's tables have been protected, and puts the design in the place of the guards.
	setup string
	// statements are sent instead of the usual ones.
	statements map[Verb]string
	// The hole shows in a scenario of these sessions, all at one isolation level.
	fixture  string
	level    string
	sessions []string
}

// Scenario is where the design's hole shows: some order of it breaks a promise.
func (d *Design) Scenario() *Scenario {
	f := family{name: "hole", sessions: d.sessions}
	return f.scenario(d.fixture, d, slices.Repeat([]string{d.level}, len(d.sessions)))
}

// Sessions in which several designs show their holes. The old holder reads first: under REPEATABLE READ its snapshot is then
// older than whatever comes between.
const (
	oldWrites = `old
		begin {level}; present 33
		read item 1
		write item 1
		commit`
	newWrites = `new
		begin {level}; present 34
		write item 1
		commit`
	newClaimsAndWrites = `new
		claim nightly 34
		begin {level}; present 34
		read item 1
		write item 1
		commit`
)

// guards is the product.
var guards = &Design{Name: "guards"}

//go:embed designs/*.sql
var designFiles embed.FS

// setupFile is a design's setup: the tables are taken from the guards, and given what the file says.
func setupFile(name string) string {
	content, err := designFiles.ReadFile("designs/" + name + ".sql")
	if err != nil {
		panic(fmt.Sprintf("a file of this package's own is not in it: %v", err))
	}
	return unprotect + string(content)
}

const unprotect = "SELECT fencing.unprotect('item'); SELECT fencing.unprotect('ledger');\n"

// wrongDesigns are the known ones.
var wrongDesigns = []*Design{
	{
		Name:    "no-row-guard",
		Breaks:  "P1",
		Hole:    "nothing checks: an old holder's write lands on a newer one's",
		fixture: "row-strict", level: readCommitted, sessions: []string{oldWrites, newWrites},
		setup: unprotect,
	},
	{
		Name:    "no-named-guard",
		Breaks:  "P3",
		Hole:    "the claim is made, and nothing compares writes with it",
		fixture: "named", level: readCommitted, sessions: []string{oldWrites, newClaimsAndWrites},
		setup: unprotect,
	},
	{
		Name:    "plain-select",
		Breaks:  "P3",
		Hole:    "the guard reads the fence without a lock, and the claim commits between the check and the write's commit",
		fixture: "named", level: readCommitted, sessions: []string{oldWrites, newClaimsAndWrites},
		setup: setupFile("plain_select"),
	},
	{
		Name:    "for-key-share",
		Breaks:  "P3",
		Hole:    "FOR KEY SHARE does not conflict with the claim's UPDATE of a column that is no key",
		fixture: "named", level: readCommitted, sessions: []string{oldWrites, newClaimsAndWrites},
		setup: setupFile("for_key_share"),
	},
	{
		Name:    "advisory-lock",
		Breaks:  "P3",
		Hole:    "under REPEATABLE READ the guard waits for the advisory lock, and then reads the fence on a snapshot from before",
		fixture: "named", level: repeatableRead, sessions: []string{oldWrites, newClaimsAndWrites},
		setup:      setupFile("advisory_lock"),
		statements: map[Verb]string{Claim: `SELECT advisory_claim('{fence}', {token})`},
	},
	{
		Name:    "exists-in-update",
		Breaks:  "P3",
		Hole:    "the UPDATE's own EXISTS reads the fence without holding it",
		fixture: "named", level: readCommitted, sessions: []string{oldWrites, newClaimsAndWrites},
		setup: unprotect,
		statements: map[Verb]string{
			Write: `UPDATE {table} SET note = '{marker}' WHERE id = {key}
				AND EXISTS (SELECT FROM fencing.fence WHERE name = 'nightly' AND token = {token})`,
		},
	},
	{
		Name:    "claim-while-writing",
		Breaks:  "P3",
		Hole:    "under REPEATABLE READ the snapshot is older than the claim's wait: the new holder reads what the old one has overwritten",
		fixture: "named", level: repeatableRead, sessions: []string{oldWrites, `new
			begin {level}; present 34
			claim nightly 34
			read item 1
			write item 2
			commit`},
	},
	{
		Name:    "cte-classification",
		Breaks:  "P5",
		Hole:    "the CTE's snapshot is older than the lock that its UPDATE waited for: a refusal is taken for a missing row",
		fixture: "row-strict", level: readCommitted, sessions: []string{oldWrites, newWrites},
		setup: unprotect,
		statements: map[Verb]string{
			Write: `WITH updated AS (
					UPDATE {table} SET note = '{marker}', last_fencing_token = {token}
					 WHERE id = {key} AND last_fencing_token < {token} RETURNING id),
				found AS (SELECT last_fencing_token FROM {table} WHERE id = {key})
				SELECT CASE WHEN EXISTS (SELECT FROM updated) THEN 'written'
				            WHEN EXISTS (SELECT FROM found WHERE last_fencing_token >= {token}) THEN 'stale'
				            ELSE 'missing' END AS verdict`,
		},
	},
	{
		Name:    "forgotten-statement",
		Breaks:  "P1",
		Hole:    "every UPDATE carries the predicate, and the ON CONFLICT DO UPDATE of one query does not",
		fixture: "row-strict", level: readCommitted, sessions: []string{`old
			begin {level}; present 33
			write item 2
			upsert item 1 1
			commit`, newWrites},
		setup: unprotect,
		statements: map[Verb]string{
			Write: `UPDATE {table} SET note = '{marker}', last_fencing_token = {token} WHERE id = {key} AND last_fencing_token < {token}`,
		},
	},
	{
		Name:    "unclaimed-accepted",
		Breaks:  "P1",
		Hole:    "the guard takes any token that is not older than the fence, without anybody having claimed it",
		fixture: "named", level: readCommitted, sessions: []string{oldWrites, newWrites},
		setup: setupFile("unclaimed_accepted"),
	},
	{
		Name:    "row-guard-trusts-the-column",
		Breaks:  "P2",
		Hole:    "a value that the statement left alone passes for a token: writes that present nothing are accepted",
		fixture: "row-strict", level: readCommitted, sessions: []string{oldWrites, `psql
			begin {level}
			write item 1
			commit`},
		setup: setupFile("trusts_the_column"),
	},
}

// designNamed is nil when there is none.
func designNamed(name string) *Design {
	if name == guards.Name {
		return guards
	}
	for _, d := range wrongDesigns {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// Designs lists the known wrong designs.
func Designs() []*Design { return wrongDesigns }
