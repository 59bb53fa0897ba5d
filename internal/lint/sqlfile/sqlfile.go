// Package sqlfile reads files of SQL as the tools do that they are written for: sqlc's queries, the migrations of goose and its like,
// psql's scripts. It owns where each statement begins and ends, what of the file's text is no SQL, and the comments that are meant for
// fencectl lint. It parses nothing: the statements it finds need not be right.
package sqlfile

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Kind is what a file is for.
type Kind string

// The kinds.
const (
	Queries   Kind = "queries"   // sqlc's: each statement is a query of its own, with a name
	Migration Kind = "migration" // parts of it go up and parts down, each in one transaction unless it says otherwise
	Script    Kind = "script"    // for psql, or whatever runs one statement after another
)

// A Direction is a part of a migration.
type Direction string

// The directions.
const (
	Up   Direction = "up"
	Down Direction = "down"
)

// A File is one that was read.
type File struct {
	Kind Kind

	// Text is the file's text, of the same length, with what is no SQL blanked out.
	Text string

	// Bare says that the statements of a migration are not in one transaction.
	Bare bool

	// Generated says that fencectl generate wrote the file.
	Generated bool

	Statements []Statement
	Directives []Directive

	raw       string // the text as it stands in the file
	variables map[int]bool
	lines     []int // where each begins
}

// A Statement is one of a file.
type Statement struct {
	Start, End int       // in the file's text: from the first word, without the semicolon
	Name       string    // that sqlc calls it by
	Direction  Direction // of a migration's
}

// The verbs of the comments that are meant for the linter.
const (
	Ignore        = "ignore"         // RULE REASON: not to be reported of the statement
	IgnoreFile    = "ignore-file"    // RULE REASON: not to be reported of the file
	Presented     = "presented"      // REASON: the statement's transaction presents the token
	PresentedFile = "presented-file" // REASON: so do those of all the file's statements
)

// Verbs lists them.
func Verbs() []string { return []string{Ignore, IgnoreFile, Presented, PresentedFile} }

// A Directive is a comment that is meant for the linter: fencectl:ignore unfenced-write written before anybody else can.
type Directive struct {
	Offset    int    // of the word fencectl
	Verb      string // what stands after the colon, known or not
	Rule      string // of the verbs that have one; "" when it is missing
	Reason    string // "" when it is missing
	Statement int    // the statement it is for: the one that it is in, or before, or behind on the same line; -1 for none
}

// ParseDirective reads the text of a comment, without its marks. at is where that text begins.
func ParseDirective(comment string, at int) (Directive, bool) {
	text := strings.TrimLeft(comment, " \t*")
	rest, ok := strings.CutPrefix(text, "fencectl:")
	if !ok {
		return Directive{}, false
	}
	words := strings.Fields(rest)
	d := Directive{Offset: at + len(comment) - len(text), Statement: -1}
	if len(words) > 0 && !strings.HasPrefix(rest, " ") {
		d.Verb, words = words[0], words[1:]
	}
	if (d.Verb == Ignore || d.Verb == IgnoreFile) && len(words) > 0 {
		d.Rule, words = words[0], words[1:]
	}
	d.Reason = strings.Join(words, " ")
	return d, true
}

// The marks of the tools.
var (
	queryName = regexp.MustCompile(`^[ \t]*name:[ \t]*([A-Za-z_][A-Za-z_0-9]*)[ \t]+:[a-z]+`)
	upMark    = regexp.MustCompile(`(?i)^[ \t]*(\+goose[ \t]+up|\+migrate[ \t]+up|migrate:up)\b(.*)$`)
	downMark  = regexp.MustCompile(`(?i)^[ \t]*(\+goose[ \t]+down|\+migrate[ \t]+down|migrate:down)\b|^--[ \t]*create above`)
	bareMark  = regexp.MustCompile(`(?i)^[ \t]*\+goose[ \t]+no[ \t]+transaction\b`)
	bareWord  = regexp.MustCompile(`(?i)\bnotransaction\b|\btransaction:[ \t]*false\b`)
	downName  = regexp.MustCompile(`(?i)\.down\.sql$|(^|/)U[0-9][0-9._]*__[^/]*\.sql$|[_.-]rollback\.sql$`)
	upName    = regexp.MustCompile(`(?i)\.up\.sql$|(^|/)[VR][0-9._]*__[^/]*\.sql$`)
)

// Read reads a file. Its name says what it is where its text does not.
func Read(name, text string) *File {
	f := &File{Kind: Script, variables: map[int]bool{}}
	s := &scanner{file: f, text: text, out: []byte(text), begin: -1, psql: true}
	switch {
	case downName.MatchString(name):
		f.Kind, s.direction = Migration, Down
	case upName.MatchString(name):
		f.Kind, s.direction = Migration, Up
	}
	if looksLikeQueries(text) {
		f.Kind, s.psql = Queries, false
	}
	s.run()
	f.finish(s)
	return f
}

// ReadFragment reads SQL that is no file of its own, as a constant in a program: there are no psql commands in it.
func ReadFragment(text string) *File {
	f := &File{Kind: Script, variables: map[int]bool{}}
	s := &scanner{file: f, text: text, out: []byte(text), begin: -1}
	s.run()
	f.finish(s)
	return f
}

func (f *File) finish(s *scanner) {
	f.Text, f.raw = string(s.out), s.text
	f.lines = []int{0}
	for i := range len(f.Text) {
		if f.Text[i] == '\n' {
			f.lines = append(f.lines, i+1)
		}
	}
	f.assign()
}

// IsMigration makes a script without marks a migration: the project says that it is one.
func (f *File) IsMigration() {
	if f.Kind != Script {
		return
	}
	f.Kind = Migration
	for i := range f.Statements {
		f.Statements[i].Direction = Up
	}
}

// IsVariable says whether at this place in the text there was one of psql's variables: what stands there now is not what will run.
func (f *File) IsVariable(offset int) bool { return f.variables[offset] }

// Place is the line of an offset, from 1, and the column in characters, from 1.
func (f *File) Place(offset int) (line, column int) {
	line, found := slices.BinarySearch(f.lines, offset)
	if !found {
		line--
	}
	return line + 1, utf8.RuneCountInString(f.Text[f.lines[line]:min(offset, len(f.Text))]) + 1
}

// Source is the line of the file that an offset is in, as it stands there.
func (f *File) Source(offset int) string {
	begin := f.lines[f.line(offset)-1]
	line, _, _ := strings.Cut(f.raw[begin:], "\n")
	return strings.TrimRight(line, "\r")
}

// line is the number of the line that an offset is in.
func (f *File) line(offset int) int {
	line, _ := f.Place(offset)
	return line
}

// assign says which statement each directive is for.
func (f *File) assign() {
	for i := range f.Directives {
		d := &f.Directives[i]
		next := slices.IndexFunc(f.Statements, func(s Statement) bool { return s.End > d.Offset })
		switch {
		case next >= 0 && f.Statements[next].Start <= d.Offset: // within it
			d.Statement = next
		case next != 0 && f.behind(next, d.Offset):
			d.Statement = last(next, len(f.Statements))
		default:
			d.Statement = next
		}
	}
}

// behind says whether an offset is on the line on which the statement before the next one ends.
func (f *File) behind(next, offset int) bool {
	previous := last(next, len(f.Statements))
	return previous >= 0 && f.line(f.Statements[previous].End) == f.line(offset)
}

// last is the index of the statement before next, which is -1 when there is none any more.
func last(next, count int) int {
	if next < 0 {
		return count - 1
	}
	return next - 1
}

func looksLikeQueries(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for _, mark := range []string{"--", "/*", "#"} {
			if comment, ok := strings.CutPrefix(line, mark); ok && queryName.MatchString(comment) {
				return true
			}
		}
	}
	return false
}
