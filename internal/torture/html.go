package torture

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/torture/history"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// Describe tells an operation in one line; times are since the first operation of the run.
func Describe(r *Report, op *history.Op) string {
	line := fmt.Sprintf("%9.3fs  %s %s %s", r.since(op.Invoked), op.ID, op.Kind, op.Lock)
	if op.Token > 0 {
		line += fmt.Sprintf(" token %v", fenced.Token(op.Token))
	}
	for _, target := range op.Targets {
		line += " " + string(target)
		if row, ok := op.Rows[target]; ok {
			line += fmt.Sprintf("=%d", row.Version)
		}
	}
	line += ": " + outcome(op)
	if op.Returned > 0 {
		line += fmt.Sprintf(" after %.3fs", float64(op.Returned-op.Invoked)/float64(time.Second))
	}
	return line
}

func (r *Report) since(at int64) float64 {
	if len(r.History.Ops) == 0 {
		return 0
	}
	return float64(at-r.History.Ops[0].Invoked) / float64(time.Second)
}

func outcome(op *history.Op) string {
	switch {
	case op.Returned == 0:
		return "no answer"
	case op.Outcome == history.Refused && op.Stored > 0:
		return fmt.Sprintf("refused, %s, the fence holds %v", op.Refusal, fenced.Token(op.Stored))
	case op.Outcome == history.Refused:
		return "refused, " + op.Refusal
	}
	return string(op.Outcome)
}

type pageView struct {
	*Report
	Title      string
	Lanes      []laneView
	Legend     []legendView
	Ticks      []tickView
	Broken     []brokenView
	Total      int
	Faulted    int
	Violations int
	Took       string
}

type laneView struct {
	Name string
	Bars []barView
}

type barView struct{ Kind, Left, Width, Title string }

type legendView struct{ Kind, What string }

type tickView struct{ Left, Label string }

type brokenView struct {
	Rule       history.Rule
	N          int
	Violations []violationView
}

type violationView struct {
	Subject, Text string
	Around        []opView
}

type opView struct {
	At, Took, Worker, What, Outcome string
	Involved                        bool
}

// WriteHTML writes the report as a page that needs nothing else: no script, no font, no network.
func WriteHTML(w io.Writer, r *Report) error {
	v := pageView{
		Report: r, Title: "Fencing under faults", Total: len(r.History.Ops), Faulted: len(r.Injected), Violations: len(r.Verdict.Violations),
		Took: minutes(r.Took),
	}
	if r.Options.GuardsOff {
		v.Title += ": the control, without guards"
	}
	if r.Options.AsyncCommit {
		v.Title += ", synchronous_commit off"
	}
	v.lanes()
	v.broken()
	return page.Execute(w, v)
}

// lanes places the faults on a line of time for each thing that they happened to.
func (v *pageView) lanes() {
	whole := v.Report.Took
	for _, f := range v.Injected {
		whole = max(whole, f.Ended)
	}
	percent := func(d time.Duration) string { return fmt.Sprintf("%.3f", 100*d.Seconds()/max(whole.Seconds(), 1)) }
	bars := map[string][]barView{}
	seen := map[FaultKind]bool{}
	for _, f := range v.Injected {
		seen[f.Kind] = true
		bars[f.Lane] = append(bars[f.Lane], barView{
			Kind: string(f.Kind), Left: percent(f.Began), Width: percent(f.Ended - f.Began),
			Title: strings.TrimSuffix(fmt.Sprintf("%.1f s: %s, %s", f.Began.Seconds(), f.Kind.What(), f.Note), ", "),
		})
	}
	names := []string{"postgres", "etcd", "pooler"}
	for i := range v.Options.Workers {
		names = append(names, workerLane(i+1))
	}
	for _, name := range names {
		if len(bars[name]) > 0 {
			v.Lanes = append(v.Lanes, laneView{name, bars[name]})
		}
	}
	for _, c := range v.Faults() {
		if seen[c.Kind] {
			v.Legend = append(v.Legend, legendView{string(c.Kind), c.Kind.What()})
		}
	}
	const ticks = 4
	for i := range ticks + 1 {
		at := whole * time.Duration(i) / ticks
		v.Ticks = append(v.Ticks, tickView{percent(at), minutes(at)})
	}
}

// minutes tells a time to the second.
func minutes(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// broken shows some violations of each rule.
func (v *pageView) broken() {
	const shown = 5
	for _, c := range v.Rules() {
		if c.N == 0 {
			continue
		}
		b := brokenView{Rule: c.Rule, N: c.N}
		for _, violation := range v.Verdict.Violations {
			if violation.Rule != c.Rule || len(b.Violations) == shown {
				continue
			}
			view := violationView{Subject: violation.Subject, Text: violation.Text}
			for _, op := range violation.Around {
				o := opView{At: fmt.Sprintf("%.3f", v.since(op.Invoked)), Worker: op.Worker, Outcome: outcome(op), What: what(op)}
				if op.Returned > 0 {
					o.Took = fmt.Sprintf("%.3f", float64(op.Returned-op.Invoked)/float64(time.Second))
				}
				for _, id := range violation.Ops {
					o.Involved = o.Involved || id == op.ID
				}
				view.Around = append(view.Around, o)
			}
			b.Violations = append(b.Violations, view)
		}
		v.Broken = append(v.Broken, b)
	}
}

func what(op *history.Op) string {
	text := fmt.Sprintf("%s %s", op.ID, op.Kind)
	for _, target := range op.Targets {
		text += " " + string(target)
		if row, ok := op.Rows[target]; ok {
			text += fmt.Sprintf(" (version %d)", row.Version)
		}
	}
	if len(op.Targets) == 0 {
		text += " " + op.Lock
	}
	if op.Token > 0 {
		text += fmt.Sprintf(", token %v", fenced.Token(op.Token))
	}
	return text
}
