package gosource

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// fencedPackage is whose functions present a token.
const fencedPackage = "github.com/fencectl/fencectl/fenced"

// runners hand a transaction that has presented to the function that they are given.
var runners = []string{fencedPackage + ".Run", fencedPackage + ".RunWith", fencedPackage + ".RunSQL", fencedPackage + ".RunSQLWith"}

// presenters present for the transaction that they are given.
var presenters = []string{fencedPackage + ".Present", fencedPackage + ".PresentSQL"}

// presentsInSQL is in a statement that does so itself.
var presentsInSQL = regexp.MustCompile(`(?i)\bfencing\.(present|hold)\s*\(`)

// function is a function or method by its full name.
type function string

// A parameter is one of a function's that is a function itself.
type parameter struct {
	of    function
	index int
}

// A definition is what a constant or a variable was given.
type definition struct {
	pkg     *packages.Package
	value   ast.Expr
	changed bool // a variable that is assigned to again, or whose address is taken
}

func (d definition) reader(s *Source) *reader {
	return &reader{source: s, pkg: d.pkg, info: d.pkg.TypesInfo}
}

// A body is a function's, with a name or without.
type body struct {
	pkg       *packages.Package
	node      ast.Node // *ast.FuncDecl or *ast.FuncLit
	within    *body    // that it stands in; nil for a declaration
	name      function // of a declaration
	presents  token.Pos
	presented bool // it is handed to a runner
	handed    []argument
}

// An argument is a function literal's place in a call.
type argument struct {
	callee  function
	index   int
	isParam types.Object // the callee is a parameter, not a function
}

// A use is one place where a function is named.
type use struct {
	at     token.Pos
	within *body
	passed *argument // as an argument of this call; nil when it is called, or kept
	called bool
}

// flow knows what is called from where.
type flow struct {
	source      *Source
	definitions map[string]*definition
	bodies      []*body
	uses        map[function][]use
	paramUses   map[types.Object][]use
	params      map[types.Object]parameter
	runs        map[parameter]bool // whether what is handed over there runs in a transaction that has presented
	presented   map[function]bool
	byPackage   map[string]map[string][]function // methods and functions by name, for interfaces
}

func newFlow(s *Source) *flow {
	return &flow{
		source: s, definitions: map[string]*definition{}, uses: map[function][]use{}, paramUses: map[types.Object][]use{},
		params: map[types.Object]parameter{}, runs: map[parameter]bool{}, presented: map[function]bool{}, byPackage: map[string]map[string][]function{},
	}
}

// objectKey names a constant or variable across packages; a local one by where it is declared.
func objectKey(object types.Object) string {
	if object == nil {
		return ""
	}
	switch object.(type) {
	case *types.Const, *types.Var:
	default:
		return ""
	}
	if object.Pkg() != nil && object.Parent() == object.Pkg().Scope() {
		return object.Pkg().Path() + "." + object.Name()
	}
	return "@" + objectPlace(object)
}

func objectPlace(object types.Object) string {
	return object.Name() + "@" + strconv.Itoa(int(object.Pos()))
}

// index reads a package.
func (f *flow) index(p *packages.Package) {
	if p.TypesInfo == nil {
		return
	}
	f.byPackage[p.PkgPath] = map[string][]function{}
	for _, file := range p.Syntax {
		i := &indexer{flow: f, pkg: p, calls: map[ast.Expr]argument{}, called: map[*ast.Ident]bool{}, passed: map[*ast.Ident]argument{}}
		ast.Inspect(file, i.visit)
	}
}

// indexer walks one file.
type indexer struct {
	flow   *flow
	pkg    *packages.Package
	stack  []ast.Node
	bodies []*body
	calls  map[ast.Expr]argument // the arguments that are functions
	called map[*ast.Ident]bool
	passed map[*ast.Ident]argument
}

func (i *indexer) current() *body {
	if len(i.bodies) == 0 {
		return nil
	}
	return i.bodies[len(i.bodies)-1]
}

func (i *indexer) visit(n ast.Node) bool {
	if n == nil {
		last := i.stack[len(i.stack)-1]
		i.stack = i.stack[:len(i.stack)-1]
		switch last.(type) {
		case *ast.FuncDecl, *ast.FuncLit:
			i.bodies = i.bodies[:len(i.bodies)-1]
		}
		return true
	}
	i.stack = append(i.stack, n)
	info := i.pkg.TypesInfo
	switch n := n.(type) {
	case *ast.FuncDecl:
		name := functionOf(i.pkg, n)
		b := &body{pkg: i.pkg, node: n, name: name}
		i.push(b)
		i.parameters(n.Type, name)
		known := i.flow.byPackage[i.pkg.PkgPath]
		known[n.Name.Name] = append(known[n.Name.Name], name)
	case *ast.FuncLit:
		b := &body{pkg: i.pkg, node: n, within: i.current()}
		if at, ok := i.calls[n]; ok {
			b.handed = append(b.handed, at)
		}
		i.push(b)
	case *ast.CallExpr:
		i.call(n)
	case *ast.ValueSpec:
		for at, name := range n.Names {
			if len(n.Values) == len(n.Names) {
				i.define(info.Defs[name], n.Values[at])
			}
		}
	case *ast.AssignStmt:
		for at, left := range n.Lhs {
			name, ok := left.(*ast.Ident)
			switch {
			case !ok:
				if selector, ok := left.(*ast.SelectorExpr); ok {
					i.change(info.Uses[selector.Sel])
				}
			case n.Tok == token.DEFINE && info.Defs[name] != nil:
				if len(n.Rhs) == len(n.Lhs) {
					i.define(info.Defs[name], n.Rhs[at])
				}
			default:
				i.change(info.Uses[name])
			}
		}
	case *ast.UnaryExpr:
		if name, ok := n.X.(*ast.Ident); ok && n.Op == token.AND {
			i.change(info.Uses[name])
		}
	case *ast.RangeStmt:
		for _, e := range []ast.Expr{n.Key, n.Value} {
			if name, ok := e.(*ast.Ident); ok && n.Tok == token.ASSIGN {
				i.change(info.Uses[name])
			}
		}
	case *ast.Ident:
		i.use(n)
	}
	return true
}

func (i *indexer) push(b *body) {
	i.flow.bodies = append(i.flow.bodies, b)
	i.bodies = append(i.bodies, b)
}

func (i *indexer) define(object types.Object, value ast.Expr) {
	if key := objectKey(object); key != "" {
		if before := i.flow.definitions[key]; before != nil {
			before.changed = true
			return
		}
		i.flow.definitions[key] = &definition{pkg: i.pkg, value: value}
	}
}

func (i *indexer) change(object types.Object) {
	if key := objectKey(object); key != "" {
		if before := i.flow.definitions[key]; before != nil {
			before.changed = true
			return
		}
		i.flow.definitions[key] = &definition{pkg: i.pkg, changed: true}
	}
}

// parameters notes which of a function's parameters are functions.
func (i *indexer) parameters(t *ast.FuncType, of function) {
	at := 0
	for _, field := range t.Params.List {
		for _, name := range field.Names {
			if object := i.pkg.TypesInfo.Defs[name]; object != nil {
				if _, ok := object.Type().Underlying().(*types.Signature); ok {
					i.flow.params[object] = parameter{of, at}
				}
			}
			at++
		}
		if len(field.Names) == 0 {
			at++
		}
	}
}

// callee is what is called: a function, or a parameter that is one.
func (i *indexer) callee(e ast.Expr) (function, types.Object, *ast.Ident) {
	var name *ast.Ident
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		name = e
	case *ast.SelectorExpr:
		name = e.Sel
	case *ast.IndexExpr: // of type arguments
		return i.callee(e.X)
	default:
		return "", nil, nil
	}
	switch object := i.pkg.TypesInfo.Uses[name].(type) {
	case *types.Func:
		return function(object.Origin().FullName()), nil, name
	case *types.Var:
		return "", object, name
	}
	return "", nil, name
}

func (i *indexer) call(call *ast.CallExpr) {
	of, param, name := i.callee(call.Fun)
	if name != nil {
		i.called[name] = true
	}
	for at, value := range call.Args {
		where := argument{callee: of, index: at, isParam: param}
		switch value := ast.Unparen(value).(type) {
		case *ast.FuncLit:
			i.calls[value] = where
		case *ast.Ident:
			i.passed[value] = where
		case *ast.SelectorExpr:
			i.passed[value.Sel] = where
		}
	}
	b := i.current()
	if b == nil {
		return
	}
	presents := slices.Contains(presenters, string(of))
	if !presents {
		for _, value := range call.Args {
			if l, ok := value.(*ast.BasicLit); ok && l.Kind == token.STRING && presentsInSQL.MatchString(l.Value) {
				presents = true
			}
		}
	}
	if presents && (b.presents == token.NoPos || call.Pos() < b.presents) {
		b.presents = call.End()
	}
}

func (i *indexer) use(name *ast.Ident) {
	u := use{at: name.Pos(), within: i.current(), called: i.called[name]}
	if where, ok := i.passed[name]; ok {
		u.passed = &where
	}
	switch object := i.pkg.TypesInfo.Uses[name].(type) {
	case *types.Func:
		key := function(object.Origin().FullName())
		i.flow.uses[key] = append(i.flow.uses[key], u)
		if signature, ok := object.Type().(*types.Signature); ok && signature.Recv() != nil && types.IsInterface(signature.Recv().Type()) && object.Pkg() != nil {
			// Called through an interface of the package that the methods are in: sqlc's Querier.
			key := function("interface " + object.Pkg().Path() + "." + object.Name())
			i.flow.uses[key] = append(i.flow.uses[key], u)
		}
	case *types.Var:
		i.flow.paramUses[object] = append(i.flow.paramUses[object], u)
	}
}

// settle works out what runs in a transaction that has presented. Each round can only add to what is known of parameters, and only take away
// from what is believed of functions, which call one another.
func (f *flow) settle() {
	for _, name := range runners {
		for index := range 8 { // whichever of its parameters is the function
			f.runs[parameter{function(name), index}] = true
		}
	}
	for {
		f.settleFunctions()
		grown := false
		for object, p := range f.params {
			uses := f.paramUses[object]
			if f.runs[p] || len(uses) == 0 {
				continue
			}
			all := true
			for _, u := range uses {
				all = all && ((u.called && f.within(u.within, u.at)) || (u.passed != nil && f.isRunner(*u.passed)))
			}
			if all {
				f.runs[p], grown = true, true
			}
		}
		if !grown {
			return
		}
	}
}

// settleFunctions believes every function that is used at all to be only called where the token is presented, until nothing contradicts it.
func (f *flow) settleFunctions() {
	for _, b := range f.bodies {
		b.presented = slices.ContainsFunc(b.handed, f.isRunner)
		if b.name != "" {
			f.presented[b.name] = len(f.allUses(b.name)) > 0
		}
	}
	for changed := true; changed; {
		changed = false
		for _, b := range f.bodies {
			if b.name != "" && f.presented[b.name] && f.outside(b.name).IsValid() {
				f.presented[b.name], changed = false, true
			}
		}
	}
}

func (f *flow) isRunner(a argument) bool {
	if a.isParam != nil {
		return false
	}
	return f.runs[parameter{a.callee, a.index}]
}

// allUses are those of a function, and those of the interfaces of its package that it may be called through.
func (f *flow) allUses(name function) []use {
	uses := f.uses[name]
	if pkg, method, ok := methodOf(name); ok {
		uses = slices.Concat(uses, f.uses[function("interface "+pkg+"."+method)])
	}
	return uses
}

// methodOf takes the full name of a method apart: (*example.org/db.Queries).MarkRunning.
func methodOf(name function) (pkg, method string, ok bool) {
	receiver, method, ok := strings.Cut(strings.TrimPrefix(string(name), "("), ").")
	if !ok {
		return "", "", false
	}
	receiver = strings.TrimPrefix(receiver, "*")
	at := strings.LastIndex(receiver, ".")
	if at < 0 {
		return "", "", false
	}
	return receiver[:at], method, true
}

// outside is a use of a function where nothing is presented; none when there is no such use.
func (f *flow) outside(name function) token.Pos {
	for _, u := range f.allUses(name) {
		if (u.called && f.within(u.within, u.at)) || (u.passed != nil && f.isRunner(*u.passed)) {
			continue
		}
		return u.at
	}
	return token.NoPos
}

// within says whether a place in a body is reached only with a token presented.
func (f *flow) within(b *body, at token.Pos) bool {
	for ; b != nil; b = b.within {
		if b.presented || (b.presents != token.NoPos && at >= b.presents) || (b.name != "" && f.presented[b.name]) {
			return true
		}
	}
	return false
}

// isPresented says so of any place in a package.
func (f *flow) isPresented(p *packages.Package, at token.Pos) bool {
	var innermost *body
	for _, b := range f.bodies {
		if b.pkg == p && b.node.Pos() <= at && at < b.node.End() && (innermost == nil || b.node.Pos() >= innermost.node.Pos()) {
			innermost = b
		}
	}
	return f.within(innermost, at)
}
