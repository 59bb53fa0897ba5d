package generate

import (
	_ "embed" // the functions
	"regexp"
	"strings"
)

// sharedFile holds what the repositories of a package have in common.
const sharedFile = "fenced.go"

//go:embed shared.go.tmpl
var sharedSource string

var function = regexp.MustCompile(`(?m)^func (fenced\w+)\(`)

// shared makes the file that the repositories of a package share. It is the same whatever they call of it.
func (p *goPackage) shared() (string, error) {
	noRows, driver := "pgx.ErrNoRows", goImport{"", "github.com/jackc/pgx/v5"}
	if p.standard {
		noRows, driver = "sql.ErrNoRows", goImport{"", "database/sql"}
	}
	source := strings.ReplaceAll(sharedSource, "NOROWS", noRows)
	for _, match := range function.FindAllStringSubmatch(source, -1) {
		if file, ok := p.declared[match[1]]; ok {
			return "", wrong("%s is declared in %s already: %s needs the name; rename the one there", match[1], p.dir+"/"+file, sharedFile)
		}
	}
	return p.file(merge([]goImport{{"", "context"}, {"", "encoding/json"}, {"", "errors"}, {"", "fmt"}, {"", fencedImport}, driver}), source)
}
