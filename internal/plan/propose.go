package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/fenced"
)

// The words of fencing.protect.
const (
	row       = "row"
	named     = "named"
	strict    = "strict"
	reentrant = "reentrant"
)

// manyRows is how many rows a call of a statement writes, on average, for it to be a batch under one lock rather than a holder's
// write of its own rows.
const manyRows = 100

// decision is a fence, and why.
type decision struct {
	mode, fence string
	columns     []string // of the template, when it is the table's own primary key
	reasons     []string
}

func propose(f *facts, tables map[int64]*facts) Proposal {
	d := decide(f, tables)
	p := Proposal{
		Schema: f.Schema, Table: f.Name, Quoted: f.Quoted, Kind: named, Fence: d.fence, Reasons: d.reasons, Cautions: []string{},
		Inserted: f.inserted, Updated: f.updated, Deleted: f.deleted,
	}
	if d.fence == "" {
		p.Kind, p.Mode = row, d.mode
	}
	caution := func(format string, args ...any) { p.Cautions = append(p.Cautions, fmt.Sprintf(format, args...)) }
	for _, c := range f.cascades {
		parent := tables[c.Parent]
		if parent == nil {
			continue
		}
		verb := "changes"
		if c.Deletes {
			verb = "deletes"
		}
		if !parent.guarded {
			caution("A write of %s %s its rows (foreign key %s): protect both, and present a token to either.", parent.Quoted, verb, c.Name)
		}
	}
	if d.fence == "" && f.column != nil {
		caution("It has a column %s already, which is adopted.", fenced.ColumnName)
	}
	if f.partitioned {
		caution("It is partitioned: run protect again when partitions were added, for the guard against TRUNCATE on them.")
	}
	if f.children > 0 {
		caution("%s from it: protect puts guards on them too, and has to be run again for new ones.", plural(f.children, "table inherits", "tables inherit"))
	}
	for _, rule := range f.rules {
		caution("Its rule %s rewrites statements before any guard sees them.", rule)
	}
	if f.subscribed {
		caution("A subscription writes it, and no guard fires for that.")
	}
	return p
}

// decide finds the fence of a table: that of its parent, where a foreign key lets the parent's lock write both.
func decide(f *facts, tables map[int64]*facts) decision {
	if f.proposed != nil {
		return *f.proposed
	}
	f.deciding = true // tables whose keys go round in a circle decide for themselves
	d := f.choose(tables)
	f.deciding = false
	f.proposed = &d
	return d
}

func (f *facts) choose(tables map[int64]*facts) decision {
	switch {
	case f.truncates > 0:
		return decision{fence: constant(f), reasons: []string{fmt.Sprintf(
			"It is truncated (%s in pg_stat_statements), which every fence refuses but that of the whole table.", plural(f.truncates, "time", "times"))}}
	case f.bulkRows >= manyRows:
		return decision{fence: constant(f), reasons: []string{fmt.Sprintf(
			"A statement changes %d rows a call: that is one lock for the whole table, and one check for each statement.", f.bulkRows)}}
	}
	for _, c := range f.cascades {
		if fence, reason := f.under(c, tables); fence != "" {
			return decision{fence: fence, reasons: []string{reason}}
		}
	}
	if reasons := f.wantsName(tables); len(reasons) > 0 {
		return f.byKey(reasons)
	}
	written := f.inserted + f.updated + f.deleted
	switch {
	case f.inserted > 0 && f.updated == 0:
		return decision{fence: constant(f), reasons: []string{
			"Rows were only inserted. A fence in the rows compares nothing for a new row; a named fence refuses an old holder's.",
		}}
	case f.updates > 1:
		return decision{mode: reentrant, reasons: []string{fmt.Sprintf(
			"%d different statements update it, so one grant may well write a row twice. Rows are not deleted, and no statement was seen that locks what it reads.", f.updates)}}
	case f.updated >= 2*max(f.live, 1):
		return decision{mode: reentrant, reasons: []string{fmt.Sprintf(
			"Its rows are written again and again (%s of %s), and not deleted. If each grant writes a row once, strict is the stricter choice.",
			plural(f.updated, "update", "updates"), plural(f.live, "row", "rows"))}}
	case written == 0:
		return decision{mode: strict, reasons: []string{
			"No write was seen: there is nothing but its definition to go by. A token in each row needs no claim, and shows who writes.",
		}}
	}
	return decision{mode: strict, reasons: []string{
		"Rows are updated, and not deleted. A token in each row needs no claim; change to a named fence if holders decide by what they read.",
	}}
}

// under is the fence of a foreign key's parent, in the columns of the table itself; "" when the table cannot share it.
func (f *facts) under(c cascade, tables map[int64]*facts) (fence, reason string) {
	parent := tables[c.Parent]
	if parent == nil || !c.Deletes || parent.deciding {
		return "", ""
	}
	why := fmt.Sprintf("Its rows belong to %s and are deleted with it (foreign key %s): one fence for both, that of the row they belong to.", parent.Quoted, c.Name)
	if parent.guarded {
		if parent.fence == "" {
			return "", ""
		}
		shared, ok := translate(parent.fence, parent.key, c.Columns)
		if !ok {
			return "", ""
		}
		return shared, why
	}
	d := decide(parent, tables)
	switch {
	case d.fence != "" && d.columns == nil && !strings.Contains(d.fence, "{"):
		return d.fence, fmt.Sprintf("Its rows belong to %s and are deleted with it (foreign key %s): one fence for both, that of the whole table.", parent.Quoted, c.Name)
	case d.columns != nil && c.Columns != nil:
		return template(parent, c.Columns), why
	}
	return "", ""
}

// translate writes a parent's template with the columns of the table that refers to it.
func translate(fence string, key, columns []string) (string, bool) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(fence, "{")
		b.WriteString(before)
		if !found {
			return b.String(), true
		}
		column, after, _ := strings.Cut(rest, "}")
		i := slices.Index(key, column)
		if i < 0 || i >= len(columns) {
			return "", false
		}
		b.WriteString("{" + columns[i] + "}")
		fence = after
	}
}

// wantsName lists what speaks against a fence in the rows.
func (f *facts) wantsName(tables map[int64]*facts) []string {
	var reasons []string
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	if f.unlogged {
		add("It is unlogged: a crash empties it, and fences in its rows with it. A named fence is kept elsewhere.")
	}
	if f.column != nil && *f.column != "bigint" {
		add("It has a column %s of its own, of type %s: a fence in the rows has no place.", fenced.ColumnName, *f.column)
	}
	if f.locks > 0 {
		add("Statements lock what they read and write it later (FOR UPDATE, %s): only a claim before the read closes the door behind an old holder.", plural(f.locks, "call", "calls"))
	}
	if f.deleted > 0 {
		add("Rows are deleted (%d so far), and a fence in the row goes with it; a named fence stays.", f.deleted)
	}
	for _, c := range f.cascades {
		if parent := tables[c.Parent]; parent != nil && c.Deletes {
			add("Its rows are deleted with those of %s (foreign key %s), and a fence in the row goes with it; a named fence stays.", parent.Quoted, c.Name)
		}
	}
	if len(f.feeds) > 0 {
		names := make([]string, 0, 1)
		for _, oid := range f.feeds {
			if name := tables[oid].Quoted; !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		if more := len(names) - 3; more > 0 {
			names = append(names[:3], fmt.Sprintf("%d more", more))
		}
		add("What belongs to its rows is deleted with them (%s): one fence for a row and all that belongs to it.", strings.Join(names, ", "))
	}
	return reasons
}

// byKey is a named fence for each row, where the key can name one.
func (f *facts) byKey(reasons []string) decision {
	switch {
	case f.keyUsable:
		return decision{fence: template(f, f.key), columns: f.key, reasons: reasons}
	case len(f.key) == 0:
		reasons = append(reasons, "It has no primary key to name a row's fence: one for the whole table.")
	default:
		reasons = append(reasons, fmt.Sprintf("Its primary key (%s) cannot name a row's fence, for its type, a brace in its name, or because it is generated: one for the whole table.",
			strings.Join(f.key, ", ")))
	}
	return decision{fence: constant(f), reasons: reasons}
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
