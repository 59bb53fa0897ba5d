// Package report shows what audits and the linter found in the forms that others read: JSON, SARIF, annotations of a GitHub workflow, an
// HTML page. It owns those forms. What is found is the business of package audit; what a person reads in a terminal is the
// command's.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fencectl/fencectl/internal/audit"
)

// A Database is what an audit said of one database, or why there is nothing to say.
type Database struct {
	Name    string        // "" when not even that is known
	Address string        // host:port or socket directory
	Report  *audit.Report // nil when it could not be audited
	Error   string        // why, in one line
}

// Label tells it from the others.
func (d *Database) Label() string {
	switch {
	case d.Name == "":
		return d.Address
	case d.Address == "":
		return d.Name
	}
	return d.Name + " on " + d.Address
}

// A Document is what one run found.
type Document struct {
	Databases []Database
	Several   bool // it is about several databases, even where it happens to be one: the JSON has another form

	Settings string    // the project's file, as a path relative to the project; "" without one
	Program  string    // the version of fencectl
	At       time.Time // when it ran
}

// Worst is the worst severity among all findings; "" without any.
func (d *Document) Worst() audit.Severity {
	var worst audit.Severity
	for _, database := range d.Databases {
		if r := database.Report; r != nil && r.Worst() != "" && (worst == "" || r.Worst().AtLeast(worst)) {
			worst = r.Worst()
		}
	}
	return worst
}

// Ended are the exemptions that have ended. They are the project's, and so the same for every database.
func (d *Document) Ended() []audit.Ended {
	for _, database := range d.Databases {
		if database.Report != nil {
			return database.Report.Ended
		}
	}
	return nil
}

// Summary counts over all databases.
type Summary struct {
	Databases int `json:"databases"`
	Failed    int `json:"failed"` // of them, those that could not be audited
	audit.Summary
}

// Summary counts over all databases.
func (d *Document) Summary() Summary {
	sum := Summary{Databases: len(d.Databases)}
	for _, database := range d.Databases {
		if database.Report == nil {
			sum.Failed++
			continue
		}
		s := database.Report.Summary
		sum.Tables += s.Tables
		sum.Fenced += s.Fenced
		sum.Exempt += s.Exempt
		sum.Findings += s.Findings
	}
	return sum
}

// Totals is a summary in words: "5 tables, 4 fenced, 1 exempt; 1 error, 3 warnings".
func Totals(s audit.Summary, findings ...[]audit.Finding) string {
	var b strings.Builder
	if s.Findings == 0 {
		b.WriteString("nothing found: ")
	}
	fmt.Fprintf(&b, "%s, %d fenced", counted(s.Tables, "table"), s.Fenced)
	if s.Exempt > 0 {
		fmt.Fprintf(&b, ", %d exempt", s.Exempt)
	}
	if s.Findings > 0 {
		count := map[audit.Severity]int{}
		for _, some := range findings {
			for _, f := range some {
				count[f.Severity]++
			}
		}
		var parts []string
		for _, severity := range audit.Severities() {
			if n := count[severity]; n > 0 {
				parts = append(parts, counted(n, noun(severity)))
			}
		}
		b.WriteString("; " + strings.Join(parts, ", "))
	}
	return b.String()
}

// Totals is the document's summary in words.
func (d *Document) Totals() string {
	sum := d.Summary()
	var findings [][]audit.Finding
	for _, database := range d.Databases {
		if database.Report != nil {
			findings = append(findings, database.Report.Findings)
		}
	}
	words := Totals(sum.Summary, findings...)
	if !d.Several {
		return words
	}
	words = counted(sum.Databases, "database") + ": " + words
	if sum.Failed > 0 {
		words += fmt.Sprintf("; %d could not be audited", sum.Failed)
	}
	return words
}

// noun is what one finding of a severity is called.
func noun(severity audit.Severity) string {
	if severity == audit.Info {
		return "note"
	}
	return string(severity)
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Sentence says of an exemption that it has ended.
func Sentence(e audit.Ended) string {
	return fmt.Sprintf("the exemption of %s%s ended on %s (%s): renew or remove it", e.Table, e.Key, e.Until, e.Reason)
}

// JSON writes the document as docs/json.md describes it.
func JSON(w io.Writer, d *Document) error {
	if !d.Several {
		return encode(w, d.Databases[0].Report)
	}
	type database struct {
		Database string        `json:"database"`
		Address  string        `json:"address"`
		Error    string        `json:"error,omitempty"`
		Report   *audit.Report `json:"report,omitempty"`
	}
	document := struct {
		Version   int        `json:"version"`
		Databases []database `json:"databases"`
		Summary   Summary    `json:"summary"`
	}{Version: 1, Summary: d.Summary()}
	for _, one := range d.Databases {
		document.Databases = append(document.Databases, database{one.Name, one.Address, one.Error, one.Report})
	}
	return encode(w, document)
}

func encode(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(document)
}
