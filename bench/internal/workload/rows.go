package workload

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/runner"
)

// commitModes are settings of synchronous_commit.
var commitModes = []string{"on", "off"}

func rowCell(clients int, mode string) string { return fmt.Sprintf("row/%d/%s", clients, mode) }
func hotCell(clients int, mode string) string { return fmt.Sprintf("hot-fence/%d/%s", clients, mode) }

// rowsOfSingle is the number of rows that single-row transactions choose from.
const rowsOfSingle = 10_000

var rowWorkload = Workload{
	Name: "row", Title: "Single-row transactions",
	About: "`BEGIN`, an `UPDATE` of one of 10,000 rows by its primary key, `COMMIT`. Each client has rows of its own; each transaction has a newer token.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		return b.rates(ctx, rates{
			cell: rowCell, clients: b.scale.Clients, rows: rowsOfSingle,
			variants: []string{plain, plain + results.Again, predicate, version, forUpdate, guard, advisory, set, presented, reentrant, named, unguarded, uncalled},
			work: func(ctx context.Context, t *table, conn *pgx.Conn, id int64) error {
				return t.update(ctx, conn, "id = $1", id, 1, &t.version[id])
			},
		})
	},
}

var statementWorkload = Workload{
	Name: "statement", Title: "Single statements",
	About: "The same without a transaction block: one `UPDATE`, one round trip. The token travels in the statement.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		return b.rates(ctx, rates{
			cell: func(clients int, mode string) string { return fmt.Sprintf("statement/%d/%s", clients, mode) }, clients: b.scale.Clients[:1], rows: rowsOfSingle,
			variants: []string{plain, plain + results.Again, predicate, guard, set, presented},
			work: func(ctx context.Context, t *table, conn *pgx.Conn, id int64) error {
				head := "UPDATE " + t.name + " SET value = value + 1"
				if t.variant == plain {
					tag, err := conn.Exec(ctx, head+" WHERE id = $1", id)
					return wrote(tag, err, 1)
				}
				sql := map[string]string{
					predicate: head + ", last_fencing_token = $2 WHERE id = $1 AND last_fencing_token < $2",
					guard:     head + ", last_fencing_token = $2 WHERE id = $1",
					set:       head + ", last_fencing_token = $2 WHERE id = $1",
					presented: head + ", last_fencing_token = fencing.present($2) WHERE id = $1",
				}[t.variant]
				tag, err := conn.Exec(ctx, sql, id, t.tokens.Add(1))
				return wrote(tag, err, 1)
			},
		})
	},
}

var hotRowWorkload = Workload{
	Name: "hot-row", Title: "One hot row",
	About: "All clients are workers of one holder and update the same row under its token: they wait for each other whatever the variant.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		return b.rates(ctx, rates{
			cell: func(clients int, mode string) string { return fmt.Sprintf("hot-row/%d/%s", clients, mode) }, clients: b.scale.HotClients[len(b.scale.HotClients)-1:], rows: 1,
			variants: []string{plain, plain + results.Again, predicate, forUpdate, guard, advisory, reentrant, named},
			shared:   true,
			work: func(ctx context.Context, t *table, conn *pgx.Conn, id int64) error {
				return t.update(ctx, conn, "id = $1", id, 1, nil)
			},
		})
	},
}

var hotFenceWorkload = Workload{
	Name: "hot-fence", Title: "One hot named fence",
	About: "All clients are workers of one holder and write, each to rows of its own, under one named fence, which all of them share.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		return b.rates(ctx, rates{
			cell: hotCell, clients: b.scale.HotClients, rows: rowsOfSingle,
			variants: []string{plain, plain + results.Again, unguarded, handNamed, named, template, reading},
			shared:   true,
			work: func(ctx context.Context, t *table, conn *pgx.Conn, id int64) error {
				return t.update(ctx, conn, "id = $1", id, 1, nil)
			},
		})
	},
}

// rates describes cells that count transactions per second, one for each number of clients and commit mode.
type rates struct {
	cell     func(clients int, mode string) string
	clients  []int
	rows     int
	accounts int // of templates; 0 for one
	variants []string
	shared   bool
	work     func(ctx context.Context, t *table, conn *pgx.Conn, id int64) error
}

func (b *bench) rates(ctx context.Context, r rates) ([]runner.Cell, error) {
	tables := map[string]*table{}
	var cells []runner.Cell
	for _, clients := range r.clients {
		for _, mode := range commitModes {
			cell := runner.Cell{
				Name: r.cell(clients, mode), Unit: runner.PerSecond, Repetitions: b.scale.Repetitions,
				BeforeRepetition: func(ctx context.Context) error { return b.eachClient(ctx, clients, "SET synchronous_commit = "+mode) },
			}
			if !b.selection.wantsCell(cell.Name) {
				continue
			}
			if err := b.connect(ctx, clients); err != nil {
				return nil, err
			}
			for i, variant := range r.variants {
				if !b.selection.wantsVariant(cell.Name, variant) {
					continue
				}
				t := tables[variant]
				if t == nil {
					var err error
					if t, err = b.makeTable(ctx, "t"+strconv.Itoa(i), strings.TrimSuffix(variant, results.Again), r.rows, r.accounts); err != nil {
						return nil, err
					}
					t.shared = r.shared
					tables[variant] = t
				}
				turns := make([]int64, clients)
				cell.Variants = append(cell.Variants, runner.Variant{
					Name: variant, Prepare: b.vacuum(t),
					Run: runner.Rate(clients, b.scale.Slice, func(ctx context.Context, worker int) error {
						// A row is one worker's, so that its tokens reach it in order. A hot one is everybody's.
						id := int64(1)
						if r.rows > 1 {
							id += (turns[worker]*int64(clients) + int64(worker)) % int64(r.rows/clients*clients)
						}
						turns[worker]++
						return r.work(ctx, t, b.clients[worker], id)
					}),
				})
			}
			cells = append(cells, cell)
		}
	}
	return cells, nil
}
