package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/statement"
)

// protectedBranch is the branch of the rules' statement that lists the protected tables.
const protectedBranch = "protected"

// protectedTable is one that statements should present a token for.
type protectedTable struct {
	schema, name string
	root         string // what is protected, in SQL: of a partition, the partitioned table
	enforces     bool
	kind         string // "row", "row, inserts allowed", "constant" or "template"
}

// checks says whether the guards check writes of this kind. What SELECT FOR UPDATE locks it may never write.
func (t protectedTable) checks(kind statement.Kind) bool {
	return kind != statement.Lock && (kind != statement.Insert || t.kind != "row, inserts allowed")
}

// usage is one row of pg_stat_statements.
type usage struct {
	userID, databaseID uint32
	role               string
	queryID            int64
	text               string
	calls, rows        int64
}

// presents says whether a statement may have to do with a token. Constants are not in the text: any set_config may be one of the token.
func (u usage) presents() bool {
	return statement.Mentions(u.text, "fencing", fenced.ColumnName, "set_config")
}

func (a access) seesStatements() bool { return a.statements != "" && a.loaded && a.readable }

// statements finds those in pg_stat_statements that write protected tables, of roles that never present a token. A role that
// presents some may do so in the same transaction or not: that is not recorded, so its statements are no findings.
func (o *observation) statements(ctx context.Context, tx pgx.Tx, may access) error {
	if !slices.ContainsFunc(o.tables, func(t Table) bool { return t.Fenced }) {
		return nil
	}
	skip := func(format string, args ...any) {
		o.skipped = append(o.skipped, Skipped{Rule: unfencedStatement, Reason: fmt.Sprintf(format, args...)})
	}
	switch {
	case may.statements == "":
		skip("pg_stat_statements is not installed in this database (CREATE EXTENSION pg_stat_statements)")
	case !may.loaded:
		skip("pg_stat_statements is installed and not loaded: it has to be in shared_preload_libraries when the server starts")
	case !may.readable:
		skip("pg_stat_statements may not be read: this needs SELECT on the view, and USAGE on its schema")
	}
	if !may.seesStatements() {
		return nil
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(query("unfenced-statement"), may.statements))
	if err != nil {
		return err
	}
	used, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (usage, error) {
		var u usage
		return u, row.Scan(&u.userID, &u.role, &u.databaseID, &u.queryID, &u.text, &u.calls, &u.rows)
	})
	if err != nil {
		return err
	}

	hidden := 0
	presents := map[uint32]bool{}
	for _, u := range used {
		if u.text == "<insufficient privilege>" {
			hidden++
		} else if u.presents() {
			presents[u.userID] = true
		}
	}
	if hidden > 0 {
		skip("the text of %d statements of other roles in pg_stat_statements is hidden: this needs membership in pg_read_all_stats", hidden)
	}
	named := o.byName()
	for _, u := range used {
		if presents[u.userID] {
			continue
		}
		for _, use := range statement.Uses(u.text) {
			t := named[[2]string{use.Schema, use.Table}]
			if t == nil || !t.checks(use.Kind) || (u.rows == 0 && use.Kind != statement.Truncate) {
				continue
			}
			o.findings = append(o.findings, u.finding(*t, may.statements))
			break
		}
	}
	return nil
}

// byName finds protected tables as statements name them. A name without schema is of whatever was on somebody's search_path: where
// another table has it too, it tells nothing.
func (o *observation) byName() map[[2]string]*protectedTable {
	named := map[[2]string]*protectedTable{}
	for i, t := range o.protected {
		named[[2]string{t.schema, t.name}] = &o.protected[i]
		bare := [2]string{"", t.name}
		if _, taken := named[bare]; taken {
			named[bare] = nil
		} else {
			named[bare] = &o.protected[i]
		}
	}
	for _, t := range o.tables {
		if !t.Fenced {
			named[[2]string{"", t.Name}] = nil
		}
	}
	return named
}

func (u usage) finding(t protectedTable, schema string) finding {
	text := strings.Join(strings.Fields(u.text), " ")
	const most = 200
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	calls := fmt.Sprintf("%d times", u.calls)
	if u.calls == 1 {
		calls = "once"
	}
	f := finding{
		rule: unfencedStatement, object: t.root, weight: float64(u.calls), schema: &t.schema, table: &t.name,
		message: fmt.Sprintf("the role %s ran %s: %s; no statement of this role in pg_stat_statements presents a token", u.role, calls, text),
	}
	if t.enforces {
		f.message += ". As the fence enforces, it ran before that, or with a token that is not seen there (PGOPTIONS, as fencectl lock sets it)"
	}
	subject := fmt.Sprintf("%s:%d", u.role, u.queryID)
	f.subject = &subject
	// What was mended in the program is still counted until it is forgotten here.
	forget := fmt.Sprintf("SELECT %s.pg_stat_statements_reset(%d, %d, %d);", schema, u.userID, u.databaseID, u.queryID)
	f.statement = &forget
	return f
}
