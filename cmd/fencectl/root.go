package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/spelling"
)

// app is what the commands share: the world outside, and the global flags.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	getenv func(string) string

	dsn string
}

// The groups that help lists the commands in.
const (
	groupTables    = "tables"
	groupFences    = "fences"
	groupDatabase  = "database"
	groupProject   = "project"
	groupUndefined = ""
)

// commands makes every command of fencectl. A new command is one more line here and a file of its own.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		grouped(groupDatabase, a.installCommand()),
		grouped(groupDatabase, a.uninstallCommand()),
		grouped(groupDatabase, a.grantCommand()),
		grouped(groupTables, a.planCommand()),
		grouped(groupTables, a.protectCommand()),
		grouped(groupTables, a.unprotectCommand()),
		grouped(groupTables, a.enforceCommand()),
		grouped(groupTables, a.observeCommand()),
		grouped(groupTables, a.statusCommand()),
		grouped(groupTables, a.violationsCommand()),
		grouped(groupTables, a.auditCommand()),
		grouped(groupFences, a.lockCommand()),
		grouped(groupFences, a.fenceCommand()),
		grouped(groupFences, a.tokenCommand()),
		grouped(groupFences, a.epochCommand()),
		grouped(groupProject, a.lintCommand()),
		grouped(groupProject, a.generateCommand()),
		grouped(groupUndefined, a.demoCommand()),
		grouped(groupUndefined, a.tortureCommand()),
		grouped(groupUndefined, a.versionCommand()),
	}
}

func grouped(group string, cmd *cobra.Command) *cobra.Command {
	cmd.GroupID = group
	return cmd
}

// run is the whole program but for the process: it returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	checked := &checkedWriter{w: stdout}
	a := &app{stdin: stdin, stdout: checked, stderr: stderr, getenv: getenv}
	root := a.rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil && checked.err != nil {
		err = fmt.Errorf("cannot write the output: %w", checked.err)
	}
	return a.report(ctx, err)
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "fencectl",
		Short: "Fencing tokens for PostgreSQL, enforced by the database",
		Long: `fencectl makes PostgreSQL refuse the writes of a lock holder that has lost its lock.

A lock with a time limit cannot protect data: a holder that is paused past the limit wakes up and writes over its
successor. Each grant of the lock therefore carries a number that only grows, the fencing token; each transaction
presents it; and guards on the protected tables refuse a token older than one they have accepted.

Connection: --dsn, else FENCECTL_DSN, else DATABASE_URL, else the libpq variables (PGHOST, PGSERVICE, PGPASSFILE, ...).
Everybody on a machine can see its command lines: a password belongs into a variable or ~/.pgpass, not into --dsn.

` + exitStatus,
		Example: `  fencectl install
  fencectl protect jobs --observe
  fencectl violations --since 1d
  fencectl enforce jobs
  fencectl status`,
		Args:                       subcommandsOnly,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.dsn, "dsn", "", "where the database is: a postgres:// `URL` or 'host=... dbname=...'")
	root.AddCommand(a.commands()...)
	for _, group := range []*cobra.Group{
		{ID: groupDatabase, Title: "The database:"},
		{ID: groupTables, Title: "Tables:"},
		{ID: groupFences, Title: "Locks, fences and tokens:"},
		{ID: groupProject, Title: "The project:"},
	} {
		if slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.GroupID == group.ID }) {
			root.AddGroup(group)
		}
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth)))
	reflowHelp(root)
	return root
}

// helpWidth is the width of help texts: what every terminal has.
const helpWidth = 80

// reflowHelp breaks the paragraphs of all help texts anew. Lines that begin with a space are kept as they are.
func reflowHelp(cmd *cobra.Command) {
	var paragraph, lines []string
	flush := func() {
		if len(paragraph) > 0 {
			lines = append(lines, wrapText(strings.Join(paragraph, " "), helpWidth)...)
			paragraph = nil
		}
	}
	for line := range strings.Lines(cmd.Long) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, " ") {
			flush()
			lines = append(lines, line)
			continue
		}
		paragraph = append(paragraph, line)
	}
	flush()
	cmd.Long = strings.Join(lines, "\n")
	for _, sub := range cmd.Commands() {
		reflowHelp(sub)
	}
}

// exitStatus is the line that every command's help ends with.
const exitStatus = `Exit status: 0 fine; 1 a finding or a refusal; 2 wrong usage, no connection or another error; 130 interrupted.`

// open connects as the command needs it.
func (a *app) open(ctx context.Context, needs connect.Options) (*connect.Server, error) {
	needs.DSN, needs.Getenv = a.dsn, a.getenv
	if needs.Notice == nil {
		needs.Notice = a.notice
	}
	return connect.Open(ctx, &needs)
}

// notice shows what the server has to say besides its answers.
func (a *app) notice(n *pgconn.Notice) {
	text := oneLine(n.Message)
	if n.Hint != "" {
		text += "; " + oneLine(n.Hint)
	}
	fmt.Fprintf(a.stderr, "fencectl: %s: %s\n", strings.ToLower(n.SeverityUnlocalized), text)
}

// subcommandsOnly refuses an argument that is no subcommand, and says which one was probably meant.
func subcommandsOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := []string{}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	sort.Strings(names)
	message := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), args[0])
	if near, ok := spelling.Closest(args[0], names); ok {
		return &usageError{cmd, fmt.Sprintf("%s; did you mean %s?", message, near)}
	}
	return &usageError{cmd, message}
}

// arguments turns cobra's argument checks into usage errors of ours.
func arguments(check cobra.PositionalArgs, want string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{cmd, "expected " + want}
		}
		return nil
	}
}

// flagError names the flag that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near, ok := spelling.Closest(unknown.GetSpecifiedName(), names); ok {
			return &usageError{cmd, fmt.Sprintf("%s; did you mean --%s?", err, near)}
		}
	}
	return &usageError{cmd, err.Error()}
}

// checkedWriter remembers that the output could not be written: a report that got lost is not a success.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil && c.err == nil {
		c.err = err
	}
	return n, err
}
