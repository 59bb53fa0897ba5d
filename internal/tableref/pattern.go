// Package tableref turns what people write for tables (jobs, billing.jobs, "Order Items", billing.*) into tables of a
// database, or into one clear sentence about why there is no such table to work on. It owns the syntax of table arguments
// and the rules of which relations a fence can be put on; what is then done with the tables is the caller's business.
package tableref

import (
	"fmt"
	"strings"
)

// A Pattern is one table argument, taken apart: an optional schema and a name, each of which may hold wildcards.
type Pattern struct {
	text   string
	schema *part
	name   part
}

// A part is one identifier of a pattern: a sequence of literal letters and wildcards. Within double quotes everything is
// literal, as in psql.
type part struct {
	tokens []token
	quoted bool // some of it was in double quotes: then nothing folds to lower case
}

type token struct {
	letter rune
	// wild is '*' (any letters), '?' (one letter) or 0 (the letter itself).
	wild rune
}

// SyntaxError says that a table argument cannot be read.
type SyntaxError struct {
	Text   string // the argument
	Reason string // what is wrong with it, and how to write it
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s is not a table name: %s", e.Text, e.Reason)
}

// Parse reads a table argument: name or schema.name, where either may be in double quotes (a doubled quote stands for one)
// and may contain the wildcards * and ? outside quotes. The error is a *SyntaxError.
func Parse(text string) (Pattern, error) {
	fail := func(reason string) (Pattern, error) {
		return Pattern{}, &SyntaxError{Text: quoteEmpty(text), Reason: reason}
	}
	parts := []part{{}}
	letters := []rune(text)
	for i := 0; i < len(letters); i++ {
		current := &parts[len(parts)-1]
		switch letter := letters[i]; {
		case letter == 0:
			return fail("it contains a NUL character")
		case letter == '"':
			current.quoted = true
			closed := false
			for i++; i < len(letters); i++ {
				if letters[i] != '"' {
					current.tokens = append(current.tokens, token{letter: letters[i]})
					continue
				}
				if i+1 < len(letters) && letters[i+1] == '"' {
					current.tokens = append(current.tokens, token{letter: '"'})
					i++
					continue
				}
				closed = true
				break
			}
			if !closed {
				return fail("the double quote is never closed")
			}
		case letter == '.':
			parts = append(parts, part{})
		case letter == '*' || letter == '?':
			current.tokens = append(current.tokens, token{letter: letter, wild: letter})
		default:
			current.tokens = append(current.tokens, token{letter: letter})
		}
	}
	for _, p := range parts {
		if len(p.tokens) == 0 {
			return fail("write NAME or SCHEMA.NAME")
		}
	}
	switch len(parts) {
	case 1:
		return Pattern{text: text, name: parts[0]}, nil
	case 2:
		return Pattern{text: text, schema: &parts[0], name: parts[1]}, nil
	}
	return fail(`it has more than one dot; put a schema or table whose name contains a dot in double quotes, as in '"my.schema".jobs'`)
}

// MatchTable says whether the pattern means this table, given by the names that the catalog has. A pattern without schema
// matches the name in any schema; callers that resolve through a search_path narrow that down.
func (p Pattern) MatchTable(schema, name string) bool {
	return (p.schema == nil || p.schema.match(schema)) && p.name.match(name)
}

// HasWildcard says whether the pattern may match several tables.
func (p Pattern) HasWildcard() bool {
	return p.name.wild() || (p.schema != nil && p.schema.wild())
}

// String returns the pattern as it was written.
func (p Pattern) String() string { return p.text }

func (p part) wild() bool {
	for _, t := range p.tokens {
		if t.wild != 0 {
			return true
		}
	}
	return false
}

// plain is the part's text without quotes, for comparison and suggestions.
func (p part) plain() string {
	var b strings.Builder
	for _, t := range p.tokens {
		b.WriteRune(t.letter)
	}
	return b.String()
}

// match compares with a name of the catalog. Unquoted text matches folded to lower case, as PostgreSQL reads it, and also
// as typed: a shell strips the double quotes that somebody put around "Order Items", and there is no other table that the
// argument could mean (where there is one, Resolve reports the ambiguity).
func (p part) match(name string) bool {
	letters := []rune(name)
	if matchTokens(p.tokens, letters) {
		return true
	}
	return !p.quoted && matchTokens(fold(p.tokens), letters)
}

// fold lowers ASCII letters only: that is what PostgreSQL does with unquoted identifiers in a multi-byte encoding.
func fold(tokens []token) []token {
	folded := make([]token, len(tokens))
	for i, t := range tokens {
		if t.letter >= 'A' && t.letter <= 'Z' {
			t.letter += 'a' - 'A'
		}
		folded[i] = t
	}
	return folded
}

// matchTokens is the usual linear wildcard match: on a mismatch it goes back to the last * and lets that take one more
// letter, so that no pattern takes exponential time.
func matchTokens(tokens []token, letters []rune) bool {
	t, l, star, starLetter := 0, 0, -1, 0
	for l < len(letters) {
		switch {
		case t < len(tokens) && tokens[t].wild == '*':
			star, starLetter = t, l
			t++
		case t < len(tokens) && (tokens[t].wild == '?' || (tokens[t].wild == 0 && tokens[t].letter == letters[l])):
			t++
			l++
		case star >= 0:
			starLetter++
			t, l = star+1, starLetter
		default:
			return false
		}
	}
	for t < len(tokens) && tokens[t].wild == '*' {
		t++
	}
	return t == len(tokens)
}

func quoteEmpty(text string) string {
	if strings.TrimSpace(text) == "" {
		return fmt.Sprintf("%q", text)
	}
	return text
}
