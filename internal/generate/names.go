package generate

import (
	"go/token"
	"go/types"
	"strings"
	"unicode"
	"unicode/utf8"
)

// words takes a name apart at everything that is no letter and no digit.
func words(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

func title(word string) string {
	first, size := utf8.DecodeRuneInString(word)
	return string(unicode.ToUpper(first)) + word[size:]
}

// camel is a name in Go's way: order_items is OrderItems.
func camel(name string) string {
	var b strings.Builder
	for _, word := range words(name) {
		if word == "id" {
			b.WriteString("ID")
			continue
		}
		b.WriteString(title(word))
	}
	return b.String()
}

// exported is a name that can be exported, whatever it is made of: 2026 is X2026.
func exported(name string) string {
	name = strings.TrimLeft(name, "_")
	if !token.IsExported(name) {
		return "X" + name
	}
	return name
}

// snake is a name as part of a file's name.
func snake(name string) string {
	var b strings.Builder
	for i, word := range words(name) {
		if i > 0 {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(word))
	}
	return b.String()
}

// apart puts a _ before each word of a name in Go's way: OrderItems is Order_Items.
func apart(name string) string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if lower && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(r)
		b.WriteRune(r)
	}
	return b.String()
}

// fileStem is the name of a table's files, without the extension. go build takes some endings for a condition
// (fenced_events_windows.go, fenced_load_test.go, and sqlc's fenced_arm.sql.go): those get one more word.
func fileStem(name string) string {
	stem := "fenced_" + snake(name)
	last := stem[strings.LastIndexByte(stem, '_')+1:]
	if buildWords[last] {
		stem += "_table"
	}
	return stem
}

// buildWords are the names that go build knows (internal/syslist), and test.
var buildWords = func() map[string]bool {
	known := map[string]bool{}
	for _, word := range strings.Fields("test aix android darwin dragonfly freebsd hurd illumos ios js linux nacl netbsd openbsd plan9 solaris wasip1 windows zos " +
		"386 amd64 amd64p32 arm armbe arm64 arm64be loong64 mips mipsle mips64 mips64le mips64p32 mips64p32le ppc ppc64 ppc64le riscv riscv64 s390 s390x sparc sparc64 wasm") {
		known[word] = true
	}
	return known
}()

// variable is a column's name as that of a Go variable, different from all that are taken.
func variable(name string, taken map[string]bool) string {
	var b strings.Builder
	for i, word := range words(name) {
		switch {
		case i == 0:
			first, size := utf8.DecodeRuneInString(word)
			b.WriteString(string(unicode.ToLower(first)) + word[size:])
		case word == "id":
			b.WriteString("ID")
		default:
			b.WriteString(title(word))
		}
	}
	v := b.String()
	if first, _ := utf8.DecodeRuneInString(v); v == "" || unicode.IsDigit(first) {
		v = "x" + v
	}
	for token.IsKeyword(v) || types.Universe.Lookup(v) != nil || taken[v] {
		v += "_"
	}
	taken[v] = true
	return v
}
