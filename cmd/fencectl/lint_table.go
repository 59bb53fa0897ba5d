package main

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/report"
)

// printLintTable shows the findings in the order of the files, each at its place as editors take it, and then once for each rule why it
// matters.
func (a *app) printLintTable(l *report.Lint, limit int) {
	shown, hidden := map[string]int{}, map[string]int{}
	for _, f := range l.Report.Findings {
		if shown[f.Rule]++; limit > 0 && shown[f.Rule] > limit {
			hidden[f.Rule]++
			continue
		}
		a.printLintFinding(f)
	}
	for _, rule := range l.Found() {
		if hidden[rule.Name] > 0 {
			fmt.Fprintf(a.stdout, "%d more of %s: fencectl lint --limit 0\n\n", hidden[rule.Name], rule.Name)
		}
	}
	for _, rule := range l.Found() {
		a.paragraph("", rule.Name+": "+rule.Why)
		fmt.Fprintf(a.stdout, "%s\n\n", rule.Docs())
	}
	fmt.Fprintln(a.stdout, l.Totals())
	for _, note := range l.Report.Notes {
		fmt.Fprintln(a.stdout)
		a.paragraph("", "not checked: "+note)
	}
}

func (a *app) printLintFinding(f lint.Finding) {
	place, severity := fmt.Sprintf("%s:%d:%d:", printable(f.File), f.Line, f.Column), string(f.Severity)
	if a.colour() {
		place = text.Bold.Sprint(place)
		severity = map[audit.Severity]text.Color{audit.Error: text.FgRed, audit.Warning: text.FgYellow, audit.Info: text.FgCyan}[f.Severity].Sprint(severity)
	}
	fmt.Fprintf(a.stdout, "%s %s: %s\n", place, severity, f.Rule)
	a.printSource(f.Source, f.Column)
	a.paragraph("    ", f.Message+".")
	a.paragraph("    ", "Fix: "+f.Fix)
	fmt.Fprintln(a.stdout)
}

// printSource shows a line with a mark below the column, as much of it as fits.
func (a *app) printSource(line string, column int) {
	letters := []rune(printable(strings.ReplaceAll(line, "\t", " ")))
	if column < 1 || column > len(letters)+1 {
		return
	}
	column--
	// From its first word on; or, where that is too far away, from a little before the mark.
	begin := 0
	for begin < column && letters[begin] == ' ' {
		begin++
	}
	room := a.width() - len("    ")
	if column-begin > room*3/4 {
		begin = column - room/4
	}
	end := min(len(letters), begin+room)
	fmt.Fprintf(a.stdout, "    %s\n", strings.TrimRight(string(letters[begin:end]), " "))
	fmt.Fprintf(a.stdout, "    %s^\n", strings.Repeat(" ", text.StringWidthWithoutEscSequences(string(letters[begin:column]))))
}
