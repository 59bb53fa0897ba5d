package interleave

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Fixture is what the sessions find: the tables item and ledger, with the same rows at the start of every run, protected in
// one way. Both tables have the columns id, grp (the template's column, and the partition key) and note (which step wrote
// the row); the primary key is id and grp.
type Fixture struct {
	Name           string
	Fence          string // the named fence or template; "" for row fences
	Ledger         string // the fence of the table ledger, where it is another than Fence
	Strict         bool   // row fences take each token once
	RequireInserts bool   // row fences with inserts => 'require'
	Partitioned    bool   // by grp, one partition for each group
	Claimed        map[string]int64
}

// Tokens that the fixtures have accepted before the sessions begin.
const (
	rowToken  = 30 // of every row under a row fence
	heldToken = 33 // of the fences nightly and grp/1, where they have been claimed
	nextToken = 43 // of grp/2: its lock is another one, with a counter of its own
)

var (
	oneFence  = map[string]int64{"nightly": heldToken}
	twoFences = map[string]int64{"grp/1": heldToken, "grp/2": nextToken}
)

// fixtures are all there are.
var fixtures = []*Fixture{
	{Name: "row-strict", Strict: true},
	{Name: "row-strict-partitioned", Strict: true, Partitioned: true},
	{Name: "row-strict-required", Strict: true, RequireInserts: true},
	{Name: "row-reentrant"},
	{Name: "row-reentrant-partitioned", Partitioned: true},
	{Name: "named", Fence: "nightly", Claimed: oneFence},
	{Name: "named-unclaimed", Fence: "nightly"},
	{Name: "named-partitioned", Fence: "nightly", Partitioned: true, Claimed: oneFence},
	{Name: "template", Fence: "grp/{grp}", Claimed: twoFences},
	{Name: "template-unclaimed", Fence: "grp/{grp}"},
	// One fence, which one table names as its own and the other's rows by template.
	{Name: "template-and-constant", Fence: "grp/{grp}", Ledger: "grp/1", Claimed: twoFences},
	{Name: "template-partitioned", Fence: "grp/{grp}", Partitioned: true, Claimed: twoFences},
}

// fixtureNamed is nil when there is none.
func fixtureNamed(name string) *Fixture {
	for _, f := range fixtures {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// named tells a named fence from row fences.
func (f *Fixture) named() bool { return f.Fence != "" }

// fenceOf is the named fence that a table's row of a group belongs to.
func (f *Fixture) fenceOf(table string, group int) string {
	return strings.ReplaceAll(f.template(table), "{grp}", strconv.Itoa(group))
}

// template is the fence of a table as it is given to fencing.protect.
func (f *Fixture) template(table string) string {
	if table == "ledger" && f.Ledger != "" {
		return f.Ledger
	}
	return f.Fence
}

// rowID is a row's place, wherever partitions and deletes take it.
type rowID struct {
	table string
	id    int
}

// initialNote is what a row holds that no step has written.
const initialNote = "initial"

// rows are the initial rows, each with its group.
var rows = map[rowID]int{
	{"item", 1}: 1, {"item", 2}: 1, {"item", 3}: 2,
	{"ledger", 1}: 1,
}

// tables in the order in which their rows are listed.
var tables = []string{"item", "ledger"}

// createSQL makes the tables in the schema that is first on the search_path, protected as the design has it.
func (f *Fixture) createSQL(d *Design) string {
	var b strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&b, "CREATE TABLE %s (id int, grp int NOT NULL, note text NOT NULL, PRIMARY KEY (id, grp))", table)
		if f.Partitioned {
			b.WriteString(" PARTITION BY LIST (grp)")
		}
		b.WriteString(";\n")
		if f.Partitioned {
			for group := 1; group <= 2; group++ {
				fmt.Fprintf(&b, "CREATE TABLE %s_%d PARTITION OF %s FOR VALUES IN (%d);\n", table, group, table, group)
			}
		}
		fmt.Fprintf(&b, "SELECT fencing.protect('%s', %s);\n", table, f.options(table))
	}
	b.WriteString(d.setup)
	return b.String()
}

// options are the arguments of fencing.protect.
func (f *Fixture) options(table string) string {
	if f.named() {
		return fmt.Sprintf("fence => '%s'", f.template(table))
	}
	options := "mode => 'reentrant'"
	if f.Strict {
		options = "mode => 'strict'"
	}
	if f.RequireInserts {
		options += ", inserts => 'require'"
	}
	return options
}

// resetSQL brings rows and fences back to what they were at first. It runs where no trigger fires.
func (f *Fixture) resetSQL() string {
	var b strings.Builder
	b.WriteString("DELETE FROM fencing.fence;")
	for _, table := range tables {
		var values []string
		for row, group := range rows {
			if row.table != table {
				continue
			}
			value := fmt.Sprintf("(%d, %d, '%s'", row.id, group, initialNote)
			if !f.named() {
				value += ", " + strconv.Itoa(rowToken)
			}
			values = append(values, value+")")
		}
		slices.Sort(values)
		column := ""
		if !f.named() {
			column = ", last_fencing_token"
		}
		fmt.Fprintf(&b, "DELETE FROM %s;INSERT INTO %s (id, grp, note%s) VALUES %s;", table, table, column, strings.Join(values, ","))
	}
	for _, fence := range slices.Sorted(maps.Keys(f.Claimed)) {
		fmt.Fprintf(&b, "INSERT INTO fencing.fence (name, token, claimed_at, claimed_by) VALUES ('%s', %d, now(), 'fixture');", fence, f.Claimed[fence])
	}
	return b.String()
}

// finalSQL reads what is left when all sessions are done: first the rows, then the fences.
func (f *Fixture) finalSQL() string {
	column := "NULL::bigint"
	if !f.named() {
		column = "last_fencing_token"
	}
	parts := make([]string, len(tables))
	for i, table := range tables {
		parts[i] = fmt.Sprintf("SELECT '%s' AS tab, id, grp, note, %s FROM %s", table, column, table)
	}
	return strings.Join(parts, " UNION ALL ") + " ORDER BY 1, 2; SELECT name, token FROM fencing.fence ORDER BY 1;"
}
