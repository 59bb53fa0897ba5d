package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/appschema"
	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/generate"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/check"
	"github.com/fencectl/fencectl/internal/project"
	"github.com/fencectl/fencectl/internal/report"
	"github.com/fencectl/fencectl/internal/tableref"
)

// The values of --tables: where the linter knows the tables from.
const (
	tablesFiles    = "files"
	tablesServer   = "server"
	tablesDatabase = "database"
)

// lintFlags are the command line of lint.
type lintFlags struct {
	tables choice
	schema []string
	config string
	failOn choice
	format choice
	output string
	limit  int
}

func (a *app) lintCommand() *cobra.Command {
	flags := &lintFlags{
		tables: choice{value: tablesFiles, allowed: []string{tablesFiles, tablesServer, tablesDatabase}},
		failOn: choice{value: string(audit.Error), allowed: []string{string(audit.Error), string(audit.Warning), string(audit.Info), failOnNever}},
		format: choice{value: formatTable, allowed: []string{formatTable, formatJSON, formatSARIF, formatGitHub}},
	}
	cmd := &cobra.Command{
		Use:   "lint [PATH...]",
		Short: "Find SQL that is unfenced, or wrongly fenced, in a repository",
		Long: `Read the SQL of a repository with PostgreSQL's own grammar, and find writes of protected tables that present no token, comparisons with
the token that let the wrong one through, claims that come after reads, tokens that outlive their transaction, and migrations that
take a guard away. Each finding says where, why it matters and what to do; each rule has a page in docs/lint.

A PATH is a file, a directory (all .sql files below it) or DIR/... (those, and the SQL in the Go packages there that reaches pgx,
database/sql or GORM's Exec and Raw). Without any, those of lint.paths in fencectl.yaml. sqlc's queries, the migrations of goose and its
like, and psql's scripts are understood as their tools do.

Where a transaction presents the token once, as fenced.Run does, its statements need not: of SQL in Go, and of sqlc's queries that are
linted together with the Go that calls them, that is seen. Elsewhere say it, in the file or in fencectl.yaml, and what else is right:

  -- fencectl:presented REASON               the statement's transaction presents
  -- fencectl:presented-file REASON          those of the whole file do
  -- fencectl:ignore RULE REASON             not to be reported of the statement
  -- fencectl:ignore-file RULE REASON        nor of the whole file

  schema: {migrations: [db/migrations]}
  lint:
    paths: [db, ./...]
    exclude: ['**/testdata']
    presented: [{paths: [db/queries], reason: run by internal/store}]
    severities: {generated-bypassed: info} # error, warning, info or off

Which tables are protected is read from the migrations: no server is needed. They are those of schema.migrations in fencectl.yaml or of
--schema, else of sqlc's configuration, else what the linted files say. With --tables server the migrations run on a throwaway PostgreSQL,
which also sees what they compute; with --dsn, or --tables database, a database is asked.

The formats: table, for people; json, see docs/json.md; sarif, version 2.1.0, for code scanning; github, annotations of a GitHub
workflow. How to use it in CI is in docs/ci.md.

` + exitStatus + ` A finding counts from the severity that --fail-on names.`,
		Example: `  fencectl lint db/queries db/migrations
  fencectl lint ./...
  fencectl lint ./... --format sarif --output lint.sarif
  fencectl lint db --tables database`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case flags.limit < 0:
				return &usageError{cmd, "--limit must not be negative"}
			case a.dsn != "" && !cmd.Flags().Changed("tables"):
				flags.tables.value = tablesDatabase
			case a.dsn != "" && flags.tables.value != tablesDatabase:
				return &usageError{cmd, fmt.Sprintf("--dsn names a database, and --tables %s asks none", flags.tables.value)}
			}
			if len(flags.schema) > 0 && flags.tables.value == tablesDatabase {
				return &usageError{cmd, "--schema names migrations, and the tables are read from a database"}
			}
			return a.lint(cmd, args, flags)
		},
	}
	choiceFlag(cmd, &flags.tables, "tables", "where the tables are known from: the migrations as they stand, a throwaway server that runs them, or a database")
	cmd.Flags().StringArrayVar(&flags.schema, "schema", nil, "a `PATH` of migrations: a directory, a file or a pattern; repeat it for several (default: those of the project)")
	choiceFlag(cmd, &flags.failOn, "fail-on", "exit with status 1 when there is a finding of this severity or a worse one")
	choiceFlag(cmd, &flags.format, "format", "how to print")
	cmd.Flags().StringVar(&flags.output, "output", "", "write it to a `FILE`, and only the totals to the standard output")
	cmd.Flags().StringVar(&flags.config, "config", "", "the project's `FILE` (default: "+project.FileName+" here or above)")
	cmd.Flags().IntVar(&flags.limit, "limit", 20, "show at most `N` findings of a rule in the table (0: all)")
	return cmd
}

func (a *app) lint(cmd *cobra.Command, paths []string, flags *lintFlags) error {
	ctx := cmd.Context()
	settings, path, err := readProject(flags.config)
	if err != nil {
		return err
	}
	options := &check.Options{Project: &settings.Lint, Dir: ".", Generated: generatedFor(settings)}
	if path != "" {
		options.Dir = filepath.Dir(fromHere(path))
	}
	if len(paths) == 0 {
		for _, p := range settings.Lint.Paths {
			// With ./ in front a Go pattern stays one.
			paths = append(paths, joined(options.Dir, p))
		}
	}
	if len(paths) == 0 {
		return &usageError{cmd, "name what to lint: files, directories, or ./... for Go source; or write lint.paths into " + project.FileName}
	}
	migrations, dir, guessed, err := migrationsOf(settings, options.Dir, flags.schema)
	if err != nil {
		return err
	}
	if options.Migrations, options.Skipped, err = appschema.Files(dir, migrations); err != nil {
		return err
	}
	options.Guessed = guessed
	for i, file := range options.Migrations {
		options.Migrations[i] = fromHere(file)
	}
	if err := a.lintTables(ctx, cmd, settings, migrations, dir, flags, options); err != nil {
		return err
	}
	progress := a.lintProgress()
	options.Progress = progress.at
	found, err := check.Run(ctx, paths, options)
	progress.clear()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	document := &report.Lint{Report: found, Program: versions().Fencectl, At: time.Now()}
	if err := a.publishLint(document, flags); err != nil {
		return err
	}
	if worst := found.Worst(); flags.failOn.value != failOnNever && worst != "" && worst.AtLeast(audit.Severity(flags.failOn.value)) {
		return &reported{statusRefused}
	}
	return nil
}

// joined is a path of the project as seen from the working directory.
func joined(dir, path string) string {
	if filepath.IsAbs(path) || dir == "." {
		return path
	}
	return filepath.ToSlash(dir) + "/" + path
}

// migrationsOf are the paths of the application's migrations, and the directory that they are relative to: those of the command line, or of
// the project's file; else, which is but a guess, those that sqlc reads.
func migrationsOf(settings *project.Settings, dir string, given []string) (paths []string, relativeTo string, guessed bool, err error) {
	switch {
	case len(given) > 0:
		return given, ".", false, nil
	case len(settings.Schema.Migrations) > 0:
		return settings.Schema.Migrations, dir, false, nil
	}
	config := settings.Generate.SQLC
	if config == "" {
		if config, err = generate.FindSQLC(dir); err != nil || config == "" {
			return nil, dir, true, err
		}
	} else if !filepath.IsAbs(config) {
		config = filepath.Join(dir, config)
	}
	paths, err = generate.SQLCSchema(config)
	return paths, filepath.Dir(config), true, err
}

// lintTables reads the tables where they are not to be read from the files.
func (a *app) lintTables(ctx context.Context, cmd *cobra.Command, settings *project.Settings, migrations []string, dir string, flags *lintFlags, options *check.Options) error {
	switch flags.tables.value {
	case tablesDatabase:
		server, err := a.open(ctx, connect.Options{Installed: true})
		if err != nil {
			return err
		}
		defer server.Close()
		options.Schema = fmt.Sprintf("database %s at %s", server.Database, server.Address)
		options.Catalog, err = catalog.Load(ctx, server.Pool)
		return err
	case tablesServer:
		if len(migrations) == 0 {
			return &usageError{cmd, "--tables server needs migrations to run: name them with --schema, or in " + project.FileName + " as schema: {migrations: [DIR]}"}
		}
		schema := settings.Schema
		schema.Migrations = migrations
		from := &appschema.Options{Settings: schema, Dir: dir}
		if a.terminal() {
			defer fmt.Fprint(a.stderr, eraseLine)
			from.Progress = func(what string) { fmt.Fprintf(a.stderr, "%s%s ...", eraseLine, what) }
		}
		database, err := appschema.Open(ctx, from)
		if err != nil {
			return err
		}
		options.Schema = database.Name
		options.Catalog, err = catalog.Load(ctx, database.Pool)
		return errors.Join(err, database.Close(ctx))
	}
	return nil
}

// generatedFor says which tables have generated methods; nil when none has.
func generatedFor(settings *project.Settings) func(*catalog.Table) bool {
	g := settings.Generate
	if g.SQLC == "" && g.Queries == "" && len(g.Command) == 0 && len(g.Tables) == 0 {
		return nil
	}
	var patterns []tableref.Pattern
	for _, t := range g.Tables {
		// Whoever reads the file has looked at what is wrong with a pattern.
		if pattern, err := tableref.Parse(t.Pattern); err == nil {
			patterns = append(patterns, pattern)
		}
	}
	return func(t *catalog.Table) bool {
		return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p tableref.Pattern) bool { return p.MatchTable(t.Schema, t.Name) })
	}
}

// publishLint prints the report, or writes it to the file that is to have it.
func (a *app) publishLint(document *report.Lint, flags *lintFlags) error {
	if flags.output == "" {
		return a.printLint(document, flags)
	}
	var content bytes.Buffer
	there := *a
	there.stdout = &content
	if err := there.printLint(document, flags); err != nil {
		return err
	}
	if err := os.WriteFile(flags.output, content.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "%s (%s)\n", oneLine(document.Totals()), flags.output)
	return nil
}

func (a *app) printLint(document *report.Lint, flags *lintFlags) error {
	switch flags.format.value {
	case formatJSON:
		return report.LintJSON(a.stdout, document)
	case formatSARIF:
		return report.LintSARIF(a.stdout, document)
	case formatGitHub:
		return report.LintGitHub(a.stdout, document)
	}
	a.printLintTable(document, flags.limit)
	return nil
}

// eraseLine takes back what a line of progress has written.
const eraseLine = "\r\x1b[K"

// lintProgress says how far it is, on a terminal alone, and not more often than one can read.
type lintProgress struct {
	a    *app
	mu   sync.Mutex
	last time.Time
}

func (a *app) lintProgress() *lintProgress { return &lintProgress{a: a} }

const progressEvery = 100 * time.Millisecond

func (p *lintProgress) at(done, total int) {
	if !p.a.terminal() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.last) >= progressEvery {
		p.last = now
		fmt.Fprintf(p.a.stderr, "%slinting: %d of %d files ...", eraseLine, done, total)
	}
}

func (p *lintProgress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() {
		fmt.Fprint(p.a.stderr, eraseLine)
	}
}
