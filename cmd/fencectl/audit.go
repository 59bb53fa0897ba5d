package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/project"
	"github.com/fencectl/fencectl/internal/report"
)

// failOnNever is the value of --fail-on that no finding reaches.
const failOnNever = "never"

// The values of --format that only an audit has.
const (
	formatSARIF  = "sarif"
	formatGitHub = "github"
	formatHTML   = "html"
)

// auditFlags are the command line of an audit.
type auditFlags struct {
	dsns        []string
	dsnFile     string
	config      string
	environment string
	failOn      choice
	format      choice
	output      string
	limit       int
}

func (a *app) auditCommand() *cobra.Command {
	flags := &auditFlags{
		failOn: choice{value: string(audit.Error), allowed: []string{string(audit.Error), string(audit.Warning), string(audit.Info), failOnNever}},
		format: choice{value: formatTable, allowed: []string{formatTable, formatJSON, formatSARIF, formatGitHub, formatHTML}},
	}
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find what is unfenced, weakly fenced or wrongly fenced",
		Long: `Find tables without a fence, and fences with a gap: guards that were dropped, switched off or altered, partitions and
children without guards, triggers and rules that get around them, an unsafe token sequence, and more. Each finding says why it
matters and what mends it; each rule has a page in docs/rules.

Tables that must have a fence, so that one without is an error, exemptions, each with its reason and perhaps its last day, and
severities of rules are in the project's file fencectl.yaml, found upwards from the working directory. What holds in one
environment only is added with --env:

  audit:
    required: [jobs, 'billing.*']
    exempt:
      - {table: cache, reason: rebuilt every night}
      - {key: 'observing:public.orders', reason: enforced from May on,
         until: 2027-05-31}
    severities: {observing: info}      # error, warning, info or off
  environments:
    production: {audit: {required: [orders]}}

An audit only reads. Any role can run it; what a role may not read is listed as not checked (fencectl grant ROLE --for monitor
gives all of it). The schema fencing need not be installed.

Several databases are audited in one run when --dsn is repeated, or with --dsn-file, which has one connection string on each
line; empty lines and those that begin with # are skipped. A database that cannot be audited does not keep the others from it:
it is named, and the exit status is 2 after all the others were reported.

The formats: table, for people; json, see docs/json.md; sarif, version 2.1.0, for code scanning; github, annotations of a
GitHub workflow; html, one page to hand around. In JSON, a finding's fix is SQL when it ends in a semicolon, else a shell
command, and its key is the same in every run. How to use it in CI is in docs/ci.md.

` + exitStatus + ` A finding counts from the severity that --fail-on names.`,
		Example: `  fencectl audit
  fencectl audit --fail-on warning
  fencectl audit --format json --fail-on never
  fencectl audit --format html --output audit.html`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.limit < 0 {
				return &usageError{cmd, "--limit must not be negative"}
			}
			return a.audit(cmd, flags)
		},
	}
	// Takes the place of the global flag of this name, which takes one.
	cmd.Flags().StringArrayVar(&flags.dsns, "dsn", nil, "where the database is: a postgres:// `URL` or 'host=... dbname=...'; repeat it to audit several")
	cmd.Flags().StringVar(&flags.dsnFile, "dsn-file", "", "audit the databases of this `FILE`, one connection string on each line (-: the standard input)")
	choiceFlag(cmd, &flags.failOn, "fail-on", "exit with status 1 when there is a finding of this severity or a worse one")
	choiceFlag(cmd, &flags.format, "format", "how to print")
	cmd.Flags().StringVar(&flags.output, "output", "", "write it to a `FILE`, and only the totals to the standard output")
	cmd.Flags().StringVar(&flags.config, "config", "", "the project's `FILE` (default: "+project.FileName+" here or above)")
	cmd.Flags().StringVar(&flags.environment, "env", "", "the environment of the project's file, by its `NAME`, that holds as well")
	cmd.Flags().IntVar(&flags.limit, "limit", 20, "show at most `N` findings of a rule in the table (0: all)")
	return cmd
}

// audit audits the databases, reports them all, and says by its error what became of it.
func (a *app) audit(cmd *cobra.Command, flags *auditFlags) error {
	options, path, err := projectOptions(flags.config, flags.environment)
	if err != nil {
		return err
	}
	targets, several, err := a.targets(cmd, flags)
	if err != nil {
		return err
	}
	options.AllowUnmatched = several

	document := &report.Document{Several: several, Settings: shortPath(path), Program: versions().Fencectl, At: time.Now()}
	errs := a.auditEach(cmd.Context(), targets, options, document)
	if cmd.Context().Err() != nil {
		return context.Cause(cmd.Context())
	}
	for _, err := range errs {
		var wrong *audit.OptionError
		if errors.As(err, &wrong) {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err != nil && !several {
			return err
		}
	}
	if err := a.publish(document, flags); err != nil {
		return err
	}
	failed := false
	for i, err := range errs {
		if err != nil {
			failed = true
			fmt.Fprintf(a.stderr, "fencectl: %s: %s\n", oneLine(document.Databases[i].Label()), document.Databases[i].Error)
		}
	}
	switch pattern := unmatchedEverywhere(document); {
	case failed:
		return &reported{statusError}
	case pattern != "":
		return fmt.Errorf("%s: %w", path, audit.Unmatched(pattern))
	case flags.failOn.value != failOnNever && document.Worst() != "" && document.Worst().AtLeast(audit.Severity(flags.failOn.value)):
		return &reported{statusRefused}
	}
	return nil
}

// target is one of the databases to audit.
type target struct {
	dsn    string
	origin string // of the DSN, for messages
}

// targets are the databases to audit, and whether the command line speaks of several.
func (a *app) targets(cmd *cobra.Command, flags *auditFlags) (targets []target, several bool, err error) {
	if flags.dsnFile == "" {
		switch len(flags.dsns) {
		case 0:
			return []target{{}}, false, nil
		case 1:
			return []target{{dsn: flags.dsns[0]}}, false, nil
		}
	}
	for i, dsn := range flags.dsns {
		targets = append(targets, target{dsn, fmt.Sprintf("--dsn number %d", i+1)})
	}
	if flags.dsnFile != "" {
		var content []byte
		if flags.dsnFile == "-" {
			content, err = io.ReadAll(a.stdin)
		} else {
			content, err = os.ReadFile(flags.dsnFile)
		}
		if err != nil {
			return nil, false, err
		}
		number := 0
		for line := range strings.Lines(string(content)) {
			number++
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				targets = append(targets, target{line, fmt.Sprintf("%s:%d", flags.dsnFile, number)})
			}
		}
		if len(targets) == 0 {
			return nil, false, &usageError{cmd, flags.dsnFile + " has no connection string"}
		}
	}
	for i, t := range targets {
		// An empty one would be taken for none, and so for the environment's.
		if strings.TrimSpace(t.dsn) == "" {
			return nil, false, &usageError{cmd, fmt.Sprintf("--dsn number %d is empty", i+1)}
		}
	}
	return targets, true, nil
}

// auditsAtOnce bounds how many databases are audited at a time: enough that one which does not answer keeps nobody waiting.
const auditsAtOnce = 4

// auditEach audits every target, and returns an error for each that could not be, in their order.
func (a *app) auditEach(ctx context.Context, targets []target, options *audit.Options, document *report.Document) []error {
	document.Databases = make([]report.Database, len(targets))
	errs := make([]error, len(targets))
	places := make(chan struct{}, auditsAtOnce)
	var all sync.WaitGroup
	for i, t := range targets {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			document.Databases[i], errs[i] = a.auditOne(ctx, t, options)
		})
	}
	all.Wait()
	return errs
}

func (a *app) auditOne(ctx context.Context, t target, options *audit.Options) (report.Database, error) {
	at := connect.Options{DSN: t.dsn, Origin: t.origin, Getenv: a.getenv}
	failed := func(err error) (report.Database, error) {
		d := report.Database{Error: describe(err)}
		if d.Name, d.Address = connect.Target(&at); d.Label() == "" {
			d.Address = t.origin
		}
		return d, err
	}
	server, err := connect.Open(ctx, &at)
	if err != nil {
		return failed(err)
	}
	defer server.Close()
	found, err := audit.Run(ctx, server.Pool, options)
	if err != nil {
		return failed(err)
	}
	return report.Database{Name: server.Database, Address: server.Address, Report: found}, nil
}

// unmatchedEverywhere is a required pattern that matches a table in none of the databases; "" when there is none, or not all
// databases are known.
func unmatchedEverywhere(d *report.Document) string {
	unmatched := func(pattern string) bool {
		return !slices.ContainsFunc(d.Databases, func(one report.Database) bool {
			return one.Report == nil || !slices.Contains(one.Report.Unmatched, pattern)
		})
	}
	if first := d.Databases[0].Report; first != nil {
		if i := slices.IndexFunc(first.Unmatched, unmatched); i >= 0 {
			return first.Unmatched[i]
		}
	}
	return ""
}

// publish prints the document, or writes it to the file that is to have it.
func (a *app) publish(document *report.Document, flags *auditFlags) error {
	if flags.output == "" {
		return a.printDocument(document, flags)
	}
	var content bytes.Buffer
	there := *a
	there.stdout = &content
	if err := there.printDocument(document, flags); err != nil {
		return err
	}
	if err := os.WriteFile(flags.output, content.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "%s (%s)\n", oneLine(document.Totals()), flags.output)
	return nil
}

func (a *app) printDocument(document *report.Document, flags *auditFlags) error {
	switch flags.format.value {
	case formatJSON:
		return report.JSON(a.stdout, document)
	case formatSARIF:
		return report.SARIF(a.stdout, document)
	case formatGitHub:
		return report.GitHub(a.stdout, document)
	case formatHTML:
		return report.HTML(a.stdout, document)
	}
	a.printAudits(document, flags.limit)
	return nil
}

// projectOptions reads the project's file: the one that is named, else the one that is found. Without one it is as if it were
// empty.
func projectOptions(path, environment string) (*audit.Options, string, error) {
	settings := &project.Settings{}
	if path == "" {
		var err error
		if path, err = project.Find("."); err != nil {
			return nil, "", fmt.Errorf("looking for %s: %w", project.FileName, err)
		}
	}
	if path != "" {
		var err error
		if settings, err = project.Read(path); err != nil {
			return nil, "", err
		}
	}
	options, err := settings.AuditIn(environment)
	switch {
	case err == nil:
		return options, path, nil
	case path == "":
		return nil, "", fmt.Errorf("there is no environment %s: there is no %s here or above", environment, project.FileName)
	}
	return nil, "", fmt.Errorf("%s: %w", path, err)
}

// shortPath is a path as seen from the working directory, where it is below that; else its last part.
func shortPath(path string) string {
	if path == "" {
		return ""
	}
	if absolute, err := filepath.Abs(path); err == nil {
		if here, err := filepath.Abs("."); err == nil {
			if relative, err := filepath.Rel(here, absolute); err == nil && filepath.IsLocal(relative) {
				return filepath.ToSlash(relative)
			}
		}
	}
	return filepath.Base(path)
}
