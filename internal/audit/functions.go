package audit

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/migrations"
)

// function is one function of the schema fencing: as the migrations make it, or as the database has it.
type function struct {
	name       string
	signature  string // name and arguments, for people; only of those of the migrations
	body       string
	definer    bool   // SECURITY DEFINER
	settings   int    // how many SET clauses
	definition string // CREATE OR REPLACE FUNCTION …; only of those of the migrations
}

func (f function) same(other function) bool {
	return f.name == other.name && f.body == other.body && f.definer == other.definer && f.settings == other.settings
}

var (
	createFunction = regexp.MustCompile(`(?ms)^CREATE (?:OR REPLACE )?(FUNCTION (fencing\.(\w+)\(.*?\))\s*(?:RETURNS |LANGUAGE ).*?^AS \$\$(.*?)\$\$;)`)
	setClause      = regexp.MustCompile(`(?m)^SET \w`)
)

// installedFunctions are the functions that the migrations make.
func installedFunctions() ([]function, error) {
	var functions []function
	for _, name := range migrations.Files() {
		up, _, err := migrations.Sections(name)
		if err != nil {
			return nil, err
		}
		for _, match := range createFunction.FindAllStringSubmatch(strings.ReplaceAll(up, "\r", ""), -1) {
			header, _, _ := strings.Cut(match[1], "\nAS $$")
			functions = append(functions, function{
				name: match[3], signature: "function " + strings.Join(strings.Fields(match[2]), " "), body: match[4], definer: strings.Contains(header, "SECURITY DEFINER"),
				settings: len(setClause.FindAllString(header, -1)), definition: "CREATE OR REPLACE " + match[1],
			})
		}
	}
	return functions, nil
}

// sameVersion recognises the function that says which version of the schema is installed, when it is that of the migrations.
func sameVersion(expected []function) func(function) bool {
	return func(f function) bool {
		return f.name == "version" && slices.ContainsFunc(expected, func(e function) bool { return e.name == f.name && e.body == f.body })
	}
}

// alteredFunctions finds the functions that are not what the migrations made. Where the schema is of another version than
// this program, there is nothing to compare with.
func alteredFunctions(ctx context.Context, tx pgx.Tx) ([]finding, error) {
	expected, err := installedFunctions()
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, query("guard-altered.functions"))
	if err != nil {
		return nil, err
	}
	actual, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (function, error) {
		var f function
		return f, row.Scan(&f.name, &f.body, &f.definer, &f.settings)
	})
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(actual, sameVersion(expected)) {
		return nil, nil
	}

	// Overloads share a name: what is left when those that are as they should be are paired is paired in order.
	take := func(from []function, matches func(function) bool) ([]function, bool) {
		i := slices.IndexFunc(from, matches)
		if i < 0 {
			return from, false
		}
		return slices.Delete(from, i, i+1), true
	}
	var wrong []function
	for _, f := range actual {
		var ok bool
		if expected, ok = take(expected, f.same); !ok {
			wrong = append(wrong, f)
		}
	}
	var findings []finding
	for _, f := range wrong {
		i := slices.IndexFunc(expected, func(e function) bool { return e.name == f.name })
		if i < 0 {
			continue // somebody's own, of a name that we do not use
		}
		original := expected[i]
		expected = slices.Delete(expected, i, i+1)
		findings = append(findings, finding{
			rule: "guard-altered", object: original.signature, message: "is not the function that fencectl installed",
			statement: &original.definition,
		})
	}
	return findings, nil
}
