// Package lint says what is wrong with the SQL of a repository: its queries, scripts, migrations, and the SQL in its Go source. It owns the
// rules (each is an entry in the table here and a page in docs/lint/), what a finding says, and what a project can settle about them. It
// parses nothing, so that whoever only needs the names of the rules does not compile PostgreSQL's grammar: that is the business of the
// packages below, of which package check is the door.
//
// Package statement, which the audit and the plan go by, reads statements too, by their words alone: its texts come out of
// pg_stat_statements, by the ten thousand, with parameters where constants were, and sometimes cut off. There a parser would be slow and
// often fail, and a wrong guess costs an info. Here a finding breaks somebody's build.
package lint

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/internal/audit"
)

// A Finding is one thing that is wrong in one place. The JSON is a contract: fields are added, never changed.
type Finding struct {
	Rule     string         `json:"rule"`
	Severity audit.Severity `json:"severity"`
	File     string         `json:"file"`    // as it was named, or found below what was named; with slashes
	Line     int            `json:"line"`    // from 1
	Column   int            `json:"column"`  // from 1, in characters
	Object   string         `json:"object"`  // the table it is about, quoted as SQL wants it; "" when it is about none
	Message  string         `json:"message"` // what was found
	Why      string         `json:"why"`     // why it matters
	Fix      string         `json:"fix"`     // what to do next
	Docs     string         `json:"docs"`    // the rule's page
	Key      string         `json:"key"`     // the same in every run, wherever in the file the statement moves

	// Statement is the text that Key goes by, and Source the line of the file.
	Statement string `json:"-"`
	Source    string `json:"-"`
}

// Summary counts.
type Summary struct {
	Files      int `json:"files"`      // that were linted, of SQL and of Go
	Statements int `json:"statements"` // in them
	Tables     int `json:"tables"`     // the protected tables that are known
	Findings   int `json:"findings"`   // exempted ones do not count
	Exempt     int `json:"exempt"`     // findings that a comment exempts, with its reason
	Presented  int `json:"presented"`  // writes whose transaction presents the token: by the Go source, the project's file, or a comment
}

// Report is what was found. Its JSON is what fencectl lint prints.
type Report struct {
	Version  int       `json:"version"`  // 1
	Schema   string    `json:"schema"`   // where the tables are known from, in words
	Findings []Finding `json:"findings"` // by file, and within a file by their places
	Summary  Summary   `json:"summary"`
	Notes    []string  `json:"notes"` // what could not be looked at, and what would give it
}

// Worst is the worst severity among the findings; "" without any.
func (r *Report) Worst() audit.Severity {
	var worst audit.Severity
	for _, f := range r.Findings {
		if worst == "" || f.Severity.AtLeast(worst) {
			worst = f.Severity
		}
	}
	return worst
}

// Complete fills in what a finding has of its rule, gives the findings their keys and their order, and drops those of rules that are
// off. A finding that is there twice, as when a constant is used in two places, is kept once.
func (r *Report) Complete(severities map[string]audit.Severity) {
	kept := r.Findings[:0]
	for _, f := range r.Findings {
		rule := rules[ruleOrder(f.Rule)]
		f.Severity, f.Why, f.Docs = rule.Severity, rule.Why, rule.Docs()
		if severity, ok := severities[f.Rule]; ok {
			f.Severity = severity
		}
		if f.Severity != audit.Off {
			kept = append(kept, f)
		}
	}
	slices.SortStableFunc(kept, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(ruleOrder(a.Rule), ruleOrder(b.Rule)), cmp.Compare(a.Message, b.Message))
	})
	kept = slices.CompactFunc(kept, func(a, b Finding) bool {
		return a.File == b.File && a.Line == b.Line && a.Column == b.Column && a.Rule == b.Rule && a.Message == b.Message
	})
	seen := map[string]int{}
	for i := range kept {
		f := &kept[i]
		hash := sha256.Sum256([]byte(strings.Join(strings.Fields(f.Statement), " ")))
		f.Key = strings.Join([]string{f.Rule, f.File, hex.EncodeToString(hash[:4])}, ":")
		// The same statement again, or the same rule twice in one: their order tells them apart.
		if seen[f.Key]++; seen[f.Key] > 1 {
			f.Key += "-" + strings.Repeat("I", seen[f.Key]-1)
		}
	}
	r.Version, r.Findings = 1, append([]Finding{}, kept...)
	r.Summary.Findings = len(kept)
	if r.Notes == nil {
		r.Notes = []string{}
	}
}

// Presented are files whose statements run in transactions, or in sessions, that present the token.
type Presented struct {
	Paths  []string // patterns as those of Options.Exclude
	Reason string   // how the token is presented; must not be empty
}

// Options are what a project settles.
type Options struct {
	// Paths are linted when the command line names none: as there, relative to the project.
	Paths []string

	// Exclude are files that are not linted: patterns of paths relative to the project, with ** for any directories. A directory means
	// everything below it.
	Exclude []string

	// Presented are the files of which unfenced-write is not reported.
	Presented []Presented

	// Severities are those of a rule's findings, by the rule's name, where they are not to have their own; audit.Off: there are to be
	// none.
	Severities map[string]audit.Severity
}

// Excludes says whether a file, by its path relative to the project with slashes, is not to be linted.
func (o *Options) Excludes(path string) bool {
	return slices.ContainsFunc(o.Exclude, func(pattern string) bool { return MatchPath(pattern, path) })
}

// PresentedBy is how the transactions of a file's statements present the token; "" when nothing says that they do.
func (o *Options) PresentedBy(path string) string {
	for _, p := range o.Presented {
		if slices.ContainsFunc(p.Paths, func(pattern string) bool { return MatchPath(pattern, path) }) {
			return p.Reason
		}
	}
	return ""
}
