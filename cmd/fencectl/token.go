package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/protect"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		Short:   "Draw fencing tokens from this database",
		Long:    "Draw fencing tokens from this database.\n\n" + exitStatus,
		Example: "  fencectl token next",
		Args:    subcommandsOnly,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.tokenNextCommand())
	return cmd
}

// tokenReport is what fencectl token next prints with --format json.
type tokenReport struct {
	Version int   `json:"version"` // 1
	Token   int64 `json:"token"`   // the number to present
	Epoch   int   `json:"epoch"`   // its two parts: the source's epoch
	Seq     int64 `json:"seq"`     // and the source's own counter
}

func (a *app) tokenNextCommand() *cobra.Command {
	var format *choice
	cmd := &cobra.Command{
		Use:   "next",
		Short: "Draw a new token and print it, alone on a line",
		Long: `Draw a new token, greater than every one before, and print it alone on a line: the plain number that SQL takes. When it is
printed it is committed; tokens are never issued twice, also across a crash of the server or a failover.

A token without a lock means "the newest run wins".

` + exitStatus,
		Example: `  fencectl token next
  fencectl fence claim jobs/nightly --token "$(fencectl token next)"
  fencectl token next --format json`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := a.open(cmd.Context(), connect.Options{Installed: true, Write: true})
			if err != nil {
				return err
			}
			defer server.Close()
			number, err := catalogdb.New(server.Pool).NextToken(cmd.Context())
			if err != nil {
				return fmt.Errorf("drawing a token: %w", err)
			}
			if format.json() {
				t := fenced.Token(number)
				return printJSON(a.stdout, tokenReport{Version: 1, Token: number, Epoch: t.Epoch(), Seq: t.Seq()})
			}
			fmt.Fprintln(a.stdout, number)
			return nil
		},
	}
	format = formatFlag(cmd)
	return cmd
}

func (a *app) epochCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "epoch",
		Short: "Show the token sources, and accept a source that was replaced",
		Long: `Show the token sources that this database knows, and accept one that was replaced. The epoch of a source is the high part of
its tokens. It grows when the source's numbers may have gone back (a failover, a restore, a new cluster), so that later
tokens stay greater.

` + exitStatus,
		Example: `  fencectl epoch show
  fencectl epoch adopt etcd 14841639068965178418`,
		Args: subcommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.epochShowCommand(), a.epochAdoptCommand())
	return cmd
}

// epochShowReport is what fencectl epoch show prints with --format json.
type epochShowReport struct {
	Version int            `json:"version"` // 1
	Sources []sourceReport `json:"sources"` // by name
}

// sourceReport is one token source.
type sourceReport struct {
	Name        string    `json:"name"`        // "postgres" is this database itself
	Incarnation string    `json:"incarnation"` // what issues the tokens now: a cluster id, a run id; "" before the first token
	Epoch       int32     `json:"epoch"`
	Since       time.Time `json:"since"`
}

func (a *app) epochShowCommand() *cobra.Command {
	var format *choice
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the token sources that this database knows, and their epochs",
		Long:  "Show the token sources that this database knows, what issues their tokens at present, and their epochs.\n\n" + exitStatus,
		Example: `  fencectl epoch show
  fencectl epoch show --format json`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := a.open(cmd.Context(), connect.Options{Installed: true})
			if err != nil {
				return err
			}
			defer server.Close()
			rows, err := catalogdb.New(server.Pool).ListSources(cmd.Context())
			if err != nil {
				return fmt.Errorf("reading the token sources: %w", err)
			}
			report := epochShowReport{Version: 1, Sources: []sourceReport{}}
			l := listing{header: []string{"SOURCE", "EPOCH", "INCARNATION", "SINCE"}, wrap: []int{0, 2}, right: []int{1}}
			for _, r := range rows {
				report.Sources = append(report.Sources, sourceReport{r.Name, r.Incarnation, r.Epoch, r.Since.Time})
				l.rows = append(l.rows, []string{oneLine(r.Name), strconv.Itoa(int(r.Epoch)), oneLine(r.Incarnation), at(r.Since.Time)})
			}
			if format.json() {
				return printJSON(a.stdout, report)
			}
			a.printListing(l)
			return nil
		},
	}
	format = formatFlag(cmd)
	return cmd
}

// epochAdoptReport is what fencectl epoch adopt prints with --format json.
type epochAdoptReport struct {
	Version     int    `json:"version"` // 1
	Source      string `json:"source"`
	Incarnation string `json:"incarnation"`
	Epoch       int32  `json:"epoch"` // the source's epoch now
}

func (a *app) epochAdoptCommand() *cobra.Command {
	var (
		dryRun bool
		format *choice
	)
	cmd := &cobra.Command{
		Use:   "adopt SOURCE INCARNATION",
		Short: "Accept that a token source was replaced or restored",
		Long: `Accept another incarnation of a token source (a new etcd cluster, a Redis that lost its data) and raise the source's epoch, so
that its tokens are greater than all of its predecessor's. Until then its tokens are refused: a worker that points at the
wrong cluster must not poison the fences. SOURCE and INCARNATION are in the error that the worker reports. A store that was
restored in place keeps its incarnation: adopt the same one again, and the epoch rises all the same.

The source postgres is this database itself: it notices a failover or restore on its own and needs no adopting.

` + exitStatus,
		Example: `  fencectl epoch adopt etcd 14841639068965178418
  fencectl epoch adopt redis 2f4b1c --dry-run`,
		Args: arguments(cobra.ExactArgs(2), "a source and its incarnation"),
		RunE: func(cmd *cobra.Command, args []string) error {
			for i, what := range []string{"source", "incarnation"} {
				if strings.TrimSpace(args[i]) == "" {
					return &usageError{cmd, "the " + what + " must not be empty"}
				}
			}
			if dryRun {
				fmt.Fprintf(a.stdout, "%s;\n", protect.Call("adopt_epoch", protect.Literal(args[0]), protect.Literal(args[1])))
				return nil
			}
			server, err := a.open(cmd.Context(), connect.Options{Installed: true, Write: true})
			if err != nil {
				return err
			}
			defer server.Close()
			epoch, err := catalogdb.New(server.Pool).AdoptEpoch(cmd.Context(), catalogdb.AdoptEpochParams{Source: args[0], Incarnation: args[1]})
			if err != nil {
				return err
			}
			if format.json() {
				return printJSON(a.stdout, epochAdoptReport{Version: 1, Source: args[0], Incarnation: args[1], Epoch: epoch})
			}
			fmt.Fprintf(a.stdout, "source %s is now %s, in epoch %d\n", oneLine(args[0]), oneLine(args[1]), epoch)
			return nil
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the SQL and run nothing")
	format = formatFlag(cmd)
	return cmd
}
