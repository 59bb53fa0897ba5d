package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/protect"
	"github.com/fencectl/fencectl/internal/tableref"
)

// quietFlags say when enforce takes a table to be quiet.
type quietFlags struct {
	window period
	since  moment
}

func (f *quietFlags) register(cmd *cobra.Command) {
	cmd.Flags().Var(&f.window, "if-quiet", "enforce only tables observed that long without a violation: 36h, 7d, 2w")
	cmd.Flags().Var(&f.since, "observed-since", "since when the tables are observed, where the server does not know: 2026-01-31, or a time (RFC 3339)")
}

// moment is a flag for a day, which begins at midnight here, or a time.
type moment time.Time

func (m *moment) Type() string { return "date" }

func (m *moment) String() string {
	if time.Time(*m).IsZero() {
		return ""
	}
	return time.Time(*m).Format(time.RFC3339)
}

func (m *moment) Set(text string) error {
	t, err := time.ParseInLocation(time.DateOnly, text, time.Local)
	if err != nil {
		if t, err = time.Parse(time.RFC3339, text); err != nil {
			return errors.New("use a day such as 2026-01-31, or a time such as 2026-01-31T09:00:00Z")
		}
	}
	*m = moment(t)
	return nil
}

// noisyTable is one that enforce --if-quiet leaves as it is.
type noisyTable struct {
	tableIdentity
	Reason        string     `json:"reason"`         // one line
	Violations    int64      `json:"violations"`     // recorded in the window
	LastViolation *time.Time `json:"last_violation"` // of them; null without any
	ObservedSince *time.Time `json:"observed_since"` // at the latest; null when not known
}

// enforceQuiet enforces those of the tables that were quiet, and names the others.
func (a *app) enforceQuiet(cmd *cobra.Command, args []string, flags applyFlags, quiet quietFlags) error {
	server, tables, current, err := a.openProtected(cmd, args, flags)
	if err != nil {
		return err
	}
	defer server.Close()
	if _, err := switching(protect.Enforce)(tables, current); err != nil {
		return err
	}
	heard, err := protect.Listen(cmd.Context(), server.Pool, tables, time.Duration(quiet.window), time.Time(quiet.since))
	if err != nil {
		return err
	}
	flags.notQuiet = []noisyTable{}
	var calm []tableref.Table
	for _, t := range tables {
		silence, observes := heard[t.OID]
		switch {
		case !observes:
			fmt.Fprintf(a.stderr, "fencectl: table %s enforces already: nothing to do\n", oneLine(t.Quoted))
		case silence.Quiet():
			calm = append(calm, t)
		default:
			reason := whyNotQuiet(silence, quiet.window)
			fmt.Fprintf(a.stderr, "fencectl: table %s is not quiet, and left as it is: %s\n", oneLine(t.Quoted), oneLine(reason))
			flags.notQuiet = append(flags.notQuiet, noisyTable{
				tableIdentity: identity(t), Reason: oneLine(reason),
				Violations: silence.Violations, LastViolation: silence.LastViolation, ObservedSince: silence.ObservedSince,
			})
		}
	}
	if err := a.apply(cmd.Context(), server, protect.Enforce(calm), flags); err != nil {
		return err
	}
	if len(flags.notQuiet) > 0 {
		return &reported{statusRefused}
	}
	return nil
}

func whyNotQuiet(s protect.Silence, window period) string {
	switch {
	case s.Violations > 0:
		return fmt.Sprintf("%s in the last %s, the last one at %s", counted(int(s.Violations), "violation", "violations"), window.String(), at(*s.LastViolation))
	case s.Problems != "":
		return fmt.Sprintf("not everything is observed: %s (see: fencectl audit)", s.Problems)
	case s.ObservedSince == nil:
		return "since when it is observed is not known; say so with --observed-since"
	}
	return fmt.Sprintf("its guards are only known to observe as they do since %s", at(*s.ObservedSince))
}
