package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/torture"
	"github.com/fencectl/fencectl/internal/torture/history"
)

// tortureReport is what fencectl torture prints with --format json.
type tortureReport struct {
	Version       int                      `json:"version"` // 1
	Seed          uint64                   `json:"seed"`
	DurationMS    int64                    `json:"duration_ms"` // asked for
	TookMS        int64                    `json:"took_ms"`     // from the first worker to the last fault
	Workers       int                      `json:"workers"`
	Guards        bool                     `json:"guards"`
	SyncCommit    bool                     `json:"synchronous_commit"`
	ServerVersion int                      `json:"server_version"` // PostgreSQL's major version
	Missing       []string                 `json:"missing"`        // what could not be done on this machine
	Operations    []tortureOperationReport `json:"operations"`
	Refusals      []tortureRefusalReport   `json:"refusals"`
	FaultKinds    []tortureKindReport      `json:"fault_kinds"`
	Faults        []tortureFaultReport     `json:"faults"` // in the order in which they ended
	Rules         []tortureRuleReport      `json:"rules"`
	Violations    []history.Violation      `json:"violations"` // at most 25 of each rule
	LostByDesign  int                      `json:"lost_known"` // acknowledged, and gone with a promotion that was known to lose transactions
	Recovered     int                      `json:"recovered"`  // writes whose answer was lost, and which had happened
	Registers     int                      `json:"registers"`  // fences whose history was checked for linearizability
	Undecided     int                      `json:"undecided"`  // of those, where the search took too long
	Summary       tortureSummaryReport     `json:"summary"`
}

type tortureOperationReport struct {
	Operation string `json:"operation"`
	OK        int    `json:"ok"`
	Refused   int    `json:"refused"`
	Failed    int    `json:"failed"`  // certainly without effect
	Unknown   int    `json:"unknown"` // the answer was lost
}

type tortureRefusalReport struct {
	Operation string `json:"operation"`
	Refusal   string `json:"refusal"`
	Count     int    `json:"count"`
}

type tortureKindReport struct {
	Fault    string `json:"fault"`
	Planned  int    `json:"planned"`
	Injected int    `json:"injected"`
}

type tortureFaultReport struct {
	Lane      string `json:"lane"`
	Fault     string `json:"fault"`
	PlannedMS int64  `json:"planned_ms"`
	BeganMS   int64  `json:"began_ms"`
	EndedMS   int64  `json:"ended_ms"`
	Note      string `json:"note,omitempty"`
}

type tortureRuleReport struct {
	Rule       string `json:"rule"`
	Promise    string `json:"promise"`
	Violations int    `json:"violations"`
}

type tortureSummaryReport struct {
	Operations int `json:"operations"`
	Refused    int `json:"refused"` // writes and claims, by a fence
	Faults     int `json:"faults"`  // injected
	Violations int `json:"violations"`
}

// torturePlanReport is what fencectl torture --plan prints with --format json.
type torturePlanReport struct {
	Version int                   `json:"version"` // 1
	Seed    uint64                `json:"seed"`
	Faults  []torturePlannedFault `json:"faults"` // in the order in which they are due
}

type torturePlannedFault struct {
	AtMS  int64  `json:"at_ms"` // after the workers began
	Lane  string `json:"lane"`
	Fault string `json:"fault"`
	ForMS int64  `json:"for_ms,omitempty"` // how long something stays stopped, or dead
	ByMS  int64  `json:"by_ms,omitempty"`  // how far a clock jumps
}

func (a *app) tortureCommand() *cobra.Command {
	var (
		options torture.Options
		seed    uint64
		plan    bool
		html    string
		format  *choice
	)
	guards := &choice{value: "on", allowed: []string{"on", "off"}}
	commit := &choice{value: "on", allowed: []string{"on", "off"}}
	cmd := &cobra.Command{
		Use:   "torture",
		Short: "Break everything for minutes, and check that no fence gave way",
		Long: `Run workers on fenced tables while everything around them is broken, record all that they do, and check afterwards that no
promise was broken and no write was lost or done twice.

The workers are processes of their own, on locks of PostgreSQL and of a three-node etcd, some of them through PgBouncer in
transaction mode. They are stopped past their leases, killed, and have their clocks stepped; PostgreSQL is killed, frozen, and
replaced by a standby that lacks the last transactions; etcd loses its leader, and is restored from a snapshot.

It starts all servers itself, from the binaries that are installed on this machine (FENCECTL_PG_BIN says where PostgreSQL's
are), and removes them afterwards; --dsn and the like are not looked at. The seed decides which faults happen when; what
the workers are doing at that moment depends on the machine. With --guards off the tables are not protected: the check then
has to find damage, or it would be worth nothing. With --synchronous-commit off it has to find lost writes.

Exit status: 0 nothing was broken; 1 violations; 2 wrong usage, or it could not run; 130 interrupted.`,
		Example: `  fencectl torture --duration 10m --seed 7 --plan
  fencectl torture --duration 1s --seed 7 --workers 4 --html torture.html`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			options.GuardsOff, options.AsyncCommit, options.Seed = guards.value == "off", commit.value == "off", seed
			if !cmd.Flags().Changed("seed") {
				options.Seed = uint64(rand.Uint32()) // short enough to type
			}
			if err := options.Check(); err != nil {
				return &usageError{cmd, err.Error()}
			}
			if plan {
				return a.planTorture(&options, format.json())
			}
			return a.torture(cmd.Context(), &options, html, format.json())
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&options.Duration, "duration", time.Minute, "how long the workers work")
	flags.Uint64Var(&seed, "seed", 0, "what the plan of the faults follows from (default a random one, which is printed)")
	flags.IntVar(&options.Workers, "workers", torture.DefaultWorkers, "how many worker processes")
	flags.StringVar(&html, "html", "", "also write the report to this `FILE`, as a page for a browser")
	flags.BoolVar(&plan, "plan", false, "only print the plan of the faults")
	choiceFlag(cmd, guards, "guards", "protect the tables, or leave them unprotected as a control")
	choiceFlag(cmd, commit, "synchronous-commit", "wait for the disk before a write is acknowledged, or do not, as a control")
	format = formatFlag(cmd)
	cmd.AddCommand(a.torturePartCommand())
	return cmd
}

// torturePartCommand is what the processes of a run are started as.
func (a *app) torturePartCommand() *cobra.Command {
	return &cobra.Command{
		Use:    torturePart + " ROLE",
		Hidden: true,
		Args:   arguments(cobra.ExactArgs(1), "a role"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return torture.Part(cmd.Context(), args[0], a.stdin, a.stdout)
		},
	}
}

const torturePart = "part"

func (a *app) torture(ctx context.Context, options *torture.Options, html string, asJSON bool) (err error) {
	if options.Self, err = torture.Self("torture", torturePart); err != nil {
		return err
	}
	var page *os.File
	if html != "" {
		// Before the run: it would be a pity to find out afterwards that there is no such directory.
		if page, err = os.Create(html); err != nil {
			return err
		}
		defer page.Close()
	}
	if a.terminal() {
		fmt.Fprintf(a.stderr, "fencectl: seed %d, %v\n", options.Seed, options.Duration)
		options.Tell = func(f torture.Injected) {
			fmt.Fprintf(a.stderr, "%8.2fs  %-10s  %s  %s\n", f.Ended.Seconds(), f.Lane, f.Kind, f.Note)
		}
	}
	report, err := torture.Run(ctx, options)
	if err != nil {
		return err
	}
	if asJSON {
		err = printJSON(a.stdout, reportOfTorture(report))
	} else {
		a.printTorture(report)
	}
	if err != nil {
		return err
	}
	if page != nil {
		if err := writePage(page, report); err != nil {
			return fmt.Errorf("writing %s: %w", html, err)
		}
	}
	if len(report.Verdict.Violations) > 0 {
		return &reported{statusRefused}
	}
	return nil
}

func writePage(page io.WriteCloser, report *torture.Report) error {
	if err := torture.WriteHTML(page, report); err != nil {
		return err
	}
	return page.Close()
}

func (a *app) planTorture(options *torture.Options, asJSON bool) error {
	faults, err := torture.Plan(options)
	if err != nil {
		return err
	}
	report := torturePlanReport{Version: 1, Seed: options.Seed}
	l := listing{header: []string{"AT", "WHERE", "FAULT", "FOR"}, right: []int{0, 3}}
	for _, f := range faults {
		report.Faults = append(report.Faults, torturePlannedFault{f.At.Milliseconds(), f.Lane, string(f.Kind), f.For.Milliseconds(), f.By.Milliseconds()})
		l.rows = append(l.rows, []string{fmt.Sprintf("%.2fs", f.At.Seconds()), f.Lane, string(f.Kind), cmp.Or(f.For, f.By).String()})
	}
	if asJSON {
		return printJSON(a.stdout, report)
	}
	a.printListing(l)
	fmt.Fprintf(a.stdout, "\n%s from seed %d\n", counted(len(faults), "fault", "faults"), options.Seed)
	return nil
}

func (a *app) printTorture(r *torture.Report) {
	guards := "guards on"
	if r.Options.GuardsOff {
		guards = "guards OFF"
	}
	if r.Options.AsyncCommit {
		guards += ", synchronous_commit OFF"
	}
	fmt.Fprintf(a.stdout, "Seed %d, %v, %d workers, PostgreSQL %d, %s\n", r.Options.Seed, r.Took.Round(time.Second), r.Options.Workers, r.ServerVersion, guards)
	for _, missing := range r.Missing {
		fmt.Fprintf(a.stdout, "Not here: %s\n", missing)
	}
	fmt.Fprintln(a.stdout)
	l := listing{header: []string{"OPERATION", "OK", "REFUSED", "FAILED", "UNKNOWN"}, right: []int{1, 2, 3, 4}}
	for _, c := range r.Operations() {
		l.rows = append(l.rows, []string{string(c.Kind), fmt.Sprint(c.OK), fmt.Sprint(c.Refused), fmt.Sprint(c.Failed), fmt.Sprint(c.Unknown)})
	}
	a.printListing(l)
	fmt.Fprintln(a.stdout)
	l = listing{header: []string{"REFUSED", "TIMES", "BECAUSE OF"}, right: []int{1}, wrap: []int{2}}
	for _, c := range r.Refusals() {
		l.rows = append(l.rows, []string{string(c.Kind), fmt.Sprint(c.N), strings.TrimSuffix(c.Refusal+": "+c.What(), ": ")})
	}
	a.printListing(l)
	fmt.Fprintln(a.stdout)
	l = listing{header: []string{"FAULT", "PLANNED", "INJECTED"}, right: []int{1, 2}, wrap: []int{0}}
	for _, c := range r.Faults() {
		l.rows = append(l.rows, []string{c.Kind.What(), fmt.Sprint(c.Planned), fmt.Sprint(c.Injected)})
	}
	a.printListing(l)
	fmt.Fprintln(a.stdout)
	l = listing{header: []string{"PROMISE", "VIOLATIONS"}, right: []int{1}, wrap: []int{0}}
	for _, c := range r.Rules() {
		l.rows = append(l.rows, []string{c.Rule.Promise(), fmt.Sprint(c.N)})
	}
	a.printListing(l)
	shown := map[history.Rule]int{}
	for _, v := range r.Verdict.Violations {
		const most = 3 // of each rule; the page and the JSON have more
		if shown[v.Rule]++; shown[v.Rule] <= most {
			fmt.Fprintf(a.stdout, "\n%s, %s: %s\n", v.Rule, v.Subject, oneLine(v.Text))
			for _, op := range v.Around {
				fmt.Fprintf(a.stdout, "  %s\n", oneLine(torture.Describe(r, op)))
			}
		}
	}
	v := r.Verdict
	fmt.Fprintf(a.stdout, "\n%d writes and claims went with a promotion that was known to lose transactions; %d writes had happened although their answer was lost.\n", v.Lost, v.Recovered)
	fmt.Fprintf(a.stdout, "%d fences checked for linearizability, %d undecided.\n", v.Registers, v.Undecided)
	s := summaryOfTorture(r)
	fmt.Fprintf(a.stdout, "%s, %d refused, %s, %s.\n", counted(s.Operations, "operation", "operations"), s.Refused, counted(s.Faults, "fault", "faults"), counted(s.Violations, "violation", "violations"))
}

func summaryOfTorture(r *torture.Report) tortureSummaryReport {
	return tortureSummaryReport{
		Operations: len(r.History.Ops), Refused: r.Refused(), Faults: len(r.Injected), Violations: len(r.Verdict.Violations),
	}
}

func reportOfTorture(r *torture.Report) tortureReport {
	report := tortureReport{
		Version: 1, Seed: r.Options.Seed, DurationMS: r.Options.Duration.Milliseconds(), TookMS: r.Took.Milliseconds(), Workers: r.Options.Workers,
		Guards: !r.Options.GuardsOff, SyncCommit: !r.Options.AsyncCommit, ServerVersion: r.ServerVersion, Missing: append([]string{}, r.Missing...),
		Refusals: []tortureRefusalReport{}, Faults: []tortureFaultReport{}, Violations: []history.Violation{},
		LostByDesign: r.Verdict.Lost, Recovered: r.Verdict.Recovered, Registers: r.Verdict.Registers, Undecided: r.Verdict.Undecided,
		Summary: summaryOfTorture(r),
	}
	for _, c := range r.Operations() {
		report.Operations = append(report.Operations, tortureOperationReport{string(c.Kind), c.OK, c.Refused, c.Failed, c.Unknown})
	}
	for _, c := range r.Refusals() {
		report.Refusals = append(report.Refusals, tortureRefusalReport{string(c.Kind), c.Refusal, c.N})
	}
	for _, c := range r.Faults() {
		report.FaultKinds = append(report.FaultKinds, tortureKindReport{string(c.Kind), c.Planned, c.Injected})
	}
	for _, f := range r.Injected {
		report.Faults = append(report.Faults, tortureFaultReport{f.Lane, string(f.Kind), f.At.Milliseconds(), f.Began.Milliseconds(), f.Ended.Milliseconds(), f.Note})
	}
	for _, c := range r.Rules() {
		report.Rules = append(report.Rules, tortureRuleReport{string(c.Rule), c.Rule.Promise(), c.N})
	}
	for _, v := range r.Verdict.Violations {
		if v.Around != nil {
			report.Violations = append(report.Violations, v)
		}
	}
	return report
}
