package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/lockwait"
	"github.com/fencectl/fencectl/internal/migrationfile"
	"github.com/fencectl/fencectl/internal/protect"
	"github.com/fencectl/fencectl/internal/tableref"
)

// tableArguments explains, in each command that takes tables, how to write them.
const tableArguments = `A table is NAME or SCHEMA.NAME, as in psql: unquoted names fold to lower case, and a name with capitals, spaces or dots
goes in double quotes (in the shell: '"Order Items"'). A name without schema is looked up on the search_path, else wherever
there is one table of that name. * and ? make a pattern: 'billing.*', '*.jobs'; it leaves out the tables in which migration tools keep their
versions.`

// applyFlags are the flags of every command that changes tables.
type applyFlags struct {
	lockTimeout time.Duration
	retries     int
	dryRun      bool
	format      *choice

	notQuiet []noisyTable // enforce --if-quiet: what the plan leaves out, for the report
}

func (f *applyFlags) register(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.lockTimeout, "lock-timeout", protect.DefaultLockTimeout, "how long one attempt waits for a table's lock")
	cmd.Flags().IntVar(&f.retries, "retries", protect.DefaultRetries, "how often a table that is in use is tried again")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the SQL and run nothing")
	f.format = formatFlag(cmd)
}

func (f *applyFlags) check(cmd *cobra.Command) error {
	switch {
	case f.lockTimeout < time.Millisecond:
		// 0 would switch the timeout off: one long transaction on the table, and every query on it queues behind us.
		return &usageError{cmd, "--lock-timeout must be at least 1ms"}
	case f.retries < 0:
		return &usageError{cmd, "--retries must not be negative"}
	}
	return nil
}

func (a *app) protectCommand() *cobra.Command {
	var (
		flags   applyFlags
		options protect.Options
		mode    = &choice{allowed: []string{"strict", "reentrant"}, value: "strict"}
		inserts = &choice{allowed: []string{"allow", "require"}, value: "allow"}
		emit    = &choice{allowed: []string{string(migrationfile.Goose), string(migrationfile.SQL)}}
		dir     string
		name    string
	)
	cmd := &cobra.Command{
		Use:   "protect TABLE...",
		Short: "Put a fence on tables",
		Long: `Put a fence on tables: from then on a write without a fencing token, or with one that is too old, is refused (or, with
--observe, recorded). Protecting a table again with other options changes its fence in place.

Without --fence each row has a fence of its own, in a column last_fencing_token that is added without rewriting the table.
With --fence the tables share a named fence: the name of the lock ('jobs/nightly'), or a template that takes it from each row
('account/{account_id}'); no column is added.

Each table is changed in one short transaction. A table whose lock is not to be had within --lock-timeout is left alone and
tried again after a pause, so that no query of the application waits long. Interrupted with Ctrl-C, every table is either as
it was or done.

` + tableArguments + `

` + exitStatus,
		Example: `  fencectl protect jobs
  fencectl protect 'billing.*' --observe
  fencectl protect orders --mode reentrant --inserts require
  fencectl protect jobs --fence jobs/nightly
  fencectl protect accounts --fence 'account/{account_id}'
  fencectl protect '"Order Items"' --dry-run
  fencectl protect jobs --emit goose --dir db/migrations`,
		Args:              arguments(cobra.MinimumNArgs(1), "at least one table"),
		ValidArgsFunction: a.completeTables,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.check(cmd); err != nil {
				return err
			}
			options.Mode, options.Inserts = mode.value, inserts.value
			if err := checkProtect(cmd, options); err != nil {
				return err
			}
			if err := checkEmit(cmd, emit, dir); err != nil {
				return err
			}
			server, err := a.open(cmd.Context(), connect.Options{Installed: emit.value == "", Write: emit.value == "" && !flags.dryRun})
			if err != nil {
				return err
			}
			defer server.Close()
			catalog, err := tableref.Read(cmd.Context(), server.Pool)
			if err != nil {
				return err
			}
			tables, err := catalog.Resolve(args, nil, "table that can be protected")
			if err != nil {
				return err
			}
			var current map[int64]protect.Protection
			if server.SchemaInstalled {
				if current, err = protect.Current(cmd.Context(), server.Pool); err != nil {
					return err
				}
			}
			steps := protect.Protect(tables, current, options)
			if emit.value != "" {
				return a.emitSteps(steps, migrationfile.Format(emit.value), dir, name, flags)
			}
			return a.apply(cmd.Context(), server, steps, flags)
		},
	}
	choiceFlag(cmd, mode, "mode", "row fence: may the same token write a row again (reentrant) or once (strict)")
	cmd.Flags().StringVar(&options.Fence, "fence", "", "named fence: the lock's name, or a `TEMPLATE` with {column}")
	choiceFlag(cmd, inserts, "inserts", "row fence: may rows be inserted without a token")
	cmd.Flags().Int64Var(&options.MaxAdvance, "max-advance", 0, "refuse a token more than `N` ahead of the stored one (0: any)")
	cmd.Flags().BoolVar(&options.Observe, "observe", false, "record violations instead of refusing them")
	flags.register(cmd)
	emitFlags(cmd, emit, &dir, &name)
	return cmd
}

// checkProtect refuses combinations that fencing.protect would silently have no use for.
func checkProtect(cmd *cobra.Command, options protect.Options) error {
	if options.MaxAdvance < 0 {
		return &usageError{cmd, "--max-advance must not be negative"}
	}
	if cmd.Flags().Changed("fence") && strings.TrimSpace(options.Fence) == "" {
		return &usageError{cmd, "--fence needs a name"}
	}
	if options.Fence == "" {
		return nil
	}
	for _, flag := range []string{"mode", "inserts"} {
		if cmd.Flags().Changed(flag) {
			return &usageError{cmd, fmt.Sprintf("--%s is for row fences and has no meaning with --fence", flag)}
		}
	}
	return nil
}

func emitFlags(cmd *cobra.Command, emit *choice, dir, name *string) {
	choiceFlag(cmd, emit, "emit", "write a migration into --dir instead of changing the database")
	cmd.Flags().StringVar(dir, "dir", "", "the `DIRECTORY` of the application's migrations, for --emit")
	cmd.Flags().StringVar(name, "name", "", "the `NAME` of the migration, for --emit (default: from what it does)")
	_ = cmd.MarkFlagDirname("dir") // fails only for a flag that does not exist
}

func checkEmit(cmd *cobra.Command, emit *choice, dir string) error {
	switch {
	case emit.value == "" && (cmd.Flags().Changed("dir") || cmd.Flags().Changed("name")):
		return &usageError{cmd, "--dir and --name go with --emit goose or --emit sql"}
	case emit.value != "" && dir == "":
		return &usageError{cmd, "--emit needs --dir, the directory of the application's migrations"}
	case emit.value != "" && cmd.Flags().Changed("format"):
		return &usageError{cmd, "--format has no meaning with --emit"}
	}
	return nil
}

func (a *app) unprotectCommand() *cobra.Command {
	var (
		flags      applyFlags
		dropColumn bool
	)
	cmd := &cobra.Command{
		Use:   "unprotect TABLE...",
		Short: "Take the fence off tables",
		Long: `Take the fence off tables: nothing checks their writes any longer. The column last_fencing_token stays, so that protecting
the table again continues where it was, unless --drop-column says otherwise (only a column that protect added is dropped).

` + tableArguments + ` A pattern means the protected tables that match it.

` + exitStatus,
		Example: `  fencectl unprotect jobs
  fencectl unprotect jobs --drop-column
  fencectl unprotect 'billing.*' --dry-run`,
		Args:              arguments(cobra.MinimumNArgs(1), "at least one table"),
		ValidArgsFunction: a.completeTables,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeProtected(cmd, args, flags, func(tables []tableref.Table, current map[int64]protect.Protection) ([]protect.Step, error) {
				var remaining []tableref.Table
				for _, t := range tables {
					_, protected := current[t.OID]
					if !protected && !(dropColumn && t.HasColumn) {
						fmt.Fprintf(a.stderr, "fencectl: table %s is not protected: nothing to do\n", oneLine(t.Quoted))
						continue
					}
					remaining = append(remaining, t)
				}
				return protect.Unprotect(remaining, dropColumn), nil
			})
		},
	}
	cmd.Flags().BoolVar(&dropColumn, "drop-column", false, "drop the column last_fencing_token, and the tokens in it")
	flags.register(cmd)
	return cmd
}

func (a *app) enforceCommand() *cobra.Command {
	var (
		flags applyFlags
		quiet quietFlags
	)
	cmd := &cobra.Command{
		Use:   "enforce TABLE...",
		Short: "Refuse what protected tables only observed so far",
		Long: `Refuse violations on protected tables instead of recording them. Look at fencectl violations first: what it lists would be
refused from now on.

With --if-quiet 7d only tables are enforced that have been observed, by all their guards and as they are now, for at least the last 7
days, without a violation in that time. The others are named, with what is against it, and the exit status is 1. Quiet is not proof:
a writer that runs once a month is not seen in a week.

PostgreSQL keeps no time for a trigger. Since when a table is observed is known from the server's commit timestamps
(track_commit_timestamp), else from the recorded violations (one that a transaction after the one that made the guards
caused, on any table, shows that they were there). Where neither tells, the table counts as not quiet, unless you say since when it is
observed: --observed-since. What the server knows goes before what you say. A guard that was changed, also by another mode or limit,
starts anew.

` + tableArguments + " A pattern means the protected tables that match it.\n\n" + exitStatus,
		Example: `  fencectl enforce jobs
  fencectl enforce 'billing.*' --dry-run
  fencectl enforce 'billing.*' --if-quiet 7d --observed-since 2026-01-31`,
		Args:              arguments(cobra.MinimumNArgs(1), "at least one table"),
		ValidArgsFunction: a.completeTables,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("if-quiet") {
				if cmd.Flags().Changed("observed-since") {
					return &usageError{cmd, "--observed-since goes with --if-quiet"}
				}
				return a.changeProtected(cmd, args, flags, switching(protect.Enforce))
			}
			return a.enforceQuiet(cmd, args, flags, quiet)
		},
	}
	quiet.register(cmd)
	flags.register(cmd)
	return cmd
}

func (a *app) observeCommand() *cobra.Command {
	var flags applyFlags
	cmd := &cobra.Command{
		Use:   "observe TABLE...",
		Short: "Record violations on protected tables instead of refusing them",
		Long: `Record violations on protected tables, in fencing.violation, instead of refusing them: nothing keeps a stale holder from
writing until fencectl enforce. fencectl violations lists what was recorded.

` + tableArguments + " A pattern means the protected tables that match it.\n\n" + exitStatus,
		Example: `  fencectl observe jobs
  fencectl observe 'billing.*' --dry-run`,
		Args:              arguments(cobra.MinimumNArgs(1), "at least one table"),
		ValidArgsFunction: a.completeTables,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeProtected(cmd, args, flags, switching(protect.Observe))
		},
	}
	flags.register(cmd)
	return cmd
}

// switching plans the same change for tables that must be protected already.
func switching(plan func([]tableref.Table) []protect.Step) func([]tableref.Table, map[int64]protect.Protection) ([]protect.Step, error) {
	return func(tables []tableref.Table, current map[int64]protect.Protection) ([]protect.Step, error) {
		for _, t := range tables {
			if _, ok := current[t.OID]; !ok {
				return nil, refuse("table %s is not protected; run: fencectl protect %s", t.Quoted, shellQuote(t.Quoted))
			}
		}
		return plan(tables), nil
	}
}

// changeProtected is the frame of the commands that work on tables that are protected already.
func (a *app) changeProtected(
	cmd *cobra.Command, args []string, flags applyFlags,
	plan func([]tableref.Table, map[int64]protect.Protection) ([]protect.Step, error),
) error {
	server, tables, current, err := a.openProtected(cmd, args, flags)
	if err != nil {
		return err
	}
	defer server.Close()
	steps, err := plan(tables, current)
	if err != nil {
		return err
	}
	return a.apply(cmd.Context(), server, steps, flags)
}

// openProtected connects, and finds the tables that the arguments mean: a pattern means protected ones. The caller closes the server.
func (a *app) openProtected(cmd *cobra.Command, args []string, flags applyFlags) (_ *connect.Server, _ []tableref.Table, _ map[int64]protect.Protection, err error) {
	if err := flags.check(cmd); err != nil {
		return nil, nil, nil, err
	}
	server, err := a.open(cmd.Context(), connect.Options{Installed: true, Write: !flags.dryRun})
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		if err != nil {
			server.Close()
		}
	}()
	catalog, err := tableref.Read(cmd.Context(), server.Pool)
	if err != nil {
		return nil, nil, nil, err
	}
	current, err := protect.Current(cmd.Context(), server.Pool)
	if err != nil {
		return nil, nil, nil, err
	}
	protected := func(t tableref.Table) bool { _, ok := current[t.OID]; return ok }
	tables, err := catalog.Resolve(args, protected, "protected table")
	return server, tables, current, err
}

// emitSteps writes the plan as one migration.
func (a *app) emitSteps(steps []protect.Step, format migrationfile.Format, dir, name string, flags applyFlags) error {
	settings := fmt.Sprintf("SET LOCAL lock_timeout = '%dms'", flags.lockTimeout.Milliseconds())
	up, down := []string{settings}, []string{settings}
	tables := make([]string, len(steps))
	for i, step := range steps {
		if strings.Contains(step.SQL+step.Undo, "+goose") {
			// goose reads its annotations wherever a line has them, also within a string.
			return refuse("table %s cannot be protected in a migration file: its name or fence reads like an annotation of goose", step.Table.Quoted)
		}
		tables[i] = step.Table.Schema + "_" + step.Table.Name
		up = append(up, step.SQL)
		down = append(down, steps[len(steps)-1-i].Undo) // the undo of the last step comes first
	}
	if name == "" {
		name = "fencing_protect_" + strings.Join(tables, "_")
		if len(tables) > 3 {
			name = fmt.Sprintf("fencing_protect_%d_tables", len(tables))
		}
	}
	m := migrationfile.Migration{
		Name:    name,
		Comment: "Fencing tokens: written by fencectl protect. Needs the schema fencing (fencectl install).",
		Up:      migrationfile.Statements(up...),
		Down:    migrationfile.Statements(down...),
	}
	if len(steps) > 1 {
		m.Comment += "\nThe locks on all these tables are kept until the migration commits: on a busy database write one migration a table."
	}
	if flags.dryRun {
		fmt.Fprint(a.stdout, migrationfile.Plain(m.Up))
		return nil
	}
	paths, err := migrationfile.Write(dir, format, time.Now(), m)
	if err != nil {
		return err
	}
	for _, path := range paths {
		fmt.Fprintln(a.stdout, path)
	}
	return nil
}

// changeReport is what protect, unprotect, enforce and observe print with --format json. Every table is in one of the lists.
type changeReport struct {
	Version  int             `json:"version"`            // 1
	Applied  []changedTable  `json:"applied"`            // changed, and committed
	Failed   []failedTable   `json:"failed"`             // left as they were, but for those whose outcome is unknown
	NotTried []tableIdentity `json:"not_tried"`          // left as they were: the command was interrupted, or lost the server
	NotQuiet []noisyTable    `json:"not_quiet,omitzero"` // left as they were: enforce --if-quiet; absent without
}

// tableIdentity names a table as the catalog does, without quotes.
type tableIdentity struct {
	Schema string `json:"schema"`
	Table  string `json:"table"`
}

type changedTable struct {
	tableIdentity
	SQL string `json:"sql"` // what was run
}

type failedTable struct {
	tableIdentity
	Error          string             `json:"error"`           // one line
	OutcomeUnknown bool               `json:"outcome_unknown"` // the server was lost during COMMIT
	Blocking       []lockwait.Session `json:"blocking"`        // who held the lock, when the table was in use
}

func identity(t tableref.Table) tableIdentity { return tableIdentity{Schema: t.Schema, Table: t.Name} }

// apply runs the plan, or prints it, and tells how it went.
func (a *app) apply(ctx context.Context, server *connect.Server, steps []protect.Step, flags applyFlags) error {
	if flags.dryRun {
		fmt.Fprint(a.stdout, protect.Script(steps, flags.lockTimeout))
		return nil
	}
	result := protect.Apply(ctx, server.Pool, steps, &protect.ApplyOptions{
		LockTimeout: flags.lockTimeout,
		Retries:     flags.retries,
		Progress:    func(e protect.Event) { a.progress(e, flags.format.json()) },
	})
	if flags.format.json() {
		report := reportOf(result)
		report.NotQuiet = flags.notQuiet
		if err := printJSON(a.stdout, report); err != nil {
			return err
		}
	}
	return a.conclude(ctx, result, len(steps))
}

func (a *app) progress(e protect.Event, quiet bool) {
	counter := ""
	if e.Total > 1 && a.terminal() {
		counter = fmt.Sprintf("[%d/%d] ", e.Number, e.Total)
	}
	name := oneLine(e.Step.Table.Quoted)
	switch {
	case e.Retry != nil:
		by := "another session"
		if len(e.Retry.Blocking) > 0 {
			by = oneLine(lockwait.List(e.Retry.Blocking))
		}
		fmt.Fprintf(a.stderr, "fencectl: %stable %s is in use by %s; attempt %d of %d follows in %s\n",
			counter, name, by, e.Retry.Attempt+1, e.Retry.Attempts, lockwait.Age(e.Retry.Pause))
	case e.Done && !quiet:
		note := ""
		if e.Step.Note != "" {
			note = " (" + oneLine(e.Step.Note) + ")"
		}
		fmt.Fprintf(a.stdout, "%s%s %s%s\n", counter, e.Step.Verb, name, note)
	}
}

// conclude says on stderr what did not go well, one line each, and finds the exit status.
func (a *app) conclude(ctx context.Context, result *protect.Result, total int) error {
	if len(result.Failed) == 0 && len(result.NotTried) == 0 {
		return nil
	}
	status := statusRefused
	for _, failure := range result.Failed {
		status = max(status, statusOf(ctx, failure.Err))
		text := describe(failure.Err)
		if name := oneLine(failure.Table.Quoted); !strings.Contains(text, name) {
			text = "table " + name + ": " + text
		}
		fmt.Fprintf(a.stderr, "fencectl: %s\n", text)
	}
	if len(result.NotTried) > 0 {
		names := make([]string, len(result.NotTried))
		for i, t := range result.NotTried {
			names[i] = oneLine(t.Quoted)
		}
		why := "stopped"
		if ctx.Err() != nil {
			why = "interrupted"
		}
		fmt.Fprintf(a.stderr, "fencectl: %s after %d of %s; left as they were: %s\n",
			why, len(result.Applied), counted(total, "table", "tables"), strings.Join(names, ", "))
		status = max(statusError, statusOf(ctx, result.Stopped))
	} else if total > 1 {
		fmt.Fprintf(a.stderr, "fencectl: %d of %s done, %d failed\n", len(result.Applied), counted(total, "table", "tables"), len(result.Failed))
	}
	return &reported{status}
}

func reportOf(result *protect.Result) changeReport {
	report := changeReport{Version: 1, Applied: []changedTable{}, Failed: []failedTable{}, NotTried: []tableIdentity{}}
	for _, step := range result.Applied {
		report.Applied = append(report.Applied, changedTable{identity(step.Table), step.SQL})
	}
	for _, failure := range result.Failed {
		report.Failed = append(report.Failed, failedTable{
			tableIdentity: identity(failure.Table), Error: describe(failure.Err), OutcomeUnknown: failure.Unknown, Blocking: blockingOf(failure.Err),
		})
	}
	for _, t := range result.NotTried {
		report.NotTried = append(report.NotTried, identity(t))
	}
	return report
}

func blockingOf(err error) []lockwait.Session {
	var locked *protect.LockedError
	if errors.As(err, &locked) && locked.Blocking != nil {
		return locked.Blocking
	}
	return []lockwait.Session{}
}

// completeTables offers the database's tables to the shell. Where there is no connection it offers nothing: completion is no
// place for errors.
func (a *app) completeTables(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	server, err := a.open(ctx, connect.Options{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer server.Close()
	catalog, err := tableref.Read(ctx, server.Pool)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, t := range catalog.Tables() {
		if strings.HasPrefix(t.Quoted, prefix) {
			names = append(names, t.Quoted)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// shellQuote writes a word so that it can be pasted into a POSIX shell.
func shellQuote(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
