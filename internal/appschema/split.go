package appschema

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fencectl/fencectl/internal/sqllex"
)

// A lexicalError is a text that does not end where it must.
type lexicalError struct {
	offset int // in the file
	reason string
}

func (e *lexicalError) Error() string { return e.reason }

// psql commands that change nothing in the database: pg_dump writes the first two.
var harmless = regexp.MustCompile(`^\\(restrict|unrestrict|echo|qecho|warn|timing|pset|set|unset|encoding)\b`)

// split takes a script apart into its statements, as psql does: at semicolons that are in no string, name, comment, parenthesis or function body.
// at is where the script begins in its file.
func split(text string, at int) ([]statement, error) {
	s := &splitter{text: text, at: at, begin: -1}
	for s.pos < len(text) {
		if err := s.step(); err != nil {
			return nil, err
		}
	}
	s.end(len(text))
	return s.statements, nil
}

type splitter struct {
	text       string
	at         int
	pos        int
	begin      int // of the statement that is being read; -1 between statements
	parens     int
	blocks     int // BEGIN and CASE that await their END, in the body of a routine
	statements []statement
}

// step reads one token.
func (s *splitter) step() error {
	rest := s.text[s.pos:]
	first, size := utf8.DecodeRuneInString(rest)
	switch {
	case unicode.IsSpace(first) || first == '\ufeff':
		s.pos += size
		return nil
	case strings.HasPrefix(rest, "--"):
		s.pos += sqllex.Line(rest)
		return nil
	case strings.HasPrefix(rest, "/*"):
		return s.comment()
	case first == '\\' && s.begin < 0:
		line := strings.TrimSpace(rest[:sqllex.Line(rest)])
		if !harmless.MatchString(line) {
			return s.fail(s.pos, "psql's command "+strings.Fields(line)[0]+" is not SQL; where it includes a file, name that in schema.migrations")
		}
		s.pos += sqllex.Line(rest)
		return nil
	}
	if s.begin < 0 && first != ';' {
		s.begin = s.pos
	}
	switch {
	case first == ';':
		s.semicolon()
	case first == '(':
		s.parens++
		s.pos++
	case first == ')':
		s.parens = max(0, s.parens-1)
		s.pos++
	case first == '\'':
		return s.quoted('\'', false)
	case first == '"':
		return s.quoted('"', false)
	case (first == 'e' || first == 'E') && strings.HasPrefix(rest[1:], "'"):
		s.pos++
		return s.quoted('\'', true)
	case first == '$':
		tag, n, ended := sqllex.Dollar(rest)
		switch {
		case tag == "":
			s.pos++
		case !ended:
			return s.fail(s.pos, "the string that begins with "+tag+" does not end")
		default:
			s.pos += n
		}
	case sqllex.Letter(first):
		s.word()
	default:
		s.pos += size
	}
	return nil
}

func (s *splitter) word() {
	n := sqllex.Word(s.text[s.pos:])
	word := s.text[s.pos : s.pos+n]
	s.pos += n
	if s.parens == 0 {
		s.blocks = sqllex.Blocks(s.blocks, s.text[s.begin:s.pos], word)
	}
}

func (s *splitter) quoted(quote byte, escapes bool) error {
	n, ended := sqllex.Quoted(s.text[s.pos:], quote, escapes)
	if !ended {
		return s.fail(s.pos, "a text in "+string(quote)+" does not end")
	}
	s.pos += n
	return nil
}

func (s *splitter) comment() error {
	n, ended := sqllex.Comment(s.text[s.pos:])
	if !ended {
		return s.fail(s.pos, "a comment does not end")
	}
	s.pos += n
	return nil
}

func (s *splitter) semicolon() {
	if s.parens > 0 || s.blocks > 0 {
		s.pos++
		return
	}
	end := s.pos
	s.pos++
	if s.begin >= 0 && sqllex.CopiesFromStdin(s.text[s.begin:end]) {
		s.copyData(end)
		return
	}
	s.end(end)
}

// copyData reads the lines after a COPY FROM STDIN, up to the one that is \. alone.
func (s *splitter) copyData(end int) {
	s.pos += sqllex.Line(s.text[s.pos:])
	begin := min(s.pos+1, len(s.text))
	s.pos = begin
	for s.pos < len(s.text) {
		length := sqllex.Line(s.text[s.pos:])
		line := strings.TrimRight(s.text[s.pos:s.pos+length], "\r")
		if line == `\.` {
			break
		}
		s.pos = min(s.pos+length+1, len(s.text))
	}
	data := s.text[begin:s.pos]
	s.pos = min(s.pos+len(`\.`), len(s.text))
	if data == "" {
		s.begin = -1 // nothing to copy
		return
	}
	s.statements = append(s.statements, statement{offset: s.at + s.begin, text: s.text[s.begin:end], data: data})
	s.begin = -1
}

func (s *splitter) end(end int) {
	if s.begin >= 0 {
		s.statements = append(s.statements, statement{offset: s.at + s.begin, text: strings.TrimRightFunc(s.text[s.begin:end], unicode.IsSpace)})
	}
	s.begin, s.parens, s.blocks = -1, 0, 0
}

func (s *splitter) fail(pos int, reason string) error { return &lexicalError{s.at + pos, reason} }
