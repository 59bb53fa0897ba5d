// Package pgtree parses SQL with PostgreSQL's own grammar. It owns the binding to that parser and a small view of its trees: nodes
// with a kind and fields, called as in PostgreSQL's parsenodes.h. What the trees mean is its callers' business.
//
// The parser is libpg_query, compiled to WebAssembly, so that fencectl needs no C compiler to be built and runs wherever Go does. It is
// handed over as JSON: that is faster here than protocol buffers, whose Go types would compile the C sources after all.
package pgtree

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/wasilibs/go-pgquery/parser"
)

// A Node is one node of a tree, or what a node is made of. The zero Node is one that is not there: all its fields are empty.
type Node struct {
	Kind   string // as PostgreSQL calls it: UpdateStmt, RangeVar; "" for one whose place in its parent says what it is
	fields map[string]any
}

// A SyntaxError is a text that the grammar does not know.
type SyntaxError struct {
	Message string
	Offset  int // in bytes, from 0
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at offset %d", e.Message, e.Offset) }

// Parse parses one statement, which may end in a semicolon. The zero Node is one that says nothing, of comments alone. The error is a
// *SyntaxError.
func Parse(text string) (Node, error) {
	answer, err := parse(text, parser.ParseToJSON)
	if err != nil {
		return Node{}, err
	}
	var tree struct {
		Stmts []struct {
			Stmt map[string]any `json:"stmt"`
		} `json:"stmts"`
	}
	if err := json.Unmarshal([]byte(answer), &tree); err != nil {
		return Node{}, fmt.Errorf("reading the parser's answer: %w", err)
	}
	if len(tree.Stmts) == 0 {
		return Node{}, nil
	}
	return nodeOf(tree.Stmts[0].Stmt), nil
}

// A Query is one statement in the body of a PL/pgSQL function.
type Query struct {
	Text string // an expression is a SELECT of it
	Line int    // of the statement it belongs to, from 1, in the body
}

// ParseBody lists the statements and expressions of a PL/pgSQL body, given the CREATE FUNCTION or DO that has it. Statements that the body puts
// together when it runs are none. The error is a *SyntaxError.
func ParseBody(statement string) ([]Query, error) {
	answer, err := parse(statement, parser.ParsePlPgSqlToJSON)
	if err != nil {
		return nil, err
	}
	var functions any
	if err := json.Unmarshal([]byte(answer), &functions); err != nil {
		return nil, fmt.Errorf("reading the parser's answer: %w", err)
	}
	var queries []Query
	collect(functions, 1, &queries)
	return queries, nil
}

// collect finds the queries below a value, each with the line of the statement around it.
func collect(value any, line int, queries *[]Query) {
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			collect(item, line, queries)
		}
	case map[string]any:
		if number, ok := value["lineno"].(float64); ok {
			line = int(number)
		}
		if text, ok := value["query"].(string); ok {
			// An expression or assignment is parsed as such, not as a statement; none of those writes but by the functions it calls.
			if mode, _ := value["parseMode"].(float64); mode != 0 {
				if _, right, assigned := strings.Cut(text, ":="); assigned && mode > 2 {
					text = right
				}
				text = "SELECT " + text
			}
			*queries = append(*queries, Query{text, line})
		}
		for _, name := range sortedKeys(value) {
			collect(value[name], line, queries)
		}
	}
}

// parse calls the parser, and turns its errors into ours.
func parse(text string, call func(string) (string, error)) (answer string, err error) {
	// It reads a C string.
	if i := strings.IndexByte(text, 0); i >= 0 {
		return "", &SyntaxError{Message: "a NUL character", Offset: i}
	}
	answer, err = call(text)
	var wrong *parser.Error
	if errors.As(err, &wrong) {
		return "", &SyntaxError{Message: wrong.Message, Offset: bytesOf(text, wrong.Cursorpos-1)}
	}
	return answer, err
}

// bytesOf is the length in bytes of a text's first characters: the parser counts those.
func bytesOf(text string, characters int) int {
	n := 0
	for ; characters > 0 && n < len(text); characters-- {
		_, size := utf8.DecodeRuneInString(text[n:])
		n += size
	}
	return n
}
