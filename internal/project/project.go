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
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/spelling"
)

// FileName is the name of the file.
const FileName = "fencectl.yaml"

// Settings are what a project's file says.
type Settings struct {
	Audit audit.Options
}

// An Error is something in the file that cannot be understood.
type Error struct {
	File   string
	Line   int // from 1; 0 when it is about the file as a whole
	Reason string
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
		"audit": func(node *yaml.Node) error { return reader.audit(node, &settings.Audit) },
	})
}

// read reads the value of a key.
type read func(*yaml.Node) error

type reader struct{ file string }

func (r *reader) fail(node *yaml.Node, format string, args ...any) error {
	return &Error{File: r.file, Line: node.Line, Reason: fmt.Sprintf(format, args...)}
}

func (r *reader) audit(node *yaml.Node, options *audit.Options) error {
	return r.mapping(node, "audit", map[string]read{
		"required": func(node *yaml.Node) error {
			return r.sequence(node, "audit.required", func(item *yaml.Node) error {
				pattern, err := r.text(item, "a table in audit.required")
				options.Required = append(options.Required, pattern)
				return err
			})
		},
		"exempt": func(node *yaml.Node) error {
			return r.sequence(node, "audit.exempt", func(item *yaml.Node) error {
				var e audit.Exemption
				into := func(field *string, what string) read {
					return func(node *yaml.Node) (err error) {
						*field, err = r.text(node, what)
						return err
					}
				}
				err := r.mapping(item, "an entry of audit.exempt", map[string]read{
					"table": into(&e.Table, "table"), "key": into(&e.Key, "key"), "reason": into(&e.Reason, "reason"),
				})
				switch {
				case err != nil:
					return err
				case (e.Table == "") == (e.Key == ""):
					return r.fail(item, "an entry of audit.exempt names either a table or the key of a finding")
				case e.Reason == "":
					return r.fail(item, "the exemption of %s needs a reason", e.Table+e.Key)
				}
				options.Exempt = append(options.Exempt, e)
				return nil
			})
		},
	})
}

// mapping reads a mapping with exactly the keys that are known, each at most once. A key without value is one with an empty
// value of its kind.
func (r *reader) mapping(node *yaml.Node, what string, known map[string]read) error {
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
		readValue, ok := known[key.Value]
		if !ok {
			return r.unknown(key, what, known)
		}
		if seen[key.Value] {
			return r.fail(key, "the key %s is there twice", key.Value)
		}
		seen[key.Value] = true
		if err := readValue(value); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) unknown(key *yaml.Node, what string, known map[string]read) error {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	in := ""
	if what != "" {
		in = " in " + what
	}
	if near, ok := spelling.Closest(key.Value, names); ok {
		return r.fail(key, "unknown key %s%s; did you mean %s?", key.Value, in, near)
	}
	return r.fail(key, "unknown key %s%s; known: %s", key.Value, in, strings.Join(names, ", "))
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

func resolved(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func empty(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }
