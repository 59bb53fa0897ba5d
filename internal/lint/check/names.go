package check

import (
	"fmt"
	"strings"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/pgtree"
	"github.com/fencectl/fencectl/internal/spelling"
)

// checkNames reports tables that do not exist, in statements that read or write rows.
func (st *statement) checkNames() {
	u := st.unit
	if u.defines || len(u.catalog.Gaps) > 0 || st.inFunction {
		return
	}
	switch st.tree.Kind {
	case "SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt", "CopyStmt", "TruncateStmt", "ExplainStmt", "PrepareStmt", "DeclareCursorStmt":
	case "CreateTableAsStmt":
		into := st.tree.Node("into").Node("rel")
		u.session.own(into.Text("relname"))
	case "CreateStmt":
		u.session.own(st.tree.Node("relation").Text("relname"))
		return
	case "ViewStmt":
		u.session.own(st.tree.Node("view").Text("relname"))
		return
	default:
		return
	}
	if into := st.tree.Node("intoClause").Node("rel"); into.There() {
		u.session.own(into.Text("relname"))
	}
	for _, w := range st.writes {
		st.checkName(w.relation)
	}
	for _, read := range st.reads {
		st.checkName(read)
	}
}

func (st *statement) checkName(relation pgtree.Node) {
	u := st.unit
	schema, name := relation.Text("schemaname"), relation.Text("relname")
	switch {
	case name == "", schema == "" && (st.ctes[name] || u.session.owns[name] || strings.HasPrefix(name, "pg_")):
		return
	case schema == "pg_catalog", schema == "information_schema", schema == fenced.SchemaName, strings.HasPrefix(schema, "pg_temp"):
		return
	case u.file.IsVariable(st.at(relation)), u.catalog.Find(schema, name) != nil:
		return
	}
	written := name
	if schema != "" {
		written = catalog.Quote(schema) + "." + catalog.Quote(name)
	}
	fix := "Mend the name, or add the migration that makes the table to schema.migrations in fencectl.yaml."
	if near, ok := spelling.Closest(written, u.catalog.Names(schema != "")); ok {
		fix = "Did you mean " + near + "?"
	}
	st.report(st.at(relation), lint.UnknownTable, written, fmt.Sprintf("there is no table %s", written), fix)
}
