package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// ledger is a database with public.accounts, each row of which has a fence of its own: account/1 and account/2 are
// claimed by 34, account/3 never was.
func ledger(t *testing.T, observe bool) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, fmt.Sprintf(`
		CREATE TABLE public.accounts (account_id int NOT NULL, branch text NOT NULL DEFAULT 'a', balance int NOT NULL DEFAULT 0, PRIMARY KEY (account_id, branch));
		INSERT INTO public.accounts SELECT i FROM generate_series(1, 3) AS i;
		SELECT fencing.protect('public.accounts', fence => 'account/{account_id}', observe => %t);
		SELECT fencing.claim('account/1', 34), fencing.claim('account/2', 34)`, observe))
	return pool
}

// The table of a named fence, for both kinds: accepted when what is presented is what is claimed.
func TestANamedFenceAcceptsOnlyTheClaimedToken(t *testing.T) {
	t.Parallel()
	lines := []struct {
		claimed int64 // 0: never
		p       string
		want    string
	}{
		{34, nothing, unfenced},
		{34, "33", stale},
		{34, "34", accepted},
		{34, "35", unclaimed},
		{0, nothing, unfenced},
		{0, "34", unclaimed},
	}
	writes := map[string]string{
		"insert":   "INSERT INTO public.jobs (id, state) VALUES (9, 'after')",
		"update":   "UPDATE public.jobs SET state = 'after' WHERE id = 1",
		"delete":   "DELETE FROM public.jobs WHERE id = 1",
		"truncate": "TRUNCATE public.jobs",
		"upsert":   "INSERT INTO public.jobs (id, state) VALUES (1, 'after') ON CONFLICT (id) DO UPDATE SET state = excluded.state",
	}
	atEachLevel(t, func(t *testing.T, level string) {
		for _, fence := range []string{"nightly", "job/{kind}"} {
			for _, observe := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, observe %t", fence, observe), func(t *testing.T) {
					t.Parallel()
					pool := pgtest.New(t)
					pgtest.Exec(t, pool, jobs+`ALTER TABLE public.jobs ADD kind text NOT NULL DEFAULT 'nightly'`)
					pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', fence => $1, observe => $2)", fence, observe)
					name := strings.ReplaceAll(fence, "{kind}", "nightly")
					for _, l := range lines {
						for what, sql := range writes {
							want := l.want
							if what == "truncate" && name != fence {
								want = truncate // of many fences, whatever is presented
							}
							conn := begin(t, pool, level)
							if l.claimed != 0 {
								claim(t, conn, name, l.claimed)
							}
							if l.p != nothing {
								pgtest.Exec(t, conn, "SET LOCAL fencing.token = "+l.p)
							}
							err := try(t, conn, sql)
							if !observe {
								if err := ends(t, err, want); t.Failed() {
									t.Fatalf("claimed %d, presented %q, %s: %v", l.claimed, l.p, what, err)
								}
							} else {
								ends(t, err, accepted)
								finds(t, conn, kindOf[want], "SELECT coalesce(string_agg(kind, ' '), '') FROM fencing.violation WHERE xact = pg_current_xact_id()")
							}
							pgtest.Exec(t, conn, "ROLLBACK")
							_ = conn.Close(t.Context())
						}
					}
				})
			}
		}
	})
}

func TestOneTransactionMayHoldSeveralFences(t *testing.T) {
	t.Parallel()
	pool := ledger(t, false)
	claim(t, pool, "account/2", 50) // another lock, another source
	transfer := "UPDATE public.accounts SET balance = balance - 10 WHERE account_id = 1; UPDATE public.accounts SET balance = balance + 10 WHERE account_id = 2"

	ends(t, try(t, pool, "SELECT fencing.present(34, 'account/1'), fencing.present(50, 'account/2');"+transfer), accepted)
	ends(t, try(t, pool, under(34, "SELECT fencing.present(50, 'account/2');"+transfer)), accepted)
	finds(t, pool, "-20 20", "SELECT string_agg(balance::text, ' ' ORDER BY account_id) FROM public.accounts WHERE account_id < 3")

	// Each is checked against its own.
	ends(t, try(t, pool, under(34, transfer)), stale)
	ends(t, try(t, pool, "SELECT fencing.present(34, 'account/1');"+transfer), unfenced)
	ends(t, try(t, pool, "SELECT fencing.present(34, 'account/1'), fencing.present(49, 'account/2');"+transfer), stale)
	ends(t, try(t, pool, "SELECT fencing.present(50, 'account/1'), fencing.present(34, 'account/2');"+transfer), unclaimed)
	// A fence's own token goes before the transaction's, whichever was presented last.
	ends(t, try(t, pool, "SELECT fencing.present(50, 'account/2'), fencing.present(34);"+transfer), accepted)
	finds(t, pool, "34 50 34", "SELECT (SELECT fencing.present(34)) || ' ' || (SELECT fencing.present(50, 'account/2')) || ' ' || fencing.presented('account/1')")

	// What is presented for a fence is nothing to a row fence.
	pgtest.Exec(t, pool, jobs+"SELECT fencing.protect('public.jobs')")
	ends(t, try(t, pool, "SELECT fencing.present(34, 'jobs'); UPDATE public.jobs SET state = 'x'"), unfenced)

	for _, tokens := range []string{"nonsense", "[1]", "34", `"x"`, `{"account/1": "x"}`, `{"account/1": -1}`, `{"account/1": {}}`} {
		ends(t, try(t, pool, fmt.Sprintf("SET LOCAL fencing.tokens = '%s'; UPDATE public.accounts SET balance = 0 WHERE account_id = 1", tokens)), invalid)
	}
	for _, name := range []string{"''", "NULL"} {
		ends(t, try(t, pool, fmt.Sprintf("SELECT fencing.present(34, %s)", name)), "22023")
	}
	// Names that JSON, LIKE or the guards' memory could trip over.
	for _, name := range []string{`with "quotes"`, `back\slash`, "per%cent_", "two  spaces ", "Größe", "<unfenced 1>", "34 {}"} {
		pgtest.Exec(t, pool, "SELECT fencing.claim($1, 34)", name)
		conn := begin(t, pool, "READ COMMITTED")
		finds(t, conn, int64(34), "SELECT fencing.present(34, $1)", name)
		finds(t, conn, int64(34), "SELECT fencing.presented($1)", name)
		pgtest.Exec(t, conn, "ROLLBACK")
	}
}

// Under READ COMMITTED the writers of a table's one fence share an advisory lock, in which nobody is overtaken: a stream of writers
// cannot keep a claim waiting for ever. Above it, where only a row lock notices that the fence has been raised, they lock its row.
func TestAWaitingClaimIsNotOvertakenByLaterWriters(t *testing.T) {
	t.Parallel()
	const write = "UPDATE public.jobs SET state = 'written' WHERE id = $1"
	for _, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, "fence => 'nightly'")
			pgtest.Exec(t, pool, "SELECT fencing.claim('nightly', 33)")
			begin := func() (*pgx.Conn, pgx.Tx) {
				conn := pgtest.Conn(t, pool)
				tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: isolation})
				if err != nil {
					t.Fatal(err)
				}
				pgtest.Exec(t, tx, "SELECT fencing.present(33)")
				return conn, tx
			}
			_, first := begin()
			later, second := begin()
			pgtest.Exec(t, first, write, 1)
			locked := pgtest.Value[bool](t, first, "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid() AND mode = 'ShareLock')")
			if want := isolation == pgx.ReadCommitted; locked != want {
				t.Errorf("the writer holds the advisory lock: %v, want %v", locked, want)
			}
			claim := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('nightly', 34)").Blocked()

			if isolation != pgx.ReadCommitted {
				// They may overtake: the claim waits for the row, and more share it.
				pgtest.Exec(t, second, write, 2)
				if err := second.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := first.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := claim.Wait(); err != nil {
					t.Fatal(err)
				}
				return
			}
			overtaking := pgtest.Go(t, later, write, 2).Blocked()
			if err := first.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := claim.Wait(); err != nil {
				t.Fatal(err)
			}
			ends(t, overtaking.Wait(), stale)
			finds(t, pool, "new", "SELECT state FROM public.jobs WHERE id = 2")
		})
	}
}

func TestARowThatMovesBetweenFencesNeedsBoth(t *testing.T) {
	t.Parallel()
	atEachLevel(t, func(t *testing.T, level string) {
		pool := ledger(t, false)
		move := "UPDATE public.accounts SET account_id = 2, branch = 'b' WHERE account_id = 1"
		for presents, want := range map[string]string{
			"SELECT fencing.present(34, 'account/1')":                                                                                          unfenced,
			"SELECT fencing.present(34, 'account/2')":                                                                                          unfenced,
			"SELECT fencing.present(34, 'account/1'), fencing.present(33, 'account/2')":                                                        stale,
			"SELECT fencing.present(33, 'account/1'), fencing.present(34, 'account/2')":                                                        stale,
			"SELECT fencing.present(34, 'account/1'), fencing.present(35, 'account/2')":                                                        unclaimed,
			"SELECT fencing.present(34, 'account/1'), fencing.present(34, 'account/2')":                                                        accepted,
			"SELECT fencing.present(34)":                                                                                                       accepted,
			"SELECT fencing.present(34); UPDATE public.accounts SET balance = 1 WHERE account_id = 2; SELECT fencing.present(33, 'account/1')": stale,
		} {
			conn := begin(t, pool, level)
			pgtest.Exec(t, conn, presents)
			if got := pgtest.SQLState(try(t, conn, move)); got != want {
				t.Errorf("%s: SQLSTATE %q, want %q", presents, got, want)
			}
			pgtest.Exec(t, conn, "ROLLBACK")
		}
		// To a fence that nobody has claimed.
		ends(t, try(t, pool, under(34, "UPDATE public.accounts SET account_id = 4 WHERE account_id = 1")), unclaimed)
	})
}

// Whatever statement writes, and by whatever way, the guards see it.
func TestNoWayOfWritingPassesANamedFenceBy(t *testing.T) {
	t.Parallel()
	for _, fence := range []string{"nightly", "account/{account_id}"} {
		t.Run(fence, func(t *testing.T) {
			t.Parallel()
			pool := ledger(t, false)
			pgtest.Exec(t, pool, "SELECT fencing.protect('public.accounts', fence => $1)", fence)
			claim(t, pool, "nightly", 34)
			pgtest.Exec(t, pool, `
				CREATE VIEW public.rich AS SELECT * FROM public.accounts WHERE balance >= 0;
				CREATE VIEW public.checked AS SELECT account_id, balance FROM public.accounts WITH CHECK OPTION;
				CREATE FUNCTION public.by_function() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'UPDATE public.accounts SET balance = 7 WHERE account_id = 1';
				CREATE PROCEDURE public.by_procedure() LANGUAGE plpgsql AS $$ BEGIN UPDATE public.accounts SET balance = 7 WHERE account_id = 1; END $$;
				CREATE TABLE public.other (id int);
				CREATE FUNCTION public.by_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE public.accounts SET balance = 7 WHERE account_id = NEW.id; RETURN NULL; END $$;
				CREATE TRIGGER by_trigger AFTER INSERT ON public.other FOR EACH ROW EXECUTE FUNCTION public.by_trigger();
				CREATE TABLE public.ruled (id int);
				CREATE RULE by_rule AS ON INSERT TO public.ruled DO INSTEAD UPDATE public.accounts SET balance = 7 WHERE account_id = NEW.id`)
			writes := []string{
				"UPDATE public.rich SET balance = 7 WHERE account_id = 1",
				"INSERT INTO public.rich VALUES (1, 'new', 7)",
				"DELETE FROM public.rich WHERE account_id = 1",
				"UPDATE public.checked SET balance = 7 WHERE account_id = 1",
				"SELECT public.by_function()",
				"CALL public.by_procedure()",
				"INSERT INTO public.other VALUES (1)",
				"INSERT INTO public.ruled VALUES (1)",
				"WITH d AS (DELETE FROM public.accounts WHERE account_id = 1 RETURNING *) SELECT FROM d",
				"INSERT INTO public.accounts SELECT account_id, 'copy' FROM public.accounts WHERE account_id = 1",
				"INSERT INTO public.accounts VALUES (1, 'a') ON CONFLICT DO NOTHING",
				"INSERT INTO public.accounts VALUES (1, 'a') ON CONFLICT (account_id, branch) DO UPDATE SET balance = 7",
				"UPDATE public.accounts AS a SET balance = 7 FROM (VALUES (1)) AS v (id) WHERE a.account_id = v.id",
				"DECLARE c CURSOR FOR SELECT FROM public.accounts WHERE account_id = 1 FOR UPDATE; FETCH c; UPDATE public.accounts SET balance = 7 WHERE CURRENT OF c",
			}
			if pgtest.ServerVersion(t) >= 15 {
				merge := "MERGE INTO public.accounts AS a USING (VALUES (1, 'a'), (1, 'c')) AS v (id, branch) ON a.account_id = v.id AND a.branch = v.branch "
				writes = append(writes, merge+"WHEN MATCHED THEN UPDATE SET balance = 7", merge+"WHEN MATCHED THEN DELETE",
					merge+"WHEN NOT MATCHED THEN INSERT (account_id, branch) VALUES (v.id, v.branch)")
			}
			for _, sql := range writes {
				for presents, want := range map[string]string{"": unfenced, "SELECT fencing.present(33);": stale, "SELECT fencing.present(34);": accepted, "SELECT fencing.present(35);": unclaimed} {
					conn := begin(t, pool, "READ COMMITTED")
					if got := pgtest.SQLState(try(t, conn, presents+sql)); got != want {
						t.Errorf("%s%s: SQLSTATE %q, want %q", presents, sql, got, want)
					}
					pgtest.Exec(t, conn, "ROLLBACK")
				}
			}
			copying := func(token int64) error {
				conn := begin(t, pool, "READ COMMITTED")
				if token != 0 {
					present(t, conn, token)
				}
				_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"public", "accounts"}, []string{"account_id", "branch"},
					pgx.CopyFromRows([][]any{{int32(1), "x"}, {int32(1), "y"}}))
				return err
			}
			ends(t, copying(0), unfenced)
			ends(t, copying(33), stale)
			ends(t, copying(34), accepted)
		})
	}
}

// A foreign key's action is a write to the table that it changes, under that table's fence, whatever fences the other.
func TestForeignKeyActionsAreFenced(t *testing.T) {
	t.Parallel()
	actions := map[string]string{
		"ON DELETE CASCADE":     "DELETE FROM public.parents WHERE id = 1",
		"ON DELETE SET NULL":    "DELETE FROM public.parents WHERE id = 1",
		"ON DELETE SET DEFAULT": "DELETE FROM public.parents WHERE id = 1",
		"ON UPDATE CASCADE":     "UPDATE public.parents SET id = 10 WHERE id = 1",
		"ON UPDATE SET NULL":    "UPDATE public.parents SET id = 10 WHERE id = 1",
	}
	for _, arguments := range []string{"'reentrant'", "fence => 'children'", "fence => 'child/{id}'"} {
		for action, sql := range actions {
			t.Run(arguments+" "+action, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.New(t)
				pgtest.Exec(t, pool, fmt.Sprintf(`
					CREATE TABLE public.parents (id int PRIMARY KEY);
					CREATE TABLE public.children (id int PRIMARY KEY, parent int DEFAULT 2 REFERENCES public.parents %s);
					INSERT INTO public.parents VALUES (1), (2); INSERT INTO public.children VALUES (1, 1);
					SELECT fencing.claim('children', 34), fencing.claim('child/1', 34), fencing.claim('parents', 34);
					SELECT fencing.protect('public.children', %s)`, action, arguments))
				if arguments == "'reentrant'" {
					pgtest.Exec(t, pool, under(34, "UPDATE public.children SET parent = 1"))
				}
				// The parent is not fenced, the child is.
				ends(t, try(t, pool, sql), unfenced)
				ends(t, try(t, pool, under(33, sql)), stale)
				conn := begin(t, pool, "READ COMMITTED")
				ends(t, try(t, conn, under(34, sql)), accepted)
				pgtest.Exec(t, conn, "ROLLBACK")

				// Both are, each under its own fence.
				pgtest.Exec(t, pool, "SELECT fencing.protect('public.parents', fence => 'parents')")
				ends(t, try(t, pool, under(34, "SELECT fencing.present(33, 'parents');"+sql)), stale)
				ends(t, try(t, pool, "SELECT fencing.present(34, 'parents');"+sql), unfenced)
				ends(t, try(t, pool, under(34, sql)), accepted)
			})
		}
	}
	t.Run("a child's write is no write of its fenced parent", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.New(t)
		pgtest.Exec(t, pool, `CREATE TABLE public.parents (id int PRIMARY KEY); INSERT INTO public.parents VALUES (1);
			CREATE TABLE public.children (parent int REFERENCES public.parents ON DELETE CASCADE);
			SELECT fencing.protect('public.parents', inserts => 'require')`)
		ends(t, try(t, pool, "INSERT INTO public.children VALUES (1); UPDATE public.children SET parent = 1; DELETE FROM public.children"), accepted)
	})
}

func TestInheritanceChildrenAreFenced(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"'reentrant'", "fence => 'nightly'", "fence => 'job/{id}'"} {
		t.Run(arguments, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			pgtest.Exec(t, pool, jobs+`
				CREATE TABLE public.special (note text) INHERITS (public.jobs);
				CREATE TABLE public.very_special () INHERITS (public.special);
				INSERT INTO public.special VALUES (11, 'new'); INSERT INTO public.very_special VALUES (12, 'new');
				SELECT fencing.claim('nightly', 34), fencing.claim('job/11', 34), fencing.claim('job/12', 34);`)
			pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', "+arguments+")")
			for _, write := range []string{
				"UPDATE public.%s SET state = 'x' WHERE id = %d", "DELETE FROM public.%s WHERE id = %d",
				"UPDATE public.jobs SET state = '%s' WHERE id = %d", "DELETE FROM public.jobs WHERE '%s' <> '' AND id = %d",
			} {
				for table, id := range map[string]int{"special": 11, "very_special": 12} {
					sql := fmt.Sprintf(write, table, id)
					if strings.Contains(arguments, "reentrant") {
						pgtest.Exec(t, pool, fmt.Sprintf("SELECT fencing.present(34); UPDATE public.%s SET state = 'fenced'", table))
					}
					ends(t, try(t, pool, sql), unfenced)
					ends(t, try(t, pool, under(33, sql)), stale)
					conn := begin(t, pool, "READ COMMITTED")
					ends(t, try(t, conn, under(34, sql)), accepted)
					pgtest.Exec(t, conn, "ROLLBACK")
				}
			}
			for _, table := range []string{"special", "very_special", "jobs"} {
				if err := try(t, pool, "TRUNCATE public."+table); err == nil {
					t.Errorf("TRUNCATE public.%s went through", table)
				}
			}
		})
	}
}

func TestAPreparedStatementPresentsWhatItsTransactionDoes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"auto", "force_generic_plan", "force_custom_plan"} {
		for _, arguments := range []string{"'strict'", "fence => 'nightly'", "fence => 'job/{id}'"} {
			t.Run(mode+" "+arguments, func(t *testing.T) {
				t.Parallel()
				pool := fencedJobs(t, arguments)
				conn := pgtest.Conn(t, pool)
				pgtest.Exec(t, conn, "SET plan_cache_mode = "+mode)
				pgtest.Exec(t, conn, "PREPARE writes AS UPDATE public.jobs SET state = $1 WHERE id = 1; PREPARE adds AS INSERT INTO public.jobs (id, state) VALUES ($1, 'x')")
				for i := range int64(12) {
					token := 34 + i
					claim(t, conn, "nightly", token)
					claim(t, conn, "job/1", token)
					claim(t, conn, fmt.Sprintf("job/%d", 100+i), token)
					ends(t, try(t, conn, "EXECUTE writes('none')"), unfenced)
					ends(t, try(t, conn, under(token, "EXECUTE writes('x')")), accepted)
					ends(t, try(t, conn, under(token, fmt.Sprintf("EXECUTE adds(%d)", 100+i))), accepted)
					ends(t, try(t, conn, under(token-1, "EXECUTE writes('zombie')")), stale)
					if arguments == "'strict'" {
						finds(t, conn, token, "SELECT last_fencing_token FROM public.jobs WHERE id = $1", 100+i)
					}
				}
			})
		}
	}
}

func TestAFenceIsNeverDeletedNorLoweredByHand(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	claim(t, pool, "nightly", 34)
	for _, sql := range []string{
		"DELETE FROM fencing.fence",
		"DELETE FROM fencing.fence WHERE name = 'no such'",
		"TRUNCATE fencing.fence",
		"UPDATE fencing.fence SET token = 33",
		"UPDATE fencing.fence SET name = 'another'",
		"INSERT INTO fencing.fence VALUES ('nightly', 1, now(), 'x') ON CONFLICT (name) DO UPDATE SET token = excluded.token",
	} {
		ends(t, try(t, pool, sql), wrongState)
	}
	for _, arguments := range []string{"'nightly', 35, 'up'", "'nightly', -1, 'below'", "'nightly', NULL, 'null'", "'nightly', 3, ' '", "'nightly', 3, NULL"} {
		ends(t, try(t, pool, "SELECT fencing.lower_fence("+arguments+")"), "22023")
	}
	ends(t, try(t, pool, "SELECT fencing.lower_fence('no such', 3, 'why')"), "42704")
	finds(t, pool, "34 0", "SELECT token || ' ' || (SELECT count(*) FROM fencing.bypass_log) FROM fencing.fence")
	finds(t, pool, int64(34), "SELECT fencing.lower_fence('nightly', 0, 'why')")
	finds(t, pool, "nightly 0", "SELECT name || ' ' || token FROM fencing.fence")
	// Lowering one opens no door for another, nor for the same one later in the transaction.
	claim(t, pool, "nightly", 34)
	claim(t, pool, "other", 34)
	for _, sql := range []string{"UPDATE fencing.fence SET token = 1 WHERE name = 'other'", "UPDATE fencing.fence SET token = 1 WHERE name = 'nightly'"} {
		ends(t, try(t, pool, "SELECT fencing.lower_fence('nightly', 30, 'why');"+sql), wrongState)
	}
}

// The condition of a row's trigger tells the guard which fence the row has; what it told of an earlier row, or cannot tell, is nothing
// to go by.
func TestEachRowIsCheckedAgainstItsOwnFence(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `
		CREATE TABLE public.told (id int PRIMARY KEY, state text NOT NULL DEFAULT '');
		CREATE TYPE public.mood AS ENUM ('calm', 'cross');
		CREATE FUNCTION public.shout(public.mood) RETURNS text LANGUAGE sql IMMUTABLE RETURN 'CALM';
		CREATE CAST (public.mood AS text) WITH FUNCTION public.shout;
		CREATE TABLE public.untold (id int NOT NULL, mood public.mood NOT NULL, state text NOT NULL DEFAULT '');
		INSERT INTO public.told VALUES (1), (2);
		INSERT INTO public.untold VALUES (1, 'calm'), (2, 'calm'), (1, 'cross');
		SELECT fencing.protect('public.told', fence => 'told/{id}'), fencing.protect('public.untold', fence => 'untold/{id}/{mood}');
		SELECT fencing.claim('told/1', 34), fencing.claim('untold/1/calm', 34)`)
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ"} {
		for _, c := range []struct{ sql, want string }{
			{"UPDATE public.told SET state = 'x' WHERE id = 1", accepted},
			{"UPDATE public.untold SET state = 'x' WHERE id = 1 AND mood = 'calm'", accepted},
			{"UPDATE public.untold SET state = 'x' WHERE id = 2", "ZF004"},
			{"UPDATE public.untold SET state = 'x' WHERE mood = 'cross'", "ZF004"},
			{"UPDATE public.told SET state = 'x' WHERE id = 2", "ZF004"},
			// From an accepted fence to another, and back.
			{"UPDATE public.told SET id = 3 WHERE id = 1", "ZF004"},
			{"UPDATE public.told SET id = 1 WHERE id = 2", "ZF004"},
			{"UPDATE public.untold SET mood = 'cross' WHERE id = 1 AND mood = 'calm'", "ZF004"},
		} {
			for _, before := range []string{"", "UPDATE public.told SET state = 'y' WHERE id = 1;", "UPDATE public.untold SET state = 'y' WHERE id = 1 AND mood = 'calm';"} {
				err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)}, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), "SELECT fencing.present(34);"+before+c.sql)
					return err
				})
				ends(t, err, c.want)
			}
		}
	}
}
