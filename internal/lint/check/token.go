package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/pgtree"
)

// owner is whose column a name means.
type owner int

const (
	nobodys  owner = iota
	targets        // of the row that is written
	excluded       // of the row that was proposed for insertion
	others         // of another table of the statement
)

// An expression is what a value is made of.
type expression struct {
	params    []string // what the program hands over: $1, @token, :token
	columns   []pgtree.Node
	calls     []call
	constants int
	defaults  bool // the column's default
}

// expressionOf looks into an expression, but not into subqueries: what those return is not known.
func (st *statement) expressionOf(n pgtree.Node) expression {
	var e expression
	n.Walk(func(n pgtree.Node) bool {
		switch n.Kind {
		case "ParamRef":
			e.params = append(e.params, fmt.Sprintf("$%d", n.Int("number")))
		case "ColumnRef":
			if st.unit.file.IsVariable(st.at(n)) {
				e.params = append(e.params, ":"+strings.Join(n.Words("fields"), "."))
				return false
			}
			e.columns = append(e.columns, n)
		case "A_Const":
			if st.unit.file.IsVariable(st.at(n)) {
				e.params = append(e.params, ":"+constant(n))
				return false
			}
			e.constants++
		case "A_Expr":
			// sqlc's @name is PostgreSQL's absolute value of a column.
			if isNamedParameter(n) {
				e.params = append(e.params, "@"+strings.Join(uncast(n.Node("rexpr")).Words("fields"), "."))
				return false
			}
		case "FuncCall":
			words := n.Words("funcname")
			if len(words) == 2 && words[0] == "sqlc" && (words[1] == "arg" || words[1] == "narg" || words[1] == "slice") {
				e.params = append(e.params, "@"+argumentName(n))
				return false
			}
			c := call{node: n, name: words[len(words)-1]}
			if len(words) == 2 {
				c.schema = words[0]
			}
			e.calls = append(e.calls, c)
		case "SetToDefault":
			e.defaults = true
		case "SQLValueFunction":
			e.calls = append(e.calls, call{node: n, name: "now"}) // CURRENT_TIMESTAMP and its like
		case "SubLink":
			e.calls = append(e.calls, call{node: n})
			return false
		}
		return true
	})
	return e
}

func isNamedParameter(n pgtree.Node) bool {
	return n.Text("kind") == "AEXPR_OP" && !n.Has("lexpr") && slices.Equal(n.Words("name"), []string{"@"}) && uncast(n.Node("rexpr")).Kind == "ColumnRef"
}

// argumentName is the name in sqlc.arg(name) or sqlc.arg('name').
func argumentName(n pgtree.Node) string {
	args := n.List("args")
	if len(args) == 0 {
		return ""
	}
	if text := constant(args[0]); text != "" {
		return text
	}
	return strings.Join(args[0].Words("fields"), ".")
}

func (e *expression) has(name string, schemas ...string) bool {
	return slices.ContainsFunc(e.calls, func(c call) bool { return c.name == name && (len(schemas) == 0 || slices.Contains(schemas, c.schema)) })
}

// handedOver says whether it is a value that the program hands over, or that the transaction has presented.
func (e *expression) handedOver() bool {
	return len(e.columns) == 0 && (len(e.params) > 0 || e.has("present", fenced.SchemaName) || e.has("hold", fenced.SchemaName) || e.has("presented", fenced.SchemaName) || e.has("current_setting"))
}

// tokenOwner says whose last_fencing_token a column is; nobodys when it is another column.
func (st *statement) tokenOwner(column pgtree.Node, w *write) (owner, string) {
	words := column.Words("fields")
	if len(words) == 0 || words[len(words)-1] != fenced.ColumnName {
		return nobodys, ""
	}
	if len(words) == 1 {
		if w.table != nil && w.table.HasToken {
			return targets, ""
		}
		return others, ""
	}
	qualifier := words[len(words)-2]
	switch {
	case qualifier == alias(w.relation):
		return targets, ""
	case qualifier == "excluded" && w.action == upsert:
		return excluded, ""
	}
	for _, read := range st.reads {
		if alias(read) == qualifier && !st.ctes[read.Text("relname")] {
			if t := st.unit.catalog.Find(read.Text("schemaname"), read.Text("relname")); t != nil {
				return others, t.Label()
			}
		}
	}
	return nobodys, "" // a subquery's: where that has it from is not known
}

// clocks are functions whose value grows, but not with the grants of a lock.
var clocks = []string{
	"nextval", "now", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday", "txid_current", "pg_current_xact_id", "random",
	"gen_random_uuid", "extract", "date_part", "pg_current_wal_lsn", "pg_backend_pid",
}

// wrongSource says why a value is not the token of a grant; "" when it may be one.
func (st *statement) wrongSource(value pgtree.Node, w *write) (what, fix string) {
	e := st.expressionOf(value)
	fix = fmt.Sprintf("Set it from what the lock's grant says: %s = fencing.present(%s), or leave it out: the guard stamps it with the token that the transaction has presented.",
		fenced.ColumnName, st.unit.parameter())
	for _, column := range e.columns {
		switch of, name := st.tokenOwner(column, w); of {
		case targets:
			if value.Kind == "ColumnRef" {
				return "sets " + fenced.ColumnName + " to what the row has already, which is no token", fix
			}
			return "makes " + fenced.ColumnName + " of what the row has already, so that it is newer than, or as new as, any holder's", fix
		case others:
			if name == "" {
				name = "another table"
			}
			return "copies " + fenced.ColumnName + " from " + name + ": whoever wrote there last held another lock, or none any more", fix
		case excluded:
			if len(e.columns) == 1 && value.Kind == "ColumnRef" {
				return "", "" // what the INSERT proposes, which is looked at for itself
			}
			return "makes " + fenced.ColumnName + " of what the INSERT proposes, instead of taking it as it is", fix
		case nobodys:
		}
	}
	if e.has("next_token", fenced.SchemaName) {
		return "draws a new token for the write itself, which is newer than every holder's: such a write is never stale", "Draw the token when the lock is acquired, and hand it over: fencing.present(" + st.unit.parameter() + ")."
	}
	for _, c := range e.calls {
		if slices.Contains(clocks, c.name) && c.schema != fenced.SchemaName {
			return fmt.Sprintf("takes the token from %s(): a holder that has lost its lock gets one that is newer than its successor's", c.name), fix
		}
	}
	if e.constants > 0 && len(e.params) == 0 && len(e.columns) == 0 && len(e.calls) == 0 && !e.defaults {
		return "sets " + fenced.ColumnName + " to a constant, which no grant has issued", fix
	}
	return "", ""
}

// checkToken reports tokens that no grant has issued, and comparisons that let the wrong one through.
func (st *statement) checkToken(w *write) {
	if w.protection == nil || !w.protection.Row() {
		return
	}
	label := w.table.Label()
	for _, set := range w.sets {
		if set.Text("name") != fenced.ColumnName {
			continue
		}
		if what, fix := st.wrongSource(set.Node("val"), w); what != "" {
			st.report(st.at(set), lint.TokenSource, label, fmt.Sprintf("%s of %s %s", w.verb(), label, what), fix)
		}
	}
	if value, ok := w.inserted(fenced.ColumnName); ok {
		// 0 is what a new row has that nobody has written under a lock.
		if what, fix := st.wrongSource(value, w); what != "" && !isZero(value) {
			st.report(st.at(value), lint.TokenSource, label, fmt.Sprintf("%s of %s %s", w.verb(), label, what), fix)
		}
	}
	tokens := st.tokenParams(w)
	for _, where := range w.where {
		st.predicates(where, w, tokens, false)
	}
}

func isZero(n pgtree.Node) bool {
	n = uncast(n)
	return n.Kind == "A_Const" && n.Has("ival") && n.Node("ival").Int("ival") == 0
}

// inserted is the value of a column in the first row of an INSERT's VALUES, or in the list of its SELECT.
func (w *write) inserted(column string) (pgtree.Node, bool) {
	if w.action != insert && w.action != upsert {
		return pgtree.Node{}, false
	}
	columns, values := w.node.List("cols"), w.node.Node("selectStmt").List("targetList")
	if rows := w.node.Node("selectStmt").List("valuesLists"); len(rows) > 0 {
		values = rows[0].List("items")
	}
	if w.byMerge {
		columns, values = w.node.List("targetList"), w.node.List("values")
	}
	for i, c := range columns {
		if c.Text("name") == column && i < len(values) {
			value := values[i]
			if value.Kind == "ResTarget" {
				value = value.Node("val")
			}
			return value, true
		}
	}
	return pgtree.Node{}, false
}

// tokenParams are the parameters that the statement uses as tokens.
func (st *statement) tokenParams(w *write) []string {
	var params []string
	for _, set := range w.sets {
		if set.Text("name") == fenced.ColumnName {
			e := st.expressionOf(set.Node("val"))
			params = append(params, e.params...)
		}
	}
	for _, c := range st.calls {
		if token, ok := c.presented(); ok {
			e := st.expressionOf(token)
			params = append(params, e.params...)
		}
	}
	return params
}

// opposite is the operator of NOT, and swapped the one that means the same with its sides changed.
var (
	opposite = map[string]string{"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "<>", "<>": "="}
	swapped  = map[string]string{"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
)

// predicates looks for comparisons with the token below a condition.
func (st *statement) predicates(n pgtree.Node, w *write, tokens []string, negated bool) {
	switch n.Kind {
	case "BoolExpr":
		if n.Text("boolop") == "NOT_EXPR" {
			negated = !negated
		}
		for _, argument := range n.List("args") {
			st.predicates(argument, w, tokens, negated)
		}
	case "A_Expr":
		operator := strings.Join(n.Words("name"), "")
		if n.Text("kind") != "AEXPR_OP" || opposite[operator] == "" {
			return
		}
		left, right := uncast(n.Node("lexpr")), uncast(n.Node("rexpr"))
		if left.Kind != "ColumnRef" || (right.Kind == "ColumnRef" && st.isExcluded(left, w)) {
			left, right, operator = right, left, swapped[operator]
		}
		if negated {
			operator = opposite[operator]
		}
		if left.Kind == "ColumnRef" && !st.unit.file.IsVariable(st.at(left)) {
			st.comparison(n, left, operator, right, w, tokens)
		}
	}
}

func (st *statement) isExcluded(column pgtree.Node, w *write) bool {
	of, _ := st.tokenOwner(column, w)
	return of == excluded
}

// comparison looks at one: the column stands on its left.
func (st *statement) comparison(n, column pgtree.Node, operator string, value pgtree.Node, w *write, tokens []string) {
	e := st.expressionOf(value)
	if !e.handedOver() && !(value.Kind == "ColumnRef" && st.isExcluded(value, w)) {
		return
	}
	right := map[bool]string{false: "<", true: "<="}[w.protection.Reentrant]
	label, mode := w.table.Label(), map[bool]string{false: "strict", true: "reentrant"}[w.protection.Reentrant]
	token := st.textOf(value)
	switch of, other := st.tokenOwner(column, w); of {
	case targets:
		if operator == right {
			return
		}
		message := ""
		switch operator {
		case ">", ">=":
			message = fmt.Sprintf("%s of %s wants %s %s the token: the older token passes, the newer one does not", w.verb(), label, fenced.ColumnName, operator)
		case "=":
			message = fmt.Sprintf("%s of %s wants %s equal to the token: the first write of a new holder finds no row", w.verb(), label, fenced.ColumnName)
		case "<>":
			message = fmt.Sprintf("%s of %s only wants %s to differ from the token: an older token differs, too", w.verb(), label, fenced.ColumnName)
		case "<":
			message = fmt.Sprintf("%s of %s wants %s < the token, but its fences are reentrant: the holder's second write of a row finds none, and is taken for stale", w.verb(), label, fenced.ColumnName)
		case "<=":
			message = fmt.Sprintf("%s of %s wants %s <= the token, but its fences are strict: the guard refuses the holder's second write of a row, which this lets through", w.verb(), label, fenced.ColumnName)
		}
		st.report(st.at(n), lint.TokenPredicate, label, message, fmt.Sprintf("The fence of %s is %s: write %s %s %s.", label, mode, fenced.ColumnName, right, token))
	case others:
		if other == "" {
			other = "another table"
		}
		st.report(st.at(n), lint.TokenPredicate, label, fmt.Sprintf("%s of %s compares the token with %s of %s, which is not the row that is written", w.verb(), label, fenced.ColumnName, other),
			fmt.Sprintf("Compare with the row's own: %s.%s %s %s.", alias(w.relation), fenced.ColumnName, right, token))
	case nobodys:
		if operator == "=" || operator == "<>" || !slices.ContainsFunc(e.params, func(p string) bool { return slices.Contains(tokens, p) }) {
			return
		}
		st.report(st.at(n), lint.TokenPredicate, label, fmt.Sprintf("%s of %s compares the token with %s; the fence is in %s", w.verb(), label, strings.Join(column.Words("fields"), "."), fenced.ColumnName),
			fmt.Sprintf("Write %s %s %s.", fenced.ColumnName, right, token))
	case excluded:
	}
}

// textOf is how a value stands in the statement, shortened.
func (st *statement) textOf(value pgtree.Node) string {
	e := st.expressionOf(value)
	switch {
	case e.has("present", fenced.SchemaName) && len(e.params) == 1:
		return "fencing.present(" + e.params[0] + ")"
	case e.has("presented", fenced.SchemaName):
		return "fencing.presented()"
	case len(e.params) == 1:
		return e.params[0]
	case len(e.columns) == 1:
		return strings.ToUpper("excluded") + "." + fenced.ColumnName
	}
	return "the token"
}

// setsToken says whether a write of a row fence carries its token itself: a greater one in the row passes the guard.
func (st *statement) setsToken(w *write) bool {
	carries := func(value pgtree.Node) bool {
		what, _ := st.wrongSource(value, w)
		e := st.expressionOf(value)
		return what == "" && !e.defaults
	}
	proposed, proposes := w.inserted(fenced.ColumnName)
	switch w.action {
	case insert:
		return proposes && carries(proposed) && !isZero(proposed)
	case update, upsert:
		for _, set := range w.sets {
			if set.Text("name") != fenced.ColumnName {
				continue
			}
			if value := set.Node("val"); w.action == upsert && value.Kind == "ColumnRef" && st.isExcluded(value, w) {
				return proposes && carries(proposed)
			}
			return carries(set.Node("val"))
		}
	case remove, truncate, copyFrom:
	}
	return false
}

// badToken says whether the write sets a token that no grant has issued, which is reported for itself.
func (st *statement) badToken(w *write) bool {
	for _, set := range w.sets {
		if set.Text("name") == fenced.ColumnName {
			what, _ := st.wrongSource(set.Node("val"), w)
			return what != ""
		}
	}
	return false
}

// checkPresented reports calls that present what no grant has issued.
func (st *statement) checkPresented() {
	for _, c := range st.calls {
		token, ok := c.presented()
		if !ok {
			continue
		}
		e := st.expressionOf(token)
		what := ""
		switch {
		case e.has("next_token", fenced.SchemaName):
			what = "presents a token that it draws itself, which is newer than every holder's: such a write is never stale"
		case slices.ContainsFunc(e.columns, func(column pgtree.Node) bool {
			words := column.Words("fields")
			return words[len(words)-1] == fenced.ColumnName
		}):
			what = "presents the token that is in a row: it is never older than that"
		case e.constants > 0 && len(e.params) == 0 && len(e.columns) == 0 && len(e.calls) == 0:
			what = "presents a constant, which no grant has issued"
		}
		if what != "" {
			st.report(st.at(c.node), lint.TokenSource, "", "fencing."+c.name+" "+what, "Present the token that came with the lock: fencing.present("+st.unit.parameter()+").")
		}
	}
}

// verb is what a message calls the write.
func (w *write) verb() string {
	if w.byMerge {
		return "MERGE … " + string(w.action)
	}
	return string(w.action)
}

// labelOf is what a message calls a table that is written: with the one that protects it, where that is another.
func (w *write) labelOf() string {
	label := w.table.Label()
	if w.protected != nil && w.protected != w.table {
		of := "a partition of "
		if w.table.View {
			of = "a view of "
		}
		return label + ", " + of + w.protected.Label() + ","
	}
	return label
}
