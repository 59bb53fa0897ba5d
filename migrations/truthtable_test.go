package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// The truth table of a row fence. f is stored, n is what the statement sets the column to, p is what the transaction
// presents: the setting as it is, so that what is no token can be presented too.
const f = 34

const (
	unset   = ""     // n: the statement does not mention the column
	nothing = ""     // p: nothing is presented
	null    = "NULL" // n: the statement sets NULL
)

// outcome is a cell: what enforce refuses with, or the fence that is stored when it accepts.
type outcome struct {
	state string
	fence int64
}

func stores(fence int64) outcome      { return outcome{fence: fence} }
func refuses(state string) outcome    { return outcome{state: state} }
func (o outcome) String() string      { return fmt.Sprintf("SQLSTATE %q, fence %d", o.state, o.fence) }
func (o outcome) kind() (kind string) { return kindOf[o.state] }

// kindOf tells what a guard in observe records where one in enforce would refuse.
var kindOf = map[string]string{stale: "stale", unfenced: "unfenced", invalid: "invalid", unclaimed: "unclaimed", truncate: "truncate"}

// line is a line of the table, with a cell for each of two variants of protection.
type line struct {
	name string
	n, p string
	cell [2]outcome
}

var (
	modes = [2]string{"mode => 'strict'", "mode => 'reentrant'"}

	updateLines = []line{
		//                                      n       p          strict              reentrant
		{"n > f", "35", nothing, both(stores(35))},
		{"n > f, p < f", "35", "33", both(stores(35))},
		{"n > f, p = f", "35", "34", both(stores(35))},
		{"n > f, p = n", "35", "35", both(stores(35))},
		{"n > f, p > n", "35", "36", both(stores(35))},

		{"n < f", "33", nothing, both(refuses(stale))},
		{"n < f, p < f", "33", "33", both(refuses(stale))},
		{"n < f, p = f", "33", "34", both(refuses(stale))},
		{"n < f, p > f", "33", "35", both(refuses(stale))},
		{"n = 0 < f, p > f", "0", "35", both(refuses(stale))},

		{"n = f, nothing presented", unset, nothing, both(refuses(unfenced))},
		{"n = f copied through, nothing presented", "34", nothing, both(refuses(unfenced))},
		{"n = f, p > f", unset, "35", both(stores(35))},
		{"n = f copied through, p > f", "34", "35", both(stores(35))},
		{"n = f, p = f", unset, "34", [2]outcome{refuses(stale), stores(34)}},
		{"n = f copied through, p = f", "34", "34", [2]outcome{refuses(stale), stores(34)}},
		{"n = f, p < f", unset, "33", both(refuses(stale))},
		{"n = f copied through, p < f", "34", "33", both(refuses(stale))},

		{"n negative", "-35", nothing, both(refuses(invalid))},
		{"n negative, p > f", "-35", "35", both(refuses(invalid))},
		{"n NULL", null, nothing, both(refuses(invalid))},
		{"n NULL, p > f", null, "35", both(refuses(invalid))},
	}

	deleteLines = []line{
		{"nothing presented", unset, nothing, both(refuses(unfenced))},
		{"p > f", unset, "35", both(stores(0))},
		{"p = f", unset, "34", [2]outcome{refuses(stale), stores(0)}},
		{"p < f", unset, "33", both(refuses(stale))},
	}

	inserts = [2]string{"inserts => 'allow'", "inserts => 'require'"}

	insertLines = []line{
		//                                                            allow      require
		{"nothing presented", unset, nothing, [2]outcome{stores(0), refuses(unfenced)}},
		{"n = 0, nothing presented", "0", nothing, [2]outcome{stores(0), refuses(unfenced)}},
		{"n = 0, p positive", "0", "35", [2]outcome{stores(0), refuses(unfenced)}},
		{"p positive", unset, "35", both(stores(35))},
		{"n positive", "35", nothing, both(stores(35))},
		{"n positive, p less", "35", "33", both(stores(35))},
		{"n negative", "-35", nothing, both(refuses(invalid))},
		{"n negative, p positive", "-35", "35", both(refuses(invalid))},
	}

	// What is presented but is no token is refused by every write that has to look at it.
	noTokens = []string{"-35", "0", "-0", "NULL", "abc", "34.5", "3e1", "0x22", "34,", "9223372036854775808", "99999999999999999999999"}
)

func both(o outcome) [2]outcome { return [2]outcome{o, o} }

// subject is one table that the lines are tried on.
type subject struct {
	pool    *pgxpool.Pool
	conn    *pgx.Conn
	level   string
	variant int
	observe bool
	rows    int // rows made so far: every line has one of its own
}

// eachSubject runs f for each isolation level, for both variants, in enforce and in observe.
func eachSubject(t *testing.T, variants [2]string, f func(t *testing.T, s *subject)) {
	atEachLevel(t, func(t *testing.T, level string) {
		pool := pgtest.New(t)
		for variant, arguments := range variants {
			for _, observe := range []bool{false, true} {
				s := &subject{pool: pool, conn: pgtest.Conn(t, pool), level: level, variant: variant, observe: observe}
				pgtest.Exec(t, pool, "DROP TABLE IF EXISTS public.jobs; CREATE TABLE public.jobs (id int PRIMARY KEY, state text NOT NULL)")
				pgtest.Exec(t, pool, fmt.Sprintf("SELECT fencing.protect('public.jobs', %s, observe => %t)", arguments, observe))
				enforcement := map[bool]string{false: "enforce", true: "observe"}[observe]
				t.Run(strings.NewReplacer(" => ", " ", "'", "").Replace(arguments)+" "+enforcement, func(t *testing.T) { f(t, s) })
			}
		}
	})
}

// row commits a row whose fence stands at f, and returns its key.
func (s *subject) row(t *testing.T) int {
	t.Helper()
	s.rows++
	pgtest.Exec(t, s.pool, "INSERT INTO public.jobs VALUES ($1, 'before', $2)", s.rows, f)
	return s.rows
}

// write runs a statement in a transaction that presents p, and returns how it ended and what it recorded, one kind of
// violation after the other.
func (s *subject) write(t *testing.T, p, sql string) (recorded string, err error) {
	t.Helper()
	pgtest.Exec(t, s.conn, "BEGIN ISOLATION LEVEL "+s.level)
	defer pgtest.Exec(t, s.conn, "ROLLBACK")
	if p != nothing {
		pgtest.Exec(t, s.conn, "SELECT set_config('fencing.token', $1, true)", p)
	}
	if err := try(t, s.conn, sql); err != nil {
		return "", err
	}
	recorded = pgtest.Value[string](t, s.conn, `SELECT coalesce(string_agg(kind, ' ' ORDER BY id), '')
		FROM fencing.violation WHERE xact = pg_current_xact_id() AND schema_name = 'public' AND table_name = 'jobs'`)
	pgtest.Exec(t, s.conn, "COMMIT")
	return recorded, nil
}

// check compares one cell: want is what enforce does, after the row as a write that goes through leaves it. A guard in
// observe lets everything through, says what it would have refused, and never lets the fence go down.
func (s *subject) check(t *testing.T, id int, l line, sql string, before, after string) {
	t.Helper()
	want := l.cell[s.variant]
	recorded, err := s.write(t, l.p, sql)

	wantState, wantRecorded, wantRow := want.state, "", before
	if s.observe {
		wantState, wantRecorded = accepted, want.kind()
	}
	if wantState == accepted {
		fence := want.fence
		if want.state != accepted {
			fence = f
		}
		wantRow = strings.ReplaceAll(after, "fence", fmt.Sprint(fence))
	}
	ends(t, err, wantState)
	if recorded != wantRecorded {
		t.Errorf("recorded %q, want %q", recorded, wantRecorded)
	}
	row := pgtest.Value[string](t, s.pool, `SELECT coalesce((SELECT state || ' ' || last_fencing_token FROM public.jobs WHERE id = $1), 'no row')`, id)
	if diff := cmp.Diff(wantRow, row); diff != "" {
		t.Errorf("the row afterwards (-want +got):\n%s", diff)
	}
}

func TestUpdateFollowsTheTruthTable(t *testing.T) {
	t.Parallel()
	eachSubject(t, modes, func(t *testing.T, s *subject) {
		for _, l := range updateLines {
			t.Run(l.name, func(t *testing.T) {
				id := s.row(t)
				set := ""
				if l.n != unset {
					set = ", last_fencing_token = " + l.n
				}
				s.check(t, id, l, fmt.Sprintf("UPDATE public.jobs SET state = 'after'%s WHERE id = %d", set, id),
					fmt.Sprint("before ", f), "after fence")
			})
		}
	})
}

func TestDeleteFollowsTheTruthTable(t *testing.T) {
	t.Parallel()
	eachSubject(t, modes, func(t *testing.T, s *subject) {
		for _, l := range deleteLines {
			t.Run(l.name, func(t *testing.T) {
				id := s.row(t)
				s.check(t, id, l, fmt.Sprintf("DELETE FROM public.jobs WHERE id = %d", id), fmt.Sprint("before ", f), "no row")
			})
		}
	})
}

func TestInsertFollowsTheTruthTable(t *testing.T) {
	t.Parallel()
	eachSubject(t, inserts, func(t *testing.T, s *subject) {
		for i, l := range insertLines {
			t.Run(l.name, func(t *testing.T) {
				id := i + 1
				columns, values := "id, state", fmt.Sprintf("%d, 'after'", id)
				if l.n != unset {
					columns, values = columns+", last_fencing_token", values+", "+l.n
				}
				after := "after fence"
				if s.observe && l.cell[s.variant].state != accepted {
					after = "after 0" // let through, but not with a fence that is none
				}
				s.check(t, id, l, fmt.Sprintf("INSERT INTO public.jobs (%s) VALUES (%s)", columns, values), "no row", after)
			})
		}
	})
}

func TestTruncateOfRowFencesIsRefusedUnderEveryToken(t *testing.T) {
	t.Parallel()
	eachSubject(t, modes, func(t *testing.T, s *subject) {
		for _, p := range []string{nothing, "33", "34", "35"} {
			id := s.row(t)
			s.check(t, id, line{p: p, cell: both(refuses(truncate))}, "TRUNCATE public.jobs", fmt.Sprint("before ", f), "no row")
		}
	})
}

func TestWhatIsNoTokenIsRefusedByEveryWrite(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"mode => 'strict'", "mode => 'reentrant'", "fence => 'nightly'", "fence => 'job/{id}'"} {
		t.Run(arguments, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, arguments)
			claim(t, pool, "nightly", 34)
			claim(t, pool, "job/1", 34)
			for _, p := range noTokens {
				for _, sql := range []string{
					"UPDATE public.jobs SET state = 'written' WHERE id = 1",
					"DELETE FROM public.jobs WHERE id = 1",
					"INSERT INTO public.jobs (id, state) VALUES (3, 'written')",
				} {
					refusal := ends(t, try(t, pool, fmt.Sprintf("SELECT set_config('fencing.token', '%s', true); %s", p, sql)), invalid)
					if refusal.Hint == "" {
						t.Errorf("p = %s, %s: no HINT", p, sql)
					}
				}
				for _, sql := range []string{"SELECT fencing.present(%s)", "SELECT fencing.present(%s, 'nightly')"} {
					if p == "NULL" || p == "-35" || p == "0" {
						ends(t, try(t, pool, fmt.Sprintf(sql, p)), invalid)
					}
				}
			}
			if state(t, pool, "jobs", 1) != "new" || state(t, pool, "jobs", 3) != "no row" {
				t.Error("a refused write was committed")
			}
		})
	}
}

// A session that observes must not be stopped by anything that fencing does, nonsense in the setting included.
func TestObserveRefusesNothingThatIsNoTokenEither(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"mode => 'strict'", "mode => 'reentrant'", "fence => 'nightly'", "fence => 'job/{id}'"} {
		t.Run(arguments, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, arguments+", observe => true")
			for _, sql := range []string{
				"UPDATE public.jobs SET state = 'written' WHERE id = 1",
				"INSERT INTO public.jobs (id, state) VALUES (3, 'written')",
				"DELETE FROM public.jobs WHERE id = 1",
			} {
				ends(t, try(t, pool, "SELECT set_config('fencing.token', '-35', true); "+sql), accepted)
			}
			finds(t, pool, []string{"invalid"}, "SELECT array_agg(DISTINCT kind) FROM fencing.violation")
		})
	}
}

// In observe, one transaction that does the same wrong thing in a hundred places leaves one row, and what it did next.
func TestObserveRecordsEachKindOncePerTransactionAndTable(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "observe => true")
	pgtest.Exec(t, pool, "CREATE TABLE public.others (id int PRIMARY KEY); SELECT fencing.protect('public.others', observe => true)")
	pgtest.Exec(t, pool, "INSERT INTO public.jobs SELECT i, 'new', 34 FROM generate_series(10, 109) AS i; INSERT INTO public.others VALUES (1)")

	conn := begin(t, pool, "READ COMMITTED")
	pgtest.Exec(t, conn, `SET LOCAL application_name = 'nightly batch';
		UPDATE public.jobs SET state = 'one'; UPDATE public.jobs SET state = 'two'; DELETE FROM public.jobs WHERE id = 1;
		DELETE FROM public.others`)
	present(t, conn, 33)
	pgtest.Exec(t, conn, "UPDATE public.jobs SET state = 'three' WHERE id >= 10; SAVEPOINT s; TRUNCATE public.others; ROLLBACK TO s")
	pgtest.Exec(t, conn, "COMMIT")
	finds(t, pool, "jobs unfenced, jobs stale, others unfenced", `SELECT string_agg(table_name || ' ' || kind, ', ' ORDER BY table_name, id) FROM fencing.violation`)
	finds(t, pool, true, `SELECT bool_and(role_name = session_user AND application_name = 'nightly batch' AND schema_name = 'public' AND fence IS NULL
		AND at > now() - interval '1 hour') AND count(DISTINCT xact) = 1 FROM fencing.violation`)
	finds(t, pool, "33 34", "SELECT presented || ' ' || stored FROM fencing.violation WHERE kind = 'stale'")
	finds(t, pool, true, "SELECT query LIKE '%UPDATE public.jobs SET state = ''one''%' FROM fencing.violation WHERE kind = 'unfenced' AND table_name = 'jobs'")
	finds(t, pool, true, "SELECT EXISTS (SELECT FROM public.jobs WHERE jsonb_build_object('id', id) = key) FROM fencing.violation WHERE kind = 'stale'")

	// The next transaction is another one.
	pgtest.Exec(t, conn, "UPDATE public.jobs SET state = 'four'")
	finds(t, pool, 2, "SELECT count(*) FROM fencing.violation WHERE kind = 'unfenced' AND table_name = 'jobs'")
}

// A role that may not bypass gains nothing by trying, in observe either.
func TestObserveKeepsTheFenceUpAgainstABypassThatIsNotHonoured(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "observe => true")
	pgtest.Exec(t, pool, under(34, "UPDATE public.jobs SET state = 'fenced'"))
	app := pgtest.Role(t, pool, "SELECT, UPDATE ON public.jobs")
	pgtest.Exec(t, app.Pool, "SELECT set_config('fencing.bypass', 'no reason', true); UPDATE public.jobs SET state = 'lowered', last_fencing_token = 1 WHERE id = 1")
	finds(t, pool, int64(34), "SELECT last_fencing_token FROM public.jobs WHERE id = 1")
	finds(t, pool, []string{"stale"}, "SELECT array_agg(kind) FROM fencing.violation")
}

// The ways to present are one: whichever is used, the same is accepted and stored.
func TestEveryWayToPresentIsTheSame(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	for i, presents := range []string{
		"SELECT fencing.present(%d); UPDATE public.jobs SET state = 'x' WHERE id = 1",
		"SET LOCAL fencing.token = %d; UPDATE public.jobs SET state = 'x' WHERE id = 1",
		"SET LOCAL fencing.token = ' +%d '; UPDATE public.jobs SET state = 'x' WHERE id = 1",
		"UPDATE public.jobs SET state = 'x', last_fencing_token = fencing.present(%d) WHERE id = 1",
		"SET fencing.token = %d; UPDATE public.jobs SET state = 'x' WHERE id = 1; RESET fencing.token",
	} {
		token := int64(40 + i)
		pgtest.Exec(t, pool, fmt.Sprintf(presents, token))
		finds(t, pool, token, "SELECT last_fencing_token FROM public.jobs WHERE id = 1")
	}

	// As PGOPTIONS does.
	batch := pgtest.Conn(t, fencedPool(t, pool, "-c fencing.token=50"))
	pgtest.Exec(t, batch, "UPDATE public.jobs SET state = 'x' WHERE id = 1")
	finds(t, pool, int64(50), "SELECT last_fencing_token FROM public.jobs WHERE id = 1")
}

// fencedPool is another pool on the same database, whose sessions are started with options.
func fencedPool(t *testing.T, pool *pgxpool.Pool, options string) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	config.ConnConfig.RuntimeParams["options"] = options
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	return other
}
