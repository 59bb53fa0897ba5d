package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/appschema"
	"github.com/fencectl/fencectl/internal/generate"
	"github.com/fencectl/fencectl/internal/project"
)

// generateFlags are the command line of generate.
type generateFlags struct {
	config string
	check  bool
	dryRun bool
	sqlc   bool
}

func (a *app) generateCommand() *cobra.Command {
	flags := &generateFlags{}
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Write fenced queries for sqlc, and repositories on what sqlc made of them",
		Long: `Write, for each protected table, the statements that read and write it under a token, and Go methods that take no token: they are
bound to a grant, and tell a lost lock (fenced.ErrStale) from a row that is not there (fenced.ErrNotFound).

It works in three steps. The queries, fenced_TABLE.sql, go where sqlc reads its queries. sqlc makes Go of them: fencectl runs it when
--sqlc says so, or when fencectl.yaml has its command. The repositories, fenced_TABLE.go, are written beside sqlc's Go, from which
the names and types are read, whatever sqlc's options are. Without sqlc it stops after the first step: run sqlc, then fencectl
generate again.

The protected tables are read from the database that --dsn names. Otherwise from a throwaway PostgreSQL with the application's
migrations, those under schema: in fencectl.yaml, so that it runs in CI without a server. Otherwise from the database of
FENCECTL_DSN or DATABASE_URL; or else with the migrations that sqlc reads its schema from.

  schema: {migrations: [migrations]}
  generate:
    command: [go, tool, sqlc, generate]
    tables:                            # default: every protected table
      jobs:
        updates:
          MarkRunning:                 # sets a column from a parameter, another from SQL
            set: {status: "'running'", worker: , started_at: now()}
            where: status = 'queued'

Statements are safe also where the guards are disabled: they check the fence themselves. Every setting, and what is generated for
which kind of fence, is in docs/generate.md.

` + exitStatus + ` With --check, a file that is not as it would be
generated is a finding.`,
		Example: `  fencectl generate --sqlc
  fencectl generate --check
  fencectl generate --dry-run --dsn postgres://localhost/app`,
		Args: arguments(cobra.NoArgs, "no arguments: the tables are in fencectl.yaml"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.check && flags.dryRun {
				return &usageError{cmd, "--check and --dry-run are two things: the one fails when something would change"}
			}
			return a.generate(cmd, flags)
		},
	}
	cmd.Flags().StringVar(&flags.config, "config", "", "the project's `FILE` (default: "+project.FileName+" here or above)")
	cmd.Flags().BoolVar(&flags.check, "check", false, "write nothing; exit with status 1 and a diff when something would change")
	cmd.Flags().BoolVar(&flags.dryRun, "dry-run", false, "write nothing; print what would change as a diff")
	cmd.Flags().BoolVar(&flags.sqlc, "sqlc", false, "run sqlc in between: the command in fencectl.yaml, else sqlc on the PATH, else go tool sqlc")
	return cmd
}

func (a *app) generate(cmd *cobra.Command, flags *generateFlags) error {
	ctx := cmd.Context()
	settings, path, err := readProject(flags.config)
	if err != nil {
		return err
	}
	dir := "."
	if path != "" {
		path = fromHere(path)
		dir = filepath.Dir(path)
	}
	schema, err := a.applicationSchema(ctx, settings, dir)
	if err != nil {
		return err
	}
	defer func() {
		if err := schema.Close(ctx); err != nil {
			fmt.Fprintf(a.stderr, "fencectl: %s\n", oneLine(err.Error()))
		}
	}()
	for _, skipped := range schema.Skipped {
		fmt.Fprintf(a.stderr, "fencectl: %s is no SQL and was not applied; if the tables depend on it, name a database with --dsn\n", skipped)
	}

	write := !flags.check && !flags.dryRun
	options := &generate.Options{Settings: settings.Generate, Dir: dir, Pool: schema.Pool, Write: write}
	runs := flags.sqlc || (len(settings.Generate.Command) > 0 && !cmd.Flags().Changed("sqlc"))
	if runs && write {
		options.RunSQLC = func(ctx context.Context, config string) error {
			return a.runSQLC(ctx, settings.Generate.Command, config, "generate")
		}
	}
	result, err := generate.Run(ctx, options)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var wrong *generate.SettingError
	if errors.As(err, &wrong) && path != "" {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return err
	}
	return a.reportGenerated(result, flags, write)
}

// reportGenerated says what became of it.
func (a *app) reportGenerated(result *generate.Result, flags *generateFlags, write bool) error {
	for _, change := range result.Changes {
		if write {
			fmt.Fprintf(a.stdout, "%s %s\n", change.Kind(), filepath.ToSlash(change.Path))
			continue
		}
		fmt.Fprint(a.stdout, change.Diff())
	}
	switch {
	case result.Pending != nil && write:
		fmt.Fprintf(a.stderr, "fencectl: %s\n", oneLine(result.Pending.Error()))
	case flags.check && len(result.Changes) > 0:
		return refuse("%s not as generated; run fencectl generate, and commit what it changes", counted(len(result.Changes), "file is", "files are"))
	case len(result.Changes) == 0:
		fmt.Fprintf(a.stderr, "fencectl: nothing to do: %s for %s, up to date\n", counted(result.Files, "file", "files"), counted(result.Tables, "table", "tables"))
	case result.Pending != nil:
		fmt.Fprintln(a.stderr, "fencectl: the Go follows from what sqlc makes of the queries")
	}
	return nil
}

// readProject reads the project's settings. Without a file everything has its default, and the path is "".
func readProject(path string) (*project.Settings, string, error) {
	if path == "" {
		found, err := project.Find(".")
		if err != nil {
			return nil, "", err
		}
		if path = found; path == "" {
			return &project.Settings{}, "", nil
		}
	}
	settings, err := project.Read(path)
	return settings, path, err
}

// fromHere is a path relative to the working directory.
func fromHere(path string) string {
	here, err := os.Getwd()
	if err != nil || !filepath.IsAbs(path) {
		return path
	}
	if relative, err := filepath.Rel(here, path); err == nil {
		return relative
	}
	return path
}

// applicationSchema opens the application's schema, as the command line, the project's file and the environment say.
func (a *app) applicationSchema(ctx context.Context, settings *project.Settings, dir string) (*appschema.Database, error) {
	options := &appschema.Options{Settings: settings.Schema, Dir: dir, DSN: a.dsn, Getenv: a.getenv}
	if a.terminal() {
		defer fmt.Fprint(a.stderr, "\r\x1b[K")
		options.Progress = func(what string) { fmt.Fprintf(a.stderr, "\r\x1b[K%s ...", what) }
	}
	schema, err := appschema.Open(ctx, options)
	if !errors.Is(err, appschema.ErrNone) {
		return schema, err
	}
	config := settings.Generate.SQLC
	if config == "" {
		found, findErr := generate.FindSQLC(dir)
		if findErr != nil || found == "" {
			return nil, errors.Join(findErr, err)
		}
		config = found
	} else if !filepath.IsAbs(config) {
		config = filepath.Join(dir, config)
	}
	paths, sqlcErr := generate.SQLCSchema(config)
	if sqlcErr != nil || len(paths) == 0 {
		return nil, errors.Join(sqlcErr, err)
	}
	options.Settings.Migrations, options.Dir = paths, filepath.Dir(config)
	return appschema.Open(ctx, options)
}

// runSQLC runs sqlc in the directory of its configuration.
func (a *app) runSQLC(ctx context.Context, command []string, config, what string) error {
	if len(command) == 0 {
		var err error
		if command, err = findSQLC(ctx, filepath.Dir(config)); err != nil {
			return err
		}
		command = append(command, what)
	}
	if base := filepath.Base(config); !slices.Contains([]string{"sqlc.yaml", "sqlc.yml", "sqlc.json"}, base) {
		command = append(slices.Clone(command), "--file", base)
	}
	run := exec.CommandContext(ctx, command[0], command[1:]...)
	run.Dir = filepath.Dir(config)
	output, err := run.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		fmt.Fprint(a.stderr, string(output))
		return fmt.Errorf("%s, in %s: %w; what it says is above", strings.Join(command, " "), run.Dir, err)
	}
	return nil
}

// findSQLC finds sqlc: on the PATH, else among the tools of the Go module.
func findSQLC(ctx context.Context, dir string) ([]string, error) {
	if path, err := exec.LookPath("sqlc"); err == nil {
		return []string{path}, nil
	}
	tool := exec.CommandContext(ctx, "go", "tool", "-n", "sqlc")
	tool.Dir = dir
	if err := tool.Run(); err == nil {
		return []string{"go", "tool", "sqlc"}, nil
	}
	return nil, errors.New("there is no sqlc on the PATH and none among the tools of this module (go get -tool github.com/sqlc-dev/sqlc/cmd/sqlc@latest); " +
		"or give its command in fencectl.yaml: generate: {command: [sqlc, generate]}")
}
