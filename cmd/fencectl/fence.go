package main

import (
	"context"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/claim"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/lockwait"
	"github.com/fencectl/fencectl/internal/protect"
	"github.com/fencectl/fencectl/internal/spelling"
)

func (a *app) fenceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Show, claim and repair named fences",
		Long: `Show, claim and repair named fences. A named fence is the highest token that was claimed under a lock's name; many tables may
share it. Fences of single rows are in the rows themselves, in the column last_fencing_token.

` + exitStatus,
		Example: `  fencectl fence list
  fencectl fence show jobs/nightly
  fencectl fence claim jobs/nightly`,
		Args: subcommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.fenceListCommand(), a.fenceShowCommand(), a.fenceClaimCommand(), a.fenceLowerCommand())
	return cmd
}

// fenceReport is one fence in JSON.
type fenceReport struct {
	Name      string    `json:"name"`
	Token     int64     `json:"token"` // the number that the database compares
	Epoch     int       `json:"epoch"` // its two parts: the source's epoch
	Seq       int64     `json:"seq"`   // and the source's own counter
	ClaimedAt time.Time `json:"claimed_at"`
	ClaimedBy string    `json:"claimed_by"` // the role
}

// fenceListReport is what fencectl fence list prints with --format json.
type fenceListReport struct {
	Version int           `json:"version"` // 1
	Fences  []fenceReport `json:"fences"`  // the last claimed first
	More    bool          `json:"more"`    // there are more than --limit
}

// fenceShowReport is what fencectl fence show prints with --format json.
type fenceShowReport struct {
	Version int `json:"version"` // 1
	fenceReport
	Tables []protect.Protection `json:"tables"` // the tables that this fence protects
	Lease  *leaseReport         `json:"lease"`  // the lease of the same name, when somebody holds it; null otherwise
}

type leaseReport struct {
	Token       int64     `json:"token"`
	Owner       string    `json:"owner"` // random for each grant
	AcquiredAt  time.Time `json:"acquired_at"`
	ExpiresAt   time.Time `json:"expires_at"`
	ExpiresInMS int64     `json:"expires_in_ms"` // by the database's clock
}

func newFenceReport(name string, token int64, claimedAt time.Time, claimedBy string) fenceReport {
	t := fenced.Token(token)
	return fenceReport{Name: name, Token: token, Epoch: t.Epoch(), Seq: t.Seq(), ClaimedAt: claimedAt, ClaimedBy: claimedBy}
}

func (a *app) fenceListCommand() *cobra.Command {
	var (
		limit  int64
		format *choice
	)
	cmd := &cobra.Command{
		Use:   "list [PATTERN]",
		Short: "List the named fences, the last claimed first",
		Long: `List the named fences, the last claimed first. In PATTERN, * stands for any letters and ? for one.

` + exitStatus,
		Example: `  fencectl fence list
  fencectl fence list 'account/*' --limit 10
  fencectl fence list --format json`,
		Args: arguments(cobra.MaximumNArgs(1), "at most one pattern"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > 1_000_000 {
				return &usageError{cmd, "--limit must be from 1 to 1000000"}
			}
			like := "%"
			if len(args) == 1 {
				like = likePattern(args[0])
			}
			server, err := a.open(cmd.Context(), connect.Options{Installed: true})
			if err != nil {
				return err
			}
			defer server.Close()
			// One more than wanted tells whether there are more.
			rows, err := catalogdb.New(server.Pool).ListFences(cmd.Context(), catalogdb.ListFencesParams{NameLike: like, MaxRows: limit + 1})
			if err != nil {
				return fmt.Errorf("reading the fences: %w", err)
			}
			report := fenceListReport{Version: 1, Fences: []fenceReport{}, More: int64(len(rows)) > limit}
			for _, r := range rows[:min(int64(len(rows)), limit)] {
				report.Fences = append(report.Fences, newFenceReport(r.Name, r.Token, r.ClaimedAt.Time, r.ClaimedBy))
			}
			if format.json() {
				return printJSON(a.stdout, report)
			}
			if len(report.Fences) == 0 {
				fmt.Fprintln(a.stdout, "no fence has been claimed yet")
				return nil
			}
			l := listing{header: []string{"FENCE", "TOKEN", "CLAIMED AT", "BY"}, wrap: []int{0, 3}, right: []int{1}}
			for _, f := range report.Fences {
				l.rows = append(l.rows, []string{oneLine(f.Name), fenced.Token(f.Token).String(), at(f.ClaimedAt), oneLine(f.ClaimedBy)})
			}
			a.printListing(l)
			if report.More {
				fmt.Fprintf(a.stdout, "\nonly the first %d; see --limit and PATTERN\n", limit)
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&limit, "limit", 100, "list at most `N` fences")
	format = formatFlag(cmd)
	return cmd
}

// likePattern is a wildcard pattern as LIKE reads it.
func likePattern(pattern string) string {
	return strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`, `?`, `_`).Replace(pattern)
}

func (a *app) fenceShowCommand() *cobra.Command {
	var format *choice
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show one fence, the tables it protects and who holds its lease",
		Long: `Show one fence: its token, who claimed it, the tables that it protects, and the lease of the same name when somebody holds it.

` + exitStatus,
		Example: `  fencectl fence show jobs/nightly
  fencectl fence show jobs/nightly --format json`,
		Args: arguments(cobra.ExactArgs(1), "the name of one fence"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			server, err := a.open(ctx, connect.Options{Installed: true})
			if err != nil {
				return err
			}
			defer server.Close()
			queries := catalogdb.New(server.Pool)
			rows, err := queries.GetFence(ctx, args[0])
			if err != nil {
				return fmt.Errorf("reading the fence: %w", err)
			}
			if len(rows) == 0 {
				return unknownFence(ctx, queries, args[0])
			}
			f := rows[0]
			report := fenceShowReport{Version: 1, fenceReport: newFenceReport(f.Name, f.Token, f.ClaimedAt.Time, f.ClaimedBy), Tables: []protect.Protection{}}
			current, err := protect.Current(ctx, server.Pool)
			if err != nil {
				return err
			}
			for _, p := range current {
				if p.Kind == "named" && templateYields(p.Fence, f.Name) {
					report.Tables = append(report.Tables, p)
				}
			}
			sort.Slice(report.Tables, func(i, j int) bool { return report.Tables[i].Quoted < report.Tables[j].Quoted })
			leases, err := queries.GetLease(ctx, f.Name)
			if err != nil {
				return fmt.Errorf("reading the lease: %w", err)
			}
			for _, l := range leases {
				report.Lease = &leaseReport{
					Token: l.Token, Owner: l.Owner, AcquiredAt: l.AcquiredAt.Time, ExpiresAt: l.ExpiresAt.Time, ExpiresInMS: l.ExpiresInMs,
				}
			}
			if format.json() {
				return printJSON(a.stdout, report)
			}
			a.printFence(report)
			return nil
		},
	}
	format = formatFlag(cmd)
	return cmd
}

func (a *app) printFence(r fenceShowReport) {
	fmt.Fprintf(a.stdout, "fence    %s\n", oneLine(r.Name))
	token := fenced.Token(r.Token)
	fmt.Fprintf(a.stdout, "token    %s", token)
	if token.Epoch() > 0 {
		fmt.Fprintf(a.stdout, " (epoch %d, counter %d; %d in SQL)", r.Epoch, r.Seq, r.Token)
	}
	fmt.Fprintf(a.stdout, "\nclaimed  %s by role %s\n", at(r.ClaimedAt), oneLine(r.ClaimedBy))
	switch {
	case r.Lease == nil:
		fmt.Fprintln(a.stdout, "lease    nobody holds one of this name in this database")
	default:
		fmt.Fprintf(a.stdout, "lease    token %s, runs out in %s unless renewed (owner %s)\n",
			fenced.Token(r.Lease.Token), lockwait.Age(time.Duration(r.Lease.ExpiresInMS)*time.Millisecond), r.Lease.Owner)
	}
	if len(r.Tables) == 0 {
		fmt.Fprintln(a.stdout, "tables   none is protected by this fence")
	}
	for _, t := range r.Tables {
		fmt.Fprintf(a.stdout, "table    %s (%s, %s)\n", oneLine(t.Quoted), oneLine(t.InWords()), t.Enforcement)
	}
}

func unknownFence(ctx context.Context, queries *catalogdb.Queries, name string) error {
	rows, err := queries.ListFences(ctx, catalogdb.ListFencesParams{NameLike: "%", MaxRows: 1000})
	if err != nil {
		return fmt.Errorf("reading the fences: %w", err)
	}
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.Name
	}
	if near, ok := spelling.Closest(name, names); ok {
		return fmt.Errorf("fence %s has never been claimed; did you mean %s?", name, near)
	}
	return fmt.Errorf("fence %s has never been claimed; fencectl fence list shows those that have", name)
}

var placeholder = regexp.MustCompile(`\\\{[^{}]*\\\}`)

// templateYields says whether a fence of this name can come from the template.
func templateYields(template, name string) bool {
	expression := "(?s)^" + placeholder.ReplaceAllString(regexp.QuoteMeta(template), ".*") + "$"
	matched, err := regexp.MatchString(expression, name)
	return err == nil && matched
}

// claimReport is what fencectl fence claim prints with --format json.
type claimReport struct {
	Version  int                `json:"version"` // 1
	Name     string             `json:"name"`
	Token    int64              `json:"token"`    // the token that holds the fence now
	Previous int64              `json:"previous"` // the one before; 0 when the fence is new
	Evicted  []lockwait.Session `json:"evicted"`  // the sessions that were ended for it
}

func (a *app) fenceClaimCommand() *cobra.Command {
	var (
		tokenText string
		evict     time.Duration
		dryRun    bool
		format    *choice
	)
	cmd := &cobra.Command{
		Use:   "claim NAME",
		Short: "Raise a fence to a new token, so that older holders cannot write any more",
		Long: `Raise a fence to a token: once this has returned, no transaction with an older token commits a write under the fence.
Without --token a new token is drawn from this database. An equal token is fine (a retry); an older one is refused.

The claim waits for older writers that are in the middle of a transaction. With --evict it waits that long, then ends the
sessions that still hold the fence (pg_terminate_backend), and says which. A role may end its own sessions; for others it
needs pg_signal_backend.

` + exitStatus,
		Example: `  fencectl fence claim jobs/nightly
  fencectl fence claim jobs/nightly --evict 10s
  fencectl fence claim jobs/hourly --token 34 --dry-run`,
		Args: arguments(cobra.ExactArgs(1), "the name of one fence"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, name := cmd.Context(), args[0]
			var token fenced.Token
			if cmd.Flags().Changed("token") {
				var err error
				if token, err = parseToken(cmd, tokenText); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("evict") && evict <= 0 {
				return &usageError{cmd, "--evict must be a positive duration"}
			}
			if dryRun {
				number := "fencing.next_token()"
				if token > 0 {
					number = strconv.FormatInt(int64(token), 10)
				}
				fmt.Fprintf(a.stdout, "%s;\n", protect.Call("claim", protect.Literal(name), number))
				return nil
			}
			server, err := a.open(ctx, connect.Options{Installed: true, Write: true})
			if err != nil {
				return err
			}
			defer server.Close()
			drawn := token == 0
			if drawn {
				// In a transaction of its own: a token is good once its transaction has committed.
				next, err := catalogdb.New(server.Pool).NextToken(ctx)
				if err != nil {
					return fmt.Errorf("drawing a token: %w", err)
				}
				token = fenced.Token(next)
			}
			result, err := claim.Claim(ctx, server.Pool, name, token, &claim.Options{
				EvictAfter: evict,
				Waiting: func(blocking []lockwait.Session) {
					fmt.Fprintf(a.stderr, "fencectl: waiting for %s\n", oneLine(lockwait.List(blocking)))
				},
				Evicted: func(s lockwait.Session) { fmt.Fprintf(a.stderr, "fencectl: ended %s\n", oneLine(s.String())) },
			})
			switch {
			case err != nil && drawn: // for trying again with the same token
				return fmt.Errorf("claiming %s with token %s: %w", name, token, err)
			case err != nil:
				return err
			}
			if format.json() {
				return printJSON(a.stdout, claimReport{Version: 1, Name: name, Token: int64(token), Previous: int64(result.Previous), Evicted: result.Evicted})
			}
			before := "which is new"
			if result.Previous > 0 {
				before = fmt.Sprintf("before: %s", result.Previous)
			}
			fmt.Fprintf(a.stdout, "token %s claimed %s (%s)\n", token, oneLine(name), before)
			return nil
		},
	}
	cmd.Flags().StringVar(&tokenText, "token", "", "claim with this `TOKEN`, as 34 or 1:34 (default: a new one from this database)")
	cmd.Flags().DurationVar(&evict, "evict", 0, "after waiting this long end the sessions that still hold the fence")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the SQL and run nothing")
	format = formatFlag(cmd)
	return cmd
}

// lowerReport is what fencectl fence lower prints with --format json.
type lowerReport struct {
	Version  int    `json:"version"` // 1
	Name     string `json:"name"`
	Token    int64  `json:"token"`    // what the fence holds now
	Previous int64  `json:"previous"` // what it held before
}

func (a *app) fenceLowerCommand() *cobra.Command {
	var (
		reason string
		dryRun bool
		format *choice
	)
	cmd := &cobra.Command{
		Use:   "lower NAME TOKEN",
		Short: "Lower a fence that an absurd token has raised out of reach",
		Long: `Lower a fence, as a repair: when an absurd token was claimed and locks everybody out. TOKEN is the last right one (as 34 or
1:34), or 0. Writers with tokens between it and the present one are let in again, so make sure that none is left. The reason
is kept in fencing.bypass_log.

` + exitStatus,
		Example: `  fencectl fence lower jobs/nightly 34 --reason 'a test claimed 99999999'
  fencectl fence lower jobs/nightly 0 --reason 'start over' --dry-run`,
		Args: arguments(cobra.ExactArgs(2), "the name of a fence and a token"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, name := cmd.Context(), args[0]
			var token fenced.Token
			if args[1] != "0" {
				var err error
				if token, err = parseToken(cmd, args[1]); err != nil {
					return err
				}
			}
			if strings.TrimSpace(reason) == "" {
				return &usageError{cmd, "--reason is needed: say why the fence is lowered"}
			}
			if dryRun {
				fmt.Fprintf(a.stdout, "%s;\n", protect.Call("lower_fence",
					protect.Literal(name), strconv.FormatInt(int64(token), 10), protect.Literal(reason)))
				return nil
			}
			server, err := a.open(ctx, connect.Options{Installed: true, Write: true})
			if err != nil {
				return err
			}
			defer server.Close()
			previous, err := catalogdb.New(server.Pool).LowerFence(ctx, catalogdb.LowerFenceParams{Fence: name, Token: int64(token), Reason: reason})
			if err != nil {
				return err
			}
			if format.json() {
				return printJSON(a.stdout, lowerReport{Version: 1, Name: name, Token: int64(token), Previous: previous})
			}
			fmt.Fprintf(a.stdout, "lowered fence %s from %s to %s\n", oneLine(name), fenced.Token(previous), token)
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept in fencing.bypass_log")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the SQL and run nothing")
	format = formatFlag(cmd)
	return cmd
}

func parseToken(cmd *cobra.Command, text string) (fenced.Token, error) {
	token, err := fenced.ParseToken(text)
	if err != nil {
		return 0, &usageError{cmd, strings.TrimPrefix(err.Error(), "fenced: ")}
	}
	return token, nil
}
