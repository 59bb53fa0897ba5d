// Package workload is what the benchmarks measure: for each kind of work, how people do it without fencectl, and how it is done
// with it, on one throwaway server. Each workload makes its own data and leaves nothing for the next one.
//
// All variants of a workload work on tables of their own of the same shape, through the same driver, with the same prepared
// statements, in transactions of the same form; each checks that its writes took place.
package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/runner"
	"github.com/fencectl/fencectl/internal/pgserver"
)

// A Workload is a kind of work.
type Workload struct {
	Name  string // as -only takes it, and the first part of its cells' names
	Title string // for people
	About string // what is done, in a paragraph of Markdown
	build func(ctx context.Context, b *bench) ([]runner.Cell, error)
}

// Scale is how much is measured.
type Scale struct {
	Quick       bool
	Slice       time.Duration // how long one sample of a rate takes
	Repetitions int           // of rates
	Clients     []int
	HotClients  []int
	Bulk        []Bulk // of bulk updates, by growing size
	Headline    int    // the size of the bulk figures, one of Bulk
	Other       []Bulk // of inserts, deletes and COPY
	Accounts    []int  // fences of a template that one statement writes under
	Tables      []int  // of audits
	Statements  []int  // that are linted
	Generated   []int  // tables that queries are generated for
}

// Bulk is a statement's number of rows and how often it is measured.
type Bulk struct{ Rows, Repetitions int }

// Full takes about ten minutes.
var Full = Scale{
	Slice: 80 * time.Millisecond, Repetitions: 12,
	Clients: []int{1, 8, 32}, HotClients: []int{1, 8, 32},
	Bulk:     []Bulk{{1, 12}, {10, 12}, {100, 12}, {1_000, 12}, {10_000, 12}, {100_000, 15}, {1_000_000, 2}},
	Headline: 100_000,
	Other:    []Bulk{{1, 9}, {1_000, 9}, {100_000, 5}},
	Accounts: []int{1, 10, 100, 1_000},
	Tables:   []int{10, 1_000, 10_000}, Statements: []int{200, 2_000}, Generated: []int{10, 100, 1_000},
}

// Quick takes about a minute. Its figures are good for finding a mistake, not for quoting.
var Quick = Scale{
	Quick: true, Slice: 60 * time.Millisecond, Repetitions: 5,
	Clients: []int{8}, HotClients: []int{32},
	Bulk: []Bulk{{100, 5}, {20_000, 5}}, Headline: 20_000,
	Other:    []Bulk{{5_000, 3}},
	Accounts: []int{100},
	Tables:   []int{100}, Statements: []int{500}, Generated: []int{20},
}

// Repeated is the scale with another number of repetitions.
func (s Scale) Repeated(n int) Scale {
	s.Repetitions = n
	s.Bulk, s.Other = slices.Clone(s.Bulk), slices.Clone(s.Other)
	for _, sizes := range [][]Bulk{s.Bulk, s.Other} {
		for i := range sizes {
			sizes[i].Repetitions = n
		}
	}
	return s
}

// All are the workloads, in the order in which they are measured and reported.
func All() []Workload {
	return []Workload{
		rowWorkload, statementWorkload, bulkUpdateWorkload, bulkInsertWorkload, bulkDeleteWorkload, bulkCopyWorkload, hotRowWorkload, hotFenceWorkload, templateWorkload,
		locksWorkload, auditWorkload, lintWorkload, generateWorkload,
	}
}

// Ratios are the figures of a run on this scale.
func (s Scale) Ratios() []results.Ratio {
	var rows []string
	for _, clients := range s.Clients {
		for _, mode := range commitModes {
			rows = append(rows, rowCell(clients, mode))
		}
	}
	hot := s.HotClients[len(s.HotClients)-1]
	largest, slowest := s.Tables[len(s.Tables)-1], 0.0
	if largest == 10_000 {
		slowest = 1000
	}
	headline := []string{fmt.Sprintf("bulk-update/%d", s.Headline)}
	return []results.Ratio{
		{
			Name: "row_single", Cells: rows, Variant: set, Base: predicate, Same: plain, Target: 0.97,
			Meaning: "single-row transactions per second whose statement sets the token, on a protected table, over those with the hand-written predicate on a table without guards",
		},
		{
			Name: "row_single_floor", Cells: rows, Variant: uncalled, Base: predicate, Same: plain,
			Meaning: "the most that row_single could be: the same statement on a table with one trigger, which is not called",
		},
		{
			Name: "row_single_presented", Cells: rows, Variant: presented, Base: predicate, Same: plain, Target: 0.97,
			Meaning: "the same, where the token is presented with BEGIN, the transaction is limited to the lock's time, and the UPDATE is unchanged",
		},
		{
			Name: "row_single_unguarded", Cells: rows, Variant: unguarded, Base: predicate, Same: plain,
			Meaning: "the same transactions, presented and limited, on a table without guards: what is left is what the guard takes",
		},
		{
			Name: "row_bulk_set", Cells: headline, Variant: set, Base: predicate, Same: plain, Target: 1.25, AtMost: true,
			Meaning: "time of a bulk UPDATE that sets the token itself, over that of the hand-written predicate",
		},
		{
			Name: "row_bulk_presented", Cells: headline, Variant: presented, Base: predicate, Same: plain, Target: 1.6, AtMost: true,
			Meaning: "time of an unchanged bulk UPDATE in a transaction that presents the token, which stamps every row, over that of the hand-written predicate",
		},
		{
			Name: "row_bulk_presented_floor", Cells: headline, Variant: constant, Base: predicate, Same: plain, AtMost: true,
			Meaning: "the least that row_bulk_presented could be: an unchanged UPDATE on a table with a PL/pgSQL trigger that stores a constant in every row",
		},
		{
			Name: "named_bulk", Cells: headline, Variant: named, Base: plain, Same: plain, Target: 1.05, AtMost: true,
			Meaning: "time of a bulk UPDATE under a named fence, over that of a plain one",
		},
		{
			Name: fmt.Sprintf("named_hot_%d", hot), Cells: []string{hotCell(hot, commitModes[0]), hotCell(hot, commitModes[1])}, Variant: named, Base: unguarded, Same: plain, Target: 0.85,
			Meaning: fmt.Sprintf("transactions per second of %d clients that write under one named fence, over those of the same transactions on a table without a guard", hot),
		},
		{
			Name: fmt.Sprintf("named_hot_%d_floor", hot), Cells: []string{hotCell(hot, commitModes[0]), hotCell(hot, commitModes[1])}, Variant: reading, Base: unguarded, Same: plain,
			Meaning: fmt.Sprintf("the most that named_hot_%d could be: a trigger that reads the fence, once for each statement, and does not hold it", hot),
		},
		{
			Name: fmt.Sprintf("named_hot_%d_plain", hot), Cells: []string{hotCell(hot, commitModes[0]), hotCell(hot, commitModes[1])}, Variant: named, Base: plain, Same: plain,
			Meaning: "the same over plain transactions, which present nothing and are not limited to the lock's time",
		},
		{
			Name: "lease_vs_pglock", Cells: []string{"locks/alone"}, Variant: lease, Base: pgLock, Same: pgLock, Target: 1.5,
			Meaning: "acquisitions and releases per second of an uncontended lease, over those of cirello.io/pglock on the same server with the same driver",
		},
		{
			Name: "lease_vs_pglock_floor", Cells: []string{"locks/alone"}, Variant: floorLock, Base: pgLock, Same: pgLock,
			Meaning: "the most that lease_vs_pglock could be: two UPDATEs of one row in place of acquiring and releasing, the second without waiting for the disk",
		},
		{
			Name: "etcd_vs_raw", Cells: []string{"locks/alone"}, Variant: etcdMutex, Base: rawMutex, Same: rawMutex, Target: 0.95,
			Meaning: "acquisitions and releases per second of an uncontended etcd mutex with its token, over those of concurrency.Mutex with a session for each, without token",
		},
		{
			Name: "etcd_vs_raw_shared_session", Cells: []string{"locks/alone"}, Variant: etcdMutex, Base: rawShared, Same: rawMutex,
			Meaning: "the same over concurrency.Mutex with one session for all, on which two goroutines can hold a lock at once",
		},
		{
			Name: fmt.Sprintf("audit_%d_ms", largest), Cells: []string{auditCell(largest)}, Variant: audited, Target: slowest, AtMost: true,
			Meaning: fmt.Sprintf("milliseconds that fencectl audit takes for a database of %d tables", largest),
		},
	}
}

// Select returns the workloads and, for each cell that is to be measured in part, its variants. Names are those of workloads or
// ratios; without names it is everything.
func Select(scale Scale, root string, names []string) (*Selection, error) {
	s := &Selection{Root: root, scale: scale, all: map[string]bool{}, variants: map[string]map[string]bool{}}
	for _, w := range All() {
		s.all[w.Name] = len(names) == 0
	}
	for _, name := range names {
		if _, ok := s.all[name]; ok {
			s.all[name] = true
			continue
		}
		at := slices.IndexFunc(scale.Ratios(), func(r results.Ratio) bool { return r.Name == name })
		if at < 0 {
			return nil, fmt.Errorf("there is no workload and no ratio called %q", name)
		}
		r := scale.Ratios()[at]
		for _, cell := range r.Cells {
			if s.variants[cell] == nil {
				s.variants[cell] = map[string]bool{}
			}
			for _, variant := range []string{r.Variant, r.Base, r.Same, r.Same + results.Again} {
				s.variants[cell][variant] = true
			}
		}
	}
	return s, nil
}

// A Selection is what a run measures.
type Selection struct {
	Root     string // the repository's directory, where fencectl is built
	scale    Scale
	all      map[string]bool            // workloads that are measured whole
	variants map[string]map[string]bool // by cell
}

// wants tells whether the selection needs anything of a workload.
func (s *Selection) wants(w Workload) bool {
	if s.all[w.Name] {
		return true
	}
	for cell := range s.variants {
		if group(cell) == w.Name {
			return true
		}
	}
	return false
}

// wantsCell and wantsVariant are asked by workloads before they make the data for one.
func (s *Selection) wantsCell(cell string) bool { return s.all[group(cell)] || s.variants[cell] != nil }

func (s *Selection) wantsVariant(cell, variant string) bool {
	return s.all[group(cell)] || s.variants[cell][variant]
}

func group(cell string) string {
	for i := range cell {
		if cell[i] == '/' {
			return cell[:i]
		}
	}
	return cell
}

// Workloads are those that the selection needs, in order.
func (s *Selection) Workloads() []Workload {
	return slices.DeleteFunc(All(), func(w Workload) bool { return !s.wants(w) })
}

// Measure builds a workload, hands each of its cells to run, and takes everything down again.
// missing is what could not be measured, because it is not installed.
func (s *Selection) Measure(ctx context.Context, server *pgserver.Server, w Workload, run func(runner.Cell) error) (missing []string, err error) {
	b := &bench{selection: s, scale: s.scale, server: server}
	defer func() { err = errors.Join(err, b.close(context.WithoutCancel(ctx))) }()
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	cells, err := w.build(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.Name, err)
	}
	for _, cell := range cells {
		if err := run(cell); err != nil {
			return nil, err
		}
	}
	return b.missing, nil
}

// bench is what a workload works with: a database of its own, with the schema fencing installed.
type bench struct {
	selection *Selection
	scale     Scale
	server    *pgserver.Server
	admin     *pgx.Conn   // for what is not measured
	clients   []*pgx.Conn // for what is
	cleanups  []func(context.Context) error
	missing   []string // what could not be measured, because it is not installed
}

// later has f called when the workload is over, before what was opened earlier is closed.
func (b *bench) later(f func(context.Context) error) { b.cleanups = append(b.cleanups, f) }

const database = "bench"

func (b *bench) open(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.server.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + database + " WITH (FORCE)", "CREATE DATABASE " + database} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := install(ctx, b.server.DSN(database)); err != nil {
		return err
	}
	b.admin, err = pgx.Connect(ctx, b.server.DSN(database))
	return err
}

func (b *bench) close(ctx context.Context) error {
	var errs []error
	for _, cleanup := range slices.Backward(b.cleanups) {
		errs = append(errs, cleanup(ctx))
	}
	for _, conn := range b.clients {
		errs = append(errs, conn.Close(ctx))
	}
	if b.admin != nil {
		errs = append(errs, b.admin.Close(ctx))
	}
	return errors.Join(errs...)
}

// connect makes sure that there are that many client connections.
func (b *bench) connect(ctx context.Context, n int) error {
	for len(b.clients) < n {
		conn, err := pgx.Connect(ctx, b.server.DSN(database))
		if err != nil {
			return err
		}
		b.clients = append(b.clients, conn)
	}
	return nil
}

// eachClient runs a statement on the first n client connections.
func (b *bench) eachClient(ctx context.Context, n int, sql string) error {
	for _, conn := range b.clients[:n] {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) exec(ctx context.Context, sql string, args ...any) error {
	_, err := b.admin.Exec(ctx, sql, args...)
	if err != nil {
		err = fmt.Errorf("%w in: %s", err, sql)
	}
	return err
}
