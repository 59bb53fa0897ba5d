// Package plan proposes fences for tables that have none: which kind, and why, from what the database knows of a table and of the
// statements that write it. A proposal is a beginning to observe with, not a verdict: only the application knows what its locks
// are for. It changes nothing, and reads in one read-only transaction with four statements, however many tables there are.
package plan

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/internal/statement"
	"github.com/fencectl/fencectl/internal/tableref"
)

// A Plan is the proposals for the tables that were asked for. Its JSON is a contract: fields are added, never changed.
type Plan struct {
	Version      int        `json:"version"`       // 1
	Installed    bool       `json:"installed"`     // the schema fencing is there
	CountedSince *time.Time `json:"counted_since"` // since when the server counts writes; null when it never started anew
	Proposals    []Proposal `json:"proposals"`     // the busiest table first
	NotSeen      []NotSeen  `json:"not_seen"`      // what could not be looked at

	// Protected are the tables among those asked for by name that have a fence already.
	Protected []tableref.Table `json:"-"`
}

// A Proposal is a fence for one table.
type Proposal struct {
	Schema   string   `json:"schema"`
	Table    string   `json:"table"`
	Quoted   string   `json:"-"`               // both, as SQL wants them
	Kind     string   `json:"kind"`            // "row" or "named"
	Mode     string   `json:"mode,omitempty"`  // "strict" or "reentrant"; of a row fence
	Fence    string   `json:"fence,omitempty"` // its name, or a template; of a named fence
	Reasons  []string `json:"reasons"`         // why this kind; a sentence or two each
	Cautions []string `json:"cautions"`        // what else to look at before enforcing
	Inserted int64    `json:"inserted"`        // rows, since the server counts
	Updated  int64    `json:"updated"`
	Deleted  int64    `json:"deleted"`
}

// Words are the proposal as a call of fencectl: it observes first.
func (p Proposal) Words() []string {
	words := []string{"fencectl", "protect", p.Quoted}
	switch {
	case p.Fence != "":
		words = append(words, "--fence", p.Fence)
	case p.Mode == reentrant:
		words = append(words, "--mode", p.Mode)
	}
	return append(words, "--observe")
}

// NotSeen is something that would have helped, and could not be looked at.
type NotSeen struct {
	What   string `json:"what"`
	Reason string `json:"reason"` // and what gives it
}

// DB begins transactions: a pool or a connection.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

//go:embed session.sql
var sessionQuery string

//go:embed tables.sql
var tablesQuery string

//go:embed statements.sql
var statementsQuery string

// Run proposes fences for the tables that args name, as fencectl protect takes them; without any, for every table but those of
// migration tools. The errors of wrong names are those of package tableref.
func Run(ctx context.Context, db DB, args []string) (*Plan, error) {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	catalog, err := tableref.Read(ctx, tx) // before the search_path is settled: names are looked up on it
	if err != nil {
		return nil, err
	}
	wanted := catalog.Tables()
	if len(args) > 0 {
		if wanted, err = catalog.Resolve(args, nil, "table that can be protected"); err != nil {
			return nil, err
		}
	} else {
		wanted = slices.DeleteFunc(wanted, func(t tableref.Table) bool { return t.Bookkeeping })
	}

	var s session
	if err := s.read(ctx, tx); err != nil {
		return nil, fmt.Errorf("reading the session: %w", err)
	}
	tables, err := readTables(ctx, tx, catalog.Tables())
	if err != nil {
		return nil, fmt.Errorf("reading the tables: %w", err)
	}
	plan := &Plan{Version: 1, Installed: s.installed, CountedSince: s.countedSince, Proposals: []Proposal{}, NotSeen: s.notSeen()}
	if s.statementsThere() {
		hidden, err := readStatements(ctx, tx, s.statements, tables)
		if err != nil {
			return nil, fmt.Errorf("reading pg_stat_statements: %w", err)
		}
		if hidden > 0 {
			plan.NotSeen = append(plan.NotSeen, NotSeen{"statements of other roles", fmt.Sprintf(
				"the text of %d statements in pg_stat_statements is hidden: this needs membership in pg_read_all_stats", hidden)})
		}
	}

	for _, t := range wanted {
		f := tables[t.OID]
		switch {
		case f == nil: // dropped, or made, since
		case f.guarded:
			if len(args) > 0 {
				plan.Protected = append(plan.Protected, t)
			}
		default:
			plan.Proposals = append(plan.Proposals, propose(f, tables))
		}
	}
	slices.SortStableFunc(plan.Proposals, func(a, b Proposal) int {
		return cmp.Compare(b.Inserted+b.Updated+b.Deleted, a.Inserted+a.Updated+a.Deleted)
	})
	return plan, nil
}

// session is what there is to look at.
type session struct {
	installed, standby, counts bool
	countedSince               *time.Time
	statements                 string // the schema of pg_stat_statements; "" when it is not installed
	loaded, readable, all      bool   // pg_stat_statements: the library; the view; also what other roles ran
}

func (s *session) read(ctx context.Context, tx pgx.Tx) error {
	var settings [4]string
	return tx.QueryRow(ctx, sessionQuery).Scan(&settings[0], &settings[1], &settings[2], &settings[3],
		&s.installed, &s.standby, &s.counts, &s.countedSince, &s.statements, &s.loaded, &s.readable, &s.all)
}

func (s *session) statementsThere() bool { return s.statements != "" && s.loaded && s.readable }

func (s *session) notSeen() []NotSeen {
	missing := []NotSeen{}
	add := func(what, reason string) { missing = append(missing, NotSeen{what, reason}) }
	switch {
	case s.standby:
		add("writes", "this is a standby, which counts none of its own: ask the primary")
	case !s.counts:
		add("writes", "the server counts none: track_counts is off")
	}
	const statements = "statements"
	switch {
	case s.statements == "":
		add(statements, "pg_stat_statements is not installed in this database (CREATE EXTENSION pg_stat_statements)")
	case !s.loaded:
		add(statements, "pg_stat_statements is installed and not loaded: it has to be in shared_preload_libraries when the server starts")
	case !s.readable:
		add(statements, "pg_stat_statements may not be read: this needs SELECT on the view, and USAGE on its schema")
	}
	return missing
}

// facts is what is known of one table.
type facts struct {
	tableref.Table
	partitioned, unlogged            bool
	children                         int64 // that inherit from it
	inserted, updated, deleted, live int64 // rows
	guarded                          bool
	fence                            string   // of a guarded table: the named fence; "" for a row fence
	key                              []string // the columns of the primary key
	keyUsable                        bool     // they may name a fence
	column                           *string  // the type of a column last_fencing_token
	cascades                         []cascade
	rules                            []string
	subscribed                       bool
	truncates, locks                 int64 // calls of such statements
	updates                          int   // different UPDATE statements
	bulkRows                         int64 // of the statement that writes most rows a call: how many
	feeds                            []int64
	proposed                         *decision
	deciding                         bool
}

// cascade is a foreign key whose action writes into the table.
type cascade struct {
	Name    string   `json:"name"`
	Parent  int64    `json:"parent"`
	Deletes bool     `json:"deletes"` // ON DELETE CASCADE
	Columns []string `json:"columns"` // those that hold the parent's primary key, in its order; nil where they could not name a fence
}

func readTables(ctx context.Context, tx pgx.Tx, known []tableref.Table) (map[int64]*facts, error) {
	rows, err := tx.Query(ctx, tablesQuery)
	if err != nil {
		return nil, err
	}
	read, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*facts, error) {
		f := &facts{}
		var cascades []byte
		if err := row.Scan(&f.OID, &f.partitioned, &f.unlogged, &f.children, &f.inserted, &f.updated, &f.deleted, &f.live, &f.guarded,
			&f.fence, &f.key, &f.keyUsable, &f.column, &cascades, &f.rules, &f.subscribed); err != nil {
			return nil, err
		}
		return f, json.Unmarshal(cascades, &f.cascades)
	})
	if err != nil {
		return nil, err
	}
	byOID := make(map[int64]*facts, len(read))
	for _, f := range read {
		byOID[f.OID] = f
	}
	tables := make(map[int64]*facts, len(known))
	for _, t := range known {
		if f := byOID[t.OID]; f != nil {
			f.Table = t
			tables[t.OID] = f
		}
	}
	for _, t := range known {
		if f := tables[t.OID]; f != nil {
			for _, c := range f.cascades {
				if parent := tables[c.Parent]; parent != nil && c.Deletes {
					parent.feeds = append(parent.feeds, f.OID)
				}
			}
		}
	}
	return tables, nil
}

// readStatements adds to the tables what the statements do to them, and counts the statements whose text is hidden from the role.
func readStatements(ctx context.Context, tx pgx.Tx, schema string, tables map[int64]*facts) (hidden int64, err error) {
	type name struct{ schema, table string }
	// A name without a schema is of whatever was on somebody's search_path: where several tables have it, it tells nothing.
	named := map[name][]*facts{}
	for _, f := range tables {
		for _, n := range []name{{f.Schema, f.Name}, {"", f.Name}} {
			named[n] = append(named[n], f)
		}
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(statementsQuery, schema))
	if err != nil {
		return 0, err
	}
	var (
		text                  string
		count, calls, written int64
	)
	_, err = pgx.ForEachRow(rows, []any{&text, &count, &calls, &written}, func() error {
		if text == "<insufficient privilege>" {
			hidden += count
			return nil
		}
		for _, use := range statement.Uses(text) {
			if found := named[name{use.Schema, use.Table}]; len(found) == 1 {
				found[0].used(use.Kind, calls, written)
			}
		}
		return nil
	})
	return hidden, err
}

func (f *facts) used(kind statement.Kind, calls, rows int64) {
	switch kind {
	case statement.Truncate:
		f.truncates += calls
	case statement.Lock:
		f.locks += calls
	case statement.Update, statement.Delete:
		if kind == statement.Update {
			f.updates++
		}
		if calls > 0 {
			f.bulkRows = max(f.bulkRows, rows/calls)
		}
	case statement.Insert: // how many rows come in at a time decides nothing
	}
}

// template is the name of a fence for each row of a table: the table's name and columns. Braces would begin a column.
func template(f *facts, columns []string) string {
	parts := []string{constant(f)}
	for _, c := range columns {
		parts = append(parts, "{"+c+"}")
	}
	return strings.Join(parts, "/")
}

// constant is the name of a fence for a whole table.
func constant(f *facts) string { return strings.NewReplacer("{", "(", "}", ")").Replace(f.Quoted) }
