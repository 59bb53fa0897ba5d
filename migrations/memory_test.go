package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// A named fence is checked once per transaction and then remembered. The memory must hold exactly as long as what it
// remembers is true: the tests here change everything it could be wrong about.

const writeJob = "UPDATE public.jobs SET state = state || '+' WHERE id = 1"

// atEachFence runs a parallel subtest for the two kinds of named fence over public.jobs; fence is the name of the one
// that job 1 belongs to, claimed by 34.
func atEachFence(t *testing.T, f func(t *testing.T, pool *pgxpool.Pool, fence string)) {
	for fence, template := range map[string]string{"nightly": "nightly", "job/1": "job/{id}"} {
		t.Run(template, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, fmt.Sprintf("fence => '%s'", template))
			claim(t, pool, fence, 34)
			f(t, pool, fence)
		})
	}
}

func TestTheMemoryEndsWhereItsTruthEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before string // in the transaction, after one write under 34 was accepted; FENCE is the fence
		want   string
	}{
		"the same again":                       {"", accepted},
		"the same presented again":             {"SELECT fencing.present(34)", accepted},
		"an older token presented":             {"SELECT fencing.present(33)", stale},
		"a newer token presented":              {"SELECT fencing.present(35)", unclaimed},
		"an older token presented for it":      {"SELECT fencing.present(33, 'FENCE')", stale},
		"its own token presented for it":       {"SELECT fencing.present(34, 'FENCE')", accepted},
		"its own token, the other one older":   {"SELECT fencing.present(34, 'FENCE'), fencing.present(33)", accepted},
		"an older token by SET LOCAL":          {"SET LOCAL fencing.token = 33", stale},
		"an older token by SET":                {"SET fencing.token = 33", stale},
		"nothing presented":                    {"SET LOCAL fencing.token = ''", unfenced},
		"RESET":                                {"RESET fencing.token", unfenced},
		"RESET ALL":                            {"RESET ALL", unfenced},
		"nonsense":                             {"SET LOCAL fencing.token = 'x'", invalid},
		"there and back":                       {"SELECT fencing.present(33); SELECT fencing.present(34)", accepted},
		"an older one, in a savepoint":         {"SAVEPOINT s; SELECT fencing.present(33)", stale},
		"an older one, in a savepoint undone":  {"SAVEPOINT s; SELECT fencing.present(33); ROLLBACK TO s", accepted},
		"an older one, in a savepoint kept":    {"SAVEPOINT s; SELECT fencing.present(33); RELEASE s", stale},
		"its own claim of the next token":      {"SELECT fencing.claim('FENCE', 35)", stale},
		"its own claim of the next, presented": {"SELECT fencing.claim('FENCE', 35), fencing.present(35)", accepted},
		"its own claim of the same":            {"SELECT fencing.claim('FENCE', 34)", accepted},
		"its own claim, undone":                {"SAVEPOINT s; SELECT fencing.claim('FENCE', 35); ROLLBACK TO s", accepted},
		"its own claim, kept":                  {"SAVEPOINT s; SELECT fencing.claim('FENCE', 35); RELEASE s", stale},
		"its own lowering":                     {"SELECT fencing.lower_fence('FENCE', 30, 'repair')", unclaimed},
		"its own lowering, undone":             {"SAVEPOINT s; SELECT fencing.lower_fence('FENCE', 30, 'repair'); ROLLBACK TO s", accepted},
		"another fence's claim":                {"SELECT fencing.claim('another', 35)", accepted},
		"COMMIT":                               {"COMMIT", unfenced},
		"COMMIT AND CHAIN":                     {"COMMIT AND CHAIN", unfenced},
		"COMMIT, and an older token":           {"COMMIT; BEGIN; SELECT fencing.present(33)", stale},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			atEachFence(t, func(t *testing.T, pool *pgxpool.Pool, fence string) {
				conn := beginUnder(t, pool, "READ COMMITTED", 34)
				pgtest.Exec(t, conn, writeJob)
				pgtest.Exec(t, conn, strings.ReplaceAll(c.before, "FENCE", fence))
				ends(t, try(t, conn, writeJob), c.want)
			})
		})
	}
}

// A check inside a savepoint that is rolled back loses its lock, so it is made again; and a presentation in one is gone.
func TestASavepointRolledBackTakesItsCheckWithIt(t *testing.T) {
	t.Parallel()
	atEachFence(t, func(t *testing.T, pool *pgxpool.Pool, fence string) {
		for name, undo := range map[string]string{
			"ROLLBACK TO": "SAVEPOINT s; " + writeJob + "; ROLLBACK TO s",
			"nested":      "SAVEPOINT r; SAVEPOINT s; " + writeJob + "; RELEASE s; ROLLBACK TO r",
			"exception":   "DO $$ BEGIN " + writeJob + "; RAISE 'x'; EXCEPTION WHEN others THEN NULL; END $$",
		} {
			token := pgtest.Value[int64](t, pool, "SELECT token FROM fencing.fence WHERE name = $1", fence)
			conn := beginUnder(t, pool, "READ COMMITTED", token)
			pgtest.Exec(t, conn, undo)
			claim(t, pool, fence, token+1) // does not wait: the lock went with the savepoint
			if got := pgtest.SQLState(try(t, conn, writeJob)); got != stale {
				t.Errorf("%s: SQLSTATE %q, want %q", name, got, stale)
			}
		}
		// One that is kept keeps its lock and its memory.
		token := pgtest.Value[int64](t, pool, "SELECT token FROM fencing.fence WHERE name = $1", fence)
		conn := beginUnder(t, pool, "READ COMMITTED", token)
		pgtest.Exec(t, conn, "SAVEPOINT s; "+writeJob+"; RELEASE s; SAVEPOINT r; "+writeJob+"; ROLLBACK TO r")
		claiming := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim($1, $2)", fence, token+1).Blocked()
		ends(t, try(t, conn, writeJob), accepted)
		pgtest.Exec(t, conn, "COMMIT")
		ends(t, claiming.Wait(), accepted)

		// What is presented in a savepoint is presented in it.
		conn = begin(t, pool, "READ COMMITTED")
		pgtest.Exec(t, conn, "SAVEPOINT s")
		present(t, conn, token+1)
		ends(t, try(t, conn, writeJob), accepted)
		pgtest.Exec(t, conn, "ROLLBACK TO s")
		finds(t, conn, true, "SELECT fencing.presented() IS NULL")
		ends(t, try(t, conn, writeJob), unfenced)
	})
}

// A transaction with more fences than the memory has places, in an order that makes them push each other out.
func TestManyFencesInOneTransactionAreEachChecked(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const fences = 300
	pgtest.Exec(t, pool, fmt.Sprintf(`
		CREATE TABLE public.accounts (account_id int PRIMARY KEY, balance int NOT NULL DEFAULT 0);
		INSERT INTO public.accounts SELECT i FROM generate_series(1, %d) i;
		SELECT fencing.protect('public.accounts', fence => 'account/{account_id}');
		SELECT fencing.claim('account/' || i, CASE WHEN i = 277 THEN 35 ELSE 34 END) FROM generate_series(1, %[1]d) i`, fences))
	conn := beginUnder(t, pool, "READ COMMITTED", 34)
	for range 3 {
		pgtest.Exec(t, conn, "UPDATE public.accounts SET balance = balance + 1 WHERE account_id <> 277")
		pgtest.Exec(t, conn, "SAVEPOINT s")
		refusal := ends(t, try(t, conn, "UPDATE public.accounts SET balance = balance + 1"), stale)
		if d := detail(t, refusal); d["fence"] != "account/277" {
			t.Errorf("DETAIL %v", d)
		}
		pgtest.Exec(t, conn, "ROLLBACK TO s")
	}
	// Every one of them is held: none can be claimed until the end.
	claiming := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('account/1', 35)").Blocked()
	pgtest.Exec(t, conn, "COMMIT")
	ends(t, claiming.Wait(), accepted)
}

// uncounted is a database on which only the session that calls opens is counted.
func uncounted(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return pgtest.New(t, pgtest.Param("track_functions", "none"))
}

// calls runs f in a session of its own and counts, by name, the functions of the schema fencing that it called.
//
// The session's end sends its statistics off. What it sends comes in order, so when the call of public.sentinel can be
// seen, everything before it can.
func calls(t *testing.T, pool *pgxpool.Pool, f func(conn *pgx.Conn)) map[string]int {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, pool, "DROP FUNCTION IF EXISTS public.sentinel(); CREATE FUNCTION public.sentinel() RETURNS void LANGUAGE plpgsql AS 'BEGIN END'")
	before := functionCalls(t, pool)
	pgtest.Exec(t, conn, "SET track_functions = 'all'")
	f(conn)
	pgtest.Exec(t, conn, "SELECT public.sentinel()")
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for {
		after := functionCalls(t, pool)
		if after["sentinel"] > 0 {
			counted := map[string]int{}
			for name, n := range after {
				if n -= before[name]; n > 0 && name != "sentinel" {
					counted[name] = n
				}
			}
			return counted
		}
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
		pgtest.Exec(t, pool, "SELECT pg_sleep(0.05)")
	}
}

func functionCalls(t *testing.T, pool *pgxpool.Pool) map[string]int {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT funcname::text, sum(calls)::int FROM pg_stat_user_functions WHERE schemaname = 'fencing' OR funcname = 'sentinel' GROUP BY 1")
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]int{}
	var name string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { counted[name] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return counted
}

func TestAFenceIsCheckedOncePerTransaction(t *testing.T) {
	t.Parallel()
	pool := uncounted(t)
	pgtest.Exec(t, pool, `
		CREATE TABLE public.accounts (id int PRIMARY KEY, account_id int NOT NULL, balance int NOT NULL DEFAULT 0);
		INSERT INTO public.accounts SELECT i, i % 3 FROM generate_series(1, 1000) i;
		SELECT fencing.protect('public.accounts', fence => 'account/{account_id}');
		SELECT fencing.claim('account/' || i, 34) FROM generate_series(0, 2) i`)
	pgtest.Exec(t, pool, jobs+"SELECT fencing.protect('public.jobs', fence => 'nightly'); SELECT fencing.claim('nightly', 34)")

	counted := calls(t, pool, func(conn *pgx.Conn) {
		for range 2 { // transactions
			pgtest.Exec(t, conn, `BEGIN; SELECT fencing.present(34);
				UPDATE public.accounts SET balance = balance + 1; UPDATE public.accounts SET balance = balance + 1;
				DELETE FROM public.accounts WHERE id % 7 = 0; INSERT INTO public.accounts SELECT i, i % 3 FROM generate_series(1, 1000) i WHERE i % 7 = 0;
				COMMIT`)
		}
	})
	// A transaction's first fence is checked by the guard itself.
	if counted["check_fence"] != 2*2 {
		t.Errorf("three fences in two transactions were checked %d times: %v", counted["check_fence"]+2, counted)
	}
	if n := counted["guard_named"]; n < 2*3 || n > 2*3*2 {
		t.Errorf("%d calls of the guard: the rows after the first of a fence should make none", n)
	}

	// The fence of a whole table is looked up by its first statement, however many rows and statements follow.
	conn := pgtest.Conn(t, pool)
	lookups := func() int {
		return pgtest.Value[int](t, conn, "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_catalog.pg_stat_xact_all_tables WHERE relid = 'fencing.fence'::pg_catalog.regclass")
	}
	pgtest.Exec(t, conn, "BEGIN; SELECT fencing.present(34)")
	before := lookups()
	pgtest.Exec(t, conn, "UPDATE public.jobs SET state = 'x'")
	first := lookups()
	pgtest.Exec(t, conn, "UPDATE public.jobs SET state = 'y'; INSERT INTO public.jobs SELECT i, 'z' FROM generate_series(10, 2000) i; DELETE FROM public.jobs WHERE id > 1000")
	if after := lookups(); first != before+1 || after != first {
		t.Errorf("the fence was looked up %d times by the first statement, and %d times by three more: want once, and never", first-before, after-first)
	}
	pgtest.Exec(t, conn, "COMMIT")
}

// A bulk write whose statement sets the token calls no function per row, nor does one that the column's default stamps.
func TestABulkWriteUnderATokenCallsNoFunctionPerRow(t *testing.T) {
	t.Parallel()
	pool := uncounted(t)
	pgtest.Exec(t, pool, "CREATE UNLOGGED TABLE public.bulk (id int, state int NOT NULL)")
	for _, mode := range []string{"strict", "reentrant"} {
		for _, more := range []string{"", ", max_advance => 1000", ", inserts => 'require'"} {
			if mode == "reentrant" && more != "" {
				continue
			}
			rows := 10_000
			if more == "" {
				rows = 300_000
			}
			pgtest.Exec(t, pool, fmt.Sprintf("TRUNCATE public.bulk; SELECT fencing.protect('public.bulk', '%s'%s)", mode, more))
			counted := calls(t, pool, func(conn *pgx.Conn) {
				pgtest.Exec(t, conn, fmt.Sprintf("BEGIN; SET LOCAL fencing.token = 34; INSERT INTO public.bulk SELECT i, 0 FROM generate_series(1, %d) i; COMMIT", rows))
				pgtest.Exec(t, conn, "UPDATE public.bulk SET state = 1, last_fencing_token = 35")
				pgtest.Exec(t, conn, "BEGIN; SET LOCAL fencing.token = 36")
				n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"public", "bulk"}, []string{"id", "state"},
					pgx.CopyFromSlice(5_000, func(i int) ([]any, error) { return []any{int32(i), int32(2)}, nil }))
				if err != nil || n != 5_000 {
					t.Fatalf("copied %d: %v", n, err)
				}
				pgtest.Exec(t, conn, "COMMIT")
			})
			if len(counted) > 0 {
				t.Errorf("%s%s: bulk writes called %v", mode, more, counted)
			}
			finds(t, pool, fmt.Sprintf("{\"(35,%d)\",\"(36,5000)\"}", rows), "SELECT array_agg(s ORDER BY s)::text FROM (SELECT last_fencing_token, count(*) FROM public.bulk GROUP BY 1) s")
			pgtest.Exec(t, pool, "SELECT fencing.unprotect('public.bulk', true)")
		}
	}
	// Control: the counter counts. Where the statement leaves the stamp to us, there is a call for each row.
	pgtest.Exec(t, pool, "TRUNCATE public.bulk; INSERT INTO public.bulk SELECT i, 0 FROM generate_series(1, 1000) i; SELECT fencing.protect('public.bulk')")
	counted := calls(t, pool, func(conn *pgx.Conn) {
		pgtest.Exec(t, conn, "BEGIN; SET LOCAL fencing.token = 34; UPDATE public.bulk SET state = 1; COMMIT")
	})
	if counted["stamp_row"] != 1000 {
		t.Errorf("control: stamping 1000 rows called %v", counted)
	}
}

// What a transaction presents can be asked anywhere, in a parallel query too.
func TestWhatIsPresentedCanBeReadInAParallelQuery(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	conn := begin(t, pool, "READ COMMITTED")
	setting := "force_parallel_mode"
	if pgtest.ServerVersion(t) >= 16 {
		setting = "debug_parallel_query"
	}
	pgtest.Exec(t, conn, "CREATE TABLE public.big AS SELECT i, 'nightly'::text AS fence FROM generate_series(1, 1000) i; SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0; SET LOCAL "+setting+" = on")
	pgtest.Exec(t, conn, "SELECT fencing.present(33), fencing.present(34, 'nightly')")
	finds(t, conn, "33 34 33", `SELECT min(fencing.presented()) || ' ' || min(fencing.presented(fence)) || ' ' || min(fencing.presented('other' || i)) FROM public.big`)
	finds(t, conn, 0, `SELECT count(*) FROM public.big WHERE fencing.accepted(fence)`)
}
