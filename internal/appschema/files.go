package appschema

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Files lists the SQL files that the paths (directories, files, glob patterns, relative to dir) lead to, in the order in which they are applied:
// path by path, and within a path by name, with the numbers in names compared by their value, as migration tools do. What takes a
// migration back (NAME.down.sql, Flyway's U…) is none of them. skipped are migrations that are no SQL.
func Files(dir string, paths []string) (files, skipped []string, err error) {
	for _, path := range paths {
		matches, err := expand(dir, path)
		if err != nil {
			return nil, nil, err
		}
		var here []string
		for _, match := range matches {
			switch name := filepath.Base(match); {
			case slices.Contains(files, match) || slices.Contains(here, match), backwards.MatchString(name), strings.HasSuffix(name, "_test.go"):
			case strings.EqualFold(filepath.Ext(name), ".sql"):
				here = append(here, match)
			case numberedGo.MatchString(name):
				skipped = append(skipped, match)
			}
		}
		if len(here) == 0 {
			return nil, nil, fmt.Errorf("schema.migrations: %s has no SQL files; name the directory, the files or a pattern such as migrations/*.sql", path)
		}
		slices.SortFunc(here, compareNames)
		files = append(files, here...)
	}
	return files, skipped, nil
}

var (
	backwards  = regexp.MustCompile(`(?i)\.down\.sql$|^U[0-9][0-9._]*__.*\.sql$|[_.-]rollback\.sql$`)
	numberedGo = regexp.MustCompile(`^[0-9]+_.*\.go$`)
)

// expand lists the files that one of the paths means.
func expand(dir, path string) ([]string, error) {
	full := path
	if !filepath.IsAbs(path) {
		full = filepath.Join(dir, path)
	}
	info, err := os.Stat(full)
	switch {
	case err == nil && !info.IsDir():
		return []string{full}, nil
	case err == nil:
		entries, err := os.ReadDir(full)
		if err != nil {
			return nil, err
		}
		var files []string
		for _, entry := range entries {
			if !entry.IsDir() {
				files = append(files, filepath.Join(full, entry.Name()))
			}
		}
		return files, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if !strings.ContainsAny(path, "*?[") {
		return nil, fmt.Errorf("schema.migrations: %s does not exist; paths are relative to the directory of fencectl.yaml", path)
	}
	matches, err := filepath.Glob(full)
	if err != nil {
		return nil, fmt.Errorf("schema.migrations: the pattern %s is wrong: %w", path, err)
	}
	return matches, nil
}

// compareNames compares paths with runs of digits by their value: 2_b.sql comes before 10_a.sql.
func compareNames(a, b string) int {
	return cmp.Or(compareNatural(a, b), strings.Compare(a, b))
}

func compareNatural(a, b string) int {
	for a != "" && b != "" {
		digitsA, digitsB := leadingDigits(a), leadingDigits(b)
		if digitsA == "" || digitsB == "" {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		a, b = a[len(digitsA):], b[len(digitsB):]
		numberA, numberB := strings.TrimLeft(digitsA, "0"), strings.TrimLeft(digitsB, "0")
		if order := cmp.Or(cmp.Compare(len(numberA), len(numberB)), strings.Compare(numberA, numberB)); order != 0 {
			return order
		}
	}
	return cmp.Compare(len(a), len(b))
}

func leadingDigits(text string) string {
	end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return text
	}
	return text[:end]
}
