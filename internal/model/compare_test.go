package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// setup makes the tables.
func setup() string {
	var b strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&b, "CREATE TABLE public.%s (id int, acct int NOT NULL, note int NOT NULL, PRIMARY KEY (id, acct))", k.table)
		if slices.Contains(partitioned, k.table) {
			b.WriteString(" PARTITION BY LIST (acct)")
		}
		b.WriteString(";\n")
		if slices.Contains(partitioned, k.table) {
			fmt.Fprintf(&b, "CREATE TABLE public.%[1]s_1 PARTITION OF public.%[1]s FOR VALUES IN (1);\n", k.table)
			fmt.Fprintf(&b, "CREATE TABLE public.%[1]s_2 PARTITION OF public.%[1]s FOR VALUES IN (2);\n", k.table)
		}
		fmt.Fprintf(&b, "SELECT fencing.protect('public.%s', %s);\n", k.table, k.protect)
	}
	return b.String()
}

// reset brings the tables to where every sequence begins. No trigger fires for the session that runs it.
func reset() string {
	var b strings.Builder
	b.WriteString("DELETE FROM fencing.fence; INSERT INTO fencing.fence (name, token, claimed_at, claimed_by) VALUES ")
	s := initially()
	var values []string
	for name, token := range s.fences {
		values = append(values, fmt.Sprintf("('%s', %d, now(), 'a test')", name, token))
	}
	b.WriteString(strings.Join(values, ", ") + ";\n")
	for _, k := range kinds {
		fmt.Fprintf(&b, "DELETE FROM public.%s;\n", k.table)
	}
	for id, r := range s.rows {
		columns, values := "id, acct, note", fmt.Sprintf("%d, %d, 0", id.id, r.acct)
		if kindOf(id.table).row {
			columns, values = columns+", last_fencing_token", fmt.Sprintf("%s, %d", values, r.stored)
		}
		fmt.Fprintf(&b, "INSERT INTO public.%s (%s) VALUES (%s);\n", id.table, columns, values)
	}
	return b.String()
}

// everything reads rows and fences, one a line, in the form of [session.lines].
func everything() string {
	parts := []string{"SELECT pg_catalog.concat_ws(' ', 'fence', name, token) FROM fencing.fence"}
	for _, k := range kinds {
		column := "0"
		if k.row {
			column = "last_fencing_token"
		}
		parts = append(parts, fmt.Sprintf("SELECT pg_catalog.concat_ws(' ', '%s', id, acct, %s, note) FROM public.%s", k.table, column, k.table))
	}
	return strings.Join(parts, " UNION ALL ")
}

func (s *session) lines() []string {
	var lines []string
	for name, token := range s.fences {
		lines = append(lines, fmt.Sprintf("fence %s %d", name, token))
	}
	for id, r := range s.rows {
		lines = append(lines, fmt.Sprintf("%s %d %d %d %d", id.table, id.id, r.acct, r.stored, r.note))
	}
	slices.Sort(lines)
	return lines
}

// database runs sequences, each from the beginning.
type database struct {
	t      *testing.T
	conn   *pgconn.PgConn // the session
	keeper *pgconn.PgConn // resets
	runs   int
}

func newDatabase(t *testing.T) *database {
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, setup())
	d := &database{t: t, conn: pgtest.Conn(t, pool).PgConn(), keeper: pgtest.Conn(t, pool).PgConn()}
	d.must(d.keeper, "SET session_replication_role = replica")
	if _, err := d.conn.Prepare(t.Context(), "everything", everything(), nil); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *database) must(conn *pgconn.PgConn, sql string) []*pgconn.Result {
	d.t.Helper()
	results, err := conn.Exec(d.t.Context(), sql).ReadAll()
	if err != nil {
		d.t.Fatalf("%v\n%s", err, sql)
	}
	return results
}

// compare runs a sequence and returns what differs after the last operation that it ran; "" when nothing does.
func (d *database) compare(operations []operation) string {
	d.t.Helper()
	d.must(d.conn, "ROLLBACK")
	d.must(d.keeper, reset())
	if d.runs++; d.runs%50 == 0 {
		d.must(d.keeper, "VACUUM")
	}
	s := initially()
	for i, o := range operations {
		may := s.apply(i+1, o)
		_, err := d.conn.Exec(context.WithoutCancel(d.t.Context()), o.sql(i+1)).ReadAll()
		var pgErr *pgconn.PgError
		state := ""
		switch {
		case errors.As(err, &pgErr):
			state = pgErr.Code
		case err != nil:
			d.t.Fatal(err)
		}
		if !slices.Contains(may, state) {
			return fmt.Sprintf("operation %d ends with %q, want one of %q: %v", i+1, state, may, err)
		}
		if s.failed {
			continue
		}
		read := d.conn.ExecPrepared(context.WithoutCancel(d.t.Context()), "everything", nil, nil, nil).Read()
		if read.Err != nil {
			d.t.Fatal(read.Err)
		}
		var found []string
		for _, line := range read.Rows {
			found = append(found, string(line[0]))
		}
		slices.Sort(found)
		if diff := cmp.Diff(s.lines(), found); diff != "" {
			return fmt.Sprintf("after operation %d (-model +PostgreSQL):\n%s", i+1, diff)
		}
	}
	return ""
}

// shorten leaves out whatever a sequence can do without and still differ.
func (d *database) shorten(operations []operation) []operation {
	for again := true; again; {
		again = false
		for i := len(operations) - 1; i >= 0; i-- {
			if shorter := slices.Delete(slices.Clone(operations), i, i+1); d.compare(shorter) != "" {
				operations, again = shorter, true
			}
		}
	}
	return operations
}

// sequence is a random one, on a table and perhaps a second: on all of them, no row would be written often enough to be
// written twice. Without a table, chance chooses it.
func sequence(r *rand.Rand, length int, table string) []operation {
	among := []kind{kinds[r.IntN(len(kinds))], kinds[r.IntN(len(kinds))]}
	if table != "" {
		among = []kind{kindOf(table)}
	}
	s := initially()
	var operations []operation
	for range length {
		o := random(r, s, among)
		operations = append(operations, o)
		s.apply(len(operations), o)
	}
	return operations
}

// number is what the environment sets, so that a run can be repeated or be made longer.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// The documentation's tables, in every combination that chance comes across, with whatever a transaction has done before.
func TestRandomStatementsDoWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	seed, sequences := number(t, "FENCECTL_MODEL_SEED", rand.IntN(1<<30)), number(t, "FENCECTL_MODEL_SEQUENCES", 60)
	d := newDatabase(t)
	ends := map[string]int{}
	for i := range sequences {
		operations := sequence(rand.New(rand.NewPCG(uint64(seed), uint64(i))), 40, "")
		s := initially()
		for n, o := range operations {
			ends[s.apply(n+1, o)[0]]++
		}
		if d.compare(operations) == "" {
			continue
		}
		operations = d.shorten(operations)
		t.Fatalf("FENCECTL_MODEL_SEED=%d, sequence %d: %s\nThe tables:\n\n%s%s\nThe sequence:\n\n%s",
			seed, i, d.compare(operations), setup(), reset(), script(operations))
	}
	t.Logf("FENCECTL_MODEL_SEED=%d: %d sequences, which end in %v", seed, sequences, ends)
	if sequences < 60 {
		return
	}
	// A generator whose every statement is refused for the same reason compares nothing.
	for _, state := range []string{ok, stale, unfenced, invalid, unclaimed, unsupported, duplicate, aborted, noSavepoint} {
		if ends[state] == 0 {
			t.Errorf("no operation of any sequence ends with %q", state)
		}
	}
}

// The control: guards that differ from the model in one thing are told from it, and what is left of the sequence is short.
func TestWhatDiffersFromTheModelIsFoundAndShortened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ table, spoil string }{
		"a strict table is reentrant": {"strict", "SELECT fencing.protect('public.strict', mode => 'reentrant')"},
		"inserts are allowed":         {"required", "SELECT fencing.protect('public.required', inserts => 'allow')"},
		"a guard is switched off":     {"template", "ALTER TABLE public.template DISABLE TRIGGER zzz_fencing_delete"},
		"a constant fence has a typo": {"named", "SELECT fencing.protect('public.named', fence => 'nightlie')"},
		// What was accepted is remembered by the fence alone, whatever is presented later.
		"whoever was accepted once stays accepted": {"named", `CREATE OR REPLACE FUNCTION fencing.accepted(fence text) RETURNS boolean LANGUAGE sql STABLE RETURN
			EXISTS (SELECT FROM pg_catalog.generate_series(0, 1023) AS n WHERE pg_catalog.current_setting('fencing.accepted_' || n, true) LIKE '%' || fence)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			d.must(d.keeper, c.spoil)
			for i := range uint64(100) {
				operations := sequence(rand.New(rand.NewPCG(1, i)), 40, c.table)
				if d.compare(operations) == "" {
					continue
				}
				if operations = d.shorten(operations); len(operations) > 8 {
					t.Errorf("%d operations are left:\n%s", len(operations), script(operations))
				}
				t.Logf("sequence %d: %s\n%s", i, d.compare(operations), script(operations))
				return
			}
			t.Error("nothing differs")
		})
	}
}
