package generate

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A goPackage is what sqlc has made, as its source says: the only true source for the names and types that it chose.
type goPackage struct {
	dir      string
	name     string
	standard bool // database/sql, not pgx
	argument bool // each method takes the database
	structs  map[string][]field
	methods  map[string]*method // of Queries
	queries  map[string]constant
	declared map[string]string // what is declared at the top level, and in which file
	build    string            // the build constraint of its files; "" for none
}

type field struct {
	name string
	typ  goType
}

// A goType is a type as it is written, and what must be imported for it.
type goType struct {
	text    string
	imports []goImport
}

type goImport struct{ name, path string }

// A constant is the text of a query.
type constant struct{ name, sql string }

// A method is what sqlc has made of a query.
type method struct {
	params []field // but for the context and the database
	result goType  // without the error
	call   []ast.Expr
}

// A StaleGoError is Go that sqlc made of other queries than those that are there now.
type StaleGoError struct {
	Dir    string
	Query  string
	Reason string
}

func (e *StaleGoError) Error() string {
	return fmt.Sprintf("%s: %s %s; run sqlc, then fencectl generate again (or let it run sqlc: fencectl generate --sqlc)", e.Dir, e.Query, e.Reason)
}

// readGo reads the package in a directory, without what this package has written itself, and without the files that are to be skipped.
func readGo(dir string, skip func(content []byte) bool) (*goPackage, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &StaleGoError{Dir: dir, Query: "the directory", Reason: "is not there yet"}
	}
	if err != nil {
		return nil, err
	}
	p := &goPackage{
		dir: dir, structs: map[string][]field{}, methods: map[string]*method{}, queries: map[string]constant{}, declared: map[string]string{},
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		full := filepath.Join(dir, name)
		content, err := os.ReadFile(full)
		if err != nil {
			return nil, err
		}
		if ours(content) || skip(content) {
			continue
		}
		file, err := parser.ParseFile(fset, full, content, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("sqlc's Go cannot be read: %w", err)
		}
		files = append(files, file)
		p.name = file.Name.Name
		if match := buildLine.FindString(string(content)); match != "" {
			p.build = match
		}
		p.declarations(file, name)
	}
	if _, ok := p.declared["Queries"]; !ok {
		return nil, &StaleGoError{Dir: dir, Query: "the type Queries", Reason: "is not there: sqlc has generated nothing here"}
	}
	for _, file := range files {
		if err := p.read(file); err != nil {
			return nil, fmt.Errorf("%s: %w", fset.Position(file.Pos()).Filename, err)
		}
	}
	return p, nil
}

// ours tells whether a file was written by this package: its first lines say so.
func ours(content []byte) bool {
	lines := strings.SplitN(string(content), "\n", 4)
	return slices.ContainsFunc(lines[:len(lines)-1], func(line string) bool {
		return strings.TrimLeft(strings.TrimSpace(line), "/- ") == header
	})
}

// declarations notes the names of the top level, and the queries' texts.
func (p *goPackage) declarations(file *ast.File, name string) {
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				p.declared[decl.Name.Name] = name
			} else if receiver(decl) == "Queries" {
				p.declared["Queries."+decl.Name.Name] = name
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					p.declared[spec.Name.Name] = name
				case *ast.ValueSpec:
					for i, ident := range spec.Names {
						p.declared[ident.Name] = name
						if i < len(spec.Values) {
							p.query(ident.Name, spec.Values[i])
						}
					}
				}
			}
		}
	}
}

var buildLine = regexp.MustCompile(`(?m)^//go:build .*$`)

var queryName = regexp.MustCompile(`^-- name: (\S+) :\S+\n`)

func (p *goPackage) query(name string, value ast.Expr) {
	text, ok := stringValue(value)
	if !ok {
		return
	}
	if match := queryName.FindStringSubmatch(text); match != nil {
		p.queries[match[1]] = constant{name, text[len(match[0]):]}
	}
}

// stringValue is the value of a string literal, or of several joined: sqlc does that around a backquote.
func stringValue(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, okX := stringValue(e.X)
		y, okY := stringValue(e.Y)
		return x + y, okX && okY && e.Op == token.ADD
	case *ast.ParenExpr:
		return stringValue(e.X)
	}
	return "", false
}

func receiver(decl *ast.FuncDecl) string {
	if len(decl.Recv.List) != 1 {
		return ""
	}
	typ := decl.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if ident, ok := typ.(*ast.Ident); ok {
		return ident.Name
	}
	return ""
}

// read reads the structs and the methods of a file.
func (p *goPackage) read(file *ast.File) error {
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil || receiver(decl) != "Queries" {
				continue
			}
			if c, ok := p.queries[decl.Name.Name]; ok {
				m, err := p.method(file, decl, c.name)
				if err != nil {
					return err
				}
				p.methods[decl.Name.Name] = m
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				spec, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				switch typ := spec.Type.(type) {
				case *ast.StructType:
					fields, err := fieldsOf(file, typ.Fields)
					if err != nil {
						return err
					}
					p.structs[spec.Name.Name] = fields
				case *ast.InterfaceType:
					if spec.Name.Name == "DBTX" {
						p.standard = slices.ContainsFunc(typ.Methods.List, func(m *ast.Field) bool { return len(m.Names) == 1 && m.Names[0].Name == "ExecContext" })
					}
				}
			}
		}
	}
	return nil
}

func (p *goPackage) method(file *ast.File, decl *ast.FuncDecl, query string) (*method, error) {
	params, err := fieldsOf(file, decl.Type.Params)
	if err != nil {
		return nil, err
	}
	m := &method{}
	for i, param := range params {
		switch {
		case i == 0: // the context
		case i == 1 && param.typ.text == "DBTX":
			p.argument = true
		default:
			m.params = append(m.params, param)
		}
	}
	if decl.Type.Results != nil {
		if m.result, err = typeOf(file, decl.Type.Results.List[0].Type); err != nil {
			return nil, err
		}
	}
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || m.call != nil {
			return m.call == nil
		}
		for i, arg := range call.Args {
			if ident, ok := arg.(*ast.Ident); ok && ident.Name == query {
				m.call = call.Args[i+1:]
				if m.call == nil {
					m.call = []ast.Expr{}
				}
			}
		}
		return true
	})
	return m, nil
}

func fieldsOf(file *ast.File, list *ast.FieldList) ([]field, error) {
	var fields []field
	for _, f := range list.List {
		typ, err := typeOf(file, f.Type)
		if err != nil {
			return nil, err
		}
		for _, name := range f.Names {
			fields = append(fields, field{name.Name, typ})
		}
		if len(f.Names) == 0 {
			fields = append(fields, field{"", typ})
		}
	}
	return fields, nil
}

// typeOf is a type as its file has it.
func typeOf(file *ast.File, e ast.Expr) (goType, error) {
	var b strings.Builder
	if err := printer.Fprint(&b, token.NewFileSet(), e); err != nil {
		return goType{}, err
	}
	t := goType{text: b.String()}
	var err error
	ast.Inspect(e, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		qualifier, ok := selector.X.(*ast.Ident)
		if !ok {
			return true
		}
		found, ok := importOf(file, qualifier.Name)
		if !ok {
			err = fmt.Errorf("the package of the type %s is not among the imports", t.text)
			return false
		}
		t.imports = append(t.imports, found)
		return false
	})
	return t, err
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// importOf finds the import that a name stands for. Without the packages themselves, one that is not named in its import is known by its path.
func importOf(file *ast.File, name string) (goImport, bool) {
	loose := goImport{}
	for _, spec := range file.Imports {
		importPath, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		if spec.Name != nil {
			if spec.Name.Name == name {
				return goImport{name, importPath}, true
			}
			continue
		}
		last := path.Base(importPath)
		if majorVersion.MatchString(last) {
			last = path.Base(path.Dir(importPath))
		}
		if last == name {
			if path.Base(importPath) == name {
				return goImport{"", importPath}, true
			}
			return goImport{name, importPath}, true
		}
		if strings.Contains(last, name) { // go-name, name.v3, name-go
			loose = goImport{name, importPath}
		}
	}
	return loose, loose.path != ""
}

// A binding says how a parameter of a query reaches sqlc's method: as a field of its struct, or as a parameter of its own.
type binding struct {
	field string // of the struct; "" for a parameter of its own
	index int    // of the parameter
	typ   goType
}

// bind finds what sqlc has made of each parameter of a query. It compares the texts: Go that was made of another query is an error.
func (p *goPackage) bind(q *query) (*method, map[string]binding, error) {
	stale := func(reason string, args ...any) error {
		return &StaleGoError{Dir: p.dir, Query: q.name, Reason: fmt.Sprintf(reason, args...)}
	}
	c, ok := p.queries[q.name]
	if !ok {
		return nil, nil, stale("has not been generated yet")
	}
	m := p.methods[q.name]
	if m == nil || m.call == nil {
		return nil, nil, stale("has no method that runs it")
	}
	numbers, ok := align(q.sql, strings.TrimSpace(c.sql))
	if !ok {
		return nil, nil, stale("was generated from another query")
	}
	bindings := map[string]binding{}
	for param, number := range numbers {
		if number > len(m.call) {
			return nil, nil, stale("has no parameter $%d", number)
		}
		b, ok := p.binding(m, m.call[number-1])
		if !ok {
			return nil, nil, stale("passes its parameter %s in a way that is not understood", param)
		}
		bindings[param] = b
	}
	return m, bindings, nil
}

// binding finds what an argument of the call is made of: arg.Field, name, or one of them within pq.Array( ).
func (p *goPackage) binding(m *method, e ast.Expr) (b binding, ok bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if ok {
			return false
		}
		switch n := n.(type) {
		case *ast.SelectorExpr:
			ident, isIdent := n.X.(*ast.Ident)
			if !isIdent {
				return true
			}
			index := slices.IndexFunc(m.params, func(f field) bool { return f.name == ident.Name })
			if index < 0 {
				return false // a package
			}
			fields := p.structs[strings.TrimPrefix(m.params[index].typ.text, "*")]
			at := slices.IndexFunc(fields, func(f field) bool { return f.name == n.Sel.Name })
			if at >= 0 {
				b, ok = binding{field: n.Sel.Name, index: index, typ: fields[at].typ}, true
			}
			return false
		case *ast.Ident:
			if index := slices.IndexFunc(m.params, func(f field) bool { return f.name == n.Name }); index >= 0 {
				b, ok = binding{index: index, typ: m.params[index].typ}, true
			}
		}
		return true
	})
	return b, ok
}

// align compares a query with what sqlc has made of it, and finds the numbers of its parameters.
func align(ours, theirs string) (map[string]int, bool) {
	numbers := map[string]int{}
	for ours != "" {
		at := sqlcParam.FindStringSubmatchIndex(ours)
		if at == nil {
			return numbers, ours == theirs
		}
		if !strings.HasPrefix(theirs, ours[:at[0]]) {
			return nil, false
		}
		theirs = theirs[at[0]:]
		number := positional.FindString(theirs)
		if number == "" {
			return nil, false
		}
		n, err := strconv.Atoi(number[1:])
		if err != nil || n < 1 {
			return nil, false
		}
		param := ours[at[2]:at[3]]
		if known, ok := numbers[param]; ok && known != n {
			return nil, false
		}
		numbers[param] = n
		ours, theirs = ours[at[1]:], theirs[len(number):]
	}
	return numbers, theirs == ""
}

var positional = regexp.MustCompile(`^\$[0-9]+`)

// merge collects imports, each once, in order.
func merge(all ...[]goImport) []goImport {
	seen := map[goImport]bool{}
	for _, list := range all {
		for _, i := range list {
			seen[i] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b goImport) int { return strings.Compare(a.path+" "+a.name, b.path+" "+b.name) })
}
