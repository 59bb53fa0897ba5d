// Package check lints: it finds the files, learns which tables are protected, applies the rules of package lint to every statement, and
// settles what the project and the comments in the files say about them. It is the door to the packages beside it: pgtree parses, sqlfile
// takes files apart, catalog knows the tables, gosource finds the SQL in Go.
package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/gosource"
	"github.com/fencectl/fencectl/internal/lint/sqlfile"
)

// Options say how to lint. Nil means the defaults.
type Options struct {
	// Project is what the project settles; the patterns in it are relative to Dir. Nil: nothing.
	Project *lint.Options

	// Dir is the project's directory. Default: the working directory.
	Dir string

	// Migrations are the application's migration files, in the order in which they are applied. Without any, those among the linted files
	// are taken for them.
	Migrations []string

	// Guessed says that nobody has named Migrations: they are what sqlc reads. What the linted files define counts as well then.
	Guessed bool

	// Skipped are migrations that cannot be read, being no SQL.
	Skipped []string

	// Catalog has the tables of a database. Nil: the migrations say which there are.
	Catalog *catalog.Catalog

	// Schema says in words what Catalog was read from.
	Schema string

	// Generated says of a protected table whether fencectl generate writes its methods. Nil: of none.
	Generated func(*catalog.Table) bool

	// Progress is told how many of how many files were linted, not from one goroutine alone. Nil: nobody is.
	Progress func(done, total int)
}

// ErrNoTables says that no protected table is known, so that linting would find nothing and say that all is well.
type ErrNoTables struct {
	Schema string // where it was looked for, in words
}

func (e *ErrNoTables) Error() string {
	return "no protected table is known from " + e.Schema + ", so there is nothing to lint for; name the migrations that call fencing.protect with --schema, or in fencectl.yaml as schema: {migrations: [DIR]}, or the database with --dsn"
}

// Run lints the SQL below the paths. The error is a *PathError when one of them leads to nothing, and an *ErrNoTables when no table is
// protected.
func Run(ctx context.Context, paths []string, options *Options) (*lint.Report, error) {
	if options == nil {
		options = &Options{}
	}
	r := &runner{options: *options}
	if r.options.Project == nil {
		r.options.Project = &lint.Options{}
	}
	if r.options.Progress == nil {
		r.options.Progress = func(int, int) {}
	}
	return r.run(ctx, paths)
}

type runner struct {
	options Options
	catalog *catalog.Catalog
	report  lint.Report
	total   int
	queries map[string]bool // the base names of the files of queries that are linted
	done    atomic.Int64

	mu     sync.Mutex
	drafts []draft
}

// relative is a path as the project's patterns have it.
func (r *runner) relative(path string) string {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return filepath.ToSlash(path)
	}
	dir, err := filepath.Abs(r.options.Dir)
	if err != nil {
		return filepath.ToSlash(path)
	}
	relative, err := filepath.Rel(dir, absolute)
	if err != nil {
		return filepath.ToSlash(path)
	}
	return filepath.ToSlash(relative)
}

func (r *runner) run(ctx context.Context, paths []string) (*lint.Report, error) {
	all, err := find(paths, func(path string) bool { return r.options.Project.Excludes(r.relative(path)) })
	if err != nil {
		return nil, err
	}
	// The go command takes its time, in which the parser can get ready and the migrations be read.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loaded := load(ctx, all.packages)
	files, err := r.read(ctx, all.sql)
	if err != nil {
		return nil, err
	}
	definitions, others, err := r.order(files)
	if err != nil {
		return nil, err
	}
	r.total = len(definitions) + len(others)

	// One after another: each is linted as of the tables that there are when it is applied.
	migrations := catalog.New()
	for _, f := range definitions {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		r.lintFile(f, migrations, true, nil)
	}
	r.catalog = migrations
	if r.options.Catalog != nil {
		r.catalog = r.options.Catalog
	}
	r.describe(definitions)
	if len(r.catalog.Protected()) == 0 {
		return nil, &ErrNoTables{r.report.Schema}
	}

	source, err := loaded()
	if err != nil {
		return nil, err
	}
	if err := r.lintAll(ctx, others, source); err != nil {
		return nil, err
	}
	r.lintGo(source)
	r.finish()
	return &r.report, nil
}

// load loads Go packages in the background, and returns what waits for them.
func load(ctx context.Context, patterns []string) func() (*gosource.Source, error) {
	type outcome struct {
		source *gosource.Source
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		source, err := gosource.Load(ctx, patterns)
		done <- outcome{source, err}
	}()
	return func() (*gosource.Source, error) {
		o := <-done
		return o.source, o.err
	}
}

// input is a file that was read.
type input struct {
	path   string
	file   *sqlfile.File
	linted bool // else it is only read for the tables
	layer  bool
}

func (r *runner) read(ctx context.Context, paths []string) ([]input, error) {
	files := make([]input, 0, len(paths))
	for _, path := range paths {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		f, err := readFile(path)
		if err != nil {
			return nil, err
		}
		f.linted = true
		files = append(files, f)
	}
	return files, nil
}

func readFile(path string) (input, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return input{}, err
	}
	text := strings.ToValidUTF8(string(content), "?") // the parser takes nothing else
	return input{path: path, file: sqlfile.Read(filepath.ToSlash(path), text), layer: isLayer(text)}, nil
}

// order says which files define the tables, in which order, and which are linted afterwards.
func (r *runner) order(files []input) (definitions, others []input, err error) {
	named := map[string]input{}
	for _, f := range files {
		named[r.relative(f.path)] = f
	}
	for _, path := range r.options.Migrations {
		f, linted := named[r.relative(path)]
		if !linted {
			if f, err = readFile(path); err != nil {
				return nil, nil, err
			}
		}
		delete(named, r.relative(path))
		f.file.IsMigration()
		definitions = append(definitions, f)
	}
	for _, f := range files {
		if _, ok := named[r.relative(f.path)]; !ok {
			continue
		}
		if !r.told() && (f.file.Kind == sqlfile.Migration || (f.file.Kind == sqlfile.Script && defines(f.file.Text))) {
			definitions = append(definitions, f)
		} else {
			others = append(others, f)
		}
	}
	return definitions, others, nil
}

// told says whether somebody has said where the migrations are.
func (r *runner) told() bool { return len(r.options.Migrations) > 0 && !r.options.Guessed }

// describe says where the tables are known from, and what is not known.
func (r *runner) describe(definitions []input) {
	r.report.Summary.Tables = len(r.catalog.Protected())
	r.report.Schema = r.options.Schema
	if r.options.Catalog != nil {
		return
	}
	r.report.Schema = counted(len(definitions), "file that defines tables", "files that define tables")
	if r.told() {
		r.report.Schema = counted(len(definitions), "migration file", "migration files")
	} else {
		// What else there is elsewhere is not known.
		r.catalog.Gaps = append(r.catalog.Gaps, "the project does not say where its migrations are (schema.migrations in fencectl.yaml, or --schema)")
	}
	for _, path := range r.options.Skipped {
		r.catalog.Gaps = append(r.catalog.Gaps, filepath.ToSlash(path)+" is no SQL")
	}
	for _, unread := range r.catalog.Unread {
		r.note(unread + "; fencectl lint --tables server runs the migrations and sees")
	}
	if gaps := r.catalog.Gaps; len(gaps) > 0 {
		more := ""
		if len(gaps) > 1 {
			more = fmt.Sprintf(" (and %d more reasons)", len(gaps)-1)
		}
		r.note("unknown tables are not reported: " + gaps[0] + more)
	}
}

func (r *runner) note(text string) { r.report.Notes = append(r.report.Notes, text) }

// filesForOneMore is how many files make it worth while to start another parser, which takes as long as parsing some thousands.
const filesForOneMore = 3000

// lintAll lints files at the same time: what they say changes nothing for the others.
func (r *runner) lintAll(ctx context.Context, files []input, source *gosource.Source) error {
	workers := min(runtime.GOMAXPROCS(0), 1+len(files)/filesForOneMore)
	next := make(chan input)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for f := range next {
				r.lintFile(f, r.catalog, false, source)
			}
		})
	}
	r.queries = map[string]bool{}
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}
		if f.file.Kind == sqlfile.Queries {
			r.queries[filepath.Base(f.path)] = true
		}
		next <- f
	}
	close(next)
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (r *runner) lintFile(f input, tables *catalog.Catalog, defines bool, source *gosource.Source) {
	name := filepath.ToSlash(f.path)
	u := &unit{
		name: name, file: f.file, catalog: tables, defines: defines, layer: f.layer, generated: r.options.Generated,
		presentedBy: r.options.Project.PresentedBy(r.relative(f.path)),
		place: func(offset int) position {
			line, column := f.file.Place(offset)
			return position{name, line, column}
		},
		source: f.file.Source,
	}
	if f.file.Kind == sqlfile.Queries && source != nil {
		base := filepath.Base(f.path)
		u.queries = func(query string) usage { return usageOf(source.Query(base, query)) }
	}
	for _, d := range f.file.Directives {
		u.directives = append(u.directives, &directive{Directive: d, at: u.place(d.Offset)})
	}
	u.run()
	if f.linted {
		u.findings = append(u.findings, checkDirectives(u.directives)...)
		r.collect(u, 1)
	}
	r.options.Progress(int(r.done.Add(1)), r.total)
}

func usageOf(q gosource.Usage) usage {
	return usage{known: q.Known, presented: q.Presented, outside: q.Outside}
}

func (r *runner) collect(u *unit, files int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drafts = append(r.drafts, u.findings...)
	r.report.Summary.Files += files
	r.report.Summary.Statements += u.counts.statements
	r.report.Summary.Presented += u.counts.presented
	r.report.Summary.Exempt += u.counts.exempt
}

// lintGo lints the SQL in Go source.
func (r *runner) lintGo(source *gosource.Source) {
	outer := map[*gosource.Directive]*directive{}
	for i := range source.Directives {
		d := &source.Directives[i]
		if !r.options.Project.Excludes(r.relative(d.File)) {
			outer[d] = &directive{Directive: d.Directive, at: position{d.File, d.Line, d.Column}}
		}
	}
	for _, fragment := range source.Fragments {
		// What sqlc has made of a file of queries that was linted itself would be reported twice.
		if r.options.Project.Excludes(r.relative(fragment.File)) || r.queries[fragment.Queries] {
			continue
		}
		file := sqlfile.ReadFragment(fragment.Text)
		file.Generated = fragment.Generated
		u := &unit{
			name: fragment.File, file: file, catalog: r.catalog, inGo: true, generated: r.options.Generated,
			presentedBy: fragment.PresentedBy,
			place: func(offset int) position {
				at := fragment.Place(offset)
				return position{at.File, at.Line, at.Column}
			},
			source: fragment.Line,
		}
		if by := r.options.Project.PresentedBy(r.relative(fragment.File)); by != "" {
			u.presentedBy = by
		}
		for _, d := range file.Directives {
			u.directives = append(u.directives, &directive{Directive: d, at: u.place(d.Offset)})
		}
		for _, d := range fragment.Directives {
			if outer[d] != nil {
				u.outer = append(u.outer, outer[d])
			}
		}
		u.run()
		u.findings = append(u.findings, checkDirectives(u.directives)...)
		r.collect(u, 0)
	}
	r.report.Summary.Files += len(source.Files)
	r.report.Notes = append(r.report.Notes, source.Notes...)
	for i := range source.Directives {
		if d := outer[&source.Directives[i]]; d != nil {
			r.drafts = append(r.drafts, checkDirectives([]*directive{d})...)
		}
	}
}

func (r *runner) finish() {
	for _, d := range r.drafts {
		if d.stands == nil || d.stands() {
			r.report.Findings = append(r.report.Findings, d.Finding)
		}
	}
	slices.Sort(r.report.Notes)
	r.report.Notes = slices.Compact(r.report.Notes)
	r.report.Complete(r.options.Project.Severities)
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
