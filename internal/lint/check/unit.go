package check

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/pgtree"
	"github.com/fencectl/fencectl/internal/lint/sqlfile"
)

// A position is a place in a file.
type position struct {
	file         string
	line, column int
}

// A unit is what is linted as one: a file of SQL, or a constant in a Go program.
type unit struct {
	name    string // of the file, for messages
	file    *sqlfile.File
	place   func(offset int) position
	source  func(offset int) string // the line of the file
	catalog *catalog.Catalog
	inGo    bool

	// defines says that the unit's statements are done to the catalog: it is one of the application's migrations.
	defines bool

	// layer says that the file is the SQL layer's own, as fencectl install --emit writes it.
	layer bool

	// presentedBy is how the transactions of its statements present the token; "" when nothing says that they do.
	presentedBy string

	// queries says of a query by its name how the Go source runs it.
	queries func(name string) usage

	// generated says of a protected table whether fencectl generate writes its methods. Nil: of none.
	generated func(*catalog.Table) bool

	// directives are the comments in the unit, and outer those around it in a Go file.
	directives, outer []*directive

	findings []draft
	counts   counts
	session  session
}

// counts are what a unit adds to the summary.
type counts struct{ statements, presented, exempt int }

// A draft is a finding of which it is not certain yet whether it is one.
type draft struct {
	lint.Finding
	offset    int // in the unit's file
	statement int

	// stands says, once everything has been read, whether it is one. Nil: it is.
	stands func() bool
}

// A usage is how the Go source runs a query.
type usage struct {
	known     bool
	presented bool   // every call is in a transaction that presents the token
	outside   string // a call that is not: "worker.go:42"
}

// parameter is how a parameter is written in the unit's SQL, for examples.
func (u *unit) parameter() string {
	switch {
	case u.inGo:
		return "$1"
	case u.file.Kind == sqlfile.Queries:
		return "sqlc.arg(token)"
	}
	return ":token"
}

// run lints the unit's statements one after another.
func (u *unit) run() {
	u.session.reset(u, "")
	direction := sqlfile.Direction("")
	for i, s := range u.file.Statements {
		u.counts.statements++
		if u.file.Kind == sqlfile.Queries || s.Direction != direction {
			direction = s.Direction
			u.session.reset(u, direction)
		}
		text := u.file.Text[s.Start:s.End]
		tree, err := pgtree.Parse(text)
		var wrong *pgtree.SyntaxError
		switch {
		case errors.As(err, &wrong):
			u.syntaxError(i, s.Start, wrong)
			continue
		case err != nil:
			u.report(i, s.Start, lint.Finding{Rule: lint.SyntaxError, Message: err.Error(), Fix: "Please report this statement: the parser itself failed."}, nil)
			continue
		case !tree.There():
			continue
		}
		u.lint(i, tree, text, s)
		if u.defines && s.Direction != sqlfile.Down {
			u.catalog.Apply(tree, text, u.placeOf(s.Start))
		}
	}
}

func (u *unit) placeOf(offset int) string {
	at := u.place(offset)
	return fmt.Sprintf("%s:%d", at.file, at.line)
}

func (u *unit) syntaxError(i, start int, wrong *pgtree.SyntaxError) {
	fix := "Mend it; the statements around it were linted."
	if u.file.Kind == sqlfile.Script && !u.inGo {
		fix += " Where it is right for the tool that reads this file, leave the file out: lint.exclude in fencectl.yaml."
	}
	u.report(i, start+wrong.Offset, lint.Finding{Rule: lint.SyntaxError, Message: wrong.Message, Fix: fix}, nil)
}

// report adds a finding about a statement of the file, unless a comment exempts it.
func (u *unit) report(i, offset int, f lint.Finding, stands func() bool) {
	if u.exempted(i, f.Rule) {
		u.counts.exempt++
		return
	}
	at := u.place(offset)
	f.File, f.Line, f.Column, f.Source = at.file, at.line, at.column, u.source(offset)
	if i >= 0 && i < len(u.file.Statements) {
		s := u.file.Statements[i]
		f.Statement = u.file.Text[s.Start:s.End]
	}
	u.findings = append(u.findings, draft{Finding: f, offset: offset, statement: i, stands: stands})
}

// lint applies every rule to one statement.
func (u *unit) lint(i int, tree pgtree.Node, text string, s sqlfile.Statement) {
	st := analyse(u, tree, text, s.Start)
	st.index, st.name, st.direction = i, s.Name, s.Direction
	if s.Direction == sqlfile.Down {
		return // what takes a migration back is to remove what the migration has made
	}
	st.check()
	saved := u.session
	u.session.inTx = u.session.inTx || tree.Kind == "DoStmt" // a block is in one transaction
	for _, body := range st.bodies() {
		body.index, body.name, body.direction = i, s.Name, s.Direction
		body.check()
	}
	if !saved.inTx {
		u.session = saved
	}
}

// check applies the rules.
func (st *statement) check() {
	st.checkNames()
	st.checkPresented()
	for i := range st.writes {
		w := &st.writes[i]
		st.checkInternals(w)
		st.checkToken(w)
		st.checkGenerated(w)
		st.checkFenced(w)
	}
	st.checkSession()
	st.checkDefinition()
	if !st.inFunction {
		st.unit.session.after(st)
	}
}

func (st *statement) report(offset int, rule, object, message, fix string) {
	st.reportIf(nil, offset, rule, object, message, fix)
}

func (st *statement) reportIf(stands func() bool, offset int, rule, object, message, fix string) {
	st.unit.report(st.index, offset, lint.Finding{Rule: rule, Object: object, Message: message, Fix: fix}, stands)
}

// bodies are the statements in the body of a function or of a DO, as far as they can be known. Those of a function run in whatever transaction
// calls it.
func (st *statement) bodies() []*statement {
	language, body := st.body()
	if body == "" {
		return nil
	}
	begin := strings.Index(st.text, body)
	if begin < 0 {
		return nil // in single quotes, with quotes in it: its places are not those of the text
	}
	var all []*statement
	add := func(text string, at int) {
		tree, err := pgtree.Parse(text)
		if err != nil || !tree.There() {
			return // what a body has may be no statement: it is PL/pgSQL's business
		}
		nested := analyse(st.unit, tree, text, st.start+at)
		nested.inFunction, nested.inBlock = st.tree.Kind != "DoStmt", st.tree.Kind == "DoStmt"
		all = append(all, nested)
	}
	switch language {
	case "sql":
		for _, s := range sqlfile.ReadFragment(body).Statements {
			add(body[s.Start:s.End], begin+s.Start)
		}
	case "plpgsql":
		queries, err := pgtree.ParseBody(st.text)
		if err != nil {
			return nil
		}
		lines := strings.SplitAfter(body, "\n")
		for _, query := range queries {
			from := min(len(strings.Join(lines[:min(query.Line-1, len(lines))], "")), len(body))
			text := query.Text
			at := strings.Index(body[from:], text)
			if at < 0 { // PERFORM, or an expression
				bare := strings.TrimPrefix(text, "SELECT ")
				if at = strings.Index(body[from:], bare); at >= 0 {
					at -= len("SELECT ")
				}
			}
			if at < -len("SELECT ") || begin+from+at < 0 {
				at = 0
			}
			add(text, begin+from+at)
		}
	}
	return all
}

// body is the text of a DO or CREATE FUNCTION, and the language that it is in.
func (st *statement) body() (language, text string) {
	options := st.tree.List("options")
	switch st.tree.Kind {
	case "DoStmt":
		options, language = st.tree.List("args"), "plpgsql"
	case "CreateFunctionStmt":
	default:
		return "", ""
	}
	for _, option := range options {
		argument := option.Node("arg")
		switch option.Text("defname") {
		case "language":
			language = strings.ToLower(argument.Text("sval"))
		case "as":
			text = argument.Text("sval")
			if parts := argument.Words("items"); len(parts) > 0 {
				text = parts[0]
			}
		}
	}
	return language, text
}
