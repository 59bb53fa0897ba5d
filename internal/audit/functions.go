package audit

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/migrations"
)

// function is one function of the schema fencing: as the migrations make it, or as the database has it.
type function struct {
	name       string
	file       string // the migration that makes it; only of those of the migrations
	signature  string // name and arguments, for people; only of those of the migrations
	body       string
	definer    bool   // SECURITY DEFINER
	settings   int    // how many SET clauses
	definition string // CREATE OR REPLACE FUNCTION …; only of those of the migrations
}

func (f function) same(other function) bool {
	return f.name == other.name && f.body == other.body && f.definer == other.definer && f.settings == other.settings
}

// entry is what a transaction remembers of a fence that has accepted it.
const entry = "concat(current_setting('fencing.token'::text, true), ' ', current_setting('fencing.tokens'::text, true), ' ', fence)"

// parsed has the bodies that are written as RETURN, which PostgreSQL keeps parsed, as it prints them: on every version alike.
// Every audit of a fresh installation, in the tests, compares them.
var parsed = map[string]string{
	"accepted": "RETURN ((current_setting('fencing.accepted_first'::text, true) = " + entry + ") OR " +
		"(current_setting(concat('fencing.accepted_', (hashtext(fence) & 1023)), true) = " + entry + "))",
	"acting_role": "RETURN COALESCE(NULLIF(current_setting('role'::text, true), 'none'::text), (SESSION_USER)::text)",
	"make_token":  "RETURN (((epoch)::bigint << 48) | counter)",
	"fence_lock":  "RETURN hashtextextended(fence, '7094703062094545218'::bigint)",
	"presented": "RETURN CASE current_setting('fencing.token'::text, true) WHEN ''::text THEN NULL::bigint " +
		"WHEN current_setting('fencing.checked'::text, true) THEN (current_setting('fencing.checked'::text, true))::bigint " +
		"ELSE CASE WHEN (current_setting('fencing.token'::text, true) ~ '^[1-9][0-9]{0,17}$'::text) THEN (current_setting('fencing.token'::text, true))::bigint " +
		"WHEN (current_setting('fencing.token'::text, true) IS NOT NULL) THEN fencing.presented(NULL::text) ELSE NULL::bigint END" +
		" END",
	"set_accepted": "RETURN concat(set_config(concat('fencing.accepted_', (hashtext(fence) & 1023)), CASE WHEN accepted THEN " + entry + " ELSE ''::text END, true), " +
		"CASE WHEN (NOT accepted) THEN set_config('fencing.accepted_first'::text, 'forgotten'::text, true) " +
		"WHEN (COALESCE(current_setting('fencing.accepted_first'::text, true), ''::text) = ''::text) " +
		"THEN set_config('fencing.accepted_first'::text, " + entry + ", true) ELSE NULL::text END)",
	"token_counter": "RETURN (token & '281474976710655'::bigint)",
	"token_epoch":   "RETURN ((token >> 48))::integer",
	"version":       "RETURN '0.1.0'::text",
}

var (
	// A function's statement ends where its quoted body does, or at the first semicolon that ends a line.
	functionStart = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?((?:FUNCTION|PROCEDURE) fencing\.(\w+)\()`)
	bodyStart     = regexp.MustCompile(`(?m)^(?:AS \$\$|RETURN )`)
	signatureEnd  = regexp.MustCompile(`\)\s*(?:RETURNS |LANGUAGE )`)
	setClause     = regexp.MustCompile(`(?m)^SET \w`)
)

// installedFunctions are the functions that the migrations make.
func installedFunctions() ([]function, error) {
	var functions []function
	for _, file := range migrations.Files() {
		up, _, err := migrations.Sections(file)
		if err != nil {
			return nil, err
		}
		up = strings.ReplaceAll(up, "\r", "")
		for _, at := range functionStart.FindAllStringSubmatchIndex(up, -1) {
			f, err := parseFunction(up[at[4]:at[5]], up[at[2]:])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			f.file = file
			functions = append(functions, f)
		}
	}
	return functions, nil
}

// parseFunction reads the statement at the beginning of a text.
func parseFunction(name, text string) (function, error) {
	start, signature := bodyStart.FindStringIndex(text), signatureEnd.FindStringIndex(text)
	if start == nil || signature == nil || signature[0] > start[0] {
		return function{}, fmt.Errorf("the function %s cannot be read", name)
	}
	header, rest := text[:start[0]], text[start[1]:]
	end := ";\n"
	if strings.HasPrefix(text[start[0]:], "AS ") {
		end = "$$;"
	}
	body, _, ok := strings.Cut(rest, end)
	if !ok {
		return function{}, fmt.Errorf("the function %s does not end", name)
	}
	f := function{
		name: name, signature: strings.Join(strings.Fields(text[:signature[0]+1]), " "), body: body,
		definer: strings.Contains(header, "SECURITY DEFINER"), settings: len(setClause.FindAllString(header, -1)),
		definition: "CREATE OR REPLACE " + text[:start[1]+len(body)] + strings.TrimSpace(end),
	}
	kind, call, _ := strings.Cut(f.signature, " ")
	f.signature = strings.ToLower(kind) + " " + call
	if end != "$$;" {
		f.body = parsed[name]
	}
	return f, nil
}

// sameVersion recognises the function that says which version of the schema is installed, when it is that of the migrations.
func sameVersion(expected []function) func(function) bool {
	return func(f function) bool {
		return f.name == "version" && slices.ContainsFunc(expected, func(e function) bool { return e.name == f.name && e.body == f.body })
	}
}

var versionText = regexp.MustCompile(`'(\d+)\.(\d+)\.(\d+)[^']*'`)

// versionOf is the version of the schema that the functions are of, as numbers to compare and as text; nil when it cannot be told.
func versionOf(functions []function) (numbers []int, text string) {
	i := slices.IndexFunc(functions, func(f function) bool { return f.name == "version" })
	if i < 0 {
		return nil, ""
	}
	parts := versionText.FindStringSubmatch(functions[i].body)
	if parts == nil {
		return nil, ""
	}
	for _, part := range parts[1:] {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, ""
		}
		numbers = append(numbers, n)
	}
	return numbers, strings.Trim(parts[0], "'")
}

// outdated finds a schema that an older version than this program left: by what it says of itself, or because nothing is there
// of what the last migrations make. A function that is gone alone was dropped by somebody, which installing would not mend.
func outdated(expected, actual []function) *finding {
	ours, ourText := versionOf(expected)
	theirs, theirText := versionOf(actual)
	old := finding{rule: "guard-outdated", object: "schema fencing", command: []string{"install"}}
	if ours != nil && theirs != nil && slices.Compare(theirs, ours) < 0 {
		old.message = fmt.Sprintf("is of version %s, and this fencectl installs %s", theirText, ourText)
		return &old
	}
	there := func(f function) bool {
		return slices.ContainsFunc(actual, func(a function) bool { return a.name == f.name })
	}
	last := expected[len(expected)-1].file
	for i, f := range expected {
		isNew := !slices.ContainsFunc(expected[:i], func(e function) bool { return e.name == f.name && e.file != last })
		if f.file == last && isNew && there(f) {
			return nil
		}
	}
	old.message = "lacks the functions of " + last + ", which this fencectl installs"
	return &old
}

// alteredFunctions finds the functions that are not what the migrations made. Where the schema is of another version than
// this program, there is nothing to compare with: an older one is a finding of its own.
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
	if len(actual) == 0 {
		return nil, nil
	}
	if old := outdated(expected, actual); old != nil {
		return []finding{*old}, nil
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
