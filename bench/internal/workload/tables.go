package workload

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/fenced"
)

// The variants of writing. A table is of one variant.
const (
	plain     = "plain"                       // nothing is checked
	predicate = "predicate"                   // … AND last_fencing_token < $2, written by hand
	version   = "version column"              // … AND version = $2: optimistic locking
	forUpdate = "SELECT … FOR UPDATE"         // read, compared by the program, written
	guard     = "PL/pgSQL guard"              // a trigger function that is called for every row
	advisory  = "pg_advisory_xact_lock"       // one writer at a time, nothing checked
	handNamed = "hand-written fence row"      // SELECT … FROM fence FOR SHARE, compared by the program
	set       = "fencectl, statement sets it" // a strict row fence, last_fencing_token = $2
	presented = "fencectl, presented"         // a strict row fence, the statement unchanged
	reentrant = "fencectl, reentrant"         // a reentrant row fence, the statement unchanged
	named     = "fencectl, named fence"       // a constant named fence, the statement unchanged
	template  = "fencectl, template fence"    // a named fence for each account, the statement unchanged
	unguarded = "presented, unguarded"        // a transaction that presents, on a table without fence

	// What PostgreSQL itself takes for a guard of each kind, which ours cannot be faster than.
	uncalled = "floor: a trigger that is not called"     // the statement as in set
	constant = "floor: a trigger that stores a constant" // the statement unchanged
	reading  = "floor: a trigger that reads one row"     // presented; it holds nothing
)

// A table has one variant's rows.
type table struct {
	variant string
	name    string
	rows    int
	tokens  atomic.Int64 // the last token used
	holder  int64        // the token of the one holder of a named or reentrant fence
	version []int64      // by row, what the program believes them to be
	shared  bool         // by the workers of one holder: all write under its token
}

// fence is the constant named fence of the table, or the template's part before the account.
func (t *table) fence() string { return "bench/" + t.name }

// makeTable makes and fills a table, and protects it as the variant says. accounts is how many fences a template has.
func (b *bench) makeTable(ctx context.Context, name, variant string, rows, accounts int) (*table, error) {
	t := &table{variant: variant, name: "public." + name, rows: rows, version: make([]int64, rows+1)}
	steps := []string{
		"CREATE TABLE " + t.name + ` (
			id bigint PRIMARY KEY, account bigint NOT NULL, value bigint NOT NULL, version bigint NOT NULL DEFAULT 0,
			note text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0)`,
		fmt.Sprintf("INSERT INTO %s (id, account, value, note) SELECT i, i %% %d, 0, 'the quick brown fox jumps over the lazy dog' FROM generate_series(1, %d) AS i", t.name, max(1, accounts), rows),
	}
	t.holder = 1
	switch variant {
	case guard:
		steps = append(steps,
			`CREATE OR REPLACE FUNCTION public.guard() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
			    IF (CASE WHEN TG_OP = 'DELETE' THEN current_setting('fencing.token')::bigint ELSE NEW.last_fencing_token END
			        >= CASE WHEN TG_OP = 'INSERT' THEN 1 ELSE OLD.last_fencing_token END) IS NOT TRUE THEN
			        RAISE EXCEPTION 'stale token';
			    END IF;
			    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
			    RETURN NEW;
			END $$`,
			"CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON "+t.name+" FOR EACH ROW EXECUTE FUNCTION public.guard()")
	case set, presented:
		steps = append(steps, fmt.Sprintf("SELECT fencing.protect('%s')", t.name))
	case reentrant:
		steps = append(steps, fmt.Sprintf("SELECT fencing.protect('%s', mode => 'reentrant')", t.name))
	case named:
		steps = append(steps,
			fmt.Sprintf("SELECT fencing.protect('%s', fence => '%s')", t.name, t.fence()),
			fmt.Sprintf("SELECT fencing.claim('%s', %d)", t.fence(), t.holder))
	case template:
		steps = append(steps,
			fmt.Sprintf("SELECT fencing.protect('%s', fence => '%s/{account}')", t.name, t.fence()),
			fmt.Sprintf("SELECT fencing.claim('%s/' || i, %d) FROM generate_series(0, %d) AS i", t.fence(), t.holder, max(1, accounts)-1))
	case uncalled:
		steps = append(steps,
			"CREATE OR REPLACE FUNCTION public.uncalled() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
			"CREATE TRIGGER guard BEFORE UPDATE ON "+t.name+" FOR EACH ROW WHEN (NEW.last_fencing_token < 0) EXECUTE FUNCTION public.uncalled()")
	case constant:
		steps = append(steps,
			"CREATE OR REPLACE FUNCTION public.constant() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.last_fencing_token := 1; RETURN NEW; END'",
			"CREATE TRIGGER guard BEFORE UPDATE ON "+t.name+" FOR EACH ROW EXECUTE FUNCTION public.constant()")
	case reading:
		steps = append(steps,
			`CREATE OR REPLACE FUNCTION public.reading() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
			    IF (SELECT f.token FROM fencing.fence f WHERE f.name = TG_ARGV[0]) = current_setting('fencing.token')::bigint THEN RETURN NULL; END IF;
			    RAISE EXCEPTION 'stale token';
			END $$`,
			fmt.Sprintf("CREATE TRIGGER guard BEFORE UPDATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION public.reading('%s')", t.name, t.fence()),
			fmt.Sprintf("SELECT fencing.claim('%s', %d)", t.fence(), t.holder))
	case handNamed:
		steps = append(steps,
			"CREATE TABLE IF NOT EXISTS public.hand_fence (name text PRIMARY KEY, token bigint NOT NULL)",
			fmt.Sprintf("INSERT INTO public.hand_fence VALUES ('%s', %d)", t.fence(), t.holder))
	}
	steps = append(steps, "VACUUM (ANALYZE) "+t.name)
	for _, sql := range steps {
		if err := b.exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// vacuum gives the space of dead rows back to the table, so that every sample begins in the same state.
func (b *bench) vacuum(t *table) func(context.Context) error {
	return func(ctx context.Context) error { return b.exec(ctx, "VACUUM "+t.name) }
}

// aGrant is like the grant of a lease: it lapses, so that its transactions are bounded, and it has a context.
type aGrant struct {
	name  string
	token fenced.Token
	ctx   context.Context
}

func (g aGrant) Name() string             { return g.name }
func (g aGrant) Token() fenced.Token      { return g.token }
func (g aGrant) Context() context.Context { return g.ctx }

// held is the context of a grant that is not lost; a grant's is never the caller's own.
var held, _ = context.WithCancel(context.Background()) //nolint:gosec,govet // it lasts as long as the program

// wrote checks that a statement wrote as many rows as it should have.
func wrote(tag interface{ RowsAffected() int64 }, err error, rows int64) error {
	if err == nil && tag.RowsAffected() != rows {
		err = fmt.Errorf("%d rows were written, not %d", tag.RowsAffected(), rows)
	}
	return err
}

// tx runs f in a transaction, as the table's variant presents or does not present.
func (t *table) tx(ctx context.Context, conn *pgx.Conn, token int64, f func(tx pgx.Tx) error) error {
	switch t.variant {
	case presented, reentrant, named, template, unguarded, reading:
		return fenced.Run(ctx, conn, aGrant{t.fence(), fenced.Token(token), held}, f)
	}
	return pgx.BeginFunc(ctx, conn, f)
}

// TimeLeft implements fenced.Bounded.
func (g aGrant) TimeLeft() (left time.Duration, ok bool) { return 15 * time.Second, true }

// update updates rows in one transaction: where restricts them, argument is its parameter $1, and n is how many they are. known is the
// version that the program believes those rows to have.
func (t *table) update(ctx context.Context, conn *pgx.Conn, where string, argument any, n int64, known *int64) error {
	var token int64
	newer := "<"
	switch {
	case t.shared:
		newer, token = "<=", t.holder
	case slices.Contains([]string{reentrant, named, template, handNamed, unguarded, reading}, t.variant):
		token = t.holder
	default:
		token = t.tokens.Add(1)
	}
	head := "UPDATE " + t.name + " SET value = value + 1"
	return t.tx(ctx, conn, token, func(tx pgx.Tx) error {
		switch t.variant {
		case predicate:
			tag, err := tx.Exec(ctx, head+", last_fencing_token = $2 WHERE "+where+" AND last_fencing_token "+newer+" $2", argument, token)
			return wrote(tag, err, n)
		case guard, set, uncalled:
			tag, err := tx.Exec(ctx, head+", last_fencing_token = $2 WHERE "+where, argument, token)
			return wrote(tag, err, n)
		case version:
			tag, err := tx.Exec(ctx, head+", version = version + 1 WHERE "+where+" AND version = $2", argument, *known)
			*known++
			return wrote(tag, err, n)
		case forUpdate:
			rows, err := tx.Query(ctx, "SELECT last_fencing_token FROM "+t.name+" WHERE "+where+" FOR UPDATE", argument)
			if err != nil {
				return err
			}
			newest, seen := int64(0), int64(0)
			if _, err := pgx.ForEachRow(rows, []any{&newest}, func() error {
				seen++
				if newest > token || newest == token && !t.shared {
					return fmt.Errorf("stale: %d", newest)
				}
				return nil
			}); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, head+", last_fencing_token = $2 WHERE "+where, argument, token)
			return wrote(tag, err, min(n, seen))
		case advisory:
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", argument); err != nil {
				return err
			}
		case handNamed:
			var stored int64
			if err := tx.QueryRow(ctx, "SELECT token FROM public.hand_fence WHERE name = $1 FOR SHARE", t.fence()).Scan(&stored); err != nil {
				return err
			}
			if stored != token {
				return fmt.Errorf("stale: %d", stored)
			}
		}
		tag, err := tx.Exec(ctx, head+" WHERE "+where, argument)
		return wrote(tag, err, n)
	})
}
