package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/tableref"
)

// violationsReport is what fencectl violations prints with --format json.
type violationsReport struct {
	Version      int              `json:"version"`       // 1
	SinceSeconds float64          `json:"since_seconds"` // how far back the report goes
	Violations   []violationGroup `json:"violations"`    // the most frequent first
	Total        int64            `json:"total"`         // of all groups
}

// violationGroup is the violations of one kind on one table that came from one statement of one application and role.
type violationGroup struct {
	tableIdentity
	Kind            string    `json:"kind"` // stale, unfenced, invalid, unclaimed or truncate
	Fence           string    `json:"fence,omitempty"`
	ApplicationName string    `json:"application_name"`
	Role            string    `json:"role"`
	Query           string    `json:"query"`
	Count           int64     `json:"count"` // at most one is recorded per transaction, table and kind
	FirstSeen       time.Time `json:"first_seen"`
	LastSeen        time.Time `json:"last_seen"`
}

// period is a duration flag that knows days and weeks as well: 7d, 2w, 36h.
type period time.Duration

func (p *period) Type() string { return "period" }

func (p *period) String() string {
	d := time.Duration(*p)
	if d >= 24*time.Hour && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	return d.String()
}

func (p *period) Set(text string) error {
	unit := map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour}
	for suffix, length := range unit {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			n, err := strconv.ParseFloat(number, 64)
			if err != nil || !(n > 0) || n*length.Hours() > 24*366*100 {
				return errors.New("use a period such as 36h, 7d or 2w")
			}
			*p = period(n * float64(length))
			return nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("use a period such as 36h, 7d or 2w")
	}
	*p = period(d)
	return nil
}

func (a *app) violationsCommand() *cobra.Command {
	var (
		since    = period(7 * 24 * time.Hour)
		tables   []string
		exitCode bool
		format   *choice
	)
	cmd := &cobra.Command{
		Use:   "violations",
		Short: "Show who still writes without a valid token",
		Long: `Show the violations that observing fences recorded, grouped by table, kind, application, role and statement: which writers
have to be mended before fencectl enforce. At most one violation is recorded per transaction, table and kind.

Kinds: unfenced (no token presented), stale (an older token than the fence has accepted), unclaimed (a newer one than was
claimed), invalid (not a token), truncate.

` + exitStatus + ` With --exit-code it is 1 when there are violations.`,
		Example: `  fencectl violations
  fencectl violations --since 36h --table jobs
  fencectl violations --since 1d --exit-code && fencectl enforce jobs`,
		Args: arguments(cobra.NoArgs, "no arguments; a table goes with --table"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := a.open(cmd.Context(), connect.Options{Installed: true})
			if err != nil {
				return err
			}
			defer server.Close()
			params := catalogdb.GroupViolationsParams{
				WindowSeconds: time.Duration(since).Seconds(), AnyTable: len(tables) == 0, Tables: []string{},
			}
			if len(tables) > 0 {
				catalog, err := tableref.Read(cmd.Context(), server.Pool)
				if err != nil {
					return err
				}
				resolved, err := catalog.Resolve(tables, nil, "table")
				if err != nil {
					return err
				}
				for _, t := range resolved {
					params.Tables = append(params.Tables, t.Quoted)
				}
			}
			rows, err := catalogdb.New(server.Pool).GroupViolations(cmd.Context(), params)
			if err != nil {
				return fmt.Errorf("reading the violations: %w", err)
			}
			report := violationsReport{Version: 1, SinceSeconds: params.WindowSeconds, Violations: []violationGroup{}}
			for _, r := range rows {
				report.Total += r.Violations
				report.Violations = append(report.Violations, violationGroup{
					tableIdentity: tableIdentity{r.SchemaName, r.TableName}, Kind: r.Kind, Fence: r.Fence, ApplicationName: r.ApplicationName,
					Role: r.RoleName, Query: r.Query, Count: r.Violations, FirstSeen: r.FirstSeen.Time, LastSeen: r.LastSeen.Time,
				})
			}
			if format.json() {
				if err := printJSON(a.stdout, report); err != nil {
					return err
				}
			} else {
				a.printViolations(report, since)
			}
			if exitCode && report.Total > 0 {
				return &reported{statusRefused}
			}
			return nil
		},
	}
	cmd.Flags().Var(&since, "since", "how far back to look: 36h, 7d, 2w")
	cmd.Flags().StringArrayVar(&tables, "table", nil, "only this `TABLE` or pattern (may be repeated)")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with status 1 when there are violations")
	_ = cmd.RegisterFlagCompletionFunc("table", a.completeTables) // fails only for a flag that does not exist
	format = formatFlag(cmd)
	return cmd
}

func (a *app) printViolations(r violationsReport, since period) {
	if len(r.Violations) == 0 {
		fmt.Fprintf(a.stdout, "no violations in the last %s\n", since.String())
		return
	}
	for i, v := range r.Violations {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		by := "role " + v.Role
		if v.ApplicationName != "" {
			by = v.ApplicationName + ", " + by
		}
		what := v.Kind
		if v.Fence != "" {
			what += " (fence " + v.Fence + ")"
		}
		title := fmt.Sprintf("%dx %s on %s by %s", v.Count, oneLine(what), oneLine(v.Schema+"."+v.Table), oneLine(by))
		fmt.Fprintln(a.stdout, strings.Join(wrapText(title, a.width()), "\n"))
		if v.Count == 1 {
			fmt.Fprintf(a.stdout, "  %s\n", at(v.LastSeen))
		} else {
			fmt.Fprintf(a.stdout, "  from %s to %s\n", at(v.FirstSeen), at(v.LastSeen))
		}
		for _, line := range wrapText(oneLine(v.Query), a.width()-4) {
			fmt.Fprintf(a.stdout, "    %s\n", line)
		}
	}
	fmt.Fprintf(a.stdout, "\n%s from %s in the last %s\n", counted(int(r.Total), "violation", "violations"),
		counted(len(r.Violations), "place", "places"), since.String())
}
