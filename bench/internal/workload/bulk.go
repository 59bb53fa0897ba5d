package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/runner"
)

// A sample of a small statement is the mean of many, but never of more than this many rows.
const rowsOfSample = 2_000

// manyRows is from where on a statement is measured in the variants that matter most, because each takes seconds.
const manyRows = 1_000_000

var bulkUpdateWorkload = Workload{
	Name: "bulk-update", Title: "Bulk UPDATE",
	About: "`BEGIN`, one `UPDATE` of all rows of a table, `COMMIT`, on one connection. Vacuumed in between, so that the space for the new row versions is there already.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		return b.bulks(ctx, "bulk-update", b.scale.Bulk, []string{plain, plain + results.Again, predicate, version, forUpdate, guard, advisory, set, presented, reentrant, named, template, uncalled, constant},
			func(ctx context.Context, t *table, conn *pgx.Conn) error {
				// A condition that is true of every row and asks for no index, for the sake of the parameter.
				return t.update(ctx, conn, "$1::bigint > 0", int64(1), int64(t.rows), &t.version[0])
			})
	},
}

var bulkInsertWorkload = Workload{
	Name: "bulk-insert", Title: "Bulk INSERT",
	About: "`BEGIN`, one `INSERT … SELECT` into an empty table, `COMMIT`.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		return b.bulks(ctx, "bulk-insert", b.scale.Other, []string{plain, plain + results.Again, guard, presented, named, template}, func(ctx context.Context, t *table, conn *pgx.Conn) error {
			columns, values := "id, account, value, note", "i, 0, 0, 'the quick brown fox jumps over the lazy dog'"
			if t.variant == guard {
				columns, values = columns+", last_fencing_token", values+", 1"
			}
			return t.write(ctx, conn, "INSERT INTO "+t.name+" ("+columns+") SELECT "+values+" FROM generate_series(1, $1::bigint) AS i", int64(t.rows))
		})
	},
}

var bulkDeleteWorkload = Workload{
	Name: "bulk-delete", Title: "Bulk DELETE",
	About: "`BEGIN`, one `DELETE` of all rows of a table, `COMMIT`.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		return b.bulks(ctx, "bulk-delete", b.scale.Other, []string{plain, plain + results.Again, predicate, guard, presented, reentrant, named, template}, func(ctx context.Context, t *table, conn *pgx.Conn) error {
			where := "$1::bigint > 0"
			if t.variant == predicate {
				where = "last_fencing_token < $1"
			}
			return t.write(ctx, conn, "DELETE FROM "+t.name+" WHERE "+where, int64(1))
		})
	},
}

var bulkCopyWorkload = Workload{
	Name: "bulk-copy", Title: "COPY",
	About: "`BEGIN`, one `COPY … FROM STDIN` into an empty table, `COMMIT`.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		return b.bulks(ctx, "bulk-copy", b.scale.Other, []string{plain, plain + results.Again, guard, presented, named, template}, func(ctx context.Context, t *table, conn *pgx.Conn) error {
			columns := []string{"id", "account", "value", "note"}
			row := []any{int64(0), int64(0), int64(0), "the quick brown fox jumps over the lazy dog"}
			if t.variant == guard {
				columns, row = append(columns, "last_fencing_token"), append(row, int64(1))
			}
			return t.tx(ctx, conn, t.holder, func(tx pgx.Tx) error {
				n, err := tx.CopyFrom(ctx, pgx.Identifier(strings.Split(t.name, ".")), columns, pgx.CopyFromSlice(t.rows, func(i int) ([]any, error) {
					row[0] = int64(i)
					return row, nil
				}))
				if err == nil && n != int64(t.rows) {
					err = fmt.Errorf("%d rows were copied, not %d", n, t.rows)
				}
				return err
			})
		})
	},
}

// write runs a statement that writes all rows, in a transaction.
func (t *table) write(ctx context.Context, conn *pgx.Conn, sql string, argument int64) error {
	return t.tx(ctx, conn, t.holder, func(tx pgx.Tx) error {
		if t.variant == guard { // which looks where ours does, there being no new row that could say the token
			if _, err := tx.Exec(ctx, "SELECT set_config('fencing.token', '1', true)"); err != nil {
				return err
			}
		}
		tag, err := tx.Exec(ctx, sql, argument)
		return wrote(tag, err, int64(t.rows))
	})
}

// bulks makes a cell for each size. Updates of few rows are done several times for one sample; what empties or fills the table can be
// done only once, and is measured alone.
func (b *bench) bulks(ctx context.Context, name string, sizes []Bulk, variants []string, work func(ctx context.Context, t *table, conn *pgx.Conn) error) ([]runner.Cell, error) {
	if err := b.connect(ctx, 1); err != nil {
		return nil, err
	}
	var cells []runner.Cell
	for _, size := range sizes {
		cell := runner.Cell{
			Name: fmt.Sprintf("%s/%d", name, size.Rows), Unit: runner.Milliseconds, Repetitions: size.Repetitions,
			// The first change of a page after a checkpoint is dear; the tables pay that all alike, and no checkpoint comes in the middle.
			BeforeRepetition: func(ctx context.Context) error { return b.exec(ctx, "CHECKPOINT") },
		}
		if !b.selection.wantsCell(cell.Name) {
			continue
		}
		for i, variant := range variants {
			if !b.selection.wantsVariant(cell.Name, variant) {
				continue
			}
			if size.Rows >= manyRows && !slices.Contains([]string{plain, plain + results.Again, predicate, set, presented, named}, variant) {
				continue
			}
			t, err := b.makeTable(ctx, fmt.Sprintf("n%d_t%d", size.Rows, i), strings.TrimSuffix(variant, results.Again), size.Rows, 1)
			if err != nil {
				return nil, err
			}
			v := runner.Variant{Name: variant, Prepare: b.vacuum(t)}
			times := 1
			switch name {
			case "bulk-update":
				times = min(20, max(1, rowsOfSample/size.Rows))
			case "bulk-delete":
				v.Prepare = b.refill(t, true)
			default:
				v.Prepare = b.refill(t, false)
			}
			v.Run = runner.Elapsed(times, func(ctx context.Context) error {
				for range times {
					if err := work(ctx, t, b.clients[0]); err != nil {
						return err
					}
				}
				return nil
			})
			cell.Variants = append(cell.Variants, v)
		}
		cells = append(cells, cell)
	}
	return cells, nil
}

// refill empties a table, and fills it again if asked, around its guards.
func (b *bench) refill(t *table, full bool) func(context.Context) error {
	return func(ctx context.Context) error {
		steps := []string{
			"BEGIN", "SELECT fencing.bypass('between two measurements')", "TRUNCATE " + t.name, "COMMIT",
		}
		if full {
			steps = append(steps[:3:3], "SET LOCAL fencing.token = 1",
				fmt.Sprintf("INSERT INTO %s (id, account, value, note, last_fencing_token) SELECT i, 0, 0, 'the quick brown fox jumps over the lazy dog', %d FROM generate_series(1, %d) AS i",
					t.name, map[bool]int{true: 1, false: 0}[t.variant == guard], t.rows), // the hand-written guard wants a token of every row
				"COMMIT")
		}
		for _, sql := range append(steps, "VACUUM (ANALYZE) "+t.name) {
			if err := b.exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	}
}

var templateWorkload = Workload{
	Name: "template", Title: "Many named fences",
	About: "A template fence, one for each account. `rows`: single-row transactions over all accounts. A number: one `UPDATE` of 10,000 rows, in a transaction that presents one token, under so many fences.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		clients := b.scale.Clients[min(1, len(b.scale.Clients)-1)]
		cells, err := b.rates(ctx, rates{
			cell: func(clients int, mode string) string { return fmt.Sprintf("template/rows/%d/%s", clients, mode) }, clients: []int{clients},
			rows: rowsOfSingle, accounts: b.scale.Accounts[len(b.scale.Accounts)-1],
			variants: []string{plain, plain + results.Again, handNamed, named, template}, shared: true,
			work: func(ctx context.Context, t *table, conn *pgx.Conn, id int64) error {
				return t.update(ctx, conn, "id = $1", id, 1, nil)
			},
		})
		if err != nil {
			return nil, err
		}
		for _, accounts := range b.scale.Accounts {
			cell := runner.Cell{Name: fmt.Sprintf("template/%d", accounts), Unit: runner.Milliseconds, Repetitions: b.scale.Repetitions}
			if !b.selection.wantsCell(cell.Name) {
				continue
			}
			for i, variant := range []string{plain, plain + results.Again, guard, named, template} {
				if !b.selection.wantsVariant(cell.Name, variant) {
					continue
				}
				t, err := b.makeTable(ctx, fmt.Sprintf("a%d_t%d", accounts, i), strings.TrimSuffix(variant, results.Again), rowsOfSingle, accounts)
				if err != nil {
					return nil, err
				}
				cell.Variants = append(cell.Variants, runner.Variant{
					Name: variant, Prepare: b.vacuum(t),
					Run: runner.Elapsed(1, func(ctx context.Context) error {
						return t.update(ctx, b.clients[0], "$1::bigint > 0", int64(1), int64(t.rows), nil)
					}),
				})
			}
			cells = append(cells, cell)
		}
		return cells, nil
	},
}
