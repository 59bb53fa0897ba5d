package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/sqlfile"
	"github.com/fencectl/fencectl/internal/spelling"
)

// A directive is a comment for the linter, and whether it was of any use.
type directive struct {
	sqlfile.Directive
	at   position
	used bool
}

func ruleNames() []string {
	var names []string
	for _, rule := range lint.Rules() {
		names = append(names, rule.Name)
	}
	return names
}

// wrong says what is wrong with the comment itself; "" when it is understood.
func (d *directive) wrong() (message, fix string) {
	ignores := d.Verb == sqlfile.Ignore || d.Verb == sqlfile.IgnoreFile
	form := "fencectl:" + d.Verb + " REASON"
	if ignores {
		form = "fencectl:" + d.Verb + " RULE REASON"
	}
	switch {
	case !slices.Contains(sqlfile.Verbs(), d.Verb):
		fix = "There are: " + strings.Join(sqlfile.Verbs(), ", ") + "."
		if near, ok := spelling.Closest(d.Verb, sqlfile.Verbs()); ok {
			fix = "Did you mean fencectl:" + near + "?"
		}
		return fmt.Sprintf("fencectl:%s is nothing that the linter knows", d.Verb), fix
	case ignores && d.Rule == "":
		return "fencectl:" + d.Verb + " names no rule", "Write " + form + "."
	case ignores && !slices.Contains(ruleNames(), d.Rule):
		fix = "Write " + form + "; the rules are in docs/lint.md."
		if near, ok := spelling.Closest(d.Rule, ruleNames()); ok {
			fix = "Did you mean " + near + "?"
		}
		return fmt.Sprintf("there is no rule %s", d.Rule), fix
	case d.Reason == "":
		return fmt.Sprintf("fencectl:%s %s gives no reason, and therefore does not hold", d.Verb, d.Rule), "Say why: " + form + "."
	}
	return "", ""
}

// holds says whether the comment is one that counts.
func (d *directive) holds() bool {
	message, _ := d.wrong()
	return message == ""
}

// exempted says whether a comment exempts a finding about a statement.
func (u *unit) exempted(i int, rule string) bool {
	return u.settled(i, func(d *directive) bool {
		return (d.Verb == sqlfile.Ignore || d.Verb == sqlfile.IgnoreFile) && d.Rule == rule
	})
}

// presentedHere says whether a comment says that a statement's transaction presents the token.
func (u *unit) presentedHere(i int) bool {
	return u.settled(i, func(d *directive) bool { return d.Verb == sqlfile.Presented || d.Verb == sqlfile.PresentedFile })
}

func (u *unit) settled(i int, says func(*directive) bool) bool {
	settled := false
	for _, d := range u.directives {
		whole := d.Verb == sqlfile.IgnoreFile || d.Verb == sqlfile.PresentedFile
		if says(d) && d.holds() && (whole || d.Statement == i) {
			d.used, settled = true, true
		}
	}
	for _, d := range u.outer {
		if says(d) && d.holds() {
			d.used, settled = true, true
		}
	}
	return settled
}

// checkDirectives reports comments that are wrong, or for nothing.
func checkDirectives(directives []*directive) []draft {
	var findings []draft
	for _, d := range directives {
		message, fix := d.wrong()
		if message == "" {
			if d.used {
				continue
			}
			what := "no " + d.Rule + " was found there"
			if d.Verb == sqlfile.Presented || d.Verb == sqlfile.PresentedFile {
				what = "nothing there needs a token that it does not present itself"
			}
			message, fix = fmt.Sprintf("fencectl:%s exempts nothing: %s", d.Verb, what), "Remove it, or move it to the statement that it is for: the line before, or within."
		}
		findings = append(findings, draft{Finding: lint.Finding{
			Rule: lint.ExemptionInvalid, File: d.at.file, Line: d.at.line, Column: d.at.column, Message: message, Fix: fix, Statement: d.Verb + " " + d.Rule + " " + d.Reason,
		}})
	}
	return findings
}
