package page_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/demo"
	"github.com/fencectl/fencectl/internal/demo/page"
)

// nasty means something in HTML.
const nasty = `</pre><script>alert("1")</script> & <img src=http://example.org/x>`

// asleep is the story of a sleeping owner, whose late write is refused.
func asleep() []demo.Event {
	return []demo.Event{
		{At: 1 * time.Millisecond, Actor: "worker A", Kind: demo.Granted, Token: 33, On: "jobs/7", Toward: demo.Locks, Lasts: time.Second, Text: "gets lock jobs/7"},
		{At: 2 * time.Millisecond, Actor: "worker A", Kind: demo.Claimed, Token: 33, Toward: demo.Data, Outcome: demo.Accepted, Stored: 33, SQL: "SELECT fencing.claim('jobs/7', 33)", Text: "claims"},
		{At: 3 * time.Millisecond, Actor: "worker A", Kind: demo.Paused, Token: 33, Text: "is paused"},
		{At: 4 * time.Millisecond, Actor: "worker B", Kind: demo.Waits, On: "jobs/7", Toward: demo.Locks, Text: "asks for the lock"},
		{At: 1001 * time.Millisecond, Actor: demo.Locks, Kind: demo.Expired, Concerns: "worker A", Text: "the limit of worker A has passed"},
		{At: 1002 * time.Millisecond, Actor: "worker B", Kind: demo.Granted, Token: 34, Toward: demo.Locks, Text: "gets it next"},
		{At: 1003 * time.Millisecond, Actor: "worker B", Kind: demo.Read, Token: 34, Toward: demo.Data, SQL: "SELECT 1", Text: "reads " + nasty},
		{At: 1004 * time.Millisecond, Actor: "worker B", Kind: demo.Wrote, Token: 34, Toward: demo.Data, Outcome: demo.Accepted, Stored: 34, SQL: "UPDATE jobs", Text: "writes"},
		{At: 1005 * time.Millisecond, Actor: "worker A", Kind: demo.Resumed, Token: 33, Text: "wakes up"},
		{
			At: 1006 * time.Millisecond, Actor: "worker A", Kind: demo.Wrote, Token: 33, Toward: demo.Data, Outcome: demo.Refused, Stored: 34, SQL: "UPDATE jobs -- " + nasty, Text: "writes late",
			SQLState: fenced.SQLStateStale, Message: "stale fencing token 33", Hint: "Stop, and acquire the lock again",
		},
		{At: 1007 * time.Millisecond, Actor: demo.Data, Kind: demo.Finished, Text: "the job is done"},
	}
}

// others are the events that are not in that story.
func others() []demo.Event {
	return []demo.Event{
		{Actor: "worker A", Kind: demo.Granted, Toward: demo.Locks, Text: "gets the lock without a token"},
		{Actor: "worker A", Kind: demo.Drew, Token: 1, Toward: demo.Locks, Text: "draws its token"},
		{Actor: "worker A", Kind: demo.Notified, Token: 1, Toward: demo.Locks, Text: "publishes its address"},
		{Actor: demo.Locks, Kind: demo.Lost, Text: "loses its data"},
		{Actor: "worker B", Kind: demo.Denied, Toward: demo.Locks, Text: "gets none", Message: "another incarnation"},
		{Actor: demo.Operator, Kind: demo.Adopted, Toward: demo.Data, SQL: "SELECT fencing.adopt_epoch('redis', 'x')", Text: "adopts it"},
		{Actor: "worker B", Kind: demo.Granted, Token: 1<<48 + 1, Toward: demo.Locks, Text: "gets one of the new epoch"},
		{Actor: "worker A", Kind: demo.Released, Token: 1, Toward: demo.Locks, Concerns: "worker B", Text: "frees the lock of worker B"},
		{Actor: "worker C", Kind: demo.Waits, Toward: demo.Data, Text: "waits for a row"},
		{Actor: "worker C", Kind: demo.Wrote, Toward: demo.Data, Outcome: demo.NoRows, SQL: "UPDATE none", Text: "finds nothing to write"},
		{Actor: "worker C", Kind: demo.Wrote, Toward: demo.Data, Outcome: demo.Accepted, SQL: "UPDATE unfenced", Text: "writes without a fence"},
	}
}

func report() *demo.Report {
	s := demo.Scenarios()[0]
	return &demo.Report{
		ServerVersion: "15.18", Redis: "Redis 7.0.15", Etcd: "etcd 3.7.3 in this process",
		Results: []demo.Result{{
			Scenario: s,
			Without:  demo.Round{Label: "the lock alone", Events: others(), Verdict: "the job is back at running", Damaged: true},
			With:     demo.Round{Label: "a row fence", Events: asleep(), Verdict: "the late write is refused"},
		}},
		Before: &audit.Report{Summary: audit.Summary{Tables: 2, Findings: 1}, Findings: []audit.Finding{{Object: "shop.jobs", Message: "has no fence " + nasty}}},
		After:  &audit.Report{Summary: audit.Summary{Tables: 2, Fenced: 2}},
	}
}

func render(t *testing.T, r *demo.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := page.HTML(&b, &page.Document{Report: r, Program: "v0.1.0", At: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func parse(t *testing.T, text string) *html.Node {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func hasClass(n *html.Node, class string) bool {
	return slices.Contains(strings.Fields(attribute(n, "class")), class)
}

// find lists the elements below a node that are wanted.
func find(n *html.Node, wanted func(*html.Node) bool) []*html.Node {
	var found []*html.Node
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && wanted(d) {
			found = append(found, d)
		}
	}
	return found
}

// words is the text that somebody reads: nothing hidden from a screen reader, and no style.
func words(n *html.Node) string {
	var b strings.Builder
	var walk func(*html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.TextNode {
			b.WriteString(n.Data + " ")
		}
		if n.Data == "style" || attribute(n, "aria-hidden") == "true" {
			return
		}
		for c := range n.ChildNodes() {
			walk(c)
		}
	}
	walk(n)
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestEveryElementIsClosedWhereItWasOpened(t *testing.T) {
	t.Parallel()
	void := []string{"meta", "br", "link", "img", "input", "hr"}
	var open []string
	for z := html.NewTokenizer(strings.NewReader(render(t, report()))); ; {
		switch z.Next() {
		case html.ErrorToken:
			if len(open) > 0 {
				t.Errorf("not closed: %q", open)
			}
			return
		case html.StartTagToken:
			if name, _ := z.TagName(); !slices.Contains(void, string(name)) {
				open = append(open, string(name))
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			if len(open) == 0 || open[len(open)-1] != string(name) {
				t.Fatalf("</%s> after %q", name, open)
			}
			open = open[:len(open)-1]
		default: // texts and the like
		}
	}
}

func TestThePageNeedsNothingElse(t *testing.T) {
	t.Parallel()
	text := render(t, report())
	root := parse(t, text)
	for _, n := range find(root, func(*html.Node) bool { return true }) {
		switch n.Data {
		case "script", "link", "img", "iframe", "object", "embed", "base":
			t.Errorf("there is a <%s>", n.Data)
		}
		for _, a := range n.Attr {
			outside := a.Key == "src" || a.Key == "srcset" || strings.HasPrefix(a.Key, "on") || strings.Contains(a.Val, "url(") ||
				(strings.HasSuffix(a.Key, "href") && !strings.HasPrefix(a.Val, "#") && n.Data != "a")
			if outside {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
		}
	}
	for _, style := range find(root, func(n *html.Node) bool { return n.Data == "style" }) {
		if css := style.FirstChild.Data; strings.Contains(css, "url(") || strings.Contains(css, "@import") {
			t.Error("the style sheet fetches something")
		}
	}
	if !strings.Contains(text, `content="default-src 'none'; style-src 'unsafe-inline'`) {
		t.Error("the page does not forbid it itself")
	}
}

func TestLinksLeadSomewhereAndIdsAreUnique(t *testing.T) {
	t.Parallel()
	root := parse(t, render(t, report()))
	ids := map[string]int{}
	for _, n := range find(root, func(n *html.Node) bool { return attribute(n, "id") != "" }) {
		ids[attribute(n, "id")]++
	}
	for id, n := range ids {
		if n > 1 {
			t.Errorf("%d elements are called %s", n, id)
		}
	}
	for _, n := range find(root, func(n *html.Node) bool { return strings.HasPrefix(attribute(n, "href"), "#") }) {
		if target := attribute(n, "href")[1:]; ids[target] == 0 {
			t.Errorf("<%s> refers to %s, which is not there", n.Data, target)
		}
	}
}

// Not in the drawing alone, and not by a colour alone.
func TestEveryEventIsInTheWords(t *testing.T) {
	t.Parallel()
	root := parse(t, render(t, report()))
	timelines := find(root, func(n *html.Node) bool { return n.Data == "ol" })
	if len(timelines) != 2 {
		t.Fatalf("%d timelines", len(timelines))
	}
	for i, events := range [][]demo.Event{others(), asleep()} {
		rows := find(timelines[i], func(n *html.Node) bool { return n.Data == "li" && !hasClass(n, "heads") && !hasClass(n, "gap") })
		if len(rows) != len(events) {
			t.Fatalf("%d rows of %d events", len(rows), len(events))
		}
		for j, e := range events {
			wanted := []string{e.Actor, e.Text, e.Message, e.Hint, e.SQLState, fmt.Sprintf("%.3f s", e.At.Seconds())}
			if e.Kind != demo.Read {
				wanted = append(wanted, e.SQL)
			}
			if e.Token > 0 {
				wanted = append(wanted, "token "+e.Token.String())
			}
			switch {
			case e.Outcome == demo.Refused:
				wanted = append(wanted, "refused, SQLSTATE "+e.SQLState)
			case e.Stored > 0:
				wanted = append(wanted, "accepted; the fence stands at "+e.Stored.String())
			case e.Outcome == demo.Accepted:
				wanted = append(wanted, "accepted")
			case e.Outcome == demo.NoRows:
				wanted = append(wanted, "accepted, no row matches")
			}
			got := words(rows[j])
			for _, want := range wanted {
				if !strings.Contains(got, want) {
					t.Errorf("event %d (%s): there is no %q in %q", j, e.Kind, want, got)
				}
			}
		}
	}
	all := words(root)
	for _, want := range []string{
		"Damaged: The job is back at running", "Intact: The late write is refused", "PostgreSQL 15.18 · Redis 7.0.15 · etcd 3.7.3 in this process",
		"1 finding before", "no findings after", "has no fence " + nasty, "1.0 s pass",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if strings.Contains(all, "Not proven") {
		t.Error("it says that something is not proven")
	}
}

// lanes are the classes of a timeline's lines after each event: one string a row.
func lanes(timeline *html.Node) []string {
	var all []string
	for _, row := range find(timeline, func(n *html.Node) bool { return n.Data == "li" && !hasClass(n, "heads") && !hasClass(n, "gap") }) {
		var below []string
		for _, line := range find(row, func(n *html.Node) bool { return hasClass(n, "below") }) {
			below = append(below, strings.TrimSpace(strings.TrimPrefix(attribute(line, "class"), "below")))
		}
		all = append(all, strings.Join(below, "|"))
	}
	return all
}

func TestTheLanesSayWhoHoldsTheLockAndWhoOnlyBelievesIt(t *testing.T) {
	t.Parallel()
	timelines := find(parse(t, render(t, report())), func(n *html.Node) bool { return n.Data == "ol" })
	// A, B, the lock service, the data
	want := []string{
		"holds|||", "holds|||", "holds paused|||", "holds paused|waits||", "lapsed paused|waits||", "lapsed paused|holds||", "lapsed paused|holds||",
		"lapsed paused|holds||", "lapsed|holds||", "|holds||", "|holds||",
	}
	if diff := cmp.Diff(want, lanes(timelines[1])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// with C
	want = []string{
		"holds||||", "holds||||", "holds||||", "lapsed||||", "lapsed||||", "lapsed||||", "lapsed|holds|||", "|lapsed|||", "|lapsed|waits||", "|lapsed|||", "|lapsed|||",
	}
	if diff := cmp.Diff(want, lanes(timelines[0])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatWasNotProvenIsSaid(t *testing.T) {
	t.Parallel()
	r := report()
	r.Before, r.After = nil, nil
	r.Results[0].With.Damaged = true
	all := words(parse(t, render(t, r)))
	if !strings.Contains(all, "Not proven") || !strings.Contains(all, r.Problems()[0]) || strings.Contains(all, "audit") {
		t.Errorf("the page says:\n%.800s", all)
	}
}
