package appschema

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// An Error is a migration that cannot be read or applied.
type Error struct {
	File   string
	Line   int    // from 1
	Reason string // one sentence, the server's message among it
	Err    error  // the server's error; nil when it is about the file
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason) }

func (e *Error) Unwrap() error { return e.Err }

// A script is the part of a migration file that goes forwards, as statements.
type script struct {
	file, text string
	// each statement commits by itself, because the file says that it must not be in a transaction
	bare       bool
	statements []statement
}

// A statement is one statement of a file.
type statement struct {
	offset int // in the file, of the statement's first word
	text   string
	data   string // for COPY FROM STDIN
}

// The marks of the migration tools. What stands before the first of them belongs to no direction, and is not run.
var (
	upMark   = regexp.MustCompile(`(?im)^[ \t]*--[ \t]*(\+goose[ \t]+up|\+migrate[ \t]+up|migrate:up)\b(.*)$`)
	downMark = regexp.MustCompile(`(?im)^[ \t]*--[ \t]*(\+goose[ \t]+down|\+migrate[ \t]+down|migrate:down)\b.*$|^----[ \t]*create above.*$`)
	bareMark = regexp.MustCompile(`(?im)^[ \t]*--[ \t]*\+goose[ \t]+no[ \t]+transaction\b`)
	bareWord = regexp.MustCompile(`(?i)\bnotransaction\b|\btransaction:[ \t]*false\b`)
)

// parse reads a file.
func parse(file, text string) (*script, error) {
	s := &script{file: file, text: text, bare: bareMark.MatchString(text)}
	begin, end := 0, len(text)
	if mark := upMark.FindStringSubmatchIndex(text); mark != nil {
		begin = mark[1]
		s.bare = s.bare || bareWord.MatchString(text[mark[4]:mark[5]])
	}
	if mark := downMark.FindStringIndex(text[begin:]); mark != nil {
		end = begin + mark[0]
	}
	var err error
	s.statements, err = split(text[begin:end], begin)
	var wrong *lexicalError
	if errors.As(err, &wrong) {
		return nil, &Error{File: file, Line: s.line(wrong.offset), Reason: wrong.reason}
	}
	return s, err
}

func (s *script) line(offset int) int { return 1 + strings.Count(s.text[:offset], "\n") }

// run runs the statements, in a transaction, as most tools do; those that cannot be in one, one by one.
func (s *script) run(ctx context.Context, conn *pgconn.PgConn) error {
	if s.bare {
		return s.each(ctx, conn)
	}
	if err := exec(ctx, conn, "BEGIN"); err != nil {
		return err
	}
	err := s.each(ctx, conn)
	var refused *pgconn.PgError
	if conn.TxStatus() == 'I' { // the file has a COMMIT of its own
		return err
	}
	if err == nil {
		if err := exec(ctx, conn, "COMMIT"); err != nil { // a constraint that is checked late
			return s.explain(len(s.statements)-1, err)
		}
		return nil
	}
	if rolledBack := exec(ctx, conn, "ROLLBACK"); rolledBack != nil {
		return errors.Join(err, rolledBack)
	}
	if errors.As(err, &refused) {
		switch refused.Code {
		case "25001", // active_sql_transaction: CREATE INDEX CONCURRENTLY, VACUUM, ...
			"55P04": // unsafe_new_enum_value_usage: a value that was added must be committed before it is used
			return s.each(ctx, conn)
		}
	}
	return err
}

func (s *script) each(ctx context.Context, conn *pgconn.PgConn) error {
	for i, statement := range s.statements {
		var err error
		if statement.data != "" {
			_, err = conn.CopyFrom(ctx, strings.NewReader(statement.data), statement.text)
		} else {
			err = exec(ctx, conn, statement.text)
		}
		if err != nil {
			return s.explain(i, err)
		}
	}
	return nil
}

func exec(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	_, err := conn.Exec(ctx, sql).ReadAll()
	return err
}

// explain says where in the file the server found the fault.
func (s *script) explain(i int, err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return fmt.Errorf("%s: %w", s.file, err)
	}
	if len(s.statements) == 0 {
		return &Error{File: s.file, Line: 1, Reason: refused.Message, Err: err}
	}
	statement := s.statements[i]
	offset := statement.offset
	if refused.Position > 0 {
		offset += bytesOf(statement.text, int(refused.Position)-1)
	}
	reason := fmt.Sprintf("%s (SQLSTATE %s)", strings.TrimSuffix(refused.Message, "."), refused.Code)
	if refused.Detail != "" && !strings.HasPrefix(refused.Detail, "{") {
		reason += ": " + strings.TrimSuffix(refused.Detail, ".")
	}
	if next := next(refused); next != "" {
		reason += "; " + strings.TrimSuffix(next, ".")
	}
	return &Error{File: s.file, Line: s.line(offset), Reason: reason, Err: err}
}

// bytesOf is the length in bytes of a text's first characters.
func bytesOf(text string, characters int) int {
	n := 0
	for ; characters > 0 && n < len(text); characters-- {
		_, size := utf8.DecodeRuneInString(text[n:])
		n += size
	}
	return n
}
