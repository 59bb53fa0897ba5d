package generate

import (
	"context"
	_ "embed" // the query
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
)

//go:embed tables.sql
var tablesSQL string

// A table is a protected table as the database knows it.
type table struct {
	Schema  string   `json:"schema"`
	Name    string   `json:"name"`
	Quoted  string   `json:"quoted"` // with its schema, as SQL has it
	Kind    string   `json:"kind"`   // row or named
	Mode    string   `json:"mode"`   // of a row fence: strict or reentrant
	Fence   string   `json:"fence"`  // of a named fence: the name or template
	Columns []column `json:"columns"`
	Key     []string `json:"key"` // columns that name one row; nil when there are none
	// OwnColumn: protect added the fence's column, so that no migration mentions it.
	OwnColumn bool `json:"own_column"`
}

type column struct {
	Name      string  `json:"name"`
	Quoted    string  `json:"quoted"`
	Type      string  `json:"type"` // with its schema, where that is not pg_catalog
	Text      bool    `json:"text"` // its type is text
	NotNull   bool    `json:"not_null"`
	Identity  bool    `json:"identity"`
	Generated bool    `json:"generated"`
	Default   *string `json:"default"`
}

func (t *table) row() bool       { return t.Kind == "row" }
func (t *table) reentrant() bool { return t.Mode == "reentrant" }

// template: the fence's name has columns of the row in it.
func (t *table) template() bool { return !t.row() && strings.Contains(t.Fence, "{") }

func (t *table) column(name string) (column, bool) {
	for _, c := range t.Columns {
		if c.Name == name {
			return c, true
		}
	}
	return column{}, false
}

func (t *table) names() []string {
	names := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		names[i] = c.Name
	}
	return names
}

var placeholder = regexp.MustCompile(`\{([^{}]+)\}`)

// fenceColumns are the columns in the fence's template.
func (t *table) fenceColumns() []string {
	if !t.template() {
		return nil
	}
	var names []string
	for _, match := range placeholder.FindAllStringSubmatch(t.Fence, -1) {
		names = append(names, match[1])
	}
	return names
}

// computed: the column's default is not a constant, such as now() or the next value of a sequence.
func (c column) computed() bool {
	if c.Default == nil {
		return false
	}
	bare := quotedText.ReplaceAllString(*c.Default, "")
	return strings.Contains(bare, "(") || currentValue.MatchString(bare)
}

var (
	quotedText   = regexp.MustCompile(`'(?:[^']|'')*'|"(?:[^"]|"")*"`)
	currentValue = regexp.MustCompile(`(?i)\b(CURRENT_\w+|LOCALTIME\w*|SESSION_USER|USER)\b`)
)

// readTables reads the protected tables.
func readTables(ctx context.Context, pool *pgxpool.Pool) ([]*table, error) {
	var tables []*table
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL search_path = ''; SET LOCAL quote_all_identifiers = off; SET LOCAL standard_conforming_strings = on"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, tablesSQL)
		if err != nil {
			return err
		}
		tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*table, error) {
			var document []byte
			if err := row.Scan(&document); err != nil {
				return nil, err
			}
			t := &table{}
			return t, json.Unmarshal(document, t)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the protected tables: %w", err)
	}
	for _, t := range tables {
		if t.row() && !slices.Contains(t.names(), fenced.ColumnName) {
			return nil, fmt.Errorf("table %s has a row fence but no column %s; see: fencectl audit", t.Quoted, fenced.ColumnName)
		}
	}
	return tables, nil
}
