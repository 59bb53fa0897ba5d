package generate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/internal/spelling"
	"github.com/fencectl/fencectl/internal/tableref"
)

// Settings are a project's settings (the key generate of fencectl.yaml).
type Settings struct {
	// SQLC is the path of sqlc's configuration. Default: sqlc.yaml, sqlc.yml or sqlc.json.
	SQLC string
	// Command runs sqlc, for instance [go, tool, sqlc, generate], in the directory of its configuration, after the queries were written. Default:
	// it is not run.
	Command []string
	// Queries is the directory of the queries. Default: the first directory that sqlc's configuration reads queries from.
	Queries string
	// Tables are the tables, or patterns of tables. Default: every protected table.
	Tables []Table
}

// A Table is what is wanted of one table, or of all that a pattern matches.
type Table struct {
	Pattern string
	// Name takes the place of the table's name in Go: Jobs makes FencedJobs.
	Name string
	// Insert are the columns that an insert sets. Default: all but generated columns, identities, and those whose default is computed.
	Insert []string
	// Updates are updates of some columns, each a method.
	Updates []Update
}

// An Update is an update of some columns.
type Update struct {
	Name  string // of the method
	Set   []Assignment
	Where string // a condition that the row must meet beside; may be empty
}

// An Assignment gives a column a value.
type Assignment struct {
	Column     string
	Expression string // empty: the method has a parameter for it
}

// A SettingError is a setting that does not fit the database.
type SettingError struct{ Reason string }

func (e *SettingError) Error() string { return e.Reason }

func wrong(format string, args ...any) error { return &SettingError{fmt.Sprintf(format, args...)} }

// wanted is a table and what is wanted of it.
type wanted struct {
	*table
	settings Table
	base     string // the part of Go names that means the table
	stem     string // of the files
}

// choose selects the tables.
func choose(tables []*table, settings []Table) ([]*wanted, error) {
	var chosen []*wanted
	if len(settings) == 0 {
		settings = []Table{{Pattern: "*.*"}}
		if len(tables) == 0 {
			return nil, wrong("no table is protected; protect one first: fencectl protect TABLE, or SELECT fencing.protect('...') in a migration")
		}
	}
	for _, s := range settings {
		pattern, err := tableref.Parse(s.Pattern)
		if err != nil {
			return nil, wrong("generate.tables: %v", err)
		}
		found := 0
		for _, t := range tables {
			if !pattern.MatchTable(t.Schema, t.Name) {
				continue
			}
			found++
			i := slices.IndexFunc(chosen, func(w *wanted) bool { return w.table == t })
			if i < 0 {
				chosen = append(chosen, &wanted{table: t, settings: s})
				continue
			}
			w := chosen[i]
			if s.Name != "" {
				w.settings.Name = s.Name
			}
			if len(s.Insert) > 0 {
				w.settings.Insert = s.Insert
			}
			w.settings.Updates = slices.Concat(w.settings.Updates, s.Updates)
		}
		if found == 0 {
			var names []string
			for _, t := range tables {
				names = append(names, t.Quoted, t.Name)
			}
			if near, ok := spelling.Closest(s.Pattern, names); ok {
				return nil, wrong("generate.tables: no protected table is called %s; did you mean %s?", s.Pattern, near)
			}
			return nil, wrong("generate.tables: no protected table is called %s; protect it first: fencectl protect %s, or in a migration", s.Pattern, s.Pattern)
		}
		if found > 1 && s.Name != "" {
			return nil, wrong("generate.tables.%s has a name, but means %d tables", s.Pattern, found)
		}
	}
	slices.SortFunc(chosen, func(a, b *wanted) int { return strings.Compare(a.Schema+"\x00"+a.Name, b.Schema+"\x00"+b.Name) })
	return chosen, name(chosen)
}

// name gives the tables their names in Go, by the rule of sqlc: tables of the schema public have no schema in their name.
func name(chosen []*wanted) error {
	bases, stems := map[string]string{}, map[string]string{}
	for _, w := range chosen {
		own := w.table.Name
		if w.Schema != "public" {
			own = w.Schema + "_" + own
		}
		if w.settings.Name != "" {
			own = w.settings.Name
		}
		w.base, w.stem = camel(own), fileStem(apart(own))
		if w.base == "" {
			return wrong("table %s has no letter that a name in Go could be made of; give it one: generate: {tables: {%s: {name: ...}}}", w.Quoted, w.settings.Pattern)
		}
		for taken, mine := range map[*map[string]string]string{&bases: w.base, &stems: w.stem} {
			if other, ok := (*taken)[mine]; ok {
				return wrong("tables %s and %s would have the same name in Go, Fenced%s; give one another: generate: {tables: {'%s': {name: ...}}}", other, w.Quoted, w.base, w.Quoted)
			}
			(*taken)[mine] = w.Quoted
		}
	}
	return nil
}
