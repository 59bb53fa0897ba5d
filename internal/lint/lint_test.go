package lint_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/lint"
)

func TestPatternsMeanPathsAndWhatIsBelow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, path string
		want          bool
	}{
		{"db/queries", "db/queries/a.sql", true},
		{"db/queries", "db/queries.sql", false},
		{"db/*.sql", "db/a.sql", true},
		{"db/*.sql", "db/x/a.sql", false},
		{"**/testdata", "testdata/a.sql", true},
		{"**/testdata", "a/b/testdata/c/d.sql", true},
		{"**/*.sql", "a.sql", true},
		{"db/**/old", "db/old", true},
		{"db/**/old", "db/x/y/old/z.sql", true},
		{"db/**/old", "x/db/old", false},
		{"./db/", "db/a.sql", true},
		{".", "anything/at/all.sql", true},
		{"d?", "db/a.sql", true},
		{"db/a.sql", "db", false},
	} {
		if got := lint.MatchPath(test.pattern, test.path); got != test.want {
			t.Errorf("%s and %s: %t", test.pattern, test.path, got)
		}
	}
	for pattern, wrong := range map[string]bool{"a/[b": true, "/a": true, "a/**": false, "": false} {
		if err := lint.CheckPattern(pattern); (err != nil) != wrong {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}

func TestAKeyStaysWhereverTheStatementMoves(t *testing.T) {
	t.Parallel()
	finding := func(line int, statement string) lint.Finding {
		return lint.Finding{Rule: lint.UnfencedWrite, File: "a.sql", Line: line, Column: 1, Message: "m", Statement: statement}
	}
	keys := func(findings ...lint.Finding) (keys []string) {
		report := &lint.Report{Findings: findings}
		report.Complete(nil)
		for _, f := range report.Findings {
			keys = append(keys, f.Key)
		}
		return keys
	}
	before := keys(finding(1, "UPDATE jobs SET a = 1"), finding(2, "UPDATE jobs SET a = 1"))
	after := keys(finding(7, "UPDATE jobs\n  SET a = 1"), finding(9, "UPDATE jobs SET a = 1"))
	if diff := cmp.Diff(before, after); diff != "" || before[0] == before[1] {
		t.Errorf("%q, %q", before, after)
	}
}

func TestAReportIsSortedOnceEachAndAsSevereAsTheProjectSays(t *testing.T) {
	t.Parallel()
	at := func(rule, file string, line int) lint.Finding {
		return lint.Finding{Rule: rule, File: file, Line: line}
	}
	report := &lint.Report{Findings: []lint.Finding{
		at(lint.UnfencedWrite, "b.sql", 1), at(lint.BypassUsed, "a.sql", 2), at(lint.TokenSource, "a.sql", 1), at(lint.UnfencedWrite, "b.sql", 1), at(lint.ClaimOrder, "a.sql", 9),
	}}
	report.Complete(map[string]audit.Severity{lint.ClaimOrder: audit.Off, lint.TokenSource: audit.Info})
	var got []string
	for _, f := range report.Findings {
		got = append(got, f.File+" "+f.Rule+" "+string(f.Severity))
	}
	if diff := cmp.Diff([]string{"a.sql token-source info", "a.sql bypass-used warning", "b.sql unfenced-write error"}, got); diff != "" {
		t.Error(diff)
	}
	if report.Worst() != audit.Error || report.Summary.Findings != 3 {
		t.Errorf("%s of %d", report.Worst(), report.Summary.Findings)
	}
}
