package project_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencectl/fencectl/internal/project"
)

// Whatever stands in the file, it is settings or an *Error that says where.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "---", "# nothing", "audit:", "audit: {}", "audit: []", "x: 1", "1: 2", "? [a]\n: b", "a: &a [*a]", "audit: &a\n  exempt: *a",
		"<<: {audit: {}}", "audit:\n  required: [a, 'b.*']\n  exempt:\n    - {table: c, reason: d, until: 2027-03-31}\n  severities: {unfenced-table: error}",
		"environments:\n  live:\n    audit:\n      required: [\"*\"]", "lint:\n", "generate:\n", "schema:\n  migrations: [a]\n", "audit: !!binary x",
		"a: b\n---\nc: d", "\xff", "\t", "audit: {required: [\"a.b.c\"]}", "audit:\n  exempt:\n    - until: x",
	} {
		f.Add([]byte(text))
	}
	examples, err := filepath.Glob("../../examples/*/fencectl.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range examples {
		content, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		settings, err := project.Parse("fencectl.yaml", content)
		var wrong *project.Error
		switch {
		case err == nil && settings == nil:
			t.Fatal("neither settings nor an error")
		case err != nil && !errors.As(err, &wrong):
			t.Fatalf("error %T %v, want a *project.Error", err, err)
		case err != nil:
			_ = err.Error()
			return
		}
		for environment := range settings.Environments {
			if _, err := settings.AuditIn(environment); err != nil {
				t.Errorf("environment %q is there, and: %v", environment, err)
			}
		}
	})
}
