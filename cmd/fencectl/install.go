package main

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/migrationfile"
	"github.com/fencectl/fencectl/internal/protect"
	"github.com/fencectl/fencectl/migrations"
)

func (a *app) installCommand() *cobra.Command {
	var (
		emit      = &choice{allowed: []string{string(migrationfile.Goose), string(migrationfile.SQL)}}
		dir, name string
		dryRun    bool
		pooler    bool
	)
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the fencing schema, or bring it up to date",
		Long: `Install the schema fencing into the database, or bring it up to date. It needs no superuser and no extension: a role that may
create a schema in the database is enough. Running it again changes nothing.

With --emit it writes the schema's migrations into the application's own migration directory instead, without connecting;
run again after an update of fencectl it adds the new ones only.

` + exitStatus,
		Example: `  fencectl install
  fencectl install --dry-run
  fencectl install --emit goose --dir db/migrations
  fencectl install --emit sql --dir db/plain`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkEmit(cmd, emit, dir); err != nil {
				return err
			}
			if emit.value != "" {
				return a.emitInstall(migrationfile.Format(emit.value), dir, name, dryRun)
			}
			server, err := a.open(cmd.Context(), connect.Options{Write: !dryRun, Notice: a.noticeUnlessExists})
			if err != nil {
				return err
			}
			defer server.Close()
			if dryRun {
				return a.printInstall(cmd, server)
			}
			return a.install(cmd, server, pooler)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the SQL and run nothing")
	cmd.Flags().BoolVar(&pooler, "transaction-pooler", false, "the connection goes through a pooler in transaction mode (PgBouncer)")
	emitFlags(cmd, emit, &dir, &name)
	return cmd
}

// noticeUnlessExists leaves out that what CREATE ... IF NOT EXISTS would create exists.
func (a *app) noticeUnlessExists(n *pgconn.Notice) {
	if n.Code != "42P06" && n.Code != "42P07" {
		a.notice(n)
	}
}

func (a *app) install(cmd *cobra.Command, server *connect.Server, pooler bool) error {
	result, err := migrations.Up(cmd.Context(), server.Pool, &migrations.Options{TransactionPooler: pooler})
	var newer *migrations.NewerError
	if errors.As(err, &newer) {
		return fmt.Errorf("database %s: %w", server.Database, err)
	}
	if err != nil {
		return err
	}
	switch {
	case result.External:
		fmt.Fprintf(a.stdout, "the fencing schema in database %s was installed by the application's own migrations, which keep it up to date: "+
			"nothing changed (new ones: fencectl install --emit)\n", oneLine(server.Database))
	case len(result.Applied) == 0:
		fmt.Fprintf(a.stdout, "the fencing schema in database %s is up to date (version %s)\n", oneLine(server.Database), connect.SchemaVersion)
	case server.SchemaInstalled:
		fmt.Fprintf(a.stdout, "updated the fencing schema in database %s to version %s (%s)\n", oneLine(server.Database), connect.SchemaVersion,
			counted(len(result.Applied), "migration", "migrations"))
	default:
		fmt.Fprintf(a.stdout, "installed the fencing schema in database %s (version %s)\nnext: fencectl protect TABLE --observe\n",
			oneLine(server.Database), connect.SchemaVersion)
	}
	return nil
}

// printInstall prints what install would run.
func (a *app) printInstall(cmd *cobra.Command, server *connect.Server) error {
	pending, err := migrations.Pending(cmd.Context(), server.Pool)
	if err != nil {
		return err
	}
	if len(pending) == 0 {
		fmt.Fprintln(a.stdout, "-- the fencing schema is up to date: nothing to run")
		return nil
	}
	for _, file := range pending {
		up, _, err := migrations.Sections(file)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "BEGIN; -- %s\n%sCOMMIT;\n\n", file, up)
	}
	return nil
}

// marker is the line by which install --emit knows its own files again.
func marker(file string) string {
	return "fencectl migration " + strings.TrimSuffix(file, path.Ext(file)) + "."
}

func (a *app) emitInstall(format migrationfile.Format, dir, name string, dryRun bool) error {
	files := migrations.Files()
	markers := make([]string, len(files))
	for i, file := range files {
		markers[i] = marker(file)
	}
	present, err := migrationfile.Contains(dir, markers)
	if err != nil {
		return err
	}
	if name == "" {
		name = "fencing"
	}
	var pending []migrationfile.Migration
	for i, file := range files {
		if present[i] {
			continue
		}
		content, err := migrations.FS.ReadFile(file)
		if err != nil {
			return err
		}
		m, err := migrationfile.ParseGoose(string(content))
		if err != nil {
			return fmt.Errorf("migration %s: %w", file, err)
		}
		_, rest, _ := strings.Cut(strings.TrimSuffix(file, path.Ext(file)), "_")
		m.Name = name + "_" + rest
		m.Comment = "The schema fencing (fencing tokens), " + marker(file) + " Do not edit: fencectl install --emit writes updates beside it.\n\n" + m.Comment
		if i == 0 {
			// Up creates the schema; only the last thing to leave it can drop it.
			m.Down += "DROP SCHEMA " + migrations.Schema + ";\n"
		}
		pending = append(pending, m)
	}
	if len(pending) == 0 {
		fmt.Fprintf(a.stderr, "fencectl: %s has all migrations of the fencing schema already\n", dir)
		return nil
	}
	if dryRun {
		for _, m := range pending {
			fmt.Fprint(a.stdout, migrationfile.Plain(m.Up))
		}
		return nil
	}
	paths, err := migrationfile.Write(dir, format, time.Now(), pending...)
	if err != nil {
		return err
	}
	for _, written := range paths {
		fmt.Fprintln(a.stdout, written)
	}
	return nil
}

func (a *app) uninstallCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the fencing schema",
		Long: `Remove the schema fencing with everything in it. It refuses while a table is protected.

What is lost: the named fences, so that every old token would be accepted again; the token sequence, which starts from 1 when
the schema is installed again, so that columns last_fencing_token that are left hold greater tokens than new ones; leases,
recorded violations and the log of bypasses.

` + exitStatus,
		Example: `  fencectl uninstall --dry-run
  fencectl uninstall`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			server, err := a.open(ctx, connect.Options{Write: !dryRun})
			if err != nil {
				return err
			}
			defer server.Close()
			if !server.SchemaInstalled {
				fmt.Fprintf(a.stdout, "the fencing schema is not installed in database %s: nothing to do\n", oneLine(server.Database))
				return nil
			}
			current, err := protect.Current(ctx, server.Pool)
			if err != nil {
				return err
			}
			if len(current) > 0 {
				return stillProtected(current)
			}
			if dryRun {
				return a.printUninstall()
			}
			fmt.Fprintln(a.stderr, "fencectl: named fences, leases, recorded violations and the token sequence are removed with the schema")
			if err := migrations.Down(ctx, server.Pool); err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "removed the fencing schema from database %s\n", oneLine(server.Database))
			return nil
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the SQL and run nothing")
	return cmd
}

func stillProtected(current map[int64]protect.Protection) error {
	const shown = 10
	var names, words []string
	for _, p := range current {
		names = append(names, p.Quoted)
	}
	slices.Sort(names)
	for _, name := range names {
		words = append(words, shellQuote(name))
	}
	list, run := strings.Join(names, ", "), "fencectl unprotect "+strings.Join(words, " ")
	if len(names) > shown {
		list = fmt.Sprintf("%s and %d more (fencectl status lists them)", strings.Join(names[:shown], ", "), len(names)-shown)
		run = "fencectl unprotect '*.*'"
	}
	verb := "are"
	if len(names) == 1 {
		verb = "is"
	}
	return refuse("%s %s still protected; first run: %s", list, verb, run)
}

func (a *app) printUninstall() error {
	fmt.Fprintln(a.stdout, "BEGIN;")
	files := migrations.Files()
	slices.Reverse(files)
	for _, file := range files {
		_, down, err := migrations.Sections(file)
		if err != nil {
			return err
		}
		fmt.Fprint(a.stdout, down)
	}
	fmt.Fprintf(a.stdout, "DROP TABLE IF EXISTS %s, %s;\nDROP SCHEMA %s;\nCOMMIT;\n", migrations.VersionTable, migrations.LockTable, migrations.Schema)
	return nil
}
