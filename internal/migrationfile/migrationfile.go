// Package migrationfile writes migrations into a directory that belongs to somebody else's migration tool. It owns the
// naming (it continues whatever convention the directory has) and the two formats; what the migrations do is its callers'
// business. It never overwrites a file.
package migrationfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// A Format is how a migration is laid out in files.
type Format string

// The formats.
const (
	// Goose is one file NNN_name.sql with goose's annotations.
	Goose Format = "goose"
	// SQL is two files of plain SQL, NNN_name.up.sql and NNN_name.down.sql, as golang-migrate and others read them.
	SQL Format = "sql"
)

// A Migration is one step up and its inverse.
type Migration struct {
	Name    string // becomes part of the file name, in snake case
	Comment string // what it is, for whoever reads the file; may have several lines
	Up      string // SQL; statements that a tool must not split are between StatementBegin and StatementEnd
	Down    string
}

// goose's annotations.
const (
	annotation     = "-- +goose "
	statementBegin = annotation + "StatementBegin"
	statementEnd   = annotation + "StatementEnd"
	markUp         = annotation + "Up"
	markDown       = annotation + "Down"
)

// Statements joins complete statements (without their final semicolon) to the Up or Down of a migration.
func Statements(statements ...string) string {
	var b strings.Builder
	for _, statement := range statements {
		// goose ends a statement at a semicolon at a line's end and takes "--" for a comment, within a string too.
		if strings.ContainsAny(statement, ";\n") || strings.Contains(statement, "--") {
			fmt.Fprintf(&b, "%s\n%s;\n%s\n", statementBegin, statement, statementEnd)
			continue
		}
		b.WriteString(statement + ";\n")
	}
	return b.String()
}

// ParseGoose takes a goose SQL file apart. What stands before the Up annotation becomes the comment.
func ParseGoose(text string) (Migration, error) {
	var m Migration
	section := &m.Comment
	for line := range strings.Lines(text) {
		switch strings.TrimSpace(line) {
		case markUp:
			section = &m.Up
			continue
		case markDown:
			section = &m.Down
			continue
		}
		*section += line
	}
	if strings.TrimSpace(m.Up) == "" {
		return m, errors.New("the migration has no Up part")
	}
	var comment []string
	for line := range strings.Lines(m.Comment) {
		comment = append(comment, strings.TrimSpace(strings.TrimPrefix(line, "--")))
	}
	m.Comment = strings.TrimSpace(strings.Join(comment, "\n"))
	m.Up, m.Down = strings.Trim(m.Up, "\n")+"\n", strings.Trim(m.Down, "\n")+"\n"
	return m, nil
}

// Plain is SQL without goose's annotations.
func Plain(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, annotation) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Write writes the migrations in this order into the directory, numbered after everything that is already there, and
// returns the paths of the files. now is used where the directory numbers by time. When a file cannot be written those
// already written by this call are removed again.
func Write(dir string, format Format, now time.Time, migrations ...Migration) (paths []string, err error) {
	existing, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("directory %s does not exist; name your application's migration directory, or create it first", dir)
	case err != nil:
		return nil, fmt.Errorf("cannot read directory %s: %w", dir, withoutPath(err))
	}
	numbering := numberingOf(existing, now)

	defer func() {
		if err != nil {
			for _, path := range paths {
				_ = os.Remove(path)
			}
			paths = nil
		}
	}()
	write := func(name, content string) error {
		path := filepath.Join(dir, name)
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return fmt.Errorf("cannot create %s: %w", path, withoutPath(err))
		}
		paths = append(paths, path)
		_, err = file.WriteString(content)
		return errors.Join(err, file.Close())
	}
	for _, m := range migrations {
		base := numbering.next() + "_" + snakeCase(m.Name)
		comment := commented(m.Comment)
		switch format {
		case Goose:
			err = write(base+".sql", comment+markUp+"\n"+m.Up+"\n"+markDown+"\n"+m.Down)
		case SQL:
			if err = write(base+".up.sql", comment+Plain(m.Up)); err == nil {
				err = write(base+".down.sql", comment+Plain(m.Down))
			}
		default:
			err = fmt.Errorf("format %q does not exist; use %s or %s", format, Goose, SQL)
		}
		if err != nil {
			return paths, err
		}
	}
	return paths, nil
}

// Contains says which of the texts occur in the SQL files of a directory: how a caller recognizes its own earlier files.
func Contains(dir string, texts []string) ([]bool, error) {
	found := make([]bool, len(texts))
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read directory %s: %w", dir, withoutPath(err))
	}
	for _, file := range files {
		if file.IsDir() || !strings.HasSuffix(file.Name(), ".sql") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", filepath.Join(dir, file.Name()), withoutPath(err))
		}
		for i, text := range texts {
			found[i] = found[i] || strings.Contains(string(content), text)
		}
	}
	return found, nil
}

const timestampLayout = "20060102150405"

// numbering hands out version numbers. Migration directories number in one of three ways: by sequence, by UTC time as 14
// digits, or by Unix time.
type numbering struct {
	last  int64
	width int
	kind  string // "sequence", "timestamp" or "unix"
	now   time.Time
}

var versioned = regexp.MustCompile(`^([0-9]{1,18})_.*\.(sql|go)$`)

func numberingOf(files []os.DirEntry, now time.Time) *numbering {
	n := &numbering{kind: "timestamp", now: now.UTC()}
	for _, file := range files {
		match := versioned.FindStringSubmatch(file.Name())
		if match == nil || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		version, err := strconv.ParseInt(match[1], 10, 64)
		if err != nil || version <= n.last {
			continue
		}
		// The highest number decides: a directory that went from sequence to time goes on with time.
		n.last, n.width, n.kind = version, len(match[1]), kindOf(match[1], version)
	}
	return n
}

func kindOf(digits string, version int64) string {
	if _, err := time.Parse(timestampLayout, digits); err == nil {
		return "timestamp"
	}
	if len(digits) == 10 && version > 1_000_000_000 {
		return "unix"
	}
	return "sequence"
}

// next is later than every number before it, also when several are handed out in one second, or the newest file is dated
// in the future.
func (n *numbering) next() string {
	switch n.kind {
	case "timestamp":
		at := n.now.Truncate(time.Second)
		if last, err := time.Parse(timestampLayout, fmt.Sprintf("%014d", n.last)); err == nil && !at.After(last) {
			at = last.Add(time.Second)
		}
		text := at.Format(timestampLayout)
		n.last, _ = strconv.ParseInt(text, 10, 64)
		return text
	case "unix":
		n.last = max(n.last+1, n.now.Unix())
		return strconv.FormatInt(n.last, 10)
	}
	n.last++
	return fmt.Sprintf("%0*d", n.width, n.last)
}

// snakeCase keeps what is safe in a file name on every system; runs of anything else become one underscore.
func snakeCase(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return r > unicode.MaxASCII || (!unicode.IsLetter(r) && !unicode.IsDigit(r))
	})
	text := strings.Join(words, "_")
	if text == "" {
		text = "fencing"
	}
	return text[:min(len(text), 120)]
}

func commented(text string) string {
	if text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight("-- "+line, " ")
	}
	// A comment that reads like an annotation would be one.
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "+goose") })
	return strings.Join(lines, "\n") + "\n\n"
}

// withoutPath drops the path from a file error: the sentence around it names it already.
func withoutPath(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
