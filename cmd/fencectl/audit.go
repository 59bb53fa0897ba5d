package main

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/project"
)

// failOnNever is the value of --fail-on that no finding reaches.
const failOnNever = "never"

func (a *app) auditCommand() *cobra.Command {
	var (
		config string
		failOn = &choice{value: string(audit.Error), allowed: []string{string(audit.Error), string(audit.Warning), string(audit.Info), failOnNever}}
		limit  int
		format *choice
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find what is unfenced, weakly fenced or wrongly fenced",
		Long: `Find tables without a fence, and fences with a gap: guards that were dropped, switched off or altered, partitions and
children without guards, triggers and rules that get around them, an unsafe token sequence, and more. Each finding says why it
matters and what mends it; each rule has a page in docs/rules.

Tables that must have a fence, so that one without is an error, and exemptions, each with its reason, are in the project's file
fencectl.yaml, found upwards from the working directory:

  audit:
    required: [jobs, 'billing.*']
    exempt:
      - {table: cache, reason: rebuilt every night}
      - {key: 'observing:public.orders', reason: enforced from May on}

An audit only reads. Any role can run it; what a role may not read is listed as not checked (fencectl grant ROLE --for monitor
gives all of it). The schema fencing need not be installed.

In JSON, a finding's fix is SQL when it ends in a semicolon, else a shell command, and its key is the same in every run.

` + exitStatus + ` A finding counts from the severity that --fail-on names.`,
		Example: `  fencectl audit
  fencectl audit --fail-on warning
  fencectl audit --format json --fail-on never`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return &usageError{cmd, "--limit must not be negative"}
			}
			settings, path, err := projectSettings(config)
			if err != nil {
				return err
			}
			server, err := a.open(cmd.Context(), connect.Options{})
			if err != nil {
				return err
			}
			defer server.Close()
			report, err := audit.Run(cmd.Context(), server.Pool, &settings.Audit)
			var wrong *audit.OptionError
			if errors.As(err, &wrong) {
				return fmt.Errorf("%s: %w", path, err)
			}
			if err != nil {
				return err
			}
			if format.json() {
				if err := printJSON(a.stdout, report); err != nil {
					return err
				}
			} else {
				a.printAudit(report, limit)
			}
			if failOn.value != failOnNever && report.Worst() != "" && report.Worst().AtLeast(audit.Severity(failOn.value)) {
				return &reported{statusRefused}
			}
			return nil
		},
	}
	choiceFlag(cmd, failOn, "fail-on", "exit with status 1 when there is a finding of this severity or a worse one")
	cmd.Flags().StringVar(&config, "config", "", "the project's `FILE` (default: "+project.FileName+" here or above)")
	cmd.Flags().IntVar(&limit, "limit", 20, "show at most `N` findings of a rule in the table (0: all)")
	format = formatFlag(cmd)
	return cmd
}

// projectSettings reads the project's file: the one that is named, else the one that is found. Without one it is as if it were
// empty.
func projectSettings(path string) (*project.Settings, string, error) {
	if path == "" {
		var err error
		if path, err = project.Find("."); err != nil {
			return nil, "", fmt.Errorf("looking for %s: %w", project.FileName, err)
		}
		if path == "" {
			return &project.Settings{}, "", nil
		}
	}
	settings, err := project.Read(path)
	return settings, path, err
}

// printAudit shows the findings by severity and rule. What is to be pasted is on lines of its own, and never broken.
func (a *app) printAudit(r *audit.Report, limit int) {
	for i := 0; i < len(r.Findings); {
		first := r.Findings[i]
		if i == 0 || first.Severity != r.Findings[i-1].Severity {
			a.heading(strings.ToUpper(string(first.Severity)), i > 0)
		}
		fmt.Fprintln(a.stdout)
		a.paragraph("", first.Rule+": "+first.Why)
		fmt.Fprintf(a.stdout, "%s\n", first.Docs)
		shown := 0
		for ; i < len(r.Findings) && r.Findings[i].Rule == first.Rule && r.Findings[i].Severity == first.Severity; i++ {
			if shown++; limit == 0 || shown <= limit {
				a.printFinding(r.Findings[i])
			}
		}
		if limit > 0 && shown > limit {
			fmt.Fprintf(a.stdout, "\n  and %d more: fencectl audit --limit 0\n", shown-limit)
		}
	}
	if len(r.Findings) > 0 {
		fmt.Fprintln(a.stdout)
	}
	fmt.Fprintln(a.stdout, auditSummary(r))
	for _, s := range r.Skipped {
		fmt.Fprintln(a.stdout)
		a.paragraph("", "not checked: "+s.Rule+": "+s.Reason)
	}
}

func (a *app) heading(title string, apart bool) {
	if apart {
		fmt.Fprintln(a.stdout)
	}
	if a.colour() {
		title = text.Bold.Sprint(title)
	}
	fmt.Fprintln(a.stdout, title)
}

func (a *app) paragraph(indent, words string) {
	for _, line := range wrapText(oneLine(words), a.width()-len(indent)) {
		fmt.Fprintf(a.stdout, "%s%s\n", indent, line)
	}
}

func (a *app) printFinding(f audit.Finding) {
	fmt.Fprintln(a.stdout)
	a.paragraph("  ", f.Object+" "+f.Message)
	for line := range strings.Lines(f.Fix) {
		fmt.Fprintf(a.stdout, "    %s\n", printable(strings.TrimRight(line, "\n")))
	}
}

// printable keeps a terminal from being told anything, and everything else as it is: it is to be pasted.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, line)
}

func auditSummary(r *audit.Report) string {
	var b strings.Builder
	if len(r.Findings) == 0 {
		b.WriteString("nothing found: ")
	}
	fmt.Fprintf(&b, "%s, %d fenced", counted(r.Summary.Tables, "table", "tables"), r.Summary.Fenced)
	if r.Summary.Exempt > 0 {
		fmt.Fprintf(&b, ", %d exempt", r.Summary.Exempt)
	}
	if len(r.Findings) > 0 {
		count := map[audit.Severity]int{}
		for _, f := range r.Findings {
			count[f.Severity]++
		}
		var parts []string
		for _, severity := range audit.Severities() {
			if n := count[severity]; n > 0 {
				one := string(severity)
				many := one + "s"
				if severity == audit.Info {
					one, many = "note", "notes"
				}
				parts = append(parts, counted(n, one, many))
			}
		}
		b.WriteString("; " + strings.Join(parts, ", "))
	}
	return b.String()
}
