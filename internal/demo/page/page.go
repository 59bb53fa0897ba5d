// Package page shows what a demo has shown as one HTML page: for each run a timeline with a lane for every worker, the lock service
// and the data. It owns the drawing; what happened, and what it means, is package demo's.
//
// The page needs nothing else: no script, no file, no network. What the lanes show is also in the words beside them, so that it can be
// listened to, printed without colours, and read on a phone.
package page

import (
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencectl/fencectl/internal/demo"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

const homepage = "https://github.com/fencectl/fencectl"

// A Document is a demo's report with what the page says about itself.
type Document struct {
	Report  *demo.Report
	Program string    // the version of fencectl
	At      time.Time // when it ran
}

// HTML writes the page.
func HTML(w io.Writer, d *Document) error {
	view := pageView{Program: d.Program, Homepage: homepage, At: d.At.UTC().Format("2006-01-02 15:04 UTC"), Problems: d.Report.Problems()}
	view.Parts = append(view.Parts, "PostgreSQL "+d.Report.ServerVersion)
	for _, part := range []string{d.Report.Redis, d.Report.Etcd} {
		if part != "" {
			view.Parts = append(view.Parts, part)
		}
	}
	for i, result := range d.Report.Results {
		view.Scenarios = append(view.Scenarios, scenarioView{
			Number: i + 1, Name: result.Scenario.Name, Title: sentence(result.Scenario.Title),
			Story: result.Scenario.Story, Lesson: result.Scenario.Lesson,
			Runs: []runView{viewOf("Without", result.Without), viewOf("With", result.With)},
		})
	}
	if before, after := d.Report.Before, d.Report.After; before != nil && after != nil {
		view.Audit = &auditView{Before: before.Summary.Findings, After: after.Summary.Findings, Tables: before.Summary.Tables}
		for _, f := range before.Findings {
			view.Audit.Findings = append(view.Audit.Findings, f.Object+" "+f.Message)
		}
	}
	return page.Execute(w, view)
}

// What the page shows, in the order in which it does.
type (
	pageView struct {
		Program, Homepage, At string
		Parts                 []string
		Problems              []string
		Scenarios             []scenarioView
		Audit                 *auditView
	}
	scenarioView struct {
		Number                     int
		Name, Title, Story, Lesson string
		Runs                       []runView // without, with
	}
	runView struct {
		Which, Label, Verdict string
		Damaged               bool
		Lanes                 []string // their heads
		Rows                  []rowView
	}
	rowView struct {
		Gap     string // time that has passed before it, in words; "" when it is not worth a word
		Time    string
		Actor   string
		Apart   bool // the text is a sentence without the actor
		Token   string
		Text    string
		SQL     string
		Kind    demo.Kind
		Outcome demo.Outcome
		State   string // SQLSTATE
		Message string
		Hint    string
		Stored  string // where the fence stands after it, when that is news

		Above, Below []string // the classes of each lane's line before and after
		Arrow        *arrowView
		Marks        []markView
	}
	arrowView struct {
		From, To int // lanes; From < To
		Class    string
	}
	markView struct {
		Lane  int
		Class string
		Text  string // of a pill
		Icon  string // the name of a symbol
	}
	auditView struct {
		Before, After, Tables int
		Findings              []string
	}
)

// A gap that is worth a word is at least this long.
const gapShown = 150 * time.Millisecond

func viewOf(which string, r demo.Round) runView {
	d := newDrawing(r.Events)
	view := runView{Which: which, Label: r.Label, Verdict: sentence(r.Verdict), Damaged: r.Damaged, Lanes: d.heads}
	var last time.Duration
	for i, e := range r.Events {
		row := d.row(e)
		if i > 0 && e.At-last >= gapShown {
			row.Gap = fmt.Sprintf("%.1f s pass", (e.At - last).Seconds())
		}
		last = e.At
		view.Rows = append(view.Rows, row)
	}
	return view
}

// A drawing is a timeline being drawn: who is in which lane, and in what state.
type drawing struct {
	lanes  []string // the actors
	heads  []string
	states map[string]*state
	fence  string // where it stands, as far as it was told
}

// A state is a worker's.
type state struct{ holds, lapsed, paused, waits bool }

// classes are what the style sheet calls it.
func (s *state) classes() string {
	if s == nil {
		return ""
	}
	var all []string
	switch {
	case s.holds && s.lapsed:
		all = append(all, "lapsed")
	case s.holds:
		all = append(all, "holds")
	case s.waits:
		all = append(all, "waits")
	}
	if s.paused {
		all = append(all, "paused")
	}
	return strings.Join(all, " ")
}

func newDrawing(events []demo.Event) *drawing {
	d := &drawing{states: map[string]*state{}}
	for _, e := range events {
		if e.Actor != demo.Locks && e.Actor != demo.Data && e.Actor != demo.Operator && !slices.Contains(d.lanes, e.Actor) {
			d.lanes = append(d.lanes, e.Actor)
			d.states[e.Actor] = &state{}
		}
	}
	slices.Sort(d.lanes)
	for _, name := range d.lanes {
		d.heads = append(d.heads, strings.TrimPrefix(name, "worker "))
	}
	d.lanes = append(d.lanes, demo.Locks, demo.Data)
	d.heads = append(d.heads, "lock", "data")
	return d
}

func (d *drawing) lane(actor string) int { return slices.Index(d.lanes, actor) }

func (d *drawing) lines() []string {
	lines := make([]string, len(d.lanes))
	for i, actor := range d.lanes {
		lines[i] = d.states[actor].classes()
	}
	return lines
}

// row draws one event.
func (d *drawing) row(e demo.Event) rowView {
	row := rowView{
		Time: strconv.FormatFloat(e.At.Seconds(), 'f', 3, 64), Actor: e.Actor, Apart: e.Actor == demo.Locks || e.Actor == demo.Data, Text: e.Text, Kind: e.Kind, Outcome: e.Outcome,
		State: e.SQLState, Message: e.Message, Hint: e.Hint, Above: d.lines(),
	}
	if e.Token > 0 {
		row.Token = e.Token.String()
	}
	if e.Kind == demo.Wrote || e.Kind == demo.Claimed || e.Kind == demo.Adopted {
		row.SQL = e.SQL
	}
	if e.Stored > 0 && e.Stored.String() != d.fence {
		d.fence = e.Stored.String()
		row.Stored = d.fence
	}
	d.apply(e)
	row.Below = d.lines()
	row.Arrow, row.Marks = d.marks(e, row)
	return row
}

// apply is what an event changes for whom.
func (d *drawing) apply(e demo.Event) {
	actor := d.states[e.Actor]
	if actor == nil {
		actor = &state{} // no worker: nothing to be seen of it
	}
	switch e.Kind {
	case demo.Waits:
		actor.waits = true
	case demo.Granted:
		*actor = state{holds: true}
	case demo.Expired:
		d.lapse(e.Concerns)
	case demo.Lost:
		for name := range d.states {
			d.lapse(name)
		}
	case demo.Released:
		*actor = state{}
		d.lapse(e.Concerns)
	case demo.Paused:
		actor.paused = true
	case demo.Resumed:
		actor.paused = false
	case demo.Claimed, demo.Read:
		actor.waits = false
	case demo.Wrote:
		actor.waits = false
		if e.Outcome == demo.Refused && actor.lapsed {
			*actor = state{} // now it has been told
		}
	default: // the others change nobody's state
	}
}

// lapse is when a worker's lock is not its own any more, which it does not know.
func (d *drawing) lapse(worker string) {
	if s := d.states[worker]; s != nil && s.holds {
		s.lapsed = true
	}
}

// icons are the symbols of the events that are no more than that.
var icons = map[demo.Kind]string{
	demo.Paused: "pause", demo.Resumed: "play", demo.Waits: "dots", demo.Expired: "clock", demo.Lost: "bolt", demo.Released: "ring",
	demo.Notified: "dot", demo.Read: "dot", demo.Adopted: "check", demo.Finished: "square",
}

// marks draws what happens between lanes: an arrow from who acts to whom it is done, and what stands at its ends.
func (d *drawing) marks(e demo.Event, row rowView) (*arrowView, []markView) {
	actor := d.lane(e.Actor)
	other := -1
	switch {
	case e.Toward != "":
		other = d.lane(e.Toward)
	case e.Concerns != "":
		other = d.lane(e.Concerns)
	}
	var arrow *arrowView
	if actor >= 0 && other >= 0 {
		arrow = &arrowView{From: min(actor, other), To: max(actor, other), Class: "right"}
		// What the other one gives, or what is read, comes from there.
		inward := e.Kind == demo.Granted || e.Kind == demo.Drew || e.Kind == demo.Read
		if (other < actor) != inward {
			arrow.Class = "left"
		}
	}
	pill := func(lane int, class, text string) markView {
		return markView{Lane: lane, Class: "pill " + class, Text: text}
	}
	icon := func(lane int, class, name string) markView { return markView{Lane: lane, Class: class, Icon: name} }
	switch e.Kind {
	case demo.Granted, demo.Drew:
		if row.Token != "" {
			return arrow, []markView{icon(other, "small", "dot"), pill(actor, "own", row.Token)}
		}
		return arrow, []markView{icon(other, "small", "dot"), icon(actor, "own", "dot")}
	case demo.Denied:
		arrow.Class += " bad"
		return arrow, []markView{icon(actor, "small", "dot"), icon(other, "bad", "cross")}
	case demo.Claimed, demo.Wrote:
		from := icon(actor, "small", "dot")
		if row.Token != "" && (e.Outcome == demo.Refused || row.Stored != "") {
			from = pill(actor, "own", row.Token)
		}
		switch {
		case e.Outcome == demo.Refused:
			arrow.Class += " bad"
			return arrow, []markView{from, icon(other, "bad", "cross")}
		case e.Outcome == demo.NoRows:
			return arrow, []markView{from, icon(other, "good", "ring")}
		case row.Stored != "":
			return arrow, []markView{from, pill(other, "good", row.Stored)}
		}
		return arrow, []markView{from, icon(other, "good", "check")}
	case demo.Expired:
		return arrow, []markView{icon(actor, "", "clock"), icon(other, "warn", "clock")}
	case demo.Released:
		marks := []markView{icon(actor, "", "ring"), icon(other, "small", "dot")}
		if concerned := d.lane(e.Concerns); concerned >= 0 {
			marks = append(marks, icon(concerned, "warn", "bolt"))
		}
		return arrow, marks
	default: // a symbol where it happens, and a dot where it is done to
	}
	name := icons[e.Kind]
	if name == "" {
		name = "dot"
	}
	var marks []markView
	if actor >= 0 {
		marks = append(marks, icon(actor, map[demo.Kind]string{demo.Lost: "warn"}[e.Kind], name))
	}
	if other >= 0 {
		class, end := "small", "dot"
		if e.Kind == demo.Adopted {
			class, end = "good", "check"
		}
		marks = append(marks, icon(other, class, end))
	}
	return arrow, marks
}

// sentence begins with a capital letter.
func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
