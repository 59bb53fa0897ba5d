package gosource

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/tools/go/packages"
)

// reader reads one file.
type reader struct {
	source     *Source
	pkg        *packages.Package
	file       *ast.File
	info       *types.Info
	generated  bool
	queries    string
	directives []Directive
}

// The results by which a function that takes SQL is known: those of pgx and database/sql, and so those of whatever is made in their image, as
// sqlc's DBTX and the program's own wrappers are.
var results = []string{
	"github.com/jackc/pgx/v5.Rows", "github.com/jackc/pgx/v5.Row", "github.com/jackc/pgx/v5.QueuedQuery",
	"github.com/jackc/pgx/v5/pgconn.CommandTag", "github.com/jackc/pgx/v5/pgconn.MultiResultReader", "github.com/jackc/pgx/v5/pgconn.ResultReader",
	"github.com/jackc/pgx/v5/pgconn.StatementDescription", "github.com/jackc/pgx/v4.Rows", "github.com/jackc/pgx/v4.Row", "github.com/jackc/pgconn.CommandTag",
	"database/sql.Result", "database/sql.Rows", "database/sql.Row", "database/sql.Stmt",
}

// The names of the methods that take SQL, for source whose types are not known.
var methods = []string{
	"Exec", "ExecContext", "Query", "QueryContext", "QueryRow", "QueryRowContext", "Prepare", "PrepareContext", "Queue", "Raw",
}

// calls finds the calls that take SQL.
func (r *reader) calls() {
	ast.Inspect(r.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if text, gorm := r.statement(call); text != nil {
			r.add(call, text, gorm)
		}
		r.copyFrom(call)
		return true
	})
}

// statement is the argument of a call that is SQL; nil when there is none.
func (r *reader) statement(call *ast.CallExpr) (argument ast.Expr, gorm bool) {
	signature, known := r.typeOf(call.Fun).(*types.Signature)
	if !known {
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(methods, selector.Sel.Name) || r.typeOf(call.Fun) != nil {
			return nil, false
		}
		for _, argument := range call.Args {
			if text, ok := r.text(argument, 0); ok && looksLikeSQL(text.value()) {
				return argument, false
			}
		}
		return nil, false
	}
	switch {
	case r.isGORM(call):
		gorm = true
	case !returns(signature, results):
		return nil, false
	}
	at := -1
	for i := range signature.Params().Len() {
		if basic, ok := signature.Params().At(i).Type().Underlying().(*types.Basic); ok && basic.Kind() == types.String && i < len(call.Args) {
			at = i
		}
	}
	if at < 0 {
		return nil, false
	}
	return call.Args[at], gorm
}

func (r *reader) typeOf(e ast.Expr) types.Type {
	if r.info == nil {
		return nil
	}
	t := r.info.TypeOf(e)
	if basic, ok := t.(*types.Basic); ok && basic.Kind() == types.Invalid {
		return nil
	}
	return t
}

func returns(signature *types.Signature, of []string) bool {
	for result := range signature.Results().Variables() {
		if slices.Contains(of, typeName(result.Type())) {
			return true
		}
	}
	return false
}

// typeName is the name of a type, or of what it points to, with its package's path.
func typeName(t types.Type) string {
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return ""
	}
	return named.Obj().Pkg().Path() + "." + named.Obj().Name()
}

func (r *reader) isGORM(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || (selector.Sel.Name != "Exec" && selector.Sel.Name != "Raw") {
		return false
	}
	object, ok := r.info.Uses[selector.Sel].(*types.Func)
	return ok && object.Pkg() != nil && object.Pkg().Path() == "gorm.io/gorm"
}

// A text is a string and where each of its bytes stands in the source.
type text struct {
	bytes     []byte
	positions []token.Pos
	literals  []ast.Expr // that it is put together of
}

func (t *text) value() string { return string(t.bytes) }

func (t *text) append(other text) {
	t.bytes = append(t.bytes, other.bytes...)
	t.positions = append(t.positions, other.positions...)
	t.literals = append(t.literals, other.literals...)
}

// maxDepth bounds how many names are followed to a constant.
const maxDepth = 20

// text is the value of an expression that is constant, or a variable that is never anything else.
func (r *reader) text(e ast.Expr, depth int) (text, bool) {
	if depth > maxDepth {
		return text{}, false
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return r.text(e.X, depth+1)
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			break
		}
		return literal(e)
	case *ast.BinaryExpr:
		left, ok := r.text(e.X, depth+1)
		if !ok || e.Op != token.ADD {
			break
		}
		right, ok := r.text(e.Y, depth+1)
		if !ok {
			break
		}
		left.append(right)
		return left, true
	case *ast.Ident:
		if t, ok := r.named(e, depth); ok {
			return t, true
		}
	case *ast.SelectorExpr:
		if t, ok := r.named(e.Sel, depth); ok {
			return t, true
		}
	}
	if r.info == nil {
		return text{}, false
	}
	// Constant in another way, or of a package that is not read here: then all of it stands where it is used.
	value := r.info.Types[e].Value
	if value == nil || value.Kind() != constant.String {
		return text{}, false
	}
	t := text{bytes: []byte(constant.StringVal(value)), literals: []ast.Expr{e}}
	t.positions = slices.Repeat([]token.Pos{e.Pos()}, len(t.bytes))
	return t, true
}

// named follows a name to what it stands for.
func (r *reader) named(name *ast.Ident, depth int) (text, bool) {
	if r.info == nil {
		return text{}, false
	}
	definition, ok := r.source.flow.definitions[objectKey(r.info.Uses[name])]
	if !ok || definition.value == nil || definition.changed {
		return text{}, false
	}
	return definition.reader(r.source).text(definition.value, depth+1)
}

// literal is the text of a string literal.
func literal(e *ast.BasicLit) (text, bool) {
	t := text{literals: []ast.Expr{e}}
	if e.Value[0] == '`' {
		for i := 1; i < len(e.Value)-1; i++ {
			t.bytes = append(t.bytes, e.Value[i])
			t.positions = append(t.positions, e.Pos()+token.Pos(i))
		}
		return t, true
	}
	rest := e.Value[1 : len(e.Value)-1]
	for rest != "" {
		at := e.Pos() + token.Pos(len(e.Value)-1-len(rest))
		value, multibyte, tail, err := strconv.UnquoteChar(rest, '"')
		if err != nil {
			return text{}, false
		}
		before := len(t.bytes)
		if multibyte || value < utf8.RuneSelf {
			t.bytes = utf8.AppendRune(t.bytes, value)
		} else {
			t.bytes = append(t.bytes, byte(value)) // \xff
		}
		t.positions = append(t.positions, slices.Repeat([]token.Pos{at}, len(t.bytes)-before)...)
		rest = tail
	}
	return t, true
}

// statementWord begins SQL.
var statementWord = regexp.MustCompile(`(?i)^(select|insert|update|delete|merge|with|truncate|copy|set|reset|begin|start|commit|rollback|create|alter|drop|do|call|lock|prepare|explain|declare|grant|revoke|comment|vacuum|analyze|refresh|notify|listen|values|table)\b`)

// looksLikeSQL tells a statement from a name that is handed to a function in the image of pgx's.
func looksLikeSQL(text string) bool {
	text = strings.TrimLeft(text, " \t\r\n(;")
	for {
		switch {
		case strings.HasPrefix(text, "--"):
			_, text, _ = strings.Cut(text, "\n")
		case strings.HasPrefix(text, "/*"):
			_, text, _ = strings.Cut(text, "*/")
		default:
			return statementWord.MatchString(text)
		}
		text = strings.TrimLeft(text, " \t\r\n(;")
	}
}

// add makes a fragment of a call's SQL.
func (r *reader) add(call *ast.CallExpr, argument ast.Expr, gorm bool) {
	t, ok := r.text(argument, 0)
	if !ok || len(t.bytes) == 0 || !looksLikeSQL(t.value()) {
		return
	}
	if gorm {
		t = withParameters(t)
	}
	r.append(call, t)
}

func (r *reader) append(call *ast.CallExpr, t text) {
	f := &Fragment{
		File: r.source.place(call.Pos()).File, Text: string(t.bytes), Generated: r.generated, Queries: r.queries,
		source: r.source, positions: append(t.positions, t.positions[len(t.positions)-1]+1),
	}
	if r.source.flow.isPresented(r.pkg, call.Pos()) {
		f.PresentedBy = "the Go source"
	}
	spans := []ast.Node{call}
	for _, l := range t.literals {
		spans = append(spans, l)
	}
	f.Directives = r.near(spans)
	r.source.Fragments = append(r.source.Fragments, f)
}

// near are the directives that are within, on the first line of, on the last line of, or on the line above one of the nodes.
func (r *reader) near(nodes []ast.Node) []*Directive {
	var found []*Directive
	for _, n := range nodes {
		from, to := r.source.place(n.Pos()), r.source.place(n.End())
		for i := range r.source.Directives {
			d := &r.source.Directives[i]
			first := from.Line
			if !d.behind {
				first-- // on a line of its own it is for the next one
			}
			if d.File == from.File && d.Line >= first && d.Line <= to.Line && !slices.Contains(found, d) {
				found = append(found, d)
			}
		}
	}
	for i := range r.directives {
		d := &r.directives[i]
		if strings.HasSuffix(d.Verb, "-file") && !slices.Contains(found, d) {
			found = append(found, d)
		}
	}
	return found
}

// gormParameter is what GORM puts a value in the place of: ?, @name, and a list of them after IN.
var gormParameter = regexp.MustCompile(`(?i)(\bin\s+)?(\?|@[a-z_][a-z_0-9]*)|'(?:[^']|'')*'|"[^"]*"`)

// withParameters writes GORM's parameters as PostgreSQL reads them.
func withParameters(t text) text {
	var out text
	out.literals = t.literals
	keep := func(from, to int) {
		out.bytes = append(out.bytes, t.bytes[from:to]...)
		out.positions = append(out.positions, t.positions[from:to]...)
	}
	put := func(s string, at int) {
		out.bytes = append(out.bytes, s...)
		out.positions = append(out.positions, slices.Repeat([]token.Pos{t.positions[at]}, len(s))...)
	}
	end, number := 0, 0
	for _, match := range gormParameter.FindAllSubmatchIndex(t.bytes, -1) {
		keep(end, match[0])
		end = match[1]
		if match[4] < 0 { // quoted
			keep(match[0], match[1])
			continue
		}
		number++
		if match[2] >= 0 {
			keep(match[2], match[3])
			put("(", match[4])
		}
		put("$"+strconv.Itoa(number), match[4])
		if match[2] >= 0 {
			put(")", match[4])
		}
	}
	keep(end, len(t.bytes))
	return out
}

// copyFrom finds pgx's CopyFrom, whose table is a list of names.
func (r *reader) copyFrom(call *ast.CallExpr) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != "CopyFrom" || len(call.Args) < 2 {
		return
	}
	list, ok := call.Args[1].(*ast.CompositeLit)
	if !ok || !strings.HasSuffix(typeName(r.typeOf(list)), "pgx/v5.Identifier") || len(list.Elts) == 0 {
		return
	}
	var names []string
	for _, element := range list.Elts {
		t, ok := r.text(element, 0)
		if !ok {
			return
		}
		names = append(names, `"`+strings.ReplaceAll(t.value(), `"`, `""`)+`"`)
	}
	statement := "COPY " + strings.Join(names, ".") + " FROM STDIN"
	r.append(call, text{bytes: []byte(statement), positions: slices.Repeat([]token.Pos{list.Pos()}, len(statement)), literals: []ast.Expr{list}})
}
