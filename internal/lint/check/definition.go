package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/pgtree"
)

// guardPrefix begins the names of the guards.
const guardPrefix = "zzz_fencing_"

// The bits of a CREATE TRIGGER's timing and events (PostgreSQL's pg_trigger.h).
const (
	before   = 2
	onInsert = 4
	onUpdate = 16
)

// checkDefinition reports statements that change what a guard checks, or whether it does.
func (st *statement) checkDefinition() {
	if st.unit.layer {
		return
	}
	switch st.tree.Kind {
	case "AlterTableStmt":
		st.alterTable()
	case "RenameStmt":
		st.rename()
	case "DropStmt":
		st.drop()
	case "CreateTrigStmt":
		st.createTrigger()
	case "RuleStmt":
		if t, label := st.protectedTable(st.tree.Node("relation")); t != nil && st.tree.Text("event") != "CMD_SELECT" {
			st.report(st.at(st.tree.Node("relation")), lint.GuardShadowed, label, fmt.Sprintf("the rule %s replaces or adds to writes of %s before any trigger sees them", catalog.Quote(st.tree.Text("rulename")), label),
				"Use a trigger whose name sorts before "+guardPrefix+", or a view of another name with the rule on it.")
		}
	case "CreateStmt":
		st.createTable()
	case "CreateFunctionStmt":
		if words := st.tree.Words("funcname"); len(words) == 2 && words[0] == fenced.SchemaName {
			st.report(st.start, lint.GuardRemoved, "", "fencing."+words[1]+" is made by hand: the guards may check something else then, or nothing",
				"Keep own functions out of the schema fencing. To bring it up to date: fencectl install --emit goose --dir DIR.")
		}
	case "AlterSeqStmt":
		st.internalObject(st.tree.Node("sequence"), "ALTER SEQUENCE")
	}
	for _, c := range st.calls {
		if args := c.node.List("args"); (c.name == "setval" || c.name == "nextval") && c.schema == "" && len(args) > 0 {
			if schema, name, ok := catalog.ParseName(constant(args[0])); ok && schema == fenced.SchemaName {
				st.report(st.at(c.node), lint.FencingInternals, "", fmt.Sprintf("%s of fencing.%s goes past the function that keeps tokens from being issued twice", c.name, name), "Call fencing.next_token().")
			}
		}
	}
}

// protectedTable is the table of a RangeVar, when it is protected.
func (st *statement) protectedTable(relation pgtree.Node) (*catalog.Table, string) {
	t := st.unit.catalog.Find(relation.Text("schemaname"), relation.Text("relname"))
	if t == nil || !relation.There() {
		return nil, ""
	}
	if p, _ := t.Protection(); p == nil {
		return nil, ""
	}
	label := t.Label()
	return t, label
}

func (st *statement) protectsAgain(label string) string {
	return "Protect it again afterwards, in the same migration: SELECT fencing.protect('" + strings.ReplaceAll(label, "'", "''") + "', …), with the options that it had; or, where it needs no fence any more, SELECT fencing.unprotect(…) first."
}

func (st *statement) alterTable() {
	relation := st.tree.Node("relation")
	if relation.Text("schemaname") == fenced.SchemaName {
		st.internalObject(relation, "ALTER TABLE")
		return
	}
	t, label := st.protectedTable(relation)
	at := st.at(relation)
	for _, command := range st.tree.List("cmds") {
		name := command.Text("name")
		guard := strings.HasPrefix(name, guardPrefix)
		switch subtype := command.Text("subtype"); {
		case guard && (subtype == "AT_DisableTrig" || subtype == "AT_EnableReplicaTrig"):
			st.report(at, lint.GuardRemoved, labelOr(label, relation), fmt.Sprintf("the guard %s of %s is switched off", name, labelOr(label, relation)),
				"Leave it on. To let one transaction through, its owner calls SELECT fencing.bypass('why'); to let everything through and see who needs a token, SELECT fencing.observe(…).")
		case t == nil:
			// Only what is protected can lose something by the rest.
		case subtype == "AT_DisableTrigAll" || subtype == "AT_DisableTrigUser":
			st.report(at, lint.GuardRemoved, label, fmt.Sprintf("every trigger of %s is switched off, the guards among them", label),
				"Name the triggers that are meant. To let one transaction through, its owner calls SELECT fencing.bypass('why').")
		case subtype == "AT_SetUnLogged":
			st.report(at, lint.FenceUnlogged, label, fmt.Sprintf("%s becomes unlogged: after a crash it is empty, and the fences in it are gone", label), "Leave it logged; or unprotect it first, when it is data that may be lost.")
		case subtype == "AT_DetachPartition":
			st.detach(command, label)
		case subtype == "AT_AttachPartition":
			if part := command.Node("def").Node("name"); part.There() {
				st.joins(part, st.at(part), t)
			}
		case subtype == "AT_DropColumn", subtype == "AT_AlterColumnType", subtype == "AT_DropNotNull", subtype == "AT_ColumnDefault":
			st.alterColumn(t, label, name, subtype, at)
		}
	}
	// A child of a protected table: its triggers are not inherited.
	for _, command := range st.tree.List("cmds") {
		if command.Text("subtype") == "AT_AddInherit" {
			if _, parent := st.protectedTable(command.Node("def")); parent != "" {
				st.inherits(relation, parent)
			}
		}
	}
}

func labelOr(label string, relation pgtree.Node) string {
	if label != "" {
		return label
	}
	if schema := relation.Text("schemaname"); schema != "" {
		return catalog.Quote(schema) + "." + catalog.Quote(relation.Text("relname"))
	}
	return catalog.Quote(relation.Text("relname"))
}

func (st *statement) alterColumn(t *catalog.Table, label, column, subtype string, at int) {
	p, _ := t.Protection()
	if p.Row() && column == fenced.ColumnName {
		what := map[string]string{
			"AT_DropColumn": "is dropped, and with it every fence of the table", "AT_AlterColumnType": "gets another type: the guards compare bigint",
			"AT_DropNotNull": "may be NULL: no token can be compared with that", "AT_ColumnDefault": "loses the default that stamps new rows with the token they are written under",
		}[subtype]
		st.report(at, lint.GuardRemoved, label, fmt.Sprintf("%s of %s %s", fenced.ColumnName, label, what), "Leave the column to fencing.protect and fencing.unprotect(…, drop_column => true).")
	}
}

func (st *statement) rename() {
	relation := st.tree.Node("relation")
	before, after := st.tree.Text("subname"), st.tree.Text("newname")
	t, label := st.protectedTable(relation)
	switch st.tree.Text("renameType") {
	case "OBJECT_TRIGGER":
		switch {
		case strings.HasPrefix(before, guardPrefix):
			st.report(st.at(relation), lint.GuardRemoved, labelOr(label, relation), fmt.Sprintf("the guard %s of %s is renamed: it is no longer known as one, and may no longer fire last", before, labelOr(label, relation)), "Leave its name; it sorts after other triggers on purpose.")
		case t != nil && after > guardPrefix+"update" && !strings.HasPrefix(after, guardPrefix):
			st.shadows(after, t, label, st.at(relation), onInsert|onUpdate)
		}
	case "OBJECT_COLUMN":
		if t == nil {
			return
		}
		switch p, _ := t.Protection(); {
		case p.Row() && before == fenced.ColumnName:
			st.report(st.at(relation), lint.GuardRemoved, label, fmt.Sprintf("%s of %s is renamed: the guards look for it by its name", fenced.ColumnName, label), "Leave the column to fencing.protect and fencing.unprotect.")
		case p.Template() && slices.Contains(p.Columns(), before):
			since := t.Protected()
			st.reportIf(func() bool { return t.Protected() == since }, st.at(relation), lint.GuardRemoved, label,
				fmt.Sprintf("%s of %s is renamed, but the fence's template %s names it", catalog.Quote(before), label, p.Fence),
				fmt.Sprintf("Protect the table again in the same migration, with the new name: SELECT fencing.protect('%s', fence => '%s').", label, strings.ReplaceAll(p.Fence, "{"+before+"}", "{"+after+"}")))
		}
	}
}

func (st *statement) drop() {
	for _, object := range st.tree.List("objects") {
		words := object.Words("items")
		switch st.tree.Text("removeType") {
		case "OBJECT_TRIGGER":
			if n := len(words); n > 1 && strings.HasPrefix(words[n-1], guardPrefix) {
				quoted := make([]string, n-1)
				for i, word := range words[:n-1] {
					quoted[i] = catalog.Quote(word)
				}
				st.report(st.start, lint.GuardRemoved, strings.Join(quoted, "."), fmt.Sprintf("the guard %s of %s is dropped", words[n-1], strings.Join(quoted, ".")),
					"Leave it; where the table needs no fence any more: SELECT fencing.unprotect(…), which takes all of them off.")
			}
		case "OBJECT_SCHEMA":
			if object.Text("sval") == fenced.SchemaName {
				st.report(st.start, lint.GuardRemoved, "", "the schema fencing is dropped, and every guard with it", "fencectl uninstall does it step by step, and says what is still protected.")
			}
		case "OBJECT_FUNCTION", "OBJECT_TABLE", "OBJECT_SEQUENCE", "OBJECT_VIEW":
			if names := object.Node("objname"); names.There() {
				words = object.Words("objname")
			}
			if len(words) == 2 && words[0] == fenced.SchemaName {
				st.report(st.start, lint.FencingInternals, "", fmt.Sprintf("fencing.%s is dropped", words[1]), "Leave the schema fencing to fencectl install and uninstall.")
			}
		}
	}
}

func (st *statement) createTrigger() {
	relation := st.tree.Node("relation")
	t, label := st.protectedTable(relation)
	name := st.tree.Text("trigname")
	if words := st.tree.Words("funcname"); len(words) == 2 && words[0] == fenced.SchemaName {
		return // a guard, as a dump has it
	}
	if strings.HasPrefix(name, guardPrefix) {
		st.report(st.at(relation), lint.GuardShadowed, labelOr(label, relation), fmt.Sprintf("the trigger %s of %s has a guard's name, and is none", name, labelOr(label, relation)), "Call it something that sorts before "+guardPrefix+".")
		return
	}
	if t != nil && st.tree.Bool("row") && st.tree.Int("timing")&before != 0 {
		st.shadows(name, t, label, st.at(relation), st.tree.Int("events"))
	}
}

// shadows reports a BEFORE trigger for each row that fires after the guard. Triggers fire in the byte order of their names.
func (st *statement) shadows(name string, t *catalog.Table, label string, at, events int) {
	p, _ := t.Protection()
	after := (events&onUpdate != 0 && name > guardPrefix+"update") || (p.Template() && events&onInsert != 0 && name > guardPrefix+"insert")
	if p.GuardsStatements() || !after {
		return
	}
	st.report(at, lint.GuardShadowed, label, fmt.Sprintf("the trigger %s of %s fires after the guard, and can change the row after it has been checked", catalog.Quote(name), label),
		"Give it a name that sorts before "+guardPrefix+", such as before_fencing_"+name+".")
}

// createTable reports a table that is made of a protected one, and has no guard of its own in the end.
func (st *statement) createTable() {
	relation := st.tree.Node("relation")
	for _, element := range st.tree.List("tableElts") {
		if element.Kind != "TableLikeClause" {
			continue
		}
		if _, like := st.protectedTable(element.Node("relation")); like != "" {
			st.reportUnguarded(relation, st.at(element.Node("relation")), fmt.Sprintf("%s is made like %s, but LIKE copies no trigger: it is not protected", labelOr("", relation), like),
				"Protect it, too, when it is written under the lock: SELECT fencing.protect('"+labelOr("", relation)+"', …).")
		}
	}
	for _, parent := range st.tree.List("inhRelations") {
		t, label := st.protectedTable(parent)
		switch {
		case t == nil:
		case st.tree.Has("partbound"):
			st.joins(relation, st.at(relation), t)
		default:
			st.inherits(relation, label)
		}
	}
	if st.unit.catalog.WasProtected(relation.Text("schemaname"), relation.Text("relname")) {
		label := labelOr("", relation)
		st.reportUnguarded(relation, st.at(relation), fmt.Sprintf("%s was protected before it was dropped, and is not now that it is made again", label), "Protect it again: SELECT fencing.protect('"+label+"', …), with the options that it had.")
	}
}

func (st *statement) inherits(child pgtree.Node, parent string) {
	label := labelOr("", child)
	st.reportUnguarded(child, st.at(child), fmt.Sprintf("%s inherits from %s, but not its guards: writes of %s are not checked", label, parent, label), "Protect it as well: SELECT fencing.protect('"+label+"', …).")
}

// reportUnguarded reports a table that has no guard, unless it has one in the end, or is gone.
func (st *statement) reportUnguarded(relation pgtree.Node, at int, message, fix string) {
	c, schema, name := st.unit.catalog, relation.Text("schemaname"), relation.Text("relname")
	if relation.Text("relpersistence") == "t" {
		return // the session's own
	}
	stands := func() bool {
		t := c.Find(schema, name)
		return t != nil && t.Protected() == 0
	}
	if !st.unit.defines {
		stands = nil
	}
	st.reportIf(stands, at, lint.GuardNotCopied, labelOr("", relation), message, fix)
}

// detach reports a partition that loses its guards, unless it is protected again, or dropped.
func (st *statement) detach(command pgtree.Node, label string) {
	part := command.Node("def").Node("name")
	st.reportUnguarded(part, st.at(part), fmt.Sprintf("%s is detached from %s, and loses its row guards by that", labelOr("", part), label),
		"Protect it by itself when it is still written, SELECT fencing.protect('"+labelOr("", part)+"', …), or drop it.")
}

// joins reports a partition that comes to a protected table, unless that is protected again afterwards.
func (st *statement) joins(part pgtree.Node, at int, root *catalog.Table) {
	_, root = root.Protection()
	p, _ := root.Protection()
	missing := "TRUNCATE of the partition itself is not checked"
	if p.GuardsStatements() {
		missing = "only its row guard is copied, and TRUNCATE of the partition itself is not checked"
	}
	label := labelOr("", part)
	since := root.Protected()
	var stands func() bool
	if st.unit.defines {
		stands = func() bool { return root.Protected() == since }
	}
	st.reportIf(stands, at, lint.GuardNotCopied, label, fmt.Sprintf("%s becomes a partition of %s, whose statement guards it does not get: %s", label, root.Label(), missing), st.protectsAgain(root.Label()))
}

// checkInternals reports writes of the tables that the fences stand on.
func (st *statement) checkInternals(w *write) {
	name := w.relation.Text("relname")
	if w.relation.Text("schemaname") != fenced.SchemaName || st.unit.layer {
		return
	}
	// What was recorded is anybody's to clear away.
	if (name == "violation" || name == "bypass_log") && (w.action == remove || w.action == truncate) {
		return
	}
	st.report(st.at(w.relation), lint.FencingInternals, "fencing."+name, fmt.Sprintf("%s of fencing.%s", w.verb(), name), internalFix(name))
}

func (st *statement) internalObject(relation pgtree.Node, what string) {
	if relation.Text("schemaname") == fenced.SchemaName {
		name := relation.Text("relname")
		st.report(st.at(relation), lint.FencingInternals, "fencing."+name, fmt.Sprintf("%s of fencing.%s", what, name), internalFix(name))
	}
}

func internalFix(table string) string {
	switch table {
	case "fence":
		return "To raise a fence: fencing.claim. To lower one that a wrong token has raised: fencectl fence lower, which says who did and why."
	case "lease":
		return "Use fencing.acquire_lease, renew_lease and release_lease, which compare the owner and the token."
	case "source":
		return "Use fencectl epoch adopt."
	case "token_seq":
		return "Leave the sequence as it is: CACHE 1, NO CYCLE and logged is what tokens rest on. fencing.next_token() reads it."
	}
	return "Leave the tables of the schema fencing to its functions."
}
