package project

import (
	"go/token"
	"regexp"

	"go.yaml.in/yaml/v3"

	"github.com/fencectl/fencectl/internal/generate"
)

func (r *reader) generate(node *yaml.Node, settings *generate.Settings) error {
	return r.mapping(node, "generate", map[string]read{
		"sqlc":    r.one(&settings.SQLC, "generate.sqlc"),
		"command": r.texts(&settings.Command, "generate.command", "a word of generate.command"),
		"queries": r.one(&settings.Queries, "generate.queries"),
		"tables": func(node *yaml.Node) error {
			return r.entries(node, "generate.tables", func(key, value *yaml.Node) error {
				pattern, err := r.pattern(key, "a table in generate.tables")
				if err != nil {
					return err
				}
				table, err := r.generatedTable(value, "generate.tables."+pattern)
				table.Pattern = pattern
				settings.Tables = append(settings.Tables, table)
				return err
			})
		},
	})
}

// one reads a text.
func (r *reader) one(into *string, what string) read {
	return func(node *yaml.Node) (err error) {
		*into, err = r.text(node, what)
		return err
	}
}

func (r *reader) generatedTable(node *yaml.Node, what string) (table generate.Table, err error) {
	err = r.mapping(node, what, map[string]read{
		"name": func(node *yaml.Node) (err error) {
			table.Name, err = r.name(node, what+".name")
			return err
		},
		"insert": r.texts(&table.Insert, what+".insert", "a column in "+what+".insert"),
		"updates": func(node *yaml.Node) error {
			return r.entries(node, what+".updates", func(key, value *yaml.Node) error {
				name, err := r.name(key, "the name of an update in "+what+".updates")
				if err != nil {
					return err
				}
				update, err := r.update(value, what+".updates."+name)
				update.Name = name
				table.Updates = append(table.Updates, update)
				return err
			})
		},
	})
	return table, err
}

var exportedName = regexp.MustCompile("^[A-Z][A-Za-z0-9]*$")

// name reads a name that is to be one in Go. The schema has the same pattern.
func (r *reader) name(node *yaml.Node, what string) (string, error) {
	text, err := r.text(node, what)
	if err == nil && (!exportedName.MatchString(text) || !token.IsIdentifier(text)) {
		err = r.fail(node, "%s must be a name that Go exports, such as MarkRunning", what)
	}
	return text, err
}

func (r *reader) update(node *yaml.Node, what string) (update generate.Update, err error) {
	err = r.mapping(node, what, map[string]read{
		"set":   func(node *yaml.Node) error { return r.assignments(node, what+".set", &update.Set) },
		"where": r.one(&update.Where, what+".where"),
	})
	if err == nil && len(update.Set) == 0 {
		err = r.fail(resolved(node), "%s needs a set: the columns that it sets", what)
	}
	return update, err
}

// assignments reads a list of columns, or a mapping of columns to SQL expressions, where a column without one has a parameter.
func (r *reader) assignments(node *yaml.Node, what string, set *[]generate.Assignment) error {
	if resolved(node).Kind == yaml.SequenceNode {
		return r.sequence(node, what, func(item *yaml.Node) error {
			column, err := r.text(item, "a column in "+what)
			*set = append(*set, generate.Assignment{Column: column})
			return err
		})
	}
	return r.entries(node, what, func(key, value *yaml.Node) error {
		column, err := r.text(key, "a column in "+what)
		if err != nil {
			return err
		}
		assignment := generate.Assignment{Column: column}
		if !empty(resolved(value)) {
			// A number or a boolean is an expression as well.
			value = resolved(value)
			if assignment.Expression = value.Value; value.Kind != yaml.ScalarNode || value.Value == "" {
				return r.fail(value, "%s.%s must be an SQL expression, or nothing for a parameter", what, column)
			}
		}
		*set = append(*set, assignment)
		return nil
	})
}
