// Package statement reads from the text of one SQL statement which tables it writes, by its words alone: the text comes from
// pg_stat_statements, where a statement was parsed once and there is nothing left but the text. It knows no catalog: names are as
// they stand there, and a view, a function or a trigger that writes elsewhere is not followed.
package statement

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fencectl/fencectl/internal/sqllex"
)

// A Kind is what a statement does to a table.
type Kind string

// The kinds.
const (
	Insert   Kind = "insert" // COPY FROM as well
	Update   Kind = "update"
	Delete   Kind = "delete"
	Truncate Kind = "truncate"
	Lock     Kind = "lock" // SELECT FOR UPDATE or FOR NO KEY UPDATE: it reads what it is about to write
)

// A Use is one table of a statement, and what the statement does to it.
type Use struct {
	Schema string // "" where the text names none
	Table  string
	Kind   Kind
}

// Uses lists the tables that a statement writes or locks, each kind once, in the order of the text. Statements that are no queries or
// changes of rows (CREATE FUNCTION, GRANT, ...) have none.
func Uses(text string) []Use {
	r := reader{tokens: scan(text)}
	if len(r.tokens) == 0 {
		return nil
	}
	switch first := r.tokens[0]; {
	case first.is("truncate"):
		r.truncate()
	case first.is("copy"):
		r.copyFrom()
	case first.is("with"), first.is("insert"), first.is("update"), first.is("delete"), first.is("merge"), first.is("select"), first.text == "(":
		r.changes()
	}
	return r.uses
}

// Mentions says whether one of the names, in lower case, occurs in a statement as a name or within a string, and not in a comment.
func Mentions(text string, names ...string) bool {
	return slices.ContainsFunc(scan(text), func(t token) bool {
		if t.kind == quoted {
			return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(t.text, name) })
		}
		return t.kind != symbol && slices.Contains(names, t.text)
	})
}

type reader struct {
	tokens []token
	uses   []Use
}

func (r *reader) at(i int) token {
	if i < 0 || i >= len(r.tokens) {
		return token{}
	}
	return r.tokens[i]
}

func (r *reader) add(target Use, kind Kind) {
	target.Kind = kind
	if target.Table != "" && !slices.Contains(r.uses, target) {
		r.uses = append(r.uses, target)
	}
}

// name reads a table's name at i, past ONLY, and returns the place after it. A catalog before the schema is left out.
func (r *reader) name(i int) (Use, int) {
	if r.at(i).is("only") {
		i++
	}
	if r.at(i).text == "(" { // ONLY (t)
		i++
	}
	var parts []string
	for r.at(i).kind == word || r.at(i).kind == identifier {
		parts = append(parts, r.at(i).text)
		if i++; r.at(i).text != "." || r.at(i).kind != symbol {
			break
		}
		i++
	}
	switch n := len(parts); n {
	case 0:
		return Use{}, i
	case 1:
		return Use{Table: parts[0]}, i
	default:
		return Use{Schema: parts[n-2], Table: parts[n-1]}, i
	}
}

func (r *reader) truncate() {
	i := 1
	if r.at(i).is("table") {
		i++
	}
	for {
		target, next := r.name(i)
		r.add(target, Truncate)
		for next < len(r.tokens) && r.at(next).text != "," {
			next++
		}
		if next >= len(r.tokens) {
			return
		}
		i = next + 1
	}
}

func (r *reader) copyFrom() {
	target, i := r.name(1)
	if r.at(1).text == "(" {
		return // COPY (query) TO
	}
	for ; i < len(r.tokens); i++ {
		if r.at(i).is("from") {
			r.add(target, Insert)
			return
		}
		if r.at(i).is("to") {
			return
		}
	}
}

// changes reads queries, with whatever WITH has before and between them.
func (r *reader) changes() {
	var (
		current Use   // of the INSERT or MERGE that is being read
		read    []Use // what FROM and JOIN name, until a FOR UPDATE
	)
	for i, t := range r.tokens {
		before := r.at(i - 1)
		switch {
		case t.is("insert") && r.at(i+1).is("into"), t.is("merge") && r.at(i+1).is("into"):
			current, _ = r.name(i + 2)
			if t.is("insert") {
				r.add(current, Insert)
			}
		case (before.is("do") || before.is("then")) && t.is("update"):
			r.add(current, Update)
		case before.is("then") && t.is("insert"):
			r.add(current, Insert)
		case before.is("then") && t.is("delete"):
			r.add(current, Delete)
		case t.is("update") && (before.is("for") || before.is("key")):
			for _, use := range read {
				r.add(use, Lock)
			}
		case t.is("update") && !before.is("on"):
			target, _ := r.name(i + 1)
			r.add(target, Update)
		case t.is("delete") && r.at(i+1).is("from"):
			target, _ := r.name(i + 2)
			r.add(target, Delete)
		case (t.is("from") && !before.is("delete") && !before.is("distinct")) || t.is("join"):
			if target, _ := r.name(i + 1); !r.at(i+1).is("select") && !r.at(i+1).is("lateral") {
				read = append(read, target)
			}
		}
	}
}

type tokenKind int

const (
	symbol     tokenKind = iota
	word                 // unquoted, folded to lower case
	identifier           // in double quotes
	quoted               // a string
)

type token struct {
	kind tokenKind
	text string
}

// is says whether a token is a keyword, which a quoted name never is.
func (t token) is(keyword string) bool { return t.kind == word && t.text == keyword }

// scan splits a text as PostgreSQL's lexer does, as far as names, strings and comments go.
func scan(text string) []token {
	var tokens []token
	for len(text) > 0 {
		first, size := utf8.DecodeRuneInString(text)
		switch {
		case unicode.IsSpace(first):
			text = text[size:]
		case strings.HasPrefix(text, "--"):
			_, text, _ = strings.Cut(text, "\n")
		case strings.HasPrefix(text, "/*"):
			n, _ := sqllex.Comment(text)
			text = text[n:]
		case first == '\'':
			n, _ := sqllex.Quoted(text, '\'', escapes(tokens))
			tokens = append(tokens, token{quoted, text[:n]})
			text = text[n:]
		case first == '"':
			n, _ := sqllex.Quoted(text, '"', false)
			name := strings.TrimSuffix(text[1:n], `"`)
			tokens = append(tokens, token{identifier, strings.ReplaceAll(name, `""`, `"`)})
			text = text[n:]
		case first == '$' && dollarQuoted(text):
			_, n, _ := sqllex.Dollar(text)
			tokens = append(tokens, token{quoted, text[:n]})
			text = text[n:]
		case sqllex.Letter(first):
			n := sqllex.Word(text)
			tokens = append(tokens, token{word, strings.ToLower(text[:n])})
			text = text[n:]
		default:
			tokens = append(tokens, token{symbol, text[:size]})
			text = text[size:]
		}
	}
	return tokens
}

// escapes says whether a string that follows begins with E, in which a backslash keeps the quote after it.
func escapes(before []token) bool { return len(before) > 0 && before[len(before)-1].is("e") }

func dollarQuoted(text string) bool {
	tag, _, _ := sqllex.Dollar(text)
	return tag != ""
}
