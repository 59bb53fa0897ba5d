// Package gosource finds the SQL in Go source: constants, and what is put together of constants, that reach pgx, database/sql or GORM's Exec
// and Raw. It owns what reaches them, where each byte of such a text stands in the source, and whether the call is in a transaction that
// presents a token, as far as that can be seen: in a function that is handed to fenced.Run, after a call of fenced.Present, or in a function
// that is only called from such places. SQL that is put together when the program runs is not guessed at.
package gosource

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/tools/go/packages"

	"github.com/fencectl/fencectl/internal/lint/sqlfile"
)

// A Place is one in a Go file.
type Place struct {
	File         string // as seen from the working directory, with slashes
	Line, Column int    // from 1; the column in characters
}

// A Fragment is SQL in a Go file.
type Fragment struct {
	File        string // of the call
	Text        string
	PresentedBy string       // how the transaction of the call presents the token; "" when that cannot be seen
	Generated   bool         // fencectl generate wrote the file
	Queries     string       // the name of the file of queries that sqlc has made the file of; "" for other files
	Directives  []*Directive // the comments at the call, and at the constant

	source    *Source
	positions []token.Pos // of each byte of Text
}

// Place is where a byte of the text stands.
func (f *Fragment) Place(offset int) Place {
	return f.source.place(f.positions[min(offset, len(f.positions)-1)])
}

// Line is the line of the Go file that a byte of the text stands in.
func (f *Fragment) Line(offset int) string {
	at := f.source.files.PositionFor(f.positions[min(offset, len(f.positions)-1)], false)
	content := f.source.content(at.Filename)
	begin := at.Offset - (at.Column - 1)
	if begin < 0 || begin > len(content) {
		return ""
	}
	line, _, _ := strings.Cut(string(content[begin:]), "\n")
	return strings.TrimRight(line, "\r")
}

// A Directive is a comment in a Go file that is meant for the linter.
type Directive struct {
	sqlfile.Directive
	Place
	behind bool // there is code before it on its line
}

// A Usage is how the program runs a query of sqlc's.
type Usage struct {
	Known     bool   // sqlc's method for it was found
	Presented bool   // it is called, and every call is in a transaction that presents the token
	Outside   string // a call that is not, as FILE:LINE
}

// Source is what was found in the packages.
type Source struct {
	Files      []string
	Fragments  []*Fragment
	Directives []Directive
	Notes      []string // what could not be looked at

	files    *token.FileSet
	mu       sync.Mutex
	contents map[string][]byte
	flow     *flow
	queries  map[query][]function
}

// query is one of sqlc's: the name of its file, and its own.
type query struct{ file, name string }

// loadMode is what is asked of the go command: the source of the packages, and only the types of what they import.
const loadMode = packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedModule |
	packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedExportFile

// Load reads the packages that the patterns mean, DIR or DIR/..., tests left out. A package that does not compile is read as far as that goes. The error is
// one of the go command's.
func Load(ctx context.Context, patterns []string) (*Source, error) {
	s := &Source{files: token.NewFileSet(), contents: map[string][]byte{}, queries: map[query][]function{}}
	s.flow = newFlow(s)
	if len(patterns) == 0 {
		return s, nil
	}
	var loaded []*packages.Package
	for _, pattern := range patterns {
		// In the directory itself: it may be in another module than the working directory is.
		dir, rest := pattern, "."
		if below, ok := strings.CutSuffix(pattern, "/..."); ok {
			dir, rest = below, "./..."
		}
		found, err := packages.Load(&packages.Config{Context: ctx, Mode: loadMode, Fset: s.files, Dir: dir}, rest)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("loading the Go packages of %s: %w", pattern, explained(err))
		}
		for _, p := range found {
			if !slices.ContainsFunc(loaded, func(other *packages.Package) bool { return other.ID == p.ID }) {
				loaded = append(loaded, p)
			}
		}
	}
	slices.SortFunc(loaded, func(a, b *packages.Package) int { return strings.Compare(a.ID, b.ID) })
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			s.Notes = append(s.Notes, fmt.Sprintf("the Go package %s does not compile (%s): what its types would show is not known", p.PkgPath, strings.TrimSpace(firstLine(p.Errors[0].Msg))))
		}
		s.flow.index(p)
	}
	s.flow.settle()
	for _, p := range loaded {
		for _, file := range p.Syntax {
			s.read(p, file)
		}
	}
	return s, nil
}

func explained(err error) error {
	if errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "executable file not found") {
		return errors.New("there is no go command on the PATH; install Go, or name directories without /... to lint their SQL files alone")
	}
	return errors.New(strings.TrimSpace(firstLine(err.Error())))
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// Query says how the program runs one of sqlc's queries, by the base name of its file and its own name.
func (s *Source) Query(file, name string) Usage {
	methods := s.queries[query{file, name}]
	if len(methods) == 0 {
		return Usage{}
	}
	u := Usage{Known: true, Presented: true}
	for _, method := range methods {
		if !s.flow.presented[method] {
			u.Presented = false
			if at := s.flow.outside(method); at.IsValid() && u.Outside == "" {
				where := s.place(at)
				u.Outside = fmt.Sprintf("%s:%d", where.File, where.Line)
			}
		}
	}
	return u
}

var (
	sqlcSource = regexp.MustCompile(`(?m)^// source: (.+)$`)
	sqlcHeader = regexp.MustCompile(`(?m)^// Code generated by sqlc\. DO NOT EDIT\.$`)
	ownHeader  = regexp.MustCompile(`(?m)^// Code generated by fencectl.* DO NOT EDIT\.$`)
)

// read finds the SQL of one file.
func (s *Source) read(p *packages.Package, file *ast.File) {
	name := s.files.PositionFor(file.Package, false).Filename
	if !strings.HasSuffix(name, ".go") || !slices.ContainsFunc(p.GoFiles, func(f string) bool { return f == name }) {
		return // what cgo has made
	}
	content := string(s.content(name))
	s.Files = append(s.Files, s.place(file.Package).File)
	header := content[:min(len(content), s.files.Position(file.Package).Offset)]

	r := &reader{source: s, pkg: p, file: file, info: p.TypesInfo, generated: ownHeader.MatchString(header)}
	if sqlcHeader.MatchString(header) {
		if match := sqlcSource.FindStringSubmatch(header); match != nil {
			r.queries = filepath.Base(strings.TrimSpace(match[1]))
			for _, declaration := range file.Decls {
				if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv != nil {
					key := query{r.queries, f.Name.Name}
					s.queries[key] = append(s.queries[key], functionOf(p, f))
				}
			}
		}
	}
	r.comments()
	r.calls()
}

// comments finds the directives of the file.
func (r *reader) comments() {
	first := len(r.source.Directives)
	for _, group := range r.file.Comments {
		for _, comment := range group.List {
			text := comment.Text[2:]
			if strings.HasPrefix(comment.Text, "/*") {
				text = strings.TrimSuffix(text, "*/")
			}
			if d, ok := sqlfile.ParseDirective(text, 2); ok {
				r.source.Directives = append(r.source.Directives, Directive{d, r.source.place(comment.Pos() + token.Pos(d.Offset)), r.source.behindCode(comment.Pos())})
			}
		}
	}
	r.directives = r.source.Directives[first:]
}

// behindCode says whether there is anything but space before a place on its line.
func (s *Source) behindCode(at token.Pos) bool {
	p := s.files.PositionFor(at, false)
	content := s.content(p.Filename)
	return p.Offset <= len(content) && strings.TrimSpace(string(content[p.Offset-(p.Column-1):p.Offset])) != ""
}

func (s *Source) content(name string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if content, ok := s.contents[name]; ok {
		return content
	}
	content, err := os.ReadFile(name)
	if err != nil {
		content = nil // then columns are in bytes
	}
	s.contents[name] = content
	return content
}

func (s *Source) place(at token.Pos) Place {
	p := s.files.PositionFor(at, false)
	column := p.Column
	if content := s.content(p.Filename); p.Offset <= len(content) && p.Column-1 <= p.Offset {
		column = utf8.RuneCount(content[p.Offset-(p.Column-1):p.Offset]) + 1
	}
	return Place{shortPath(p.Filename), p.Line, column}
}

// shortPath is a path as seen from the working directory, where it is below that.
func shortPath(path string) string {
	if here, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(relative) {
			return filepath.ToSlash(relative)
		}
	}
	return filepath.ToSlash(path)
}

// functionOf names a function or method across packages: the types of one that is imported are not those of the one that is read.
func functionOf(p *packages.Package, declaration *ast.FuncDecl) function {
	if object, ok := p.TypesInfo.Defs[declaration.Name].(*types.Func); ok {
		return function(object.FullName())
	}
	return function(p.PkgPath + "." + declaration.Name.Name)
}
