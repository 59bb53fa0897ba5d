package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint/pgtree"
)

// Apply does to the catalog what a statement does to the database. text is the statement's, and place where it stands, for the gaps that it
// leaves.
func (c *Catalog) Apply(tree pgtree.Node, text, place string) {
	switch tree.Kind {
	case "CreateStmt":
		c.create(tree)
	case "CreateForeignTableStmt":
		c.create(tree.Node("base"))
	case "CreateTableAsStmt":
		relation := tree.Node("into").Node("rel")
		c.add(relation.Text("schemaname"), relation.Text("relname")).View = tree.Text("objtype") == "OBJECT_MATVIEW"
	case "ViewStmt":
		c.view(tree)
	case "SelectStmt":
		if into := tree.Node("intoClause").Node("rel"); into.There() {
			c.add(into.Text("schemaname"), into.Text("relname"))
		}
		c.calls(tree, place)
	case "AlterTableStmt":
		c.alter(tree)
	case "RenameStmt":
		c.rename(tree)
	case "AlterObjectSchemaStmt":
		if t := c.relation(tree.Node("relation")); t != nil {
			c.move(t, tree.Text("newschema"), t.Name)
		}
	case "DropStmt":
		c.drop(tree)
	case "CreateTrigStmt":
		c.trigger(tree)
	case "VariableSetStmt":
		if tree.Text("name") == "search_path" {
			c.searchPath(tree)
		}
	case "DoStmt":
		c.body(text, place)
	case "CreateExtensionStmt":
		c.gap(place + ": the extension " + tree.Text("extname") + " may have tables of its own")
	case "CreateSchemaStmt":
		for _, element := range tree.List("schemaElts") {
			c.Apply(element, text, place)
		}
	}
}

func (c *Catalog) gap(reason string) {
	if !slices.Contains(c.Gaps, reason) {
		c.Gaps = append(c.Gaps, reason)
	}
}

func (c *Catalog) relation(rangeVar pgtree.Node) *Table {
	if !rangeVar.There() {
		return nil
	}
	return c.Find(rangeVar.Text("schemaname"), rangeVar.Text("relname"))
}

func (c *Catalog) create(tree pgtree.Node) {
	relation := tree.Node("relation")
	if relation.Text("relpersistence") == "t" {
		return // gone with its session
	}
	schema, name := relation.Text("schemaname"), relation.Text("relname")
	if tree.Bool("if_not_exists") && c.live(key{orElse(schema, c.creationSchema()), name}) != nil {
		return
	}
	t := c.add(schema, name)
	for _, element := range tree.List("tableElts") {
		switch element.Kind {
		case "ColumnDef":
			t.HasToken = t.HasToken || element.Text("colname") == fenced.ColumnName
		case "TableLikeClause":
			if like := c.relation(element.Node("relation")); like != nil {
				t.HasToken = t.HasToken || like.HasToken
			}
		}
	}
	for _, parent := range tree.List("inhRelations") {
		above := c.relation(parent)
		if above == nil {
			continue
		}
		t.HasToken = t.HasToken || above.HasToken
		if tree.Has("partbound") {
			t.parent = above
		}
	}
}

// view notes what a view writes through to. Only one that reads one table, and nothing but its rows, takes writes.
func (c *Catalog) view(tree pgtree.Node) {
	view := tree.Node("view")
	query := tree.Node("query")
	t := c.add(view.Text("schemaname"), view.Text("relname"))
	t.View = true
	from := query.List("fromClause")
	for _, clause := range []string{"groupClause", "distinctClause", "havingClause", "limitCount", "limitOffset", "withClause", "windowClause", "valuesLists"} {
		if query.Has(clause) {
			return
		}
	}
	if len(from) == 1 && from[0].Kind == "RangeVar" && query.Text("op") == "SETOP_NONE" {
		if base := c.relation(from[0]); base != nil && base != t {
			t.base, t.HasToken = base, base.HasToken
		}
	}
}

func (c *Catalog) alter(tree pgtree.Node) {
	t := c.relation(tree.Node("relation"))
	if t == nil {
		return
	}
	for _, command := range tree.List("cmds") {
		switch command.Text("subtype") {
		case "AT_AddColumn":
			t.HasToken = t.HasToken || command.Node("def").Text("colname") == fenced.ColumnName
		case "AT_DropColumn":
			if command.Text("name") == fenced.ColumnName {
				t.HasToken = false
			}
		case "AT_AttachPartition":
			if part := c.relation(command.Node("def").Node("name")); part != nil && part != t {
				part.parent = t
			}
		case "AT_DetachPartition":
			if part := c.relation(command.Node("def").Node("name")); part != nil {
				part.parent = nil
			}
		}
	}
}

func (c *Catalog) rename(tree pgtree.Node) {
	t := c.relation(tree.Node("relation"))
	switch tree.Text("renameType") {
	case "OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_MATVIEW":
		if t != nil {
			c.move(t, t.Schema, tree.Text("newname"))
		}
	case "OBJECT_COLUMN":
		if t == nil {
			return
		}
		before, after := tree.Text("subname"), tree.Text("newname")
		switch fenced.ColumnName {
		case before:
			t.HasToken = false
		case after:
			t.HasToken = true
		}
	case "OBJECT_SCHEMA":
		for k, t := range c.tables {
			if k.schema == tree.Text("subname") {
				c.move(t, tree.Text("newname"), t.Name)
			}
		}
	}
}

func (c *Catalog) move(t *Table, schema, name string) {
	delete(c.tables, key{t.Schema, t.Name})
	t.Schema, t.Name = schema, name
	c.tables[key{schema, name}] = t
}

func (c *Catalog) drop(tree pgtree.Node) {
	switch tree.Text("removeType") {
	case "OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_MATVIEW", "OBJECT_FOREIGN_TABLE":
		for _, object := range tree.List("objects") {
			words := object.Words("items")
			if len(words) == 0 {
				continue
			}
			schema := ""
			if len(words) > 1 {
				schema = words[len(words)-2]
			}
			if t := c.Find(schema, words[len(words)-1]); t != nil {
				c.forget(t)
			}
		}
	case "OBJECT_SCHEMA":
		for _, object := range tree.List("objects") {
			for k, t := range c.tables {
				if k.schema == object.Text("sval") {
					c.forget(t)
				}
			}
		}
	}
}

// forget drops a table. That it was protected is kept: when it is made again, it is not.
func (c *Catalog) forget(t *Table) {
	if t.own != nil {
		t.was = true
		return
	}
	delete(c.tables, key{t.Schema, t.Name})
}

func (c *Catalog) searchPath(tree pgtree.Node) {
	var path []string
	for _, argument := range tree.List("args") {
		for name := range strings.SplitSeq(constant(argument), ",") {
			if name = strings.Trim(strings.TrimSpace(name), `"`); name != "" && name != "$user" && name != "pg_catalog" {
				path = append(path, name)
			}
		}
	}
	if len(path) == 0 { // RESET, DEFAULT, or nothing at all as in dumps, where every name has its schema
		path = []string{"public"}
	}
	c.SearchPath = path
}

// calls does what the calls of the schema fencing's functions in a query do.
func (c *Catalog) calls(tree pgtree.Node, place string) {
	tree.Walk(func(n pgtree.Node) bool {
		if n.Kind != "FuncCall" {
			return true
		}
		name := n.Words("funcname")
		if len(name) == 2 && name[0] == "pg_catalog" {
			name = name[1:]
		}
		switch {
		case len(name) == 1 && name[0] == "set_config":
			if args := n.List("args"); len(args) == 3 && constant(args[0]) == "search_path" {
				c.SearchPath = nil
				for part := range strings.SplitSeq(constant(args[1]), ",") {
					if part = strings.TrimSpace(part); part != "" && part != "pg_catalog" {
						c.SearchPath = append(c.SearchPath, part)
					}
				}
				if len(c.SearchPath) == 0 {
					c.SearchPath = []string{"public"}
				}
			}
		case len(name) == 2 && name[0] == fencingSchema && (name[1] == "protect" || name[1] == "unprotect"):
			c.protection(name[1], n, place)
		}
		return true
	})
}

// parameters of fencing.protect and fencing.unprotect, in their order.
var parameters = map[string][]string{
	"protect":   {"target", "mode", "fence", "inserts", "observe", "max_advance"},
	"unprotect": {"target", "drop_column"},
}

func (c *Catalog) protection(function string, call pgtree.Node, place string) {
	given := map[string]pgtree.Node{}
	for i, argument := range call.List("args") {
		switch {
		case argument.Kind == "NamedArgExpr":
			given[argument.Text("name")] = argument.Node("arg")
		case i < len(parameters[function]):
			given[parameters[function][i]] = argument
		}
	}
	schema, name, ok := ParseName(constant(given["target"]))
	if !ok {
		c.Unread = append(c.Unread, fmt.Sprintf("%s: which table fencing.%s is called for is only known when it runs", place, function))
		return
	}
	t := c.Find(schema, name)
	if t == nil {
		t = c.add(schema, name) // by a statement that could not be read; it is there, or the migration fails
	}
	if function == "unprotect" {
		t.own = nil
		if drop := given["drop_column"]; drop.There() && isTrue(drop) {
			t.HasToken = false
		}
		return
	}
	t.protect(&Protection{Fence: constant(given["fence"]), Reentrant: constant(given["mode"]) == "reentrant", RequireInserts: constant(given["inserts"]) == "require"})
	t.HasToken = t.HasToken || t.own.Row()
}

// trigger recognises a guard, as a dump of the schema has it.
func (c *Catalog) trigger(tree pgtree.Node) {
	function := tree.Words("funcname")
	t := c.relation(tree.Node("relation"))
	if t == nil || len(function) != 2 || function[0] != fencingSchema {
		return
	}
	var words []string
	for _, argument := range tree.List("args") {
		words = append(words, argument.Text("sval"))
	}
	if len(words) == 0 {
		return
	}
	switch function[1] {
	case "guard_row":
		t.protect(&Protection{Reentrant: words[0] == "reentrant", RequireInserts: slices.Contains(words, "inserts=require")})
		t.HasToken = true
	case "guard_named":
		t.protect(&Protection{Fence: words[0]})
	}
}

// body does what the block of a DO statement does, as far as that can be known.
func (c *Catalog) body(text, place string) {
	queries, err := pgtree.ParseBody(text)
	if err != nil {
		c.gap(place + ": its block is not understood")
		return
	}
	if strings.Contains(strings.ToLower(text), "execute") {
		c.gap(place + ": its block puts statements together when it runs")
	}
	for _, query := range queries {
		if tree, err := pgtree.Parse(query.Text); err == nil && tree.Kind != "DoStmt" {
			c.Apply(tree, query.Text, place)
		}
	}
}

// constant is the text of a constant, past casts; "" for anything else.
func constant(n pgtree.Node) string {
	for n.Kind == "TypeCast" {
		n = n.Node("arg")
	}
	if n.Kind != "A_Const" {
		return ""
	}
	return n.Node("sval").Text("sval")
}

func isTrue(n pgtree.Node) bool {
	for n.Kind == "TypeCast" {
		n = n.Node("arg")
	}
	return n.Node("boolval").Bool("boolval") || constant(n) == "t" || constant(n) == "true"
}

func orElse(text, otherwise string) string {
	if text != "" {
		return text
	}
	return otherwise
}
