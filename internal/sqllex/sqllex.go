// Package sqllex owns where the tokens of SQL end whose inside is not to be read: comments, strings, quoted names, words, and the body of
// a routine. It follows PostgreSQL's lexer. Which tokens matter, and what one that does not end means, is the readers' business.
package sqllex

import (
	"regexp"
	"strings"
	"unicode"
)

var (
	// createRoutine begins the statements whose body may be BEGIN ATOMIC ... END, with semicolons in it.
	createRoutine = regexp.MustCompile(`(?i)^create\s+(or\s+replace\s+)?(function|procedure)\b`)
	copyFromStdin = regexp.MustCompile(`(?is)^copy\s.*\sfrom\s+stdin\b`)
)

// Letter says whether a rune can begin a name. Beyond ASCII every one can.
func Letter(r rune) bool { return r == '_' || unicode.IsLetter(r) || r > unicode.MaxASCII }

// Line is the number of bytes before the end of the line.
func Line(text string) int {
	if end := strings.IndexByte(text, '\n'); end >= 0 {
		return end
	}
	return len(text)
}

// Word is the length of the name or keyword that a text begins with. A $ may be part of one.
func Word(text string) int {
	if n := strings.IndexFunc(text, func(r rune) bool { return !Letter(r) && !unicode.IsDigit(r) && r != '$' }); n >= 0 {
		return n
	}
	return len(text)
}

// Comment is the length of the /* comment that a text begins with, and whether it ends. Comments nest.
func Comment(text string) (n int, ended bool) {
	depth := 0
	for i := 0; i < len(text); {
		switch {
		case strings.HasPrefix(text[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(text[i:], "*/"):
			i += 2
			if depth--; depth == 0 {
				return i, true
			}
		default:
			i++
		}
	}
	return len(text), false
}

// Quoted is the length of the text in quotes that a text begins with, and whether it ends. A doubled quote is one within, and so is
// one after a backslash where backslashes escape.
func Quoted(text string, quote byte, backslashes bool) (n int, ended bool) {
	for i := 1; i < len(text); i++ {
		switch {
		case backslashes && text[i] == '\\':
			i++
		case text[i] != quote:
		case i+1 < len(text) && text[i+1] == quote:
			i++
		default:
			return i + 1, true
		}
	}
	return len(text), false
}

// Dollar is the opening $$ or $tag$ of the dollar-quoted string that a text begins with, its length, and whether it ends. The tag is ""
// where there is no such string, as for a parameter.
func Dollar(text string) (tag string, n int, ended bool) {
	closing := strings.IndexByte(text[1:], '$')
	if closing < 0 {
		return "", 0, false
	}
	for i, r := range text[1 : closing+1] {
		if !Letter(r) && (i == 0 || r < '0' || r > '9') {
			return "", 0, false
		}
	}
	tag = text[:closing+2]
	if end := strings.Index(text[len(tag):], tag); end >= 0 {
		return tag, end + 2*len(tag), true
	}
	return tag, len(text), false
}

// Blocks is how many BEGIN and CASE await their END after a word, when it was depth before. statement is all that has been read
// of it, the word included: only the body of a routine has blocks.
func Blocks(depth int, statement, word string) int {
	switch {
	case !createRoutine.MatchString(statement):
	case strings.EqualFold(word, "begin"), strings.EqualFold(word, "case") && depth > 0:
		return depth + 1
	case strings.EqualFold(word, "end") && depth > 0:
		return depth - 1
	}
	return depth
}

// CopiesFromStdin says whether data follows a statement, up to a line that is \. alone.
func CopiesFromStdin(statement string) bool { return copyFromStdin.MatchString(statement) }
