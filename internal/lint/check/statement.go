package check

import (
	"slices"
	"strings"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/pgtree"
	"github.com/fencectl/fencectl/internal/lint/sqlfile"
)

// What a write does.
type action string

const (
	insert   action = "INSERT"
	upsert   action = "INSERT … ON CONFLICT DO UPDATE"
	update   action = "UPDATE"
	remove   action = "DELETE"
	truncate action = "TRUNCATE"
	copyFrom action = "COPY FROM"
)

// A write is one table that a statement writes.
type write struct {
	action     action
	node       pgtree.Node // the statement, or the part of it, that writes
	relation   pgtree.Node // the RangeVar
	sets       []pgtree.Node
	where      []pgtree.Node
	table      *catalog.Table // nil when there is none of this name
	protection *catalog.Protection
	protected  *catalog.Table // that the protection is of
	byMerge    bool
}

// statement is one that was parsed, with what the rules ask of it.
type statement struct {
	unit  *unit
	tree  pgtree.Node
	text  string
	start int    // of text, in the unit's file
	index int    // of the statement in the file that it is, or is in
	name  string // that sqlc calls it by

	direction  sqlfile.Direction
	inFunction bool // it is in the body of a function
	inBlock    bool // it is in the block of a DO

	ctes     map[string]bool
	reads    []pgtree.Node // RangeVars of FROM and USING
	writes   []write
	calls    []call
	presents bool // it calls fencing.present or hold, or sets the setting, where that is evaluated
	unused   bool // it does so only in a WITH that nothing refers to, which is never run
}

// A call is one of a function.
type call struct {
	schema, name string
	node         pgtree.Node
}

func (c call) is(name string) bool { return c.schema == fenced.SchemaName && c.name == name }

// presented is the token that the call presents.
func (c call) presented() (pgtree.Node, bool) {
	args := c.node.List("args")
	switch {
	case c.is("present") && len(args) > 0:
		return args[0], true
	case c.is("hold") && len(args) > 1:
		return args[1], true
	}
	return pgtree.Node{}, false
}

// analyse reads what a statement does.
func analyse(u *unit, tree pgtree.Node, text string, start int) *statement {
	st := &statement{unit: u, tree: tree, text: text, start: start, ctes: map[string]bool{}}
	tree.Walk(func(n pgtree.Node) bool {
		switch n.Kind {
		case "CommonTableExpr":
			st.ctes[n.Text("ctename")] = true
		case "RangeVar":
			st.reads = append(st.reads, n)
		case "FuncCall":
			c := call{node: n}
			words := n.Words("funcname")
			switch len(words) {
			case 1:
				c.name = words[0]
			case 2:
				c.schema, c.name = words[0], words[1]
			}
			if c.schema == "pg_catalog" {
				c.schema = ""
			}
			st.calls = append(st.calls, c)
		case "InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt", "CopyStmt":
			st.addWrites(n)
		case "TruncateStmt":
			for _, relation := range n.List("relations") {
				st.add(write{action: truncate, node: n, relation: relation})
			}
			return false // what it lists is not read
		}
		return true
	})
	st.findPresentation()
	return st
}

func (st *statement) addWrites(n pgtree.Node) {
	relation := n.Node("relation")
	switch n.Kind {
	case "InsertStmt":
		w := write{action: insert, node: n, relation: relation}
		if clause := n.Node("onConflictClause"); clause.Text("action") == "ONCONFLICT_UPDATE" {
			w.action, w.sets, w.where = upsert, clause.List("targetList"), there(clause.Node("whereClause"))
		}
		st.add(w)
	case "UpdateStmt":
		st.add(write{action: update, node: n, relation: relation, sets: n.List("targetList"), where: there(n.Node("whereClause"))})
	case "DeleteStmt":
		st.add(write{action: remove, node: n, relation: relation, where: there(n.Node("whereClause"))})
	case "CopyStmt":
		if n.Bool("is_from") {
			st.add(write{action: copyFrom, node: n, relation: relation})
		}
	case "MergeStmt":
		for _, when := range n.List("mergeWhenClauses") {
			w := write{node: when, relation: relation, byMerge: true, where: there(n.Node("joinCondition"), when.Node("condition"))}
			switch when.Text("commandType") {
			case "CMD_UPDATE":
				w.action, w.sets = update, when.List("targetList")
			case "CMD_DELETE":
				w.action = remove
			case "CMD_INSERT":
				w.action = insert
			default:
				continue // DO NOTHING
			}
			st.add(w)
		}
	}
}

func there(nodes ...pgtree.Node) []pgtree.Node {
	return slices.DeleteFunc(nodes, func(n pgtree.Node) bool { return !n.There() })
}

func (st *statement) add(w write) {
	schema, name := w.relation.Text("schemaname"), w.relation.Text("relname")
	if st.unit.file.IsVariable(st.start + w.relation.Location()) {
		return // a table that psql is told
	}
	if w.table = st.unit.catalog.Find(schema, name); w.table != nil {
		w.protection, w.protected = w.table.Protection()
	}
	st.writes = append(st.writes, w)
}

// findPresentation says whether the statement itself presents a token. A SELECT in a WITH that nothing refers to is never run.
func (st *statement) findPresentation() {
	unused := map[string]bool{}
	for name := range st.ctes {
		unused[name] = !slices.ContainsFunc(st.reads, func(r pgtree.Node) bool { return r.Text("schemaname") == "" && r.Text("relname") == name })
	}
	st.tree.Walk(func(n pgtree.Node) bool {
		if n.Kind == "CommonTableExpr" && unused[n.Text("ctename")] && n.Node("ctequery").Kind == "SelectStmt" {
			n.Below(func(n pgtree.Node) bool {
				st.unused = st.unused || presents(n)
				return true
			})
			return false
		}
		st.presents = st.presents || presents(n)
		return true
	})
}

// presents says whether a node is a call that presents a token for the transaction.
func presents(n pgtree.Node) bool {
	if n.Kind != "FuncCall" {
		return false
	}
	words := n.Words("funcname")
	if len(words) == 2 && words[0] == fenced.SchemaName && (words[1] == "present" || words[1] == "hold") {
		return true
	}
	args := n.List("args")
	return len(words) > 0 && words[len(words)-1] == "set_config" && len(args) == 3 && isTokenSetting(constant(args[0]))
}

func isTokenSetting(name string) bool {
	return strings.EqualFold(name, fenced.SettingToken) || strings.EqualFold(name, fenced.SettingTokens)
}

// at is the place of a node in the unit's file; of the statement, where the parser has kept none.
func (st *statement) at(n pgtree.Node) int { return st.start + n.Location() }

// alias is what a RangeVar is called in its statement.
func alias(relation pgtree.Node) string {
	if name := relation.Node("alias").Text("aliasname"); name != "" {
		return name
	}
	return relation.Text("relname")
}

// constant is the text of a constant, past casts; "" for anything else.
func constant(n pgtree.Node) string {
	n = uncast(n)
	if n.Kind != "A_Const" {
		return ""
	}
	return n.Node("sval").Text("sval")
}

func uncast(n pgtree.Node) pgtree.Node {
	for n.Kind == "TypeCast" {
		n = n.Node("arg")
	}
	return n
}
