package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"golang.org/x/net/html"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/report"
)

// nasty is a table of a name that means something in every form.
const nasty = `public."</script><img src=x>, 100%: ::error::` + "\x1b[31m\r\n::stop-commands::x" + `"`

func rule(name string) audit.Rule {
	rules := audit.Rules()
	return rules[slices.IndexFunc(rules, func(r audit.Rule) bool { return r.Name == name })]
}

func finding(name, object, message, fix string) audit.Finding {
	r := rule(name)
	return audit.Finding{
		Rule: name, Severity: r.Severity, Object: object, Message: message, Why: r.Why, Fix: fix, Docs: r.Docs(), Key: name + ":" + object,
	}
}

// shop is the audit of a database in which something of everything is found.
func shop() *audit.Report {
	info := finding("observing", "public.orders", "is only observed; 3 violations were recorded in the last 24 hours", "fencectl enforce public.orders")
	info.Severity = audit.Info
	r := &audit.Report{
		Version: 1,
		Findings: []audit.Finding{
			finding("guard-disabled", "public.jobs", "its guard zzz_fencing_update is switched off", "fencectl protect public.jobs"),
			finding("guard-altered", "fencing.guard_row()", "is not the function that fencectl installed", "CREATE OR REPLACE FUNCTION fencing.guard_row()\nRETURNS trigger …;"),
			finding("unfenced-table", nasty, "has no fence; 1,234,567 rows were written (1,000,000 inserted, 234,567 updated, 0 deleted) since its statistics began", "fencectl protect '"+nasty+"'"),
		},
		Skipped: []audit.Skipped{{Rule: "token-ahead-of-source", Reason: "this needs SELECT on fencing.fence"}},
		Ended:   []audit.Ended{{Table: "cache", Until: "2026-03-31", Reason: "rebuilt every night"}},
		Tables: []audit.Table{
			{Schema: "billing", Name: "accounts", Label: "billing.accounts", Fenced: true},
			{Schema: "billing", Name: "ledger", Label: "billing.ledger", Exempt: true, Inserted: 400_000},
			{Schema: "public", Name: "nasty", Label: nasty, Inserted: 1_000_000, Updated: 234_567},
			{Schema: "public", Name: "cache", Label: "public.cache", Inserted: 90_000, Updated: 120_000, Deleted: 60_000},
			{Schema: "public", Name: "jobs", Label: "public.jobs", Fenced: true},
			{Schema: "public", Name: "orders", Label: "public.orders", Fenced: true},
		},
	}
	for i := range 25 {
		label := fmt.Sprintf("public.t%02d", i+1)
		r.Tables = append(r.Tables, audit.Table{Schema: "public", Name: label[7:], Label: label})
		r.Findings = append(r.Findings, finding("unfenced-table", label, "has no fence; no write was seen since its statistics began", "fencectl protect "+label))
	}
	r.Findings = append(r.Findings, info)
	r.Summary = audit.Summary{Tables: len(r.Tables), Fenced: 3, Exempt: 1, Findings: len(r.Findings)}
	return r
}

func one() *report.Document {
	return &report.Document{
		Databases: []report.Database{{Name: "shop", Address: "10.0.0.7:5432", Report: shop()}},
		Settings:  "db/fencectl.yaml", Program: "v0.1.0", At: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
	}
}

func several() *report.Document {
	d := one()
	d.Several = true
	clean := &audit.Report{
		Version: 1, Findings: []audit.Finding{}, Skipped: []audit.Skipped{}, Ended: d.Databases[0].Report.Ended, Summary: audit.Summary{Tables: 1, Fenced: 1},
		Tables: []audit.Table{{Schema: "public", Name: "jobs", Label: "public.jobs", Fenced: true}},
	}
	d.Databases = append(d.Databases,
		report.Database{Name: "gone", Address: "10.0.0.8:5432", Error: "nothing is listening at 10.0.0.8:5432 (connection refused)"},
		report.Database{Name: "shop", Address: "10.0.0.9:5432", Report: clean},
	)
	return d
}

func render(t *testing.T, d *report.Document, write func(io.Writer, *report.Document) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGitHubAnnotationsAreEscaped(t *testing.T) {
	t.Parallel()
	got := render(t, several(), report.GitHub)
	for line := range strings.Lines(got) {
		command, _, _ := strings.Cut(strings.TrimPrefix(line, "::"), " ")
		if !strings.HasPrefix(line, "::") || !slices.Contains([]string{"error", "warning", "notice"}, command) {
			t.Errorf("a line that is no annotation: %q", line)
		}
		if strings.ContainsAny(line, "\x1b\r") {
			t.Errorf("a control character: %q", line)
		}
	}
	why := func(name string) string { return rule(name).Why + "%0A" }
	for _, want := range []string{
		"::notice title=fencectl audit::3 databases: 32 tables, 4 fenced, 1 exempt; 2 errors, 26 warnings, 1 note; 1 could not be audited\n" +
			"::notice title=shop on 10.0.0.7%3A5432::31 tables, 3 fenced, 1 exempt; 2 errors, 26 warnings, 1 note\n" +
			"::error title=cannot audit gone on 10.0.0.8%3A5432::nothing is listening at 10.0.0.8:5432 (connection refused)\n" +
			"::notice title=shop on 10.0.0.9%3A5432::nothing found: 1 table, 1 fenced\n" +
			"::warning file=db/fencectl.yaml,title=exemption ended::the exemption of cache ended on 2026-03-31 (rebuilt every night): renew or remove it\n" +
			"::error title=guard-disabled%3A public.jobs in shop on 10.0.0.7%3A5432::public.jobs its guard zzz_fencing_update is switched off%0A" +
			why("guard-disabled") + "Fix: fencectl protect public.jobs%0A" + rule("guard-disabled").Docs() + "\n",
		`::warning title=unfenced-table%3A public."</script><img src=x>%2C 100%25%3A %3A%3Aerror%3A%3A [31m %0A%3A%3Astop-commands%3A%3Ax"` +
			` in shop on 10.0.0.7%3A5432::public."</script><img src=x>, 100%25: ::error:: [31m %0A::stop-commands::x" has no fence; `,
		"::notice title=observing%3A public.orders in shop",
		"::notice title=not checked%3A token-ahead-of-source in shop on 10.0.0.7%3A5432::this needs SELECT on fencing.fence\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no\n%s\nin:\n%.3000s", want, got)
		}
	}
	if got := render(t, one(), report.GitHub); !strings.Contains(got, "::error title=guard-disabled%3A public.jobs::") {
		t.Errorf("one database is named in:\n%.2000s", got)
	}
}

func TestSARIFIsValidAndSaysWhatWasFound(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*report.Document{"one": one(), "several": several()} {
		text := render(t, d, report.SARIF)
		parsed, err := sarif.FromString(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range parsed.Runs {
			// Left out they are empty in this type, where the schema has a default.
			run.Language, run.Tool.Driver.Language, run.NewlineSequences = "en-US", "en-US", []string{"\n"}
		}
		// Checks against the published schema what was parsed, which must be all that was written.
		if err := parsed.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		again, err := json.Marshal(parsed)
		if err != nil {
			t.Fatal(err)
		}
		var written, kept any
		if err := errors.Join(json.Unmarshal([]byte(text), &written), json.Unmarshal(again, &kept)); err != nil {
			t.Fatal(err)
		}
		if missing := notIn(written, kept, "$"); len(missing) > 0 {
			t.Errorf("%s: SARIF 2.1.0 does not have %q", name, missing)
		}
		if len(parsed.Runs) != len(d.Databases) {
			t.Fatalf("%s: %d runs", name, len(parsed.Runs))
		}
		for i, run := range parsed.Runs {
			database := d.Databases[i]
			if *run.Invocations[0].ExecutionSuccessful != (database.Report != nil) {
				t.Errorf("%s: run %d: success is %v", name, i, *run.Invocations[0].ExecutionSuccessful)
			}
			if database.Report == nil {
				if got := *run.Invocations[0].ToolExecutionNotifications[0].Message.Text; got != database.Error {
					t.Errorf("the error is %q", got)
				}
				continue
			}
			if len(run.Results) != len(database.Report.Findings) {
				t.Fatalf("%s: %d results of %d findings", name, len(run.Results), len(database.Report.Findings))
			}
			for j, result := range run.Results {
				f := database.Report.Findings[j]
				level := map[audit.Severity]string{audit.Error: "error", audit.Warning: "warning", audit.Info: "note"}[f.Severity]
				location := result.Locations[0]
				if *result.RuleID != f.Rule || *run.Tool.Driver.Rules[result.RuleIndex].ID != f.Rule || result.Level != level ||
					result.PartialFingerprints["fencectlKey/v1"] != f.Key || !strings.Contains(*result.Message.Text, "Fix: "+f.Fix) ||
					*location.PhysicalLocation.ArtifactLocation.URI != "db/fencectl.yaml" || *location.LogicalLocations[0].FullyQualifiedName != "shop."+f.Object {
					t.Errorf("%s: finding %+v became %+v", name, f, result)
				}
			}
		}
	}
	// Two databases of the same name on two servers are two categories.
	ids := map[string]bool{}
	parsed, err := sarif.FromString(render(t, several(), report.SARIF))
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range parsed.Runs {
		ids[*run.AutomationDetails.ID] = true
	}
	if diff := cmp.Diff(map[string]bool{"fencectl/shop/": true, "fencectl/gone/": true, "fencectl/shop-2/": true}, ids); diff != "" {
		t.Error(diff)
	}
}

// notIn lists what a has and b has not, by their places.
func notIn(a, b any, place string) (missing []string) {
	switch a := a.(type) {
	case map[string]any:
		object, _ := b.(map[string]any)
		for name, value := range a {
			missing = append(missing, notIn(value, object[name], place+"."+name)...)
		}
	case []any:
		array, _ := b.([]any)
		for i, value := range a {
			if i >= len(array) {
				if len(a) > 0 {
					return append(missing, place)
				}
				break
			}
			missing = append(missing, notIn(value, array[i], fmt.Sprintf("%s[%d]", place, i))...)
		}
	default:
		// A default value may be left out.
		if a != b && a != "" && a != 0.0 {
			missing = append(missing, place)
		}
	}
	return missing
}

func TestThePageNeedsNothingElseAndTakesNamesForText(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*report.Document{"one": one(), "several": several()} {
		text := render(t, d, report.HTML)
		root, err := html.Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		var fixes []string
		anchors := map[string]bool{}
		for node := range root.Descendants() {
			if node.Type != html.ElementNode {
				continue
			}
			if slices.Contains([]string{"script", "img", "link", "iframe", "object", "embed", "form"}, node.Data) {
				t.Errorf("%s: the page has an element %s", name, node.Data)
			}
			for _, attribute := range node.Attr {
				switch {
				case attribute.Key == "id":
					anchors["#"+attribute.Val] = true
				case attribute.Key == "href" && !strings.HasPrefix(attribute.Val, "#") && !strings.HasPrefix(attribute.Val, "https://github.com/fencectl/fencectl"):
					t.Errorf("%s: a link to %s", name, attribute.Val)
				case attribute.Key == "src", strings.HasPrefix(attribute.Key, "on"):
					t.Errorf("%s: an attribute %s", name, attribute.Key)
				case attribute.Key == "style" && !strings.HasPrefix(attribute.Val, "width: "):
					t.Errorf("%s: a style %s", name, attribute.Val)
				}
			}
			if node.Data == "pre" {
				fixes = append(fixes, node.FirstChild.Data)
			}
		}
		for node := range root.Descendants() {
			for _, attribute := range node.Attr {
				if attribute.Key == "href" && strings.HasPrefix(attribute.Val, "#") && !anchors[attribute.Val] {
					t.Errorf("%s: nothing is at %s", name, attribute.Val)
				}
			}
		}
		if strings.Contains(text, "url(") || strings.Contains(text, "@import") || strings.Contains(text, "ZgotmplZ") {
			t.Errorf("%s: the style loads something, or a value was refused", name)
		}
		var want []string
		for _, database := range d.Databases {
			if database.Report != nil {
				for _, f := range database.Report.Findings {
					want = append(want, strings.ReplaceAll(f.Fix, "\r\n", "\n")) // as HTML reads ends of lines
				}
			}
		}
		if diff := cmp.Diff(want, fixes); diff != "" {
			t.Errorf("%s: the fixes (-want +got):\n%s", name, diff)
		}
	}
}

func TestThePageShowsCoverageAndWrites(t *testing.T) {
	t.Parallel()
	text := words(t, render(t, one(), report.HTML))
	for _, want := range []string{
		"Fencing audit of shop on 10.0.0.7:5432",
		"31 tables 3 fenced 27 unfenced 1 exempt 2 errors 26 warnings 1 note",
		"billing 1 1 0 2 public 2 0 27 29", // fenced, exempt, without, all
		"Errors guard-disabled 1", "Warnings unfenced-table 26", "16 more", "Notes observing 1",
		"1,000,000 234,567 0 1,234,567", "billing.ledger exempt 400,000 0 0 400,000 public.cache 90,000 120,000 60,000 270,000",
		"25 more were written less, or not at all",
		"token-ahead-of-source : this needs SELECT", "the exemption of cache ended on 2026-03-31", "settings from db/fencectl.yaml",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q:\n%s", want, text)
		}
	}
	text = words(t, render(t, several(), report.HTML))
	for _, want := range []string{
		"gone on 10.0.0.8:5432 could not be audited", "Could not be audited: nothing is listening at 10.0.0.8:5432", "shop on 10.0.0.9:5432 1 1 0 0 0", "Nothing was found.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of several does not say %q:\n%s", want, text)
		}
	}
}

// words is the text of a page, with one space wherever there is any or an element begins or ends.
func words(t *testing.T, page string) string {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for node := range root.Descendants() {
		if node.Type == html.TextNode && node.Parent.Data != "style" {
			all = append(all, strings.Fields(node.Data)...)
		}
	}
	return strings.Join(all, " ")
}

func TestJSONOfOneDatabaseIsItsReportAndOfSeveralNamesEach(t *testing.T) {
	t.Parallel()
	plain, err := json.Marshal(shop())
	if err != nil {
		t.Fatal(err)
	}
	decode := func(text string) (document map[string]any) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &document); err != nil {
			t.Fatal(err)
		}
		return document
	}
	single := decode(string(plain))
	if diff := cmp.Diff(single, decode(render(t, one(), report.JSON))); diff != "" {
		t.Error(diff)
	}
	got := decode(render(t, several(), report.JSON))
	databases, _ := got["databases"].([]any)
	if len(databases) != 3 {
		t.Fatalf("%d databases", len(databases))
	}
	if diff := cmp.Diff(map[string]any{"database": "shop", "address": "10.0.0.7:5432", "report": single}, databases[0]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{
		"database": "gone", "address": "10.0.0.8:5432", "error": "nothing is listening at 10.0.0.8:5432 (connection refused)",
	}, databases[1]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{"databases": 3.0, "failed": 1.0, "tables": 32.0, "fenced": 4.0, "exempt": 1.0, "findings": 29.0}, got["summary"]); diff != "" || got["version"] != 1.0 {
		t.Errorf("version %v, summary %s", got["version"], diff)
	}
}

func TestTheWorstOfAllDatabasesCounts(t *testing.T) {
	t.Parallel()
	d := several()
	if d.Worst() != audit.Error {
		t.Errorf("the worst is %q", d.Worst())
	}
	d.Databases[0].Report.Findings = d.Databases[0].Report.Findings[len(d.Databases[0].Report.Findings)-1:]
	d.Databases[2].Report.Findings = shop().Findings[2:3]
	if d.Worst() != audit.Warning {
		t.Errorf("the worst is %q", d.Worst())
	}
	d.Databases = d.Databases[1:2]
	if d.Worst() != "" {
		t.Errorf("the worst of nothing is %q", d.Worst())
	}
}
