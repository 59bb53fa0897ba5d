package report

import (
	"cmp"
	_ "embed" // the page
	"html/template"
	"io"
	"slices"
	"strconv"

	"github.com/fencectl/fencectl/internal/audit"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// The page shows this many at first; the rest can be unfolded, or is counted where it would say little.
const (
	findingsShown = 10
	tablesShown   = 50
)

// HTML writes the document as one page that needs nothing else: no script, no file, no network.
func HTML(w io.Writer, d *Document) error {
	view := pageView{
		Title: "Fencing audit", Several: d.Several, Totals: d.Totals(), Program: d.Program, Homepage: homepage,
		At: d.At.UTC().Format("2006-01-02 15:04 UTC"), Settings: d.Settings,
	}
	if !d.Several {
		view.Title += " of " + d.Databases[0].Label()
	}
	for _, e := range d.Ended() {
		view.Ended = append(view.Ended, Sentence(e))
	}
	for i := range d.Databases {
		view.Databases = append(view.Databases, viewOf(i, &d.Databases[i]))
	}
	return page.Execute(w, view)
}

// What the page shows, in the order in which it does.
type (
	pageView struct {
		Title, Totals, At, Program, Homepage, Settings string
		Several                                        bool
		Ended                                          []string
		Databases                                      []databaseView
	}
	databaseView struct {
		Anchor, Label, Error string
		Summary              audit.Summary
		Unfenced             int
		Counts               []countView
		Schemas              []schemaView
		Severities           []severityView
		Activity             []activityView
		Quiet                int // unfenced tables that saw no write, or less than those that are shown
		Skipped              []audit.Skipped
	}
	countView struct {
		Severity audit.Severity
		Noun     string
		N        int
	}
	schemaView struct {
		Name                                string
		Tables, Fenced, Exempt, Unfenced    int
		FencedShare, ExemptShare, OpenShare string
	}
	severityView struct {
		Severity audit.Severity
		Title    string
		Rules    []ruleView
	}
	ruleView struct {
		Name, Why, Docs string
		N               int
		First, Rest     []audit.Finding
	}
	activityView struct {
		Label                                 string
		Exempt                                bool
		Written, Inserted, Updated, Deleted   string
		InsertShare, UpdateShare, DeleteShare string
	}
)

func viewOf(position int, d *Database) databaseView {
	view := databaseView{Anchor: "database-" + strconv.Itoa(position+1), Label: d.Label(), Error: d.Error}
	if d.Report == nil {
		return view
	}
	view.Summary = d.Report.Summary
	view.Unfenced = view.Summary.Tables - view.Summary.Fenced - view.Summary.Exempt
	view.Schemas = schemasOf(d.Report.Tables)
	view.Severities = severitiesOf(d.Report.Findings)
	for _, severity := range audit.Severities() {
		n := 0
		for _, f := range d.Report.Findings {
			if f.Severity == severity {
				n++
			}
		}
		noun := noun(severity)
		if n != 1 {
			noun += "s"
		}
		view.Counts = append(view.Counts, countView{severity, noun, n})
	}
	view.Activity, view.Quiet = activityOf(d.Report.Tables)
	view.Skipped = d.Report.Skipped
	return view
}

// schemasOf counts the tables by schema. They come in the order of their schemas.
func schemasOf(tables []audit.Table) []schemaView {
	var schemas []schemaView
	for _, t := range tables {
		if len(schemas) == 0 || schemas[len(schemas)-1].Name != t.Schema {
			schemas = append(schemas, schemaView{Name: t.Schema})
		}
		s := &schemas[len(schemas)-1]
		s.Tables++
		switch {
		case t.Fenced:
			s.Fenced++
		case t.Exempt:
			s.Exempt++
		default:
			s.Unfenced++
		}
	}
	for i := range schemas {
		s := &schemas[i]
		s.FencedShare = share(int64(s.Fenced), int64(s.Tables))
		s.ExemptShare = share(int64(s.Exempt), int64(s.Tables))
		s.OpenShare = share(int64(s.Unfenced), int64(s.Tables))
	}
	return schemas
}

// severitiesOf groups the findings, which come by severity and rule.
func severitiesOf(findings []audit.Finding) []severityView {
	var groups []severityView
	for _, f := range findings {
		if len(groups) == 0 || groups[len(groups)-1].Severity != f.Severity {
			title := map[audit.Severity]string{audit.Error: "Errors", audit.Warning: "Warnings", audit.Info: "Notes"}[f.Severity]
			groups = append(groups, severityView{Severity: f.Severity, Title: title})
		}
		g := &groups[len(groups)-1]
		if len(g.Rules) == 0 || g.Rules[len(g.Rules)-1].Name != f.Rule {
			g.Rules = append(g.Rules, ruleView{Name: f.Rule, Why: f.Why, Docs: f.Docs})
		}
		r := &g.Rules[len(g.Rules)-1]
		if r.N++; r.N <= findingsShown {
			r.First = append(r.First, f)
		} else {
			r.Rest = append(r.Rest, f)
		}
	}
	return groups
}

// activityOf lists the tables without a fence that are written most, and counts the others.
func activityOf(tables []audit.Table) (shown []activityView, others int) {
	unfenced := slices.DeleteFunc(slices.Clone(tables), func(t audit.Table) bool { return t.Fenced })
	slices.SortStableFunc(unfenced, func(a, b audit.Table) int { return cmp.Compare(b.Written(), a.Written()) })
	for i, t := range unfenced {
		if i == tablesShown || t.Written() == 0 {
			return shown, len(unfenced) - i
		}
		most := unfenced[0].Written()
		shown = append(shown, activityView{
			Label: t.Label, Exempt: t.Exempt,
			Written: grouped(t.Written()), Inserted: grouped(t.Inserted), Updated: grouped(t.Updated), Deleted: grouped(t.Deleted),
			InsertShare: share(t.Inserted, most), UpdateShare: share(t.Updated, most), DeleteShare: share(t.Deleted, most),
		})
	}
	return shown, 0
}

// share is a part of a whole as a percentage that CSS reads.
func share(part, whole int64) string {
	return strconv.FormatFloat(float64(part)/float64(max(whole, 1))*100, 'f', 2, 64)
}

// grouped writes a number as 1,234,567.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
