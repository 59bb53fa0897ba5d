package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// events is a table partitioned at two levels: by region, and the eu by id. Row 1 is in eu_low, row 11 in us; both were
// written under 34.
func events(t *testing.T, protectArguments string) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `
		CREATE TABLE public.events (region text NOT NULL, id int NOT NULL, note text NOT NULL DEFAULT 'new', PRIMARY KEY (region, id)) PARTITION BY LIST (region);
		CREATE TABLE public.events_us PARTITION OF public.events FOR VALUES IN ('us');
		CREATE TABLE public.events_eu PARTITION OF public.events FOR VALUES IN ('eu') PARTITION BY RANGE (id);
		CREATE TABLE public.events_eu_low  PARTITION OF public.events_eu FOR VALUES FROM (0) TO (100);
		CREATE TABLE public.events_eu_high PARTITION OF public.events_eu FOR VALUES FROM (100) TO (200);
		INSERT INTO public.events VALUES ('eu', 1), ('us', 11)`)
	pgtest.Exec(t, pool, fmt.Sprintf("SELECT fencing.protect('public.events', %s)", protectArguments))
	if strings.Contains(protectArguments, "fence =>") {
		pgtest.Exec(t, pool, "SELECT fencing.claim('events', 34), fencing.claim('region/eu', 34), fencing.claim('region/us', 34)")
	} else {
		pgtest.Exec(t, pool, "UPDATE public.events SET last_fencing_token = 34")
	}
	return pool
}

// addPartitions makes a partition after the table was protected, and attaches a table that was there before it.
func addPartitions(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	column := ""
	if pgtest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'public.events'::regclass AND attname = 'last_fencing_token')") {
		column = ", last_fencing_token bigint NOT NULL DEFAULT COALESCE(fencing.presented(), 0::bigint)"
	}
	pgtest.Exec(t, pool, fmt.Sprintf(`
		CREATE TABLE public.events_eu_top PARTITION OF public.events_eu FOR VALUES FROM (200) TO (300);
		CREATE TABLE public.events_asia (region text NOT NULL, id int NOT NULL, note text NOT NULL DEFAULT 'new' %s);
		INSERT INTO public.events_asia (region, id) VALUES ('asia', 1);
		ALTER TABLE public.events ATTACH PARTITION public.events_asia FOR VALUES IN ('asia')`, column))
}

func TestEveryPartitionIsFencedWhicheverNameTheWriteGoesBy(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"'reentrant', inserts => 'require'", "fence => 'events'", "fence => 'region/{region}'"} {
		t.Run(arguments, func(t *testing.T) {
			t.Parallel()
			pool := events(t, arguments)
			addPartitions(t, pool)
			claim(t, pool, "region/asia", 34)
			fill := begin(t, pool, "READ COMMITTED")
			present(t, fill, 34)
			pgtest.Exec(t, fill, "INSERT INTO public.events (region, id) VALUES ('eu', 101), ('eu', 201); UPDATE public.events SET note = 'filled'; COMMIT")

			for _, p := range []struct {
				table, region string
				id            int
				later         bool
			}{
				{"events", "eu", 1, false},
				{"events_us", "us", 11, false},
				{"events_eu", "eu", 1, false},
				{"events_eu", "eu", 101, false},
				{"events_eu_low", "eu", 1, false},
				{"events_eu_high", "eu", 101, false},
				{"events_eu_top", "eu", 201, true},
				{"events_eu", "eu", 201, true},
				{"events_asia", "asia", 1, true},
				{"events", "asia", 1, true},
			} {
				for _, sql := range []string{
					fmt.Sprintf("UPDATE public.%s SET note = 'x' WHERE region = '%s' AND id = %d", p.table, p.region, p.id),
					fmt.Sprintf("DELETE FROM public.%s WHERE region = '%s' AND id = %d", p.table, p.region, p.id),
					fmt.Sprintf("INSERT INTO public.%s (region, id) VALUES ('%s', %d)", p.table, p.region, p.id+1),
					fmt.Sprintf("INSERT INTO public.%s (region, id) VALUES ('%s', %d) ON CONFLICT (region, id) DO UPDATE SET note = 'x'", p.table, p.region, p.id),
				} {
					insert := strings.HasPrefix(sql, "INSERT") && !strings.Contains(sql, "CONFLICT")
					wantOld := stale
					if insert && strings.HasPrefix(arguments, "'reentrant'") {
						wantOld = accepted // a new row has no fence yet
					}
					for token, want := range map[int64]string{0: unfenced, 33: wantOld, 34: accepted} {
						conn := begin(t, pool, "READ COMMITTED")
						if token != 0 {
							present(t, conn, token)
						}
						if got := pgtest.SQLState(try(t, conn, sql)); got != want {
							t.Errorf("under %d, %s: SQLSTATE %q, want %q", token, sql, got, want)
						}
						pgtest.Exec(t, conn, "ROLLBACK")
						_ = conn.Close(t.Context())
					}
				}
				if !p.later { // a later partition's own TRUNCATE is a finding of the audit
					if err := try(t, pool, "TRUNCATE public."+p.table); err == nil {
						t.Errorf("TRUNCATE public.%s went through", p.table)
					}
				}
			}
			// Protecting again completes what came later.
			pgtest.Exec(t, pool, fmt.Sprintf("SELECT fencing.protect('public.events', %s)", arguments))
			for _, table := range []string{"events_eu_top", "events_asia"} {
				if err := try(t, pool, "TRUNCATE public."+table); err == nil {
					t.Errorf("TRUNCATE public.%s went through", table)
				}
			}
		})
	}
}

// An UPDATE that moves a row fires the delete guard on the old partition as well: it must be decided as the update it is.
func TestAMoveBetweenPartitionsFollowsTheTruthTableOfUpdates(t *testing.T) {
	t.Parallel()
	for i, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			atEachLevel(t, func(t *testing.T, level string) {
				pool := events(t, mode)
				addPartitions(t, pool)
				for _, to := range []string{"region = 'us'", "id = 101", "id = 201", "region = 'asia', id = 5"} {
					for _, l := range updateLines {
						conn := begin(t, pool, level)
						if l.p != nothing {
							pgtest.Exec(t, conn, "SET LOCAL fencing.token = "+l.p)
						}
						set := to
						if l.n != unset {
							set += ", last_fencing_token = " + l.n
						}
						want := l.cell[i]
						if got := pgtest.SQLState(try(t, conn, "UPDATE public.events SET note = 'moved', "+set+" WHERE region = 'eu' AND id = 1")); got != want.state {
							t.Errorf("%s, to %s: SQLSTATE %q, want %q", l.name, to, got, want.state)
						} else if got == accepted {
							finds(t, conn, fmt.Sprint("1 ", want.fence), "SELECT count(*) || ' ' || min(last_fencing_token) FROM public.events WHERE note = 'moved'")
							finds(t, conn, 2, "SELECT count(*) FROM public.events WHERE region <> 'asia' OR id = 5")
						}
						pgtest.Exec(t, conn, "ROLLBACK")
						_ = conn.Close(t.Context())
					}
				}
			})
		})
	}
}

func TestAMoveInObserveIsRecordedOnceAndGoesThrough(t *testing.T) {
	t.Parallel()
	pool := events(t, "'strict', observe => true")
	pgtest.Exec(t, pool, "UPDATE public.events SET region = 'us' WHERE id = 1")
	finds(t, pool, "us 34", "SELECT region || ' ' || last_fencing_token FROM public.events WHERE id = 1")
	finds(t, pool, []string{"unfenced"}, "SELECT array_agg(kind) FROM fencing.violation")
}

func TestADeleteAfterAMoveIsStillADelete(t *testing.T) {
	t.Parallel()
	const moved = "UPDATE public.events SET region = 'us', last_fencing_token = 35 WHERE id = 1; "
	const stayed = "UPDATE public.events SET region = region, last_fencing_token = 35 WHERE id = 1; "
	const called = `CREATE FUNCTION public.call_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN CASE NEW.note WHEN 'off' THEN NULL ELSE NEW END; END $$;
		CREATE TRIGGER %s BEFORE UPDATE ON public.events FOR EACH ROW EXECUTE FUNCTION public.call_off(); `
	for name, c := range map[string]struct{ first, then, want string }{
		"of the moved row, nothing presented":        {moved, "DELETE FROM public.events WHERE id = 1", unfenced},
		"of the moved row, the same token":           {moved, under(35, "DELETE FROM public.events WHERE id = 1"), stale},
		"of the moved row, an older token":           {moved, under(34, "DELETE FROM public.events WHERE id = 1"), stale},
		"of another row":                             {moved, "DELETE FROM public.events WHERE id = 11", unfenced},
		"of a row that could have moved":             {stayed, "DELETE FROM public.events WHERE id = 1", unfenced},
		"of a row whose update was called off":       {fmt.Sprintf(called, "zzzz") + "UPDATE public.events SET region = 'us', last_fencing_token = 35, note = 'off' WHERE id = 1; ", "DELETE FROM public.events WHERE id = 1", unfenced},
		"of a row whose update was called off first": {fmt.Sprintf(called, "aaaa") + "UPDATE public.events SET region = 'us', last_fencing_token = 35, note = 'off' WHERE id = 1; ", "DELETE FROM public.events WHERE id = 1", unfenced},
		"of a row whose move was rolled back":        {"SAVEPOINT s; " + moved + "ROLLBACK TO s; ", "DELETE FROM public.events WHERE id = 1", unfenced},
		"under a newer token":                        {moved, under(36, "DELETE FROM public.events WHERE id = 1"), accepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := events(t, "'strict'")
			conn := begin(t, pool, "READ COMMITTED")
			pgtest.Exec(t, conn, c.first)
			ends(t, try(t, conn, c.then), c.want)
		})
	}
	t.Run("back and forth in one transaction", func(t *testing.T) {
		t.Parallel()
		pool := events(t, "'strict'")
		conn := begin(t, pool, "READ COMMITTED")
		for token := 35; token < 41; token++ {
			pgtest.Exec(t, conn, fmt.Sprintf("UPDATE public.events SET region = '%s', last_fencing_token = %d WHERE id = 1", []string{"eu", "us"}[token%2], token))
		}
		pgtest.Exec(t, conn, "COMMIT")
		finds(t, pool, int64(40), "SELECT last_fencing_token FROM public.events WHERE id = 1")
	})
	t.Run("many rows in one statement", func(t *testing.T) {
		t.Parallel()
		pool := events(t, "'strict'")
		pgtest.Exec(t, pool, "INSERT INTO public.events SELECT 'eu', i FROM generate_series(2, 9) i")
		ends(t, try(t, pool, "UPDATE public.events SET region = 'us', id = id + 1000, last_fencing_token = 35 WHERE region = 'eu'"), accepted)
		finds(t, pool, 9, "SELECT count(*) FROM public.events_us WHERE last_fencing_token = 35")
	})
}

// The row that moves is the one that the guard saw, though another version was there when the statement began.
func TestAMoveThatWaitedForAnotherWriterIsDecidedByWhatItFinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ move, want string }{
		{"UPDATE public.events SET region = 'us', last_fencing_token = 36 WHERE id = 1", accepted},
		{under(36, "UPDATE public.events SET region = 'us' WHERE id = 1"), accepted},
		{"UPDATE public.events SET region = 'us', last_fencing_token = 34 WHERE id = 1", stale},
		{under(34, "UPDATE public.events SET region = 'us' WHERE id = 1"), stale},
		{"UPDATE public.events SET region = 'us' WHERE id = 1", unfenced},
	} {
		t.Run(c.move, func(t *testing.T) {
			t.Parallel()
			pool := events(t, "'strict'")
			other := beginUnder(t, pool, "READ COMMITTED", 35)
			pgtest.Exec(t, other, "UPDATE public.events SET note = 'other' WHERE id = 1")
			moving := pgtest.Go(t, pgtest.Conn(t, pool), c.move).Blocked()
			pgtest.Exec(t, other, "COMMIT")
			ends(t, moving.Wait(), c.want)
			want := map[bool]string{true: "us other 36", false: "eu other 35"}[c.want == accepted]
			finds(t, pool, want, "SELECT region || ' ' || note || ' ' || last_fencing_token FROM public.events WHERE id = 1")
		})
	}
}

// A row can also be moved by a trigger, without the statement naming the key.
func TestARowThatATriggerMovesIsMovedUnderTheStatementsToken(t *testing.T) {
	t.Parallel()
	pool := events(t, "'strict'")
	pgtest.Exec(t, pool, `CREATE FUNCTION public.relocate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.region := 'us'; RETURN NEW; END $$;
		CREATE TRIGGER relocate BEFORE UPDATE ON public.events FOR EACH ROW EXECUTE FUNCTION public.relocate()`)
	ends(t, try(t, pool, "UPDATE public.events SET note = 'x', last_fencing_token = 35 WHERE id = 1"), accepted)
	finds(t, pool, "us 35", "SELECT region || ' ' || last_fencing_token FROM public.events WHERE id = 1")
}

// A table that is attached brings its own default along, until protect is called again.
func TestProtectingAgainStampsInsertsIntoAPartitionAttachedLater(t *testing.T) {
	t.Parallel()
	pool := events(t, "'strict'")
	pgtest.Exec(t, pool, `CREATE TABLE public.events_asia (region text NOT NULL, id int NOT NULL, note text NOT NULL DEFAULT 'new', last_fencing_token bigint NOT NULL DEFAULT 0);
		ALTER TABLE public.events ATTACH PARTITION public.events_asia FOR VALUES IN ('asia')`)
	pgtest.Exec(t, pool, under(35, "INSERT INTO public.events (region, id) VALUES ('asia', 1)"))
	pgtest.Exec(t, pool, "SELECT fencing.protect('public.events', 'strict')")
	pgtest.Exec(t, pool, under(35, "INSERT INTO public.events_asia (region, id) VALUES ('asia', 2)"))
	finds(t, pool, []int64{35, 35}, "SELECT array_agg(last_fencing_token) FROM public.events_asia")
}

func TestMergeMovesRowsUnderAToken(t *testing.T) {
	t.Parallel()
	if pgtest.ServerVersion(t) < 15 {
		t.Skip("MERGE came with PostgreSQL 15")
	}
	pool := events(t, "'strict'")
	const merge = "MERGE INTO public.events AS e USING (VALUES (1)) AS v (id) ON e.id = v.id WHEN MATCHED THEN UPDATE SET region = 'us'%s"
	ends(t, try(t, pool, fmt.Sprintf(merge, "")), unfenced)
	ends(t, try(t, pool, under(34, fmt.Sprintf(merge, ""))), stale)
	ends(t, try(t, pool, fmt.Sprintf(merge, ", last_fencing_token = 34")), unfenced)
	ends(t, try(t, pool, fmt.Sprintf(merge, ", last_fencing_token = 33")), stale)
	ends(t, try(t, pool, fmt.Sprintf(merge, ", last_fencing_token = 35")), accepted)
	ends(t, try(t, pool, under(36, strings.ReplaceAll(fmt.Sprintf(merge, ""), "'us'", "'eu'"))), accepted)
	finds(t, pool, "eu 36", "SELECT region || ' ' || last_fencing_token FROM public.events WHERE id = 1")
}

func TestAPartitionThatWasDetachedIsNoLongerFenced(t *testing.T) {
	t.Parallel()
	// A control: this is why the audit looks for detached partitions. What stays are the guards that were its own.
	for _, arguments := range []string{"'strict'", "fence => 'region/{region}'"} {
		pool := events(t, arguments)
		pgtest.Exec(t, pool, "ALTER TABLE public.events DETACH PARTITION public.events_us")
		ends(t, try(t, pool, "UPDATE public.events_us SET note = 'x'"), accepted)
		pgtest.Exec(t, pool, "ALTER TABLE public.events ATTACH PARTITION public.events_us FOR VALUES IN ('us')")
		ends(t, try(t, pool, "UPDATE public.events_us SET note = 'x'"), unfenced)
	}
	pool := events(t, "fence => 'events'")
	pgtest.Exec(t, pool, "ALTER TABLE public.events DETACH PARTITION public.events_us")
	ends(t, try(t, pool, "UPDATE public.events_us SET note = 'x'"), unfenced)
}
