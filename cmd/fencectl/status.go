package main

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/protect"
	"github.com/fencectl/fencectl/internal/tableref"
)

// statusReport is what fencectl status prints with --format json.
type statusReport struct {
	Version       int           `json:"version"` // 1
	Database      string        `json:"database"`
	ServerVersion string        `json:"server_version"` // PostgreSQL's, such as "15.18"
	SchemaVersion string        `json:"schema_version"` // the fencing schema's, such as "0.1.0"; "" when not the role's to see
	Tables        []statusTable `json:"tables"`         // the protected tables, by schema and name
	Summary       statusSummary `json:"summary"`
}

type statusTable struct {
	protect.Protection
	Violations24h int64 `json:"violations_24h"` // recorded in the last 24 hours
}

type statusSummary struct {
	Protected     int   `json:"protected"`      // tables with a fence
	Enforcing     int   `json:"enforcing"`      // of them, those that refuse
	Observing     int   `json:"observing"`      // of them, those that only record
	Unprotected   int   `json:"unprotected"`    // tables that could have a fence and have none; those of migration tools do not count
	Violations24h int64 `json:"violations_24h"` // on all tables, also ones that are no longer protected
}

const secondsPerDay = 24 * 60 * 60

func (a *app) statusCommand() *cobra.Command {
	var format *choice
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is protected and how",
		Long: `Show the protected tables: what kind of fence, whether it enforces or only observes, and how many violations were recorded
in the last 24 hours (violations are recorded where a fence observes; where it enforces, they are refused).

` + exitStatus,
		Example: `  fencectl status
  fencectl status --format json`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := a.open(cmd.Context(), connect.Options{Installed: true})
			if err != nil {
				return err
			}
			defer server.Close()
			report, err := readStatus(cmd.Context(), server)
			if err != nil {
				return err
			}
			if format.json() {
				return printJSON(a.stdout, report)
			}
			a.printStatus(report)
			return nil
		},
	}
	format = formatFlag(cmd)
	return cmd
}

func readStatus(ctx context.Context, server *connect.Server) (*statusReport, error) {
	current, err := protect.Current(ctx, server.Pool)
	if err != nil {
		return nil, err
	}
	catalog, err := tableref.Read(ctx, server.Pool)
	if err != nil {
		return nil, err
	}
	counts, err := catalogdb.New(server.Pool).ViolationsByTable(ctx, secondsPerDay)
	if err != nil {
		return nil, fmt.Errorf("counting the violations: %w", err)
	}
	report := &statusReport{
		Version: 1, Database: server.Database, ServerVersion: server.Version, SchemaVersion: server.SchemaVersion, Tables: []statusTable{},
	}
	violations := map[[2]string]int64{}
	for _, c := range counts {
		violations[[2]string{c.SchemaName, c.TableName}] = c.Violations
		report.Summary.Violations24h += c.Violations
	}
	for _, p := range current {
		report.Tables = append(report.Tables, statusTable{p, violations[[2]string{p.Schema, p.Table}]})
		report.Summary.Protected++
		if p.Enforcement == "observe" {
			report.Summary.Observing++
		} else {
			report.Summary.Enforcing++
		}
	}
	sort.Slice(report.Tables, func(i, j int) bool {
		a, b := report.Tables[i], report.Tables[j]
		if a.Schema != b.Schema {
			return a.Schema < b.Schema
		}
		return a.Table < b.Table
	})
	for _, t := range catalog.Tables() {
		if _, ok := current[t.OID]; !ok && !t.Bookkeeping {
			report.Summary.Unprotected++
		}
	}
	return report, nil
}

func (a *app) printStatus(r *statusReport) {
	if len(r.Tables) > 0 {
		l := listing{header: []string{"TABLE", "FENCE", "ENFORCEMENT", "VIOLATIONS 24H"}, wrap: []int{0, 1}, right: []int{3}}
		for _, t := range r.Tables {
			l.rows = append(l.rows, []string{oneLine(t.Quoted), oneLine(t.InWords()), t.Enforcement, strconv.FormatInt(t.Violations24h, 10)})
		}
		a.printListing(l)
		fmt.Fprintln(a.stdout)
	}
	fmt.Fprintf(a.stdout, "database %s (PostgreSQL %s, fencing %s): %s protected, %d not\n",
		oneLine(r.Database), shortVersion(r.ServerVersion), r.SchemaVersion, counted(r.Summary.Protected, "table", "tables"), r.Summary.Unprotected)
	if r.Summary.Violations24h > 0 {
		fmt.Fprintf(a.stdout, "%s in the last 24 hours: fencectl violations --since 1d\n", counted(int(r.Summary.Violations24h), "violation", "violations"))
	}
	if r.Summary.Protected == 0 {
		fmt.Fprintln(a.stdout, "nothing is protected yet: fencectl protect TABLE --observe")
	}
}

// shortVersion drops the packager's note: "15.18 (Debian 15.18-1.pgdg120+1)".
func shortVersion(version string) string {
	short, _, _ := strings.Cut(version, " ")
	return short
}
