package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A PathError is a path on the command line, or in the project's file, that leads to nothing.
type PathError struct{ Path, Reason string }

func (e *PathError) Error() string { return e.Path + ": " + e.Reason }

// found is what the paths lead to.
type found struct {
	sql      []string // files, in their natural order
	packages []string // Go patterns
}

// find lists the SQL files and the Go packages that the paths mean: a file, a directory and everything below, or DIR/..., which means the
// Go packages as well.
func find(paths []string, excluded func(path string) bool) (found, error) {
	var all found
	for _, path := range paths {
		dir, pattern := strings.CutSuffix(filepath.ToSlash(path), "...")
		if pattern {
			if dir = strings.TrimSuffix(dir, "/"); dir == "" {
				dir = "."
			}
		}
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return all, &PathError{path, "there is no such file or directory"}
		case err != nil:
			return all, err
		case !info.IsDir() && strings.HasSuffix(dir, ".go"):
			all.packages = append(all.packages, filepath.Dir(dir))
			continue
		case !info.IsDir():
			// Whatever its name ends in: it was named.
			if !excluded(dir) {
				all.sql = append(all.sql, filepath.Clean(dir))
			}
			continue
		}
		if pattern {
			all.packages = append(all.packages, dir+"/...")
		}
		files, err := below(dir, excluded)
		if err != nil {
			return all, err
		}
		if len(files) == 0 && !pattern {
			return all, &PathError{path, fmt.Sprintf("there is no .sql file below; for the SQL in Go source write %s/...", strings.TrimSuffix(path, "/"))}
		}
		all.sql = append(all.sql, files...)
	}
	slices.SortFunc(all.sql, func(a, b string) int { return strings.Compare(natural(a), natural(b)) })
	all.sql = slices.Compact(all.sql)
	return all, nil
}

// below lists the .sql files below a directory, but not in those that hold what is not the project's own.
func below(dir string, excluded func(string) bool) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		switch {
		case path != dir && excluded(path):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case entry.IsDir():
			if path != dir && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || slices.Contains([]string{"node_modules", "vendor", "testdata"}, name)) {
				return fs.SkipDir
			}
		case strings.EqualFold(filepath.Ext(name), ".sql"):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

var digits = regexp.MustCompile(`\d+`)

// natural is a name by which files sort with the numbers in their names by value, as migrations are applied.
func natural(path string) string {
	return digits.ReplaceAllStringFunc(path, func(number string) string { return fmt.Sprintf("%020s", strings.TrimLeft(number, "0")) })
}
