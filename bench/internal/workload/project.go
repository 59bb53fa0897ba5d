package workload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fencectl/fencectl/bench/internal/runner"
)

// statementsOfFile is how many statements a linted file has.
const statementsOfFile = 50

var lintWorkload = Workload{
	Name: "lint", Title: "Lint",
	About: "`fencectl lint --format json` of so many statements of sqlc, 50 to a file and one table for each ten, a third of them writes that present no token; the tables are read from the migrations.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		program, err := b.program(ctx)
		if err != nil {
			return nil, err
		}
		var cells []runner.Cell
		for _, statements := range b.scale.Statements {
			cell := fmt.Sprintf("lint/%d", statements)
			if !b.selection.wantsCell(cell) {
				continue
			}
			dir, err := b.project(map[string]string{"migrations/00001_tables.sql": "-- +goose Up\n" + projectTables(0, statements/10, true)})
			if err != nil {
				return nil, err
			}
			var file strings.Builder
			for i := range statements {
				table := i / 10
				switch i % 3 {
				case 0:
					fmt.Fprintf(&file, "-- name: Get%d :one\nSELECT * FROM made_%d WHERE id = $1;\n\n", i, table)
				case 1:
					fmt.Fprintf(&file, "-- name: Finish%d :execrows\nUPDATE made_%d SET state = $2, last_fencing_token = fencing.present($3) WHERE id = $1 AND state = 'running';\n\n", i, table)
				default:
					fmt.Fprintf(&file, "-- name: Touch%d :exec\nUPDATE made_%d SET changed_at = now() WHERE id = $1;\n\n", i, table)
				}
				if (i+1)%statementsOfFile == 0 || i+1 == statements {
					if err := write(dir, fmt.Sprintf("queries/q%d.sql", i/statementsOfFile), file.String()); err != nil {
						return nil, err
					}
					file.Reset()
				}
			}
			cells = append(cells, runner.Cell{
				Name: cell, Unit: runner.Milliseconds, Repetitions: 5,
				Variants: []runner.Variant{{Name: "fencectl lint", Run: runner.Elapsed(1, func(ctx context.Context) error {
					cmd := program(ctx, "lint", "--schema", "migrations", "--format", "json", "--fail-on", "never", "queries")
					cmd.Dir = dir
					return output(cmd)
				})}},
			})
		}
		return cells, nil
	},
}

var generateWorkload = Workload{
	Name: "generate", Title: "Generate",
	About: "`fencectl generate` for so many protected tables of a database: the queries that sqlc then reads, written anew.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		program, err := b.program(ctx)
		if err != nil {
			return nil, err
		}
		var cells []runner.Cell
		made := 0
		for _, tables := range b.scale.Generated {
			cell := fmt.Sprintf("generate/%d", tables)
			if !b.selection.wantsCell(cell) {
				continue
			}
			dir, err := b.project(map[string]string{
				"migrations/00001_tables.sql": "-- +goose Up\n" + projectTables(0, tables, false),
				"sqlc.yaml": `version: "2"
sql:
  - engine: postgresql
    queries: queries
    schema: [migrations, fenced_schema.sql]
    gen:
      go: {package: db, out: db, sql_package: pgx/v5}
`,
			})
			if err != nil {
				return nil, err
			}
			queries := filepath.Join(dir, "queries")
			cells = append(cells, runner.Cell{
				Name: cell, Unit: runner.Milliseconds, Repetitions: 5,
				// The sizes grow: what the smaller one had is part of the larger.
				BeforeRepetition: func(ctx context.Context) error {
					const atOnce = 100 // what the server's lock table holds in one transaction
					for ; made < tables; made = min(tables, made+atOnce) {
						if err := b.exec(ctx, projectTables(made, min(tables, made+atOnce), true)); err != nil {
							return err
						}
					}
					return nil
				},
				Variants: []runner.Variant{{
					Name: "fencectl generate",
					Prepare: func(context.Context) error {
						if err := os.RemoveAll(queries); err != nil {
							return err
						}
						return os.Mkdir(queries, 0o755)
					},
					Run: runner.Elapsed(1, func(ctx context.Context) error {
						cmd := program(ctx, "generate", "--dsn", b.server.DSN(database))
						cmd.Dir = dir
						if err := output(cmd); err != nil {
							return err
						}
						written, err := os.ReadDir(queries)
						if err == nil && len(written) != tables {
							err = fmt.Errorf("%d files were written for %d tables", len(written), tables)
						}
						return err
					}),
				}},
			})
		}
		return cells, nil
	},
}

// projectTables is the SQL that makes tables from one number to another, and protects them if asked.
func projectTables(from, to int, protected bool) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "CREATE TABLE public.made_%d (id bigint PRIMARY KEY, state text NOT NULL, worker text, changed_at timestamptz, amount numeric NOT NULL DEFAULT 0);\n", i)
		if protected {
			fmt.Fprintf(&b, "SELECT fencing.protect('public.made_%d');\n", i)
		}
	}
	return b.String()
}

// project makes a directory with files, which is removed when the workload is over.
func (b *bench) project(files map[string]string) (string, error) {
	dir, err := os.MkdirTemp("", "bench-project-")
	if err != nil {
		return "", err
	}
	b.later(func(context.Context) error { return os.RemoveAll(dir) })
	for name, content := range files {
		if err := write(dir, name, content); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func write(dir, name, content string) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
