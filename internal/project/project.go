// Package project reads a project's settings, fencectl.yaml. It owns where that file is looked for and how it is read: strictly,
// so that a misspelled key, which would otherwise be a rule that silently does not apply, is an error with its line and what was
// probably meant. What the settings mean is the business of the packages that they are for.
package project

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/fencectl/fencectl/internal/appschema"
	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/generate"
	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/spelling"
	"github.com/fencectl/fencectl/internal/tableref"
)

// FileName is the name of the file.
const FileName = "fencectl.yaml"

// Settings are what a project's file says.
type Settings struct {
	Audit audit.Options

	// Schema says where the application's schema comes from, for the commands that need one. Its paths are relative to the file's directory.
	Schema appschema.Settings

	// Lint is what holds for fencectl lint. Its paths are relative to the file's directory.
	Lint lint.Options

	// Generate is what fencectl generate writes. Its paths are relative to the file's directory.
	Generate generate.Settings

	// Environments are what it says of each environment in particular, by name.
	Environments map[string]Environment
}

// An Environment is what holds in one of the places where the project's databases are, beside what holds in all of them.
type Environment struct {
	Audit audit.Options
}

// AuditIn is what holds for audits in an environment: what it requires and exempts is added to what holds everywhere, and its
// severities come before those. The environment "" is none. The error says which environments there are.
func (s *Settings) AuditIn(environment string) (*audit.Options, error) {
	here, ok := s.Environments[environment]
	if environment != "" && !ok {
		known := slices.Sorted(maps.Keys(s.Environments))
		if near, ok := spelling.Closest(environment, known); ok {
			return nil, fmt.Errorf("there is no environment %s; did you mean %s?", environment, near)
		}
		if len(known) == 0 {
			return nil, fmt.Errorf("there is no environment %s: there are none", environment)
		}
		return nil, fmt.Errorf("there is no environment %s; there are: %s", environment, strings.Join(known, ", "))
	}
	options := s.Audit
	options.Required = slices.Concat(s.Audit.Required, here.Audit.Required)
	options.Exempt = slices.Concat(s.Audit.Exempt, here.Audit.Exempt)
	options.Severities = maps.Clone(s.Audit.Severities)
	if options.Severities == nil {
		options.Severities = here.Audit.Severities
	} else {
		maps.Copy(options.Severities, here.Audit.Severities)
	}
	return &options, nil
}

// An Error is something in the file that cannot be understood.
type Error struct {
	File   string
	Line   int // from 1; 0 when it is about the file as a whole
	Reason string
	Known  []string // the keys that are known in that place, when the reason is one that is not
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Reason
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// Find looks for the file in a directory and upwards from it, and returns its path; "" when there is none.
func Find(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, FileName)
		info, err := os.Stat(path)
		switch {
		case err == nil && !info.IsDir():
			return path, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return "", err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", nil
		}
		dir = parent
	}
}

// Read reads the file. The error is an *Error when the file is there and its content is wrong.
func Read(path string) (*Settings, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, content)
}

// Parse reads settings from the content of a file; name is for messages. The error is an *Error.
func Parse(name string, content []byte) (*Settings, error) {
	reader := &reader{file: name}
	settings := &Settings{}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document, another yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF): // nothing but comments
		return settings, nil
	case err != nil:
		return nil, &Error{File: name, Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	if err := decoder.Decode(&another); !errors.Is(err, io.EOF) {
		return nil, reader.fail(&another, "there is more than one document")
	}
	return settings, reader.mapping(document.Content[0], "", map[string]read{
		"audit":        func(node *yaml.Node) error { return reader.audit(node, "audit", &settings.Audit) },
		"environments": func(node *yaml.Node) error { return reader.environments(node, settings) },
		"lint":         func(node *yaml.Node) error { return reader.lint(node, &settings.Lint) },
		"generate":     func(node *yaml.Node) error { return reader.generate(node, &settings.Generate) },
		"schema":       func(node *yaml.Node) error { return reader.schema(node, &settings.Schema) },
	})
}

// read reads the value of a key.
type read func(*yaml.Node) error

type reader struct{ file string }

func (r *reader) fail(node *yaml.Node, format string, args ...any) error {
	return &Error{File: r.file, Line: node.Line, Reason: fmt.Sprintf(format, args...)}
}

// environments reads a mapping whose keys are the project's own.
func (r *reader) environments(node *yaml.Node, settings *Settings) error {
	settings.Environments = map[string]Environment{}
	return r.entries(node, "environments", func(key, value *yaml.Node) error {
		name, err := r.text(key, "the name of an environment")
		if err != nil {
			return err
		}
		var e Environment
		what := "environments." + name
		err = r.mapping(value, what, map[string]read{
			"audit": func(node *yaml.Node) error { return r.audit(node, what+".audit", &e.Audit) },
		})
		settings.Environments[name] = e
		return err
	})
}

func (r *reader) schema(node *yaml.Node, schema *appschema.Settings) error {
	return r.mapping(node, "schema", map[string]read{
		"migrations": r.texts(&schema.Migrations, "schema.migrations", "a path in schema.migrations"),
		"extensions": r.texts(&schema.Extensions, "schema.extensions", "an extension in schema.extensions"),
		"roles":      r.texts(&schema.Roles, "schema.roles", "a role in schema.roles"),
	})
}

// texts reads a list of texts.
func (r *reader) texts(into *[]string, what, each string) read {
	return func(node *yaml.Node) error {
		return r.sequence(node, what, func(item *yaml.Node) error {
			text, err := r.text(item, each)
			*into = append(*into, text)
			return err
		})
	}
}

func (r *reader) audit(node *yaml.Node, what string, options *audit.Options) error {
	return r.mapping(node, what, map[string]read{
		"required": func(node *yaml.Node) error {
			return r.sequence(node, what+".required", func(item *yaml.Node) error {
				pattern, err := r.pattern(item, "a table in "+what+".required")
				options.Required = append(options.Required, pattern)
				return err
			})
		},
		"exempt": func(node *yaml.Node) error {
			return r.sequence(node, what+".exempt", func(item *yaml.Node) error {
				e, err := r.exemption(item, "an entry of "+what+".exempt")
				options.Exempt = append(options.Exempt, e)
				return err
			})
		},
		"severities": func(node *yaml.Node) error { return r.severities(node, what+".severities", options) },
	})
}

func (r *reader) exemption(node *yaml.Node, what string) (e audit.Exemption, err error) {
	into := func(field *string, read func(*yaml.Node, string) (string, error), what string) read {
		return func(node *yaml.Node) (err error) {
			*field, err = read(node, what)
			return err
		}
	}
	err = r.mapping(node, what, map[string]read{
		"table": into(&e.Table, r.pattern, "table"), "key": into(&e.Key, r.text, "key"), "reason": into(&e.Reason, r.text, "reason"),
		"until": func(node *yaml.Node) (err error) {
			e.Until, err = r.date(node, "until")
			return err
		},
	})
	switch {
	case err != nil:
		return e, err
	case (e.Table == "") == (e.Key == ""):
		return e, r.fail(node, "%s names either a table or the key of a finding", what)
	case e.Reason == "":
		return e, r.fail(node, "the exemption of %s needs a reason", e.Table+e.Key)
	}
	return e, nil
}

// severities reads a mapping whose keys are the names of the audit's rules.
func (r *reader) severities(node *yaml.Node, what string, options *audit.Options) error {
	var names []string
	for _, rule := range audit.Rules() {
		names = append(names, rule.Name)
	}
	options.Severities = map[string]audit.Severity{}
	return r.severitiesOf(node, what, names, options.Severities)
}

// mapping reads a mapping with exactly the keys that are known, each at most once. A key without value is one with an empty
// value of its kind.
func (r *reader) mapping(node *yaml.Node, what string, known map[string]read) error {
	return r.entries(node, what, func(key, value *yaml.Node) error {
		readValue, ok := known[key.Value]
		if !ok {
			return r.unknown(key, what, known)
		}
		return readValue(value)
	})
}

// entries reads a mapping, whatever its keys, each of which may be there only once.
func (r *reader) entries(node *yaml.Node, what string, entry func(key, value *yaml.Node) error) error {
	node = resolved(node)
	if empty(node) {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		if what == "" {
			what = "the file"
		}
		return r.fail(node, "%s must be keys and values", what)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if seen[key.Value] {
			return r.fail(key, "the key %s is there twice", key.Value)
		}
		seen[key.Value] = true
		if err := entry(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) unknown(key *yaml.Node, what string, known map[string]read) error {
	wrong := &Error{File: r.file, Line: key.Line, Known: slices.Sorted(maps.Keys(known))}
	in := ""
	if what != "" {
		in = " in " + what
	}
	if near, ok := spelling.Closest(key.Value, wrong.Known); ok {
		wrong.Reason = fmt.Sprintf("unknown key %s%s; did you mean %s?", key.Value, in, near)
	} else {
		wrong.Reason = fmt.Sprintf("unknown key %s%s; known: %s", key.Value, in, strings.Join(wrong.Known, ", "))
	}
	return wrong
}

func (r *reader) sequence(node *yaml.Node, what string, item read) error {
	node = resolved(node)
	if empty(node) {
		return nil
	}
	if node.Kind != yaml.SequenceNode {
		return r.fail(node, "%s must be a list", what)
	}
	for _, content := range node.Content {
		if err := item(content); err != nil {
			return err
		}
	}
	return nil
}

// text reads a string that is not empty. A number or a boolean is none: a table called 2026 is written in quotes.
func (r *reader) text(node *yaml.Node, what string) (string, error) {
	node = resolved(node)
	if node.Kind != yaml.ScalarNode || node.Tag != "!!str" || strings.TrimSpace(node.Value) == "" {
		return "", r.fail(node, "%s must be a text", what)
	}
	return node.Value, nil
}

// pattern reads a table, or a pattern of tables.
func (r *reader) pattern(node *yaml.Node, what string) (string, error) {
	text, err := r.text(node, what)
	if err != nil {
		return "", err
	}
	if _, err := tableref.Parse(text); err != nil {
		return "", r.fail(node, "%s", err)
	}
	return text, nil
}

// date reads a day. YAML has a kind of its own for those, and in quotes it is a text.
func (r *reader) date(node *yaml.Node, what string) (time.Time, error) {
	node = resolved(node)
	day, err := time.Parse(time.DateOnly, node.Value)
	if err != nil || node.Kind != yaml.ScalarNode {
		return time.Time{}, r.fail(node, "%s must be a date, such as 2027-03-31", what)
	}
	return day, nil
}

func resolved(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func empty(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }
