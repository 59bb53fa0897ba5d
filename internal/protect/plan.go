// Package protect changes the protection of tables: it plans the statement for each table, applies the plan one short
// transaction per table in a way that a busy database survives, and writes the same plan as a migration. What a guard is
// and does is the SQL layer's; which tables are meant is package tableref's.
package protect

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/tableref"
)

// Protection is how one table is protected now.
type Protection struct {
	OID         int64  `json:"-"`
	Schema      string `json:"schema"`
	Table       string `json:"table"`
	Quoted      string `json:"-"`
	Kind        string `json:"kind"`                  // "row" or "named"
	Mode        string `json:"mode,omitempty"`        // "strict" or "reentrant"; row fences only
	Fence       string `json:"fence,omitempty"`       // the fence's name or template; named fences only
	Inserts     string `json:"inserts,omitempty"`     // "allow" or "require"; row fences only
	Enforcement string `json:"enforcement"`           // "enforce" or "observe"
	MaxAdvance  int64  `json:"max_advance,omitempty"` // how far one write may raise a token; 0: no limit
	Guards      int32  `json:"guards"`                // how many guard triggers the table has
}

// Current reads how the tables of a database are protected, by the oid of the table. The fencing schema must be installed.
func Current(ctx context.Context, db catalogdb.DBTX) (map[int64]Protection, error) {
	rows, err := catalogdb.New(db).ListProtection(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the protected tables: %w", err)
	}
	current := make(map[int64]Protection, len(rows))
	for _, r := range rows {
		current[r.Oid] = Protection{
			OID: r.Oid, Schema: r.SchemaName, Table: r.TableName, Quoted: r.Quoted, Kind: r.Kind, Mode: r.Mode, Fence: r.Fence,
			Inserts: r.Inserts, Enforcement: r.Enforcement, MaxAdvance: r.MaxAdvance, Guards: r.Guards,
		}
	}
	return current, nil
}

// Options are the options of fencing.protect. The zero value of each field means the SQL function's default.
type Options struct {
	Mode       string // "strict" (default) or "reentrant"
	Fence      string // the name or template of a named fence; "" (default) for a row fence
	Inserts    string // "allow" (default) or "require"
	Observe    bool   // record violations instead of refusing them
	MaxAdvance int64  // how far one write may raise a token; 0 (default): no limit
}

// A Step is the change of one table: one statement, complete and quoted.
type Step struct {
	Table tableref.Table
	Verb  string // what has happened once it is done: "protected", "unprotected", ...
	Note  string // how, in a few words; may be empty
	SQL   string // without the final semicolon
	Undo  string // of a protection: restores what was before, for the Down part of a migration
}

// Protect plans fencing.protect for each table. current is how they are protected now (nil when the schema is not
// installed yet): the undo of a changed protection is the earlier one, not none.
func Protect(tables []tableref.Table, current map[int64]Protection, opts Options) []Step {
	steps := make([]Step, len(tables))
	for i, t := range tables {
		steps[i] = Step{Table: t, Verb: "protected", Note: opts.InWords(), SQL: protectCall(t.Quoted, opts), Undo: unprotectCall(t.Quoted, opts.Fence == "" && !t.HasColumn)}
		if now, ok := current[t.OID]; ok {
			steps[i].Undo = protectCall(t.Quoted, now.options())
		}
	}
	return steps
}

// Unprotect plans fencing.unprotect for each table.
func Unprotect(tables []tableref.Table, dropColumn bool) []Step {
	steps := make([]Step, len(tables))
	for i, t := range tables {
		steps[i] = Step{Table: t, Verb: "unprotected", SQL: unprotectCall(t.Quoted, dropColumn)}
	}
	return steps
}

// Enforce plans fencing.enforce for each table.
func Enforce(tables []tableref.Table) []Step { return plain(tables, "enforcing", "enforce") }

// Observe plans fencing.observe for each table.
func Observe(tables []tableref.Table) []Step { return plain(tables, "observing", "observe") }

func plain(tables []tableref.Table, verb, function string) []Step {
	steps := make([]Step, len(tables))
	for i, t := range tables {
		steps[i] = Step{Table: t, Verb: verb, SQL: Call(function, Regclass(t.Quoted))}
	}
	return steps
}

// InWords is the kind of fence in a few words: "row, strict", "named jobs/nightly, observing".
func (o Options) InWords() string {
	words := "named " + o.Fence
	if o.Fence == "" {
		words = "row, strict"
		if o.Mode != "" {
			words = "row, " + o.Mode
		}
		if o.Inserts == "require" {
			words += ", inserts require a token"
		}
	}
	if o.MaxAdvance > 0 {
		words += fmt.Sprintf(", max advance %d", o.MaxAdvance)
	}
	if o.Observe {
		words += ", observing"
	}
	return words
}

// InWords is the kind of fence in a few words, without whether it enforces.
func (p Protection) InWords() string {
	options := p.options()
	options.Observe = false
	return options.InWords()
}

func (p Protection) options() Options {
	return Options{Mode: p.Mode, Fence: p.Fence, Inserts: p.Inserts, Observe: p.Enforcement == "observe", MaxAdvance: p.MaxAdvance}
}

func protectCall(quoted string, opts Options) string {
	args := []string{Regclass(quoted)}
	named := func(name, value string) { args = append(args, name+" => "+value) }
	if opts.Mode != "" && opts.Mode != "strict" {
		named("mode", Literal(opts.Mode))
	}
	if opts.Fence != "" {
		named("fence", Literal(opts.Fence))
	}
	if opts.Inserts != "" && opts.Inserts != "allow" {
		named("inserts", Literal(opts.Inserts))
	}
	if opts.Observe {
		named("observe", "true")
	}
	if opts.MaxAdvance != 0 {
		named("max_advance", strconv.FormatInt(opts.MaxAdvance, 10))
	}
	return Call("protect", args...)
}

func unprotectCall(quoted string, dropColumn bool) string {
	if dropColumn {
		return Call("unprotect", Regclass(quoted), "drop_column => true")
	}
	return Call("unprotect", Regclass(quoted))
}

// Call is a statement that calls a function of the fencing schema. The arguments are SQL already.
func Call(function string, args ...string) string {
	return "SELECT fencing." + function + "(" + strings.Join(args, ", ") + ")"
}

// Regclass is a table as an argument. quoted is its name as the server quoted it.
func Regclass(quoted string) string { return Literal(quoted) + "::regclass" }

// Literal writes text as a string constant, as quote_literal does: right whatever standard_conforming_strings is.
func Literal(text string) string {
	literal := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if strings.Contains(text, `\`) {
		literal = "E" + strings.ReplaceAll(literal, `\`, `\\`)
	}
	return literal
}

// Settings are the statements that begin every transaction of a plan. With a lock timeout a change that cannot have its
// lock at once gives up its place in the queue, in which every later query on the table would wait behind it. And should
// fencectl itself be frozen between two statements, the server ends its transaction rather than keep the lock.
func Settings(lockTimeout time.Duration) []string {
	return []string{
		fmt.Sprintf("SET LOCAL lock_timeout = '%dms'", lockTimeout.Milliseconds()),
		"SET LOCAL idle_in_transaction_session_timeout = '10s'",
	}
}

// Script is the plan as SQL text: what Apply runs when nothing has to be retried.
func Script(steps []Step, lockTimeout time.Duration) string {
	var b strings.Builder
	for i, step := range steps {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString("BEGIN;\n")
		for _, setting := range Settings(lockTimeout) {
			b.WriteString(setting + ";\n")
		}
		b.WriteString(step.SQL + ";\nCOMMIT;\n")
	}
	return b.String()
}
