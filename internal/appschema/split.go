package appschema

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A lexicalError is a text that does not end where it must.
type lexicalError struct {
	offset int // in the file
	reason string
}

func (e *lexicalError) Error() string { return e.reason }

var (
	// createRoutine begins the statements whose body may be BEGIN ATOMIC ... END, with semicolons in it.
	createRoutine = regexp.MustCompile(`(?i)^create\s+(or\s+replace\s+)?(function|procedure)\b`)
	copyFromStdin = regexp.MustCompile(`(?is)^copy\s.*\sfrom\s+stdin\b`)
	dollarTag     = regexp.MustCompile(`^\$([A-Za-z_\x80-\xff][A-Za-z_0-9\x80-\xff]*)?\$`)
	// psql commands that change nothing in the database: pg_dump writes the first two.
	harmless = regexp.MustCompile(`^\\(restrict|unrestrict|echo|qecho|warn|timing|pset|set|unset|encoding)\b`)
)

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
		s.pos += lineLength(rest)
		return nil
	case strings.HasPrefix(rest, "/*"):
		return s.comment()
	case first == '\\' && s.begin < 0:
		line := strings.TrimSpace(rest[:lineLength(rest)])
		if !harmless.MatchString(line) {
			return s.fail(s.pos, "psql's command "+strings.Fields(line)[0]+" is not SQL; where it includes a file, name that in schema.migrations")
		}
		s.pos += lineLength(rest)
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
		if tag := dollarTag.FindString(rest); tag != "" {
			end := strings.Index(rest[len(tag):], tag)
			if end < 0 {
				return s.fail(s.pos, "the string that begins with "+tag+" does not end")
			}
			s.pos += end + 2*len(tag)
			return nil
		}
		s.pos++
	case letter(first):
		s.word()
	default:
		s.pos += size
	}
	return nil
}

func letter(r rune) bool { return r == '_' || unicode.IsLetter(r) || r > unicode.MaxASCII }

// word reads a name or keyword. A $ may be part of one.
func (s *splitter) word() {
	rest := s.text[s.pos:]
	length := strings.IndexFunc(rest, func(r rune) bool { return !letter(r) && !unicode.IsDigit(r) && r != '$' })
	if length < 0 {
		length = len(rest)
	}
	s.pos += length
	switch word := rest[:length]; {
	case s.parens > 0 || !createRoutine.MatchString(s.text[s.begin:s.pos]):
	case strings.EqualFold(word, "begin"):
		s.blocks++
	case strings.EqualFold(word, "case") && s.blocks > 0:
		s.blocks++
	case strings.EqualFold(word, "end") && s.blocks > 0:
		s.blocks--
	}
}

func (s *splitter) quoted(quote byte, escapes bool) error {
	begin := s.pos
	for i := s.pos + 1; i < len(s.text); i++ {
		switch {
		case escapes && s.text[i] == '\\':
			i++
		case s.text[i] != quote:
		case i+1 < len(s.text) && s.text[i+1] == quote:
			i++
		default:
			s.pos = i + 1
			return nil
		}
	}
	return s.fail(begin, "a text in "+string(quote)+" does not end")
}

// comment skips a comment in which others may be.
func (s *splitter) comment() error {
	begin, depth := s.pos, 0
	for s.pos < len(s.text) {
		switch {
		case strings.HasPrefix(s.text[s.pos:], "/*"):
			depth++
			s.pos += 2
		case strings.HasPrefix(s.text[s.pos:], "*/"):
			depth--
			s.pos += 2
			if depth == 0 {
				return nil
			}
		default:
			s.pos++
		}
	}
	return s.fail(begin, "a comment does not end")
}

func (s *splitter) semicolon() {
	if s.parens > 0 || s.blocks > 0 {
		s.pos++
		return
	}
	end := s.pos
	s.pos++
	if s.begin >= 0 && copyFromStdin.MatchString(s.text[s.begin:end]) {
		s.copyData(end)
		return
	}
	s.end(end)
}

// copyData reads the lines after a COPY FROM STDIN, up to the one that is \. alone.
func (s *splitter) copyData(end int) {
	s.pos += lineLength(s.text[s.pos:])
	begin := min(s.pos+1, len(s.text))
	s.pos = begin
	for s.pos < len(s.text) {
		length := lineLength(s.text[s.pos:])
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

// lineLength is the number of bytes before the end of the line.
func lineLength(text string) int {
	if end := strings.IndexByte(text, '\n'); end >= 0 {
		return end
	}
	return len(text)
}
