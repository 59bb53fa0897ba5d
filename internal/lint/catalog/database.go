package catalog

import (
	"context"
	_ "embed" // the query
	"fmt"

	"github.com/jackc/pgx/v5"
)

//go:embed tables.sql
var tablesQuery string

// DB runs queries: a pool, a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Load reads the tables of a database that has the schema fencing.
func Load(ctx context.Context, db DB) (*Catalog, error) {
	c := New()
	if err := db.QueryRow(ctx, "SELECT pg_catalog.current_schemas(false)").Scan(&c.SearchPath); err != nil {
		return nil, fmt.Errorf("reading the search path: %w", err)
	}
	if len(c.SearchPath) == 0 {
		c.SearchPath = []string{"public"}
	}
	rows, err := db.Query(ctx, tablesQuery)
	if err != nil {
		return nil, fmt.Errorf("reading the tables: %w", err)
	}
	type link struct{ parent, base *uint32 }
	byOID, links := map[uint32]*Table{}, map[uint32]link{}
	var (
		oid                          uint32
		schema, name                 string
		view, hasToken, named, needs bool
		to                           link
		kind, mode, fence            *string
	)
	_, err = pgx.ForEachRow(rows, []any{&oid, &schema, &name, &view, &hasToken, &to.parent, &to.base, &kind, &mode, &fence, &needs}, func() error {
		t := c.add(schema, name)
		t.View, t.HasToken = view, hasToken
		if kind != nil {
			t.protect(&Protection{RequireInserts: needs})
			if named = *kind == "named"; named && fence != nil {
				t.own.Fence = *fence
			}
			t.own.Reentrant = mode != nil && *mode == "reentrant"
		}
		byOID[oid], links[oid] = t, to
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the tables: %w", err)
	}
	for oid, to := range links {
		if to.parent != nil {
			byOID[oid].parent = byOID[*to.parent]
		}
		if to.base != nil {
			byOID[oid].base = byOID[*to.base]
		}
	}
	return c, nil
}
