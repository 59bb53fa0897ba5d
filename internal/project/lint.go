package project

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/lint"
)

func (r *reader) lint(node *yaml.Node, options *lint.Options) error {
	texts := func(into *[]string, what string, check func(string) error) read {
		return func(node *yaml.Node) error {
			return r.sequence(node, what, func(item *yaml.Node) error {
				text, err := r.text(item, "an entry of "+what)
				if err != nil {
					return err
				}
				if err := check(text); err != nil {
					return r.fail(item, "%s: %s", what, err)
				}
				*into = append(*into, text)
				return nil
			})
		}
	}
	anything := func(string) error { return nil }
	return r.mapping(node, "lint", map[string]read{
		"paths":   texts(&options.Paths, "lint.paths", anything),
		"exclude": texts(&options.Exclude, "lint.exclude", lint.CheckPattern),
		"presented": func(node *yaml.Node) error {
			return r.sequence(node, "lint.presented", func(item *yaml.Node) error {
				const what = "an entry of lint.presented"
				var p lint.Presented
				err := r.mapping(item, what, map[string]read{
					"paths": texts(&p.Paths, "paths of "+what, lint.CheckPattern),
					"reason": func(node *yaml.Node) (err error) {
						p.Reason, err = r.text(node, "reason")
						return err
					},
				})
				switch {
				case err != nil:
					return err
				case len(p.Paths) == 0:
					return r.fail(item, "%s names no paths", what)
				case p.Reason == "":
					return r.fail(item, "%s needs a reason: how the token is presented", what)
				}
				options.Presented = append(options.Presented, p)
				return nil
			})
		},
		"severities": func(node *yaml.Node) error {
			var names []string
			for _, rule := range lint.Rules() {
				names = append(names, rule.Name)
			}
			options.Severities = map[string]audit.Severity{}
			return r.severitiesOf(node, "lint.severities", names, options.Severities)
		},
	})
}

// severitiesOf reads a mapping from the names of rules to severities.
func (r *reader) severitiesOf(node *yaml.Node, what string, rules []string, into map[string]audit.Severity) error {
	var allowed []string
	for _, severity := range append(audit.Severities(), audit.Off) {
		allowed = append(allowed, string(severity))
	}
	known := map[string]read{}
	for _, rule := range rules {
		known[rule] = func(node *yaml.Node) error {
			node = resolved(node)
			if node.Kind != yaml.ScalarNode || !slices.Contains(allowed, node.Value) {
				return r.fail(node, "the severity of %s must be one of %s", rule, strings.Join(allowed, ", "))
			}
			into[rule] = audit.Severity(node.Value)
			return nil
		}
	}
	return r.mapping(node, what, known)
}
