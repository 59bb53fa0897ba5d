package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/plan"
)

// planReport is what fencectl plan prints with --format json.
type planReport struct {
	*plan.Plan
	Proposals []plannedTable `json:"proposals"`
}

type plannedTable struct {
	plan.Proposal
	Command string `json:"command"` // for a shell
}

func (a *app) planCommand() *cobra.Command {
	var format *choice
	cmd := &cobra.Command{
		Use:   "plan [TABLE...]",
		Short: "Propose a fence for each table that has none",
		Long: `Propose a fence for each table that has none: in its rows (strict or reentrant), one for the whole table, or one named by its
columns; with the reasons, and the command that puts it on, observing. Without arguments that is every table but those of migration
tools, the busiest first. Nothing is changed.

What it goes by: keys, and foreign keys that cascade; rows inserted, updated and deleted since the server counts; where
pg_stat_statements is installed, statements that truncate, lock what they read, or write many rows at a time (a role that is no member of
pg_read_all_stats sees only its own). What it cannot know is what your locks are for: where a proposal names a fence, put the name of
the lock. What could not be looked at is said.

The output is a shell script, with everything but the commands in comments: read it, change it, run it.

` + tableArguments + `

` + exitStatus,
		Example: `  fencectl plan
  fencectl plan 'billing.*' jobs
  fencectl plan --format json
  fencectl plan jobs > protect.sh && sh protect.sh`,
		ValidArgsFunction: a.completeTables,
		RunE: func(cmd *cobra.Command, args []string) error {
			server, err := a.open(cmd.Context(), connect.Options{})
			if err != nil {
				return err
			}
			defer server.Close()
			made, err := plan.Run(cmd.Context(), server.Pool, args)
			if err != nil {
				return err
			}
			for _, t := range made.Protected {
				fmt.Fprintf(a.stderr, "fencectl: table %s has a fence already: nothing to propose\n", oneLine(t.Quoted))
			}
			if format.json() {
				return printJSON(a.stdout, reportPlan(made))
			}
			a.printPlan(made)
			return nil
		},
	}
	format = formatFlag(cmd)
	return cmd
}

func reportPlan(p *plan.Plan) planReport {
	report := planReport{Plan: p, Proposals: []plannedTable{}}
	for _, proposal := range p.Proposals {
		report.Proposals = append(report.Proposals, plannedTable{proposal, shellCommand(proposal.Words())})
	}
	return report
}

func shellCommand(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = shellQuote(word)
	}
	return strings.Join(quoted, " ")
}

// printPlan prints a shell script. Comments are wrapped, commands never: they are to be pasted.
func (a *app) printPlan(p *plan.Plan) {
	comment := func(text string) {
		for _, line := range wrapText(oneLine(text), a.width()-2) {
			fmt.Fprintln(a.stdout, "# "+line)
		}
	}
	if !p.Installed && len(p.Proposals) > 0 {
		fmt.Fprintln(a.stdout, "fencectl install")
		fmt.Fprintln(a.stdout)
	}
	since := ""
	if p.CountedSince != nil {
		since = " since " + at(*p.CountedSince)
	}
	for _, proposal := range p.Proposals {
		what := "a fence in its rows, " + proposal.Mode
		if proposal.Fence != "" {
			what = "the fence " + proposal.Fence
		}
		comment(fmt.Sprintf("%s: %s. %s%s (%d inserted, %d updated, %d deleted).", proposal.Quoted, what,
			counted(int(proposal.Inserted+proposal.Updated+proposal.Deleted), "row was written", "rows were written"), since,
			proposal.Inserted, proposal.Updated, proposal.Deleted))
		for _, reason := range proposal.Reasons {
			comment(reason)
		}
		for _, caution := range proposal.Cautions {
			comment("Mind: " + caution)
		}
		fmt.Fprintf(a.stdout, "%s\n\n", shellCommand(proposal.Words()))
	}
	comment(fmt.Sprintf("%s without a fence.", counted(len(p.Proposals), "table", "tables")))
	for _, missing := range p.NotSeen {
		comment(fmt.Sprintf("Not looked at: %s: %s.", missing.What, missing.Reason))
	}
}
