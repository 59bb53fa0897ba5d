package report

import (
	"bufio"
	"fmt"
	"io"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/lint"
)

// A Lint is what one run of the linter found.
type Lint struct {
	Report  *lint.Report
	Program string    // the version of fencectl
	At      time.Time // when it ran
}

// Totals is the summary in words: "2 errors, 1 warning; 45 statements in 12 files, 3 protected tables".
func (l *Lint) Totals() string {
	count := map[audit.Severity]int{}
	for _, f := range l.Report.Findings {
		count[f.Severity]++
	}
	var parts []string
	for _, severity := range audit.Severities() {
		if n := count[severity]; n > 0 {
			parts = append(parts, counted(n, noun(severity)))
		}
	}
	words := "nothing found"
	if len(parts) > 0 {
		words = strings.Join(parts, ", ")
	}
	s := l.Report.Summary
	words += fmt.Sprintf(": %s in %s, %s", counted(s.Statements, "statement"), counted(s.Files, "file"), counted(s.Tables, "protected table"))
	if s.Presented > 0 {
		words += fmt.Sprintf("; %s under a token of the transaction's", counted(s.Presented, "write"))
	}
	if s.Exempt > 0 {
		words += fmt.Sprintf("; %d exempt", s.Exempt)
	}
	return words
}

// LintJSON writes the report as docs/json.md describes it.
func LintJSON(w io.Writer, l *Lint) error { return encode(w, l.Report) }

// LintSARIF writes the report as a SARIF 2.1.0 log of one run. Files are relative to where fencectl ran, which code scanning takes for the top
// of the repository.
func LintSARIF(w io.Writer, l *Lint) error {
	index := map[string]int{}
	driver := sarifDriver{Name: "fencectl", Version: l.Program, InformationURI: homepage, Rules: []sarifRule{}}
	for i, rule := range lint.Rules() {
		index[rule.Name] = i
		driver.Rules = append(driver.Rules, sarifRule{
			ID: rule.Name, ShortDescription: sarifText{rule.Name}, FullDescription: sarifText{rule.Why}, HelpURI: rule.Docs(),
			Help: sarifText{rule.Why + " See " + rule.Docs()}, Default: sarifConfiguration{sarifLevel(rule.Severity)},
		})
	}
	invocation := sarifInvocation{Successful: true, EndTimeUTC: l.At.UTC().Format("2006-01-02T15:04:05Z"), Notifications: []sarifNotification{}}
	for _, note := range l.Report.Notes {
		invocation.Notifications = append(invocation.Notifications, sarifNotification{Level: "note", Message: sarifText{note}})
	}
	run := sarifRun{
		Tool: sarifTool{driver}, AutomationDetails: sarifAutomation{"fencectl/lint/"}, Invocations: []sarifInvocation{invocation},
		ColumnKind: "unicodeCodePoints", Results: []sarifResult{},
	}
	for _, f := range l.Report.Findings {
		location := sarifLocation{Physical: sarifPhysical{sarifArtifact{fileURI(f.File)}, sarifRegion{f.Line, f.Column}}}
		if f.Object != "" {
			location.Logical = []sarifLogical{{Name: f.Object, QualifiedName: f.Object, Kind: "resource"}}
		}
		run.Results = append(run.Results, sarifResult{
			RuleID: f.Rule, RuleIndex: index[f.Rule], Level: sarifLevel(f.Severity),
			Message:      sarifText{f.Message + "\n\n" + f.Why + "\n\nFix: " + f.Fix},
			Locations:    []sarifLocation{location},
			Fingerprints: map[string]string{"fencectlKey/v1": f.Key},
			Properties:   sarifProperties{Key: f.Key, Fix: f.Fix},
		})
	}
	return encode(w, sarifLog{Schema: sarifSchema, Version: "2.1.0", Runs: []sarifRun{run}})
}

func fileURI(file string) string {
	file = path.Clean(filepath.ToSlash(file))
	if filepath.IsAbs(file) {
		return (&url.URL{Scheme: "file", Path: file}).String()
	}
	return (&url.URL{Path: file}).String()
}

// LintGitHub writes the report as commands of a GitHub workflow, which become annotations in the files of a pull request. GitHub shows the
// first ten of each kind of a step, so the worst come first, and the totals before all.
func LintGitHub(w io.Writer, l *Lint) error {
	b := bufio.NewWriter(w)
	annotate(b, "notice", "fencectl lint", "", l.Totals())
	for _, severity := range audit.Severities() {
		for _, f := range l.Report.Findings {
			if f.Severity != severity {
				continue
			}
			properties := fmt.Sprintf("file=%s,line=%d,col=%d,title=%s", escapeProperty.Replace(visible(f.File)), f.Line, f.Column, escapeProperty.Replace(visible(f.Rule)))
			annotateWith(b, commandOf(severity), properties, f.Message+"\n"+f.Why+"\nFix: "+f.Fix+"\n"+f.Docs)
		}
	}
	for _, note := range l.Report.Notes {
		annotate(b, "notice", "not checked", "", note)
	}
	return b.Flush()
}

// Found lists the rules that the findings are of, each once, in the order of the rules.
func (l *Lint) Found() []lint.Rule {
	return slices.DeleteFunc(lint.Rules(), func(rule lint.Rule) bool {
		return !slices.ContainsFunc(l.Report.Findings, func(f lint.Finding) bool { return f.Rule == rule.Name })
	})
}
