package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/demo"
	"github.com/fencectl/fencectl/internal/demo/page"
	"github.com/fencectl/fencectl/internal/spelling"
)

// demoReport is what fencectl demo prints with --format json.
type demoReport struct {
	Version       int                  `json:"version"`        // 1
	ServerVersion string               `json:"server_version"` // PostgreSQL's, such as "15.18"
	Redis         string               `json:"redis"`          // what that was, in words; empty when no scenario needed it
	Etcd          string               `json:"etcd"`           // the same
	Scenarios     []demoScenarioReport `json:"scenarios"`      // in the order in which they ran
	Audit         *demoAuditReport     `json:"audit"`          // null when only some scenarios were run
	Problems      []string             `json:"problems"`       // what was not proven, and why; empty when all was
}

type demoScenarioReport struct {
	Name    string          `json:"name"`
	Title   string          `json:"title"`
	Without demoRoundReport `json:"without"`
	With    demoRoundReport `json:"with"`
}

type demoRoundReport struct {
	Label   string            `json:"label"`   // what was in place
	Damaged bool              `json:"damaged"` // data was lost
	Verdict string            `json:"verdict"` // what became of the data
	Events  []demoEventReport `json:"events"`  // in the order in which they happened
}

type demoEventReport struct {
	AtMS     float64 `json:"at_ms"` // since the round began
	Actor    string  `json:"actor"` // a worker, lock (the lock service), data (the database) or operator
	Kind     string  `json:"kind"`
	Token    int64   `json:"token,omitempty"`    // the actor's
	On       string  `json:"on,omitempty"`       // the lock, fence or row
	Toward   string  `json:"toward,omitempty"`   // whom the actor spoke to: lock or data
	Concerns string  `json:"concerns,omitempty"` // the worker whom it is about, where that is not the actor
	LastsMS  float64 `json:"lasts_ms,omitempty"` // of a grant, without a renewal
	Text     string  `json:"text"`               // what happened, with the actor as its subject
	SQL      string  `json:"sql,omitempty"`      // the statement
	Outcome  string  `json:"outcome,omitempty"`  // accepted, no rows or refused
	Stored   int64   `json:"stored,omitempty"`   // where the fence stands after a claim or a write
	SQLState string  `json:"sqlstate,omitempty"` // of a refusal
	Message  string  `json:"message,omitempty"`  // of a refusal, the server's
	Hint     string  `json:"hint,omitempty"`     // of a refusal, the server's
}

type demoAuditReport struct {
	FindingsBefore int `json:"findings_before"` // before anything was protected
	FindingsAfter  int `json:"findings_after"`  // after everything was
}

// demoListReport is what fencectl demo --list prints with --format json.
type demoListReport struct {
	Version   int                `json:"version"` // 1
	Scenarios []demoListScenario `json:"scenarios"`
}

type demoListScenario struct {
	Name  string `json:"name"`
	Title string `json:"title"`
}

func (a *app) demoCommand() *cobra.Command {
	var (
		list, keep bool
		html       string
		services   demo.Options
		format     *choice
	)
	cmd := &cobra.Command{
		Use:   "demo [SCENARIO...]",
		Short: "Show how data is lost under a lock, and that a fence keeps it",
		Long: `Show, live, how data is lost although there is a lock, and that a fence keeps it. Every scenario is run twice: without
protection, where the damage has to happen, and with it, where it must not.

It starts a PostgreSQL server of its own, from the binaries that are installed on this machine (FENCECTL_PG_BIN says where
they are), and removes it afterwards. With --dsn it uses a given server, in a database of its own (fencectl_demo_...) that it
drops afterwards. Some scenarios have their lock in Redis or in etcd: that is a redis-server of its own where one is installed,
else a Redis inside this process, and an etcd inside this process. With --redis-url and --etcd-endpoints they are given ones, in
which the demo only touches keys of its own. The environment's DATABASE_URL, REDIS_URL and the like are not looked at.

With --html it also writes what happened as a page with a timeline of every run, for a browser; the page needs nothing else.

Exit status: 0 all was shown as it should be; 1 a damage did not show, or a fence let one through; 2 wrong usage, no server
or another error; 130 interrupted.`,
		Example: `  fencectl demo
  fencectl demo --list
  fencectl demo --html demo.html
  fencectl demo sleeping-owner`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				if len(args) > 0 || html != "" {
					return &usageError{cmd, "--list runs nothing: it takes no scenario and no --html"}
				}
				return a.listScenarios(format.json())
			}
			scenarios, err := scenariosNamed(cmd, args)
			if err != nil {
				return err
			}
			options := &services
			options.DSN, options.Scenarios = a.dsn, scenarios
			var picture *pendingFile
			if html != "" {
				if picture, err = createPending(html); err != nil {
					return &usageError{cmd, "--html: " + err.Error()}
				}
				defer picture.discard()
			}
			if !format.json() {
				options.Narrator = &narration{app: a}
			}
			if keep {
				options.Hold = a.holdDemo
			}
			report, err := demo.Run(cmd.Context(), options)
			if err != nil {
				return err
			}
			if format.json() {
				if err := printJSON(a.stdout, reportOfDemo(report)); err != nil {
					return err
				}
			}
			if picture != nil {
				if err := a.drawDemo(picture, report); err != nil {
					return fmt.Errorf("writing %s: %w", html, err)
				}
			}
			return a.judgeDemo(report)
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the scenarios and run none")
	cmd.Flags().BoolVar(&keep, "keep", false, "at the end, keep the database to look around in it, until Ctrl-C")
	cmd.Flags().StringVar(&html, "html", "", "also write a page with a timeline of every run to `FILE`")
	cmd.Flags().StringVar(&services.RedisURL, "redis-url", "", "use this Redis, a redis:// `URL`")
	cmd.Flags().StringSliceVar(&services.EtcdEndpoints, "etcd-endpoints", nil, "use the etcd at these `HOST:PORT`s")
	format = formatFlag(cmd)
	return cmd
}

// drawDemo writes the page, and says where it is.
func (a *app) drawDemo(picture *pendingFile, report *demo.Report) error {
	if err := page.HTML(picture, &page.Document{Report: report, Program: versions().Fencectl, At: time.Now()}); err != nil {
		return err
	}
	if err := picture.keep(); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "fencectl: the timelines are in %s: open it in a browser\n", picture.name)
	return nil
}

// A pendingFile becomes a file of that name when all is written, and until then is one beside it: a run that fails or is
// interrupted leaves an earlier one as it was, and a name that is no good is known before the run.
type pendingFile struct {
	*os.File
	name string
}

func createPending(name string) (*pendingFile, error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return nil, fmt.Errorf("%s is a directory", name)
	}
	dir := filepath.Dir(name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no directory %s", dir)
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(name)+"-*")
	if err != nil {
		return nil, fmt.Errorf("cannot write to %s: %w", dir, errors.Unwrap(err))
	}
	return &pendingFile{f, name}, nil
}

func (p *pendingFile) keep() error {
	return errors.Join(p.Chmod(0o644), p.Close(), os.Rename(p.File.Name(), p.name))
}

// discard is also for one that was kept.
func (p *pendingFile) discard() {
	p.Close()
	os.Remove(p.File.Name())
}

// judgeDemo says what the demo has not proven, one line each.
func (a *app) judgeDemo(report *demo.Report) error {
	problems := report.Problems()
	for _, problem := range problems {
		fmt.Fprintf(a.stderr, "fencectl: not proven: %s\n", oneLine(problem))
	}
	if len(problems) > 0 {
		return &reported{statusRefused}
	}
	return nil
}

func completeScenarios(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, s := range demo.Scenarios() {
		names = append(names, s.Name+"\t"+s.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func scenariosNamed(cmd *cobra.Command, names []string) ([]demo.Scenario, error) {
	known := map[string]demo.Scenario{}
	var all []string
	for _, s := range demo.Scenarios() {
		known[s.Name] = s
		all = append(all, s.Name)
	}
	var wanted []demo.Scenario
	for _, name := range names {
		s, ok := known[name]
		if !ok {
			message := fmt.Sprintf("there is no scenario %q", name)
			if near, found := spelling.Closest(name, all); found {
				return nil, &usageError{cmd, fmt.Sprintf("%s; did you mean %s?", message, near)}
			}
			return nil, &usageError{cmd, fmt.Sprintf("%s; there are %s", message, strings.Join(all, ", "))}
		}
		wanted = append(wanted, s)
	}
	return wanted, nil
}

func (a *app) listScenarios(asJSON bool) error {
	report := demoListReport{Version: 1}
	l := listing{header: []string{"SCENARIO", "SHOWS"}, wrap: []int{1}}
	for _, s := range demo.Scenarios() {
		report.Scenarios = append(report.Scenarios, demoListScenario{s.Name, s.Title})
		l.rows = append(l.rows, []string{s.Name, s.Title})
	}
	if asJSON {
		return printJSON(a.stdout, report)
	}
	a.printListing(l)
	return nil
}

// holdDemo keeps the demo's database until somebody presses Ctrl-C.
func (a *app) holdDemo(ctx context.Context, where string) {
	fmt.Fprintf(a.stderr, "\nfencectl: the database is kept until Ctrl-C: %s\n", where)
	<-ctx.Done()
}

func reportOfDemo(r *demo.Report) demoReport {
	report := demoReport{Version: 1, ServerVersion: r.ServerVersion, Redis: r.Redis, Etcd: r.Etcd, Problems: append([]string{}, r.Problems()...)}
	for _, result := range r.Results {
		report.Scenarios = append(report.Scenarios, demoScenarioReport{
			Name: result.Scenario.Name, Title: result.Scenario.Title, Without: reportOfRound(result.Without), With: reportOfRound(result.With),
		})
	}
	if r.Before != nil && r.After != nil {
		report.Audit = &demoAuditReport{FindingsBefore: r.Before.Summary.Findings, FindingsAfter: r.After.Summary.Findings}
	}
	return report
}

func reportOfRound(r demo.Round) demoRoundReport {
	report := demoRoundReport{Label: r.Label, Damaged: r.Damaged, Verdict: r.Verdict}
	for _, e := range r.Events {
		report.Events = append(report.Events, demoEventReport{
			AtMS: float64(e.At.Microseconds()) / 1000, Actor: e.Actor, Kind: string(e.Kind), Token: int64(e.Token), On: e.On, Toward: e.Toward,
			Concerns: e.Concerns, LastsMS: float64(e.Lasts.Microseconds()) / 1000, Text: e.Text,
			SQL: e.SQL, Outcome: string(e.Outcome), Stored: int64(e.Stored), SQLState: e.SQLState, Message: e.Message, Hint: e.Hint,
		})
	}
	return report
}

// narration shows a demo as text, while it runs.
type narration struct {
	*app
	chapters int
	inLines  bool // the line before was one of Line's
}

const (
	textIndent   = "   "
	eventIndent  = "                                " // as wide as an event's time, actor and token
	widestProse  = 100                                // longer lines are hard to read, however wide the terminal is
	narrowestOut = 60
)

func (n *narration) Chapter(title, paragraph string) {
	if n.chapters++; n.chapters > 1 {
		fmt.Fprintln(n.stdout)
	}
	heading := fmt.Sprintf("%d. %s", n.chapters, strings.ToUpper(title[:1])+title[1:])
	fmt.Fprintf(n.stdout, "%s\n", n.in(heading, text.Bold))
	n.Paragraph(paragraph)
}

func (n *narration) Paragraph(paragraph string) {
	n.inLines = false
	fmt.Fprintln(n.stdout)
	n.wrapped(textIndent, textIndent, paragraph)
}

func (n *narration) Line(line string) {
	if !n.inLines {
		fmt.Fprintln(n.stdout)
	}
	n.inLines = true
	n.wrapped(textIndent, textIndent+"  ", oneLine(line))
}

func (n *narration) Round(protected bool, label string) {
	which := "WITHOUT"
	if protected {
		which = "WITH"
	}
	fmt.Fprintln(n.stdout)
	n.wrapped(textIndent+n.in(which+":", text.Bold)+" ", textIndent+strings.Repeat(" ", len(which+": ")), label)
}

func (n *narration) Event(e demo.Event) {
	token := ""
	if e.Token > 0 {
		token = "token " + e.Token.String()
	}
	begin := fmt.Sprintf("%s%5.3fs  %-8s  %-9s  ", textIndent, e.At.Seconds(), e.Actor, token)
	n.wrapped(begin, eventIndent, e.Text)
	if e.Kind == demo.Wrote {
		for line := range strings.Lines(e.SQL) {
			n.wrapped(eventIndent+"  ", eventIndent+"    ", line)
		}
	}
	switch e.Outcome {
	case demo.Accepted:
		if e.Kind == demo.Claimed {
			return // it says so itself
		}
		fmt.Fprintf(n.stdout, "%s%s\n", eventIndent, n.in("accepted", text.FgGreen))
	case demo.NoRows:
		fmt.Fprintf(n.stdout, "%s%s\n", eventIndent, n.in("accepted, no row matches", text.FgGreen))
	case demo.Refused:
		fmt.Fprintf(n.stdout, "%s%s\n", eventIndent, n.in("REFUSED, SQLSTATE "+e.SQLState, text.FgRed, text.Bold))
		n.wrapped(eventIndent, eventIndent, e.Message)
		n.wrapped(eventIndent, eventIndent, e.Hint)
	}
}

func (n *narration) Ended(r demo.Round) {
	answer, colour := "Intact: ", text.FgGreen
	if r.Damaged {
		answer, colour = "Damaged: ", text.FgRed
	}
	n.wrapped(textIndent+"=> "+n.in(answer, colour, text.Bold), textIndent+strings.Repeat(" ", len("=> "+answer)), r.Verdict)
}

func (n *narration) Concluded(r *demo.Report) {
	fmt.Fprintln(n.stdout)
	l := listing{header: []string{"SCENARIO", "WITHOUT", "WITH"}, wrap: []int{1, 2}}
	for _, result := range r.Results {
		l.rows = append(l.rows, []string{result.Scenario.Name, demoOutcome(result.Without), demoOutcome(result.With)})
	}
	if r.Before != nil && r.After != nil {
		l.rows = append(l.rows, []string{
			"audit", counted(r.Before.Summary.Findings, "finding", "findings"), counted(r.After.Summary.Findings, "finding", "findings"),
		})
	}
	n.printListing(l)
}

func demoOutcome(r demo.Round) string {
	if r.Damaged {
		return "DAMAGED: " + r.Verdict
	}
	return "intact: " + r.Verdict
}

// wrapped prints a text in lines of the terminal's width: the first after begin, the others after indent.
func (n *narration) wrapped(begin, indent, paragraph string) {
	width := min(max(n.width(), narrowestOut), widestProse) - text.StringWidthWithoutEscSequences(indent)
	for i, line := range wrapText(strings.Join(strings.Fields(paragraph), " "), width) {
		if i > 0 {
			begin = indent
		}
		fmt.Fprintln(n.stdout, begin+line)
	}
}

func (n *narration) in(s string, colours ...text.Color) string {
	if !n.colour() {
		return s
	}
	return text.Colors(colours).Sprint(s)
}
