package check_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/check"
)

func TestEveryRuleHasAPageAndEveryPageARule(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../../../docs/lint/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var pages, rules []string
	for _, name := range names {
		pages = append(pages, strings.TrimSuffix(filepath.Base(name), ".md"))
	}
	index := read(t, "../../../docs/lint.md")
	for _, rule := range lint.Rules() {
		rules = append(rules, rule.Name)
		if !strings.Contains(index, fmt.Sprintf("[`%[1]s`](lint/%[1]s.md) | %[2]s |", rule.Name, rule.Severity)) {
			t.Errorf("the index has no link to %s, or another severity", rule.Name)
		}
	}
	slices.Sort(rules)
	if diff := cmp.Diff(rules, pages); diff != "" {
		t.Errorf("rules without page (-), pages without rule (+):\n%s", diff)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// What a page calls wrong is found, and what it calls right is not, nor anything else in it.
func TestTheExamplesOfThePagesAreTrue(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?ms)^## (Wrong|Right)\n\n```sql\n(.*?)^```$")
	for _, rule := range lint.Rules() {
		page := read(t, "../../../docs/lint/"+rule.Name+".md")
		if !strings.HasPrefix(page, fmt.Sprintf("# %s\n\n**%s** · ", rule.Name, rule.Severity)) {
			t.Errorf("%s: the page begins otherwise, or with another severity", rule.Name)
		}
		examples := block.FindAllStringSubmatch(page, -1)
		if len(examples) != 2 {
			t.Errorf("%s: the page has %d examples", rule.Name, len(examples))
			continue
		}
		for _, example := range examples {
			dir := t.TempDir()
			tables := filepath.Join(dir, "tables.sql")
			write(t, tables, `CREATE TABLE jobs (id bigint PRIMARY KEY, state text);
				CREATE TABLE accounts (account_id bigint PRIMARY KEY, balance bigint);
				SELECT fencing.protect('jobs');
				SELECT fencing.protect('accounts', fence => 'account/{account_id}');`)
			name := filepath.Join(dir, "example.sql")
			write(t, name, example[2])
			options := &check.Options{Dir: dir, Migrations: []string{tables}}
			if regexp.MustCompile(`(?i)^(create|alter)`).MatchString(example[2]) { // a migration
				options.Migrations = append(options.Migrations, name)
			}
			if rule.Name == lint.GeneratedBypassed {
				options.Generated = func(*catalog.Table) bool { return true }
			}
			report, err := check.Run(t.Context(), []string{name}, options)
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, f := range report.Findings {
				found = append(found, f.Rule)
			}
			switch {
			case example[1] == "Right" && len(found) > 0:
				t.Errorf("%s: %q are found in what is right", rule.Name, found)
			case example[1] == "Wrong" && !slices.Contains(found, rule.Name):
				t.Errorf("%s: only %q are found in what is wrong", rule.Name, found)
			}
		}
	}
}
