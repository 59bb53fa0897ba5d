package tableref

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/spelling"
)

// A Table is one relation that a fence can be put on: an ordinary table or the root of a partitioned one.
type Table struct {
	OID       int64
	Schema    string
	Name      string
	Quoted    string // schema and name as they must be written in SQL, quoted by the server where needed
	HasColumn bool   // it has a column named like the token column of a row fence

	// Bookkeeping: it is where a migration tool remembers what it has applied. A fence on it would stop every later
	// migration, so a pattern does not mean it; its name does.
	Bookkeeping bool
}

// bookkeeping are the tables of widespread migration tools, in lower case.
var bookkeeping = map[string]bool{
	"goose_db_version": true, "schema_migrations": true, "schema_migration": true, "gorp_migrations": true, "river_migration": true,
	"atlas_schema_revisions": true, "schema_version": true, "flyway_schema_history": true, "databasechangelog": true,
	"databasechangeloglock": true, "alembic_version": true, "django_migrations": true, "ar_internal_metadata": true,
	"_prisma_migrations": true, "knex_migrations": true, "knex_migrations_lock": true, "pgmigrations": true, "sequelizemeta": true,
	"typeorm_migrations": true, "__efmigrationshistory": true, "__drizzle_migrations": true, "_sqlx_migrations": true,
	"__diesel_schema_migrations": true, "seaql_migrations": true, "refinery_schema_history": true,
}

// A NameError says that a table argument names nothing that can be worked on.
type NameError struct {
	Arg    string // the argument
	Reason string // what is wrong, beginning with the name of the thing, and the next step
}

func (e *NameError) Error() string { return e.Reason }

// A Catalog is one reading of the database's relations, against which any number of arguments can be resolved.
type Catalog struct {
	relations []catalogdb.ListRelationsRow
}

// Read takes one consistent reading of the catalog, with one query however many tables there are.
func Read(ctx context.Context, db catalogdb.DBTX) (*Catalog, error) {
	relations, err := catalogdb.New(db).ListRelations(ctx, fenced.ColumnName)
	if err != nil {
		return nil, fmt.Errorf("reading the tables: %w", err)
	}
	return &Catalog{relations: relations}, nil
}

// Tables returns every table that a fence can be put on, by schema and name.
func (c *Catalog) Tables() []Table {
	var tables []Table
	for _, r := range c.relations {
		if unprotectable(r) == "" {
			tables = append(tables, table(r))
		}
	}
	return tables
}

// Resolve finds the tables that the arguments mean, without duplicates, in the order of the arguments. A name must be of
// one table that can be protected; a wildcard must match at least one. keep narrows down what wildcards match (say, to
// the protected tables) and what names them in the error when nothing is left; nil keeps all. The error is a *SyntaxError
// or a *NameError.
func (c *Catalog) Resolve(args []string, keep func(Table) bool, what string) ([]Table, error) {
	var tables []Table
	seen := map[int64]bool{}
	for _, arg := range args {
		pattern, err := Parse(arg)
		if err != nil {
			return nil, err
		}
		var found []Table
		if pattern.HasWildcard() {
			found, err = c.matching(pattern, keep, what)
		} else {
			var one Table
			one, err = c.named(pattern)
			found = []Table{one}
		}
		if err != nil {
			return nil, err
		}
		for _, t := range found {
			if !seen[t.OID] {
				seen[t.OID] = true
				tables = append(tables, t)
			}
		}
	}
	return tables, nil
}

func (c *Catalog) matching(pattern Pattern, keep func(Table) bool, what string) ([]Table, error) {
	var tables []Table
	protectable := 0
	for _, r := range c.relations {
		if unprotectable(r) != "" || !pattern.MatchTable(r.SchemaName, r.Name) {
			continue
		}
		// As in psql, a pattern without schema means the tables that could be named without one.
		if pattern.schema == nil && r.PathPosition == 0 {
			continue
		}
		protectable++
		// Where keep says what is meant (the protected tables), it has the last word.
		if t := table(r); (keep == nil && !t.Bookkeeping) || (keep != nil && keep(t)) {
			tables = append(tables, t)
		}
	}
	if len(tables) > 0 {
		return tables, nil
	}
	reason := fmt.Sprintf("no %s matches %s", what, pattern)
	switch {
	case protectable == 0 && pattern.schema == nil:
		reason += fmt.Sprintf(" in the schemas of the search_path; to look in every schema write '*.%s'", pattern)
	case protectable == 0:
		reason += "; patterns match ordinary and partitioned tables, and * and ? stand for any letters and for one letter"
	}
	return nil, &NameError{Arg: pattern.text, Reason: reason}
}

// named resolves a name without wildcards: through the search_path where it has no schema, else (and where the
// search_path has no such table) to the one relation that has that name.
func (c *Catalog) named(pattern Pattern) (Table, error) {
	fail := func(format string, args ...any) (Table, error) {
		return Table{}, &NameError{Arg: pattern.text, Reason: fmt.Sprintf(format, args...)}
	}
	var matches []catalogdb.ListRelationsRow
	for _, r := range c.relations {
		if pattern.MatchTable(r.SchemaName, r.Name) {
			matches = append(matches, r)
		}
	}
	if pattern.schema == nil {
		if visible := firstOnPath(matches); len(visible) > 0 {
			matches = visible
		} else if len(matches) > 1 {
			// Off the search_path only tables compete for a bare name: a sequence or a catalog view of the same name is
			// not what anybody wants to fence.
			if tables := slices.DeleteFunc(slices.Clone(matches), func(r catalogdb.ListRelationsRow) bool {
				return unprotectable(r) != ""
			}); len(tables) > 0 {
				matches = tables
			}
		}
	}
	switch len(matches) {
	case 0:
		if near, ok := c.suggest(pattern); ok {
			return fail("table %s does not exist; did you mean %s?", pattern, near)
		}
		return fail("table %s does not exist in this database; list the tables with psql's \\dt *.*", pattern)
	case 1:
		if why := unprotectable(matches[0]); why != "" {
			return fail("%s", why)
		}
		return table(matches[0]), nil
	}
	names := make([]string, len(matches))
	for i, r := range matches {
		names[i] = r.Quoted
	}
	return fail("%s is ambiguous: it may mean %s; name one of them exactly (mind the shell: quote the double quotes)",
		pattern, strings.Join(names, " or "))
}

// firstOnPath keeps the relations of the first schema on the search_path that has any. Explicit schemas come before the
// implicit pg_catalog here: a table named like a catalog is still the table that somebody wants to protect.
func firstOnPath(relations []catalogdb.ListRelationsRow) []catalogdb.ListRelationsRow {
	var first []catalogdb.ListRelationsRow
	best := int32(0)
	for _, system := range []bool{false, true} {
		for _, r := range relations {
			if r.PathPosition == 0 || isSystem(r.SchemaName) != system {
				continue
			}
			if best == 0 || r.PathPosition < best {
				best, first = r.PathPosition, nil
			}
			if r.PathPosition == best {
				first = append(first, r)
			}
		}
		if len(first) > 0 {
			return first
		}
	}
	return nil
}

// suggest finds the table whose name is nearest: of the named schema, or of any when the schema itself does not exist.
func (c *Catalog) suggest(pattern Pattern) (string, bool) {
	quoted := map[string]string{}
	var inSchema, everywhere []string
	for _, r := range c.relations {
		if unprotectable(r) != "" {
			continue
		}
		if pattern.schema != nil && pattern.schema.match(r.SchemaName) {
			inSchema = append(inSchema, r.Name)
		}
		if _, ok := quoted[r.Name]; !ok || r.PathPosition > 0 {
			quoted[r.Name] = r.Quoted
		}
		everywhere = append(everywhere, r.Name)
	}
	if pattern.schema != nil {
		if near, ok := spelling.Closest(pattern.name.plain(), inSchema); ok {
			for _, r := range c.relations {
				if r.Name == near && pattern.schema.match(r.SchemaName) {
					return r.Quoted, true
				}
			}
		}
	}
	near, ok := spelling.Closest(pattern.name.plain(), everywhere)
	return quoted[near], ok
}

// unprotectable says in one sentence why no fence can be put on a relation, with the next step, or "".
func unprotectable(r catalogdb.ListRelationsRow) string {
	switch {
	case strings.HasPrefix(r.SchemaName, "pg_temp_") || r.Persistence == "t":
		return fmt.Sprintf("%s is a temporary table: only its own session can write it, so there is nothing to fence", r.Quoted)
	case isSystem(r.SchemaName):
		return fmt.Sprintf("%s belongs to PostgreSQL itself and cannot be fenced", r.Quoted)
	case r.SchemaName == fenced.SchemaName:
		return fmt.Sprintf("%s belongs to fencectl itself and cannot be fenced", r.Quoted)
	case r.Kind == "v":
		return fmt.Sprintf("%s is a view: name the table below it; writes through the view are then fenced too", r.Quoted)
	case r.Kind == "m":
		return fmt.Sprintf("%s is a materialized view: only REFRESH writes it, so there is nothing to fence", r.Quoted)
	case r.Kind == "f":
		return fmt.Sprintf("%s is a foreign table: its rows live on another server; install fencectl there and protect the table there", r.Quoted)
	case r.Kind == "S":
		return fmt.Sprintf("%s is a sequence, not a table", r.Quoted)
	case r.PartitionOf != "":
		return fmt.Sprintf("%s is a partition: name its partitioned table %s, which guards every partition", r.Quoted, r.PartitionOf)
	case r.Extension != "":
		return fmt.Sprintf("%s belongs to the extension %s and cannot be fenced", r.Quoted, r.Extension)
	}
	return ""
}

func isSystem(schema string) bool { return schema == "pg_catalog" || schema == "information_schema" }

func table(r catalogdb.ListRelationsRow) Table {
	return Table{
		OID: r.Oid, Schema: r.SchemaName, Name: r.Name, Quoted: r.Quoted, HasColumn: r.HasColumn,
		Bookkeeping: bookkeeping[strings.ToLower(r.Name)],
	}
}
