// Package catalog knows the tables of an application as far as the linter asks: which there are, which are protected and how, what is a
// partition of what, and which views write through to which table. It fills itself from a database, or statement by statement from the
// application's migrations, without a server. What is written to the tables is its callers' business.
package catalog

import (
	"slices"
	"strings"

	"github.com/fencectl/fencectl/fenced"
)

// A Protection is how a table is protected.
type Protection struct {
	Fence          string // of a named fence: its name or template; "" for row fences
	Reentrant      bool   // of row fences: a token may write a row again
	RequireInserts bool   // of row fences: a new row needs a token, too
}

// Row says whether the fences are in the rows.
func (p *Protection) Row() bool { return p.Fence == "" }

// Template says whether each row has a fence that its columns name.
func (p *Protection) Template() bool { return strings.Contains(p.Fence, "{") }

// GuardsStatements says whether the guard looks at statements, before any row is touched or any expression evaluated.
func (p *Protection) GuardsStatements() bool { return !p.Row() && !p.Template() }

// Columns are those in the fence's template.
func (p *Protection) Columns() []string {
	var columns []string
	for _, part := range strings.Split(p.Fence, "{")[1:] {
		if column, _, ok := strings.Cut(part, "}"); ok {
			columns = append(columns, column)
		}
	}
	return columns
}

// A Table is a table, a partition or a view.
type Table struct {
	Schema, Name string
	View         bool
	HasToken     bool // it has a column last_fencing_token

	own    *Protection
	parent *Table // that it is a partition of
	base   *Table // of a view: the table that it writes through to
	was    bool   // it was protected, and dropped
	times  int    // how often it has been protected
}

// Protection is how writes of the table are checked: its own, that of the table it is a partition of, or of the table below a view; nil
// without any. The second result is the table that has it.
func (t *Table) Protection() (*Protection, *Table) {
	for depth := 0; t != nil && depth < 100; depth++ { // names that were mixed up could make a circle
		switch {
		case t.own != nil:
			return t.own, t
		case t.base != nil:
			t = t.base
		default:
			t = t.parent
		}
	}
	return nil, nil
}

// protect puts guards on the table.
func (t *Table) protect(p *Protection) {
	t.own = p
	t.times++
}

// Is says whether two tables are the same, where one may be a partition of the other or a view on it.
func (t *Table) Is(other *Table) bool { return t.root() == other.root() }

func (t *Table) root() *Table {
	for range 100 {
		switch {
		case t.base != nil:
			t = t.base
		case t.parent != nil:
			t = t.parent
		default:
			return t
		}
	}
	return t
}

// PartitionOf is the table that it is a partition of; nil when it is none.
func (t *Table) PartitionOf() *Table { return t.parent }

// Label is the table's name as SQL wants it.
func (t *Table) Label() string { return Quote(t.Schema) + "." + Quote(t.Name) }

type key struct{ schema, name string }

// A Catalog is what is known of the tables.
type Catalog struct {
	// SearchPath is where names without a schema are looked for.
	SearchPath []string

	// Gaps say why there may be tables that the catalog does not know. Without any, a name that it does not know is no table.
	Gaps []string

	// Unread say which calls of fencing.protect could not be understood.
	Unread []string

	tables map[key]*Table
}

// New is a catalog without a table.
func New() *Catalog { return &Catalog{SearchPath: []string{"public"}, tables: map[key]*Table{}} }

// Find looks a name up, as PostgreSQL does. A name without schema that is on no schema of the search path is taken for the only table of that
// name, where there is only one: the search path of the application is not known. Nil: there is none.
func (c *Catalog) Find(schema, name string) *Table {
	if schema != "" {
		return c.live(key{schema, name})
	}
	for _, schema := range c.SearchPath {
		if t := c.live(key{schema, name}); t != nil {
			return t
		}
	}
	var only *Table
	for k := range c.tables {
		if t := c.live(k); t != nil && k.name == name {
			if only != nil {
				return nil
			}
			only = t
		}
	}
	return only
}

func (c *Catalog) live(k key) *Table {
	if t := c.tables[k]; t != nil && !t.was {
		return t
	}
	return nil
}

// WasProtected says whether a table of this name was protected and then dropped.
func (c *Catalog) WasProtected(schema, name string) bool {
	if schema == "" {
		schema = c.creationSchema()
	}
	t := c.tables[key{schema, name}]
	return t != nil && t.was
}

// Protected lists the tables that are protected, partitions and views left out, by their names.
func (c *Catalog) Protected() []*Table {
	var all []*Table
	for _, t := range c.tables {
		if t.own != nil && !t.was {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *Table) int { return strings.Compare(a.Label(), b.Label()) })
	return all
}

// Tables counts what it knows.
func (c *Catalog) Tables() int {
	n := 0
	for _, t := range c.tables {
		if !t.was {
			n++
		}
	}
	return n
}

func (c *Catalog) creationSchema() string {
	if len(c.SearchPath) > 0 {
		return c.SearchPath[0]
	}
	return "public"
}

func (c *Catalog) add(schema, name string) *Table {
	if schema == "" {
		schema = c.creationSchema()
	}
	t := &Table{Schema: schema, Name: name}
	c.tables[key{schema, name}] = t
	return t
}

// ParseName reads a table's name as regclass does: unquoted letters are folded to lower case.
func ParseName(text string) (schema, name string, ok bool) {
	var parts []string
	var part strings.Builder
	for i := 0; i < len(text); i++ {
		switch letter := text[i]; {
		case letter == '"':
			end := strings.IndexByte(text[i+1:], '"')
			if end < 0 {
				return "", "", false
			}
			part.WriteString(text[i+1 : i+1+end])
			i += end + 1
			if i+1 < len(text) && text[i+1] == '"' {
				part.WriteByte('"')
			}
		case letter == '.':
			parts = append(parts, part.String())
			part.Reset()
		case letter >= 'A' && letter <= 'Z':
			part.WriteByte(letter + 'a' - 'A')
		case letter != ' ':
			part.WriteByte(letter)
		}
	}
	parts = append(parts, part.String())
	if slices.Contains(parts, "") || len(parts) > 2 {
		return "", "", false
	}
	if len(parts) == 1 {
		return "", parts[0], true
	}
	return parts[0], parts[1], true
}

// Quote puts a name in double quotes where SQL wants them.
func Quote(name string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz_"
	plain := name != "" && strings.ContainsRune(letters, rune(name[0])) && strings.Trim(name, letters+"0123456789$") == ""
	if plain && !slices.Contains(reserved, name) {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// reserved are the key words that no table can be called without quotes (PostgreSQL 18).
var reserved = strings.Fields(`all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation column
	concurrently constraint create cross current_catalog current_date current_role current_schema current_time current_timestamp current_user default
	deferrable desc distinct do else end except false fetch for foreign freeze from full grant group having ilike in initially inner intersect into is
	isnull join lateral leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary
	references returning right select session_user similar some symmetric system_user table tablesample then to trailing true union unique user using
	variadic verbose when where window with`)

// fencingSchema is the schema of the SQL layer, whose tables are not the application's.
const fencingSchema = fenced.SchemaName

// Names lists what the catalog knows, by name, with its schema or without.
func (c *Catalog) Names(qualified bool) []string {
	var names []string
	for k := range c.tables {
		if t := c.live(k); t != nil {
			if qualified {
				names = append(names, t.Label())
			} else {
				names = append(names, Quote(t.Name))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Protected counts how often the table has been protected: as seen before and after, it says whether that happened in between. 0: it is
// not protected by itself.
func (t *Table) Protected() int {
	if t.own == nil {
		return 0
	}
	return t.times
}
