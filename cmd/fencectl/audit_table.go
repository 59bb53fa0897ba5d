package main

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/report"
)

// printAudits shows each database, and what there is to say about all of them.
func (a *app) printAudits(d *report.Document, limit int) {
	for i := range d.Databases {
		one := &d.Databases[i]
		if d.Several {
			a.heading("DATABASE "+printable(one.Label()), i > 0)
			fmt.Fprintln(a.stdout)
		}
		if one.Report == nil {
			a.paragraph("", "could not be audited: "+one.Error)
			continue
		}
		a.printAudit(one.Report, limit)
	}
	for _, e := range d.Ended() {
		fmt.Fprintln(a.stdout)
		a.paragraph("", report.Sentence(e))
	}
	if d.Several {
		fmt.Fprintln(a.stdout)
		fmt.Fprintln(a.stdout, d.Totals())
	}
}

// printAudit shows the findings by severity and rule. What is to be pasted is on lines of its own, and never broken.
func (a *app) printAudit(r *audit.Report, limit int) {
	for i := 0; i < len(r.Findings); {
		first := r.Findings[i]
		if i == 0 || first.Severity != r.Findings[i-1].Severity {
			a.heading(strings.ToUpper(string(first.Severity)), i > 0)
		}
		fmt.Fprintln(a.stdout)
		a.paragraph("", first.Rule+": "+first.Why)
		fmt.Fprintf(a.stdout, "%s\n", first.Docs)
		shown := 0
		for ; i < len(r.Findings) && r.Findings[i].Rule == first.Rule && r.Findings[i].Severity == first.Severity; i++ {
			if shown++; limit == 0 || shown <= limit {
				a.printFinding(r.Findings[i])
			}
		}
		if limit > 0 && shown > limit {
			fmt.Fprintf(a.stdout, "\n  and %d more: fencectl audit --limit 0\n", shown-limit)
		}
	}
	if len(r.Findings) > 0 {
		fmt.Fprintln(a.stdout)
	}
	fmt.Fprintln(a.stdout, report.Totals(r.Summary, r.Findings))
	for _, s := range r.Skipped {
		fmt.Fprintln(a.stdout)
		a.paragraph("", "not checked: "+s.Rule+": "+s.Reason)
	}
}

func (a *app) heading(title string, apart bool) {
	if apart {
		fmt.Fprintln(a.stdout)
	}
	if a.colour() {
		title = text.Bold.Sprint(title)
	}
	fmt.Fprintln(a.stdout, title)
}

func (a *app) paragraph(indent, words string) {
	for _, line := range wrapText(oneLine(words), a.width()-len(indent)) {
		fmt.Fprintf(a.stdout, "%s%s\n", indent, line)
	}
}

func (a *app) printFinding(f audit.Finding) {
	fmt.Fprintln(a.stdout)
	a.paragraph("  ", f.Object+" "+f.Message)
	for line := range strings.Lines(f.Fix) {
		fmt.Fprintf(a.stdout, "    %s\n", printable(strings.TrimRight(line, "\n")))
	}
}

// printable keeps a terminal from being told anything, and everything else as it is: it is to be pasted.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, line)
}
