package generate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// sqlcNames are the names under which sqlc looks for its configuration.
var sqlcNames = []string{"sqlc.yaml", "sqlc.yml", "sqlc.json"}

// A sqlcConfig is as much of sqlc's configuration as says where it reads and writes. Paths are as they stand there, relative to its directory.
type sqlcConfig struct {
	path     string
	packages []sqlcPackage
}

// A sqlcPackage is a set of queries and the Go packages that are made of them.
type sqlcPackage struct {
	schema, queries []string
	out             []string
	strict          bool // every function must be known
}

// texts is a YAML value that is one text or a list of them.
type texts []string

func (t *texts) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*t = texts{node.Value}
		return nil
	}
	return node.Decode((*[]string)(t))
}

// FindSQLC finds sqlc's configuration in a directory; "" when there is none.
func FindSQLC(dir string) (string, error) {
	for _, name := range sqlcNames {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}

// readSQLC reads the configuration, version 1 or 2.
func readSQLC(path string) (*sqlcConfig, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var document struct {
		SQL []struct {
			Engine  string `yaml:"engine"`
			Schema  texts  `yaml:"schema"`
			Queries texts  `yaml:"queries"`
			Strict  bool   `yaml:"strict_function_checks"`
			Gen     struct {
				Go *struct {
					Out string `yaml:"out"`
				} `yaml:"go"`
			} `yaml:"gen"`
			Codegen []struct {
				Out     string `yaml:"out"`
				Options struct {
					Package string `yaml:"package"`
				} `yaml:"options"`
			} `yaml:"codegen"`
		} `yaml:"sql"`
		Packages []struct { // of version 1
			Engine  string `yaml:"engine"`
			Path    string `yaml:"path"`
			Schema  texts  `yaml:"schema"`
			Queries texts  `yaml:"queries"`
			Strict  bool   `yaml:"strict_function_checks"`
		} `yaml:"packages"`
	}
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	config := &sqlcConfig{path: path}
	for _, s := range document.SQL {
		if s.Engine != "postgresql" {
			continue
		}
		p := sqlcPackage{schema: s.Schema, queries: s.Queries, strict: s.Strict}
		if s.Gen.Go != nil {
			p.out = append(p.out, s.Gen.Go.Out)
		}
		for _, c := range s.Codegen { // a plugin that makes Go says which package
			if c.Options.Package != "" {
				p.out = append(p.out, c.Out)
			}
		}
		config.packages = append(config.packages, p)
	}
	for _, p := range document.Packages {
		if p.Engine == "" || p.Engine == "postgresql" {
			config.packages = append(config.packages, sqlcPackage{schema: p.Schema, queries: p.Queries, strict: p.Strict, out: []string{p.Path}})
		}
	}
	if len(config.packages) == 0 {
		return nil, fmt.Errorf("%s has no queries for the engine postgresql", path)
	}
	return config, nil
}

func (c *sqlcConfig) dir() string { return filepath.Dir(c.path) }

// abs is a path of the configuration, from the working directory.
func (c *sqlcConfig) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(c.dir(), path)
}

// SQLCSchema lists the paths that sqlc's configuration reads the schema from, but for the file that this package writes for it: the
// application's migrations, where fencectl.yaml does not name them. They are relative to the configuration's directory.
func SQLCSchema(path string) ([]string, error) {
	config, err := readSQLC(path)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range config.packages {
		for _, schema := range p.schema {
			if filepath.Base(schema) != schemaFile && !slices.Contains(paths, schema) {
				paths = append(paths, schema)
			}
		}
	}
	return paths, nil
}

// queriesDir is the directory for the queries: the one that is asked for, else the first that the configuration reads from.
func (c *sqlcConfig) queriesDir(asked string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	for _, p := range c.packages {
		for _, path := range p.queries {
			if info, err := os.Stat(c.abs(path)); err == nil && info.IsDir() {
				return c.abs(path), nil
			}
		}
	}
	var files []string
	for _, p := range c.packages {
		files = append(files, p.queries...)
	}
	return "", wrong("%s reads its queries from no directory that is there, only from %s; give it one for the generated queries as well: queries: [%s, fenced], and create it",
		c.path, strings.Join(files, ", "), strings.Join(files, ", "))
}

// reading are the sets of queries that the directory belongs to.
func (c *sqlcConfig) reading(dir string) ([]sqlcPackage, error) {
	var packages []sqlcPackage
	for _, p := range c.packages {
		if slices.ContainsFunc(p.queries, func(path string) bool {
			path = c.abs(path)
			matched, err := filepath.Match(path, filepath.Join(dir, "fenced_x.sql"))
			return path == filepath.Clean(dir) || matched && err == nil
		}) {
			packages = append(packages, p)
		}
	}
	if len(packages) == 0 {
		relative, err := filepath.Rel(c.dir(), dir)
		if err != nil {
			relative = dir
		}
		return nil, wrong("%s does not read the queries in %s; add it there: queries: [..., %s]", c.path, dir, filepath.ToSlash(relative))
	}
	return packages, nil
}

// mentions tells whether one of the schema's files has the word in it.
func (c *sqlcConfig) mentions(p sqlcPackage, word string) bool {
	for _, path := range p.schema {
		matches, err := filepath.Glob(c.abs(path))
		if err != nil {
			continue
		}
		for _, match := range matches {
			files := []string{match}
			if info, err := os.Stat(match); err == nil && info.IsDir() {
				if files, err = filepath.Glob(filepath.Join(match, "*.sql")); err != nil {
					continue
				}
			}
			for _, file := range files {
				if content, err := os.ReadFile(file); err == nil && strings.Contains(string(content), word) {
					return true
				}
			}
		}
	}
	return false
}
