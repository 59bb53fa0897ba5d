package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// P3: a claim waits for older writers in flight. What they commit is visible to whoever starts reading after it, and
// nothing older commits any more.
func TestAClaimWaitsForOlderWritersInFlightAndEndsThem(t *testing.T) {
	t.Parallel()
	atEachLevel(t, func(t *testing.T, level string) {
		for _, fence := range []string{"nightly", "batch/{batch}"} {
			for _, ending := range []string{"COMMIT", "ROLLBACK", "killed"} {
				t.Run(fence+", the writer's "+ending, func(t *testing.T) {
					t.Parallel()
					pool := pgtest.New(t)
					pgtest.Exec(t, pool, jobs+"ALTER TABLE public.jobs ADD batch int NOT NULL DEFAULT 1")
					pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', fence => $1)", fence)
					name := strings.ReplaceAll(fence, "{batch}", "1")
					claim(t, pool, name, 33)
					write := "UPDATE public.jobs SET state = 'by 33' WHERE id = 1"

					older := beginUnder(t, pool, level, 33)
					pgtest.Exec(t, older, write)
					late := beginUnder(t, pool, level, 33) // has begun, and has not written yet
					pgtest.Exec(t, late, "SELECT FROM public.jobs")

					newer := begin(t, pool, level)
					var previous int64
					claiming := pgtest.Call(t, newer, scanInto(newer, &previous, "SELECT fencing.claim($1, 34)", name)).Blocked()
					if ending == "killed" {
						pgtest.Exec(t, pool, "SELECT pg_terminate_backend($1)", int32(older.PgConn().PID()))
					} else {
						pgtest.Exec(t, older, ending)
					}
					ends(t, claiming.Wait(), accepted)
					if previous != 33 {
						t.Errorf("claim returned %d, want 33", previous)
					}

					// The claim has not committed: an older writer waits for it, and is refused.
					writing := pgtest.Go(t, late, "UPDATE public.jobs SET state = 'by 33' WHERE id = 2").Blocked()
					pgtest.Exec(t, newer, "COMMIT")
					if level == "READ COMMITTED" {
						ends(t, writing.Wait(), stale)
					} else {
						ends(t, writing.Wait(), serializationFailed)
					}
					want := map[bool]string{true: "by 33", false: "new"}[ending == "COMMIT"]
					finds(t, pool, want, "SELECT state FROM public.jobs WHERE id = 1")
					for _, again := range isolationLevels {
						zombie := beginUnder(t, pool, again, 33)
						ends(t, try(t, zombie, write), stale)
					}
				})
			}
		}
	})
}

// Control for the above: in the transaction of the claim itself, a snapshot that was taken before it waited does not show
// what the older writer committed. Hence a claim is a transaction of its own.
func TestAClaimInsideALongerTransactionReadsAnOldSnapshot(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "fence => 'nightly'")
	claim(t, pool, "nightly", 33)
	older := beginUnder(t, pool, "READ COMMITTED", 33)
	pgtest.Exec(t, older, "UPDATE public.jobs SET state = 'by 33' WHERE id = 1")
	newer := begin(t, pool, "REPEATABLE READ")
	claiming := pgtest.Go(t, newer, "SELECT fencing.claim('nightly', 34)").Blocked()
	pgtest.Exec(t, older, "COMMIT")
	ends(t, claiming.Wait(), accepted)
	finds(t, newer, "new", "SELECT state FROM public.jobs WHERE id = 1")
}

func TestAWriteThatWaitsForAClaimIsDecidedByIt(t *testing.T) {
	t.Parallel()
	atEachLevel(t, func(t *testing.T, level string) {
		readCommitted := level == "READ COMMITTED"
		pool := fencedJobs(t, "fence => 'nightly'")
		claim(t, pool, "nightly", 33)
		write := "UPDATE public.jobs SET state = state || '+' WHERE id = 1"
		for _, c := range []struct {
			ending string
			token  int64
			want   string
		}{
			{"ROLLBACK", 33, accepted},
			{"ROLLBACK", 34, unclaimed},
			{"COMMIT", 33, map[bool]string{true: stale, false: serializationFailed}[readCommitted]},
		} {
			claiming := begin(t, pool, "READ COMMITTED")
			claim(t, claiming, "nightly", 34)
			writer := beginUnder(t, pool, level, c.token)
			writing := pgtest.Go(t, writer, write).Blocked()
			pgtest.Exec(t, claiming, c.ending)
			ends(t, writing.Wait(), c.want)
			pgtest.Exec(t, writer, "ROLLBACK")
		}
		// And the claim's own token is good at every level, for a transaction that begins after it.
		ends(t, try(t, beginUnder(t, pool, level, 34), write), accepted)
	})
}

func TestOfTwoRacingClaimsTheGreaterTokenStays(t *testing.T) {
	t.Parallel()
	atEachLevel(t, func(t *testing.T, level string) {
		readCommitted := level == "READ COMMITTED"
		for _, known := range []bool{true, false} {
			for _, c := range []struct {
				first, second int64
				ending        string
				want          string
			}{
				{35, 34, "COMMIT", map[bool]string{true: stale, false: serializationFailed}[readCommitted]},
				{34, 35, "COMMIT", map[bool]string{true: accepted, false: serializationFailed}[readCommitted]},
				{35, 35, "COMMIT", map[bool]string{true: accepted, false: serializationFailed}[readCommitted]},
				{35, 34, "ROLLBACK", accepted},
			} {
				pool := pgtest.New(t)
				if known {
					claim(t, pool, "nightly", 33)
				}
				first, second := begin(t, pool, level), begin(t, pool, level)
				claim(t, first, "nightly", c.first)
				racing := pgtest.Go(t, second, fmt.Sprintf("SELECT fencing.claim('nightly', %d)", c.second)).Blocked()
				pgtest.Exec(t, first, c.ending)
				err := racing.Wait()
				ends(t, err, c.want)
				pgtest.Exec(t, second, "COMMIT")
				want := c.first
				if err == nil {
					want = c.second
				}
				finds(t, pool, want, "SELECT token FROM fencing.fence WHERE name = 'nightly'")
			}
		}
	})
}

func TestClaimReturnsWhatItRaised(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct{ token, previous int64 }{{34, 0}, {34, 34}, {35, 34}, {99, 35}} {
		finds(t, pool, c.previous, "SELECT fencing.claim('nightly', $1)", c.token)
		finds(t, pool, c.token, "SELECT token FROM fencing.fence WHERE name = 'nightly'")
	}
	ends(t, try(t, pool, "SELECT fencing.claim('nightly', 98)"), stale)
	for _, token := range []string{"0", "-1", "NULL"} {
		refusal := ends(t, try(t, pool, fmt.Sprintf("SELECT fencing.claim('nightly', %s)", token)), invalid)
		if refusal.Hint == "" || detail(t, refusal)["fence"] != "nightly" {
			t.Errorf("token %s: DETAIL %q, HINT %q", token, refusal.Detail, refusal.Hint)
		}
	}
	finds(t, pool, true, "SELECT claimed_by = session_user AND claimed_at <= clock_timestamp() FROM fencing.fence")
}

// P5: each refusal has a SQLSTATE of its own and says what was refused, in fields that a program can read and words that
// a person can; and nothing of its transaction stays.
func TestEveryRefusalSaysWhatWasRefusedAndUndoesTheTransaction(t *testing.T) {
	t.Parallel()
	type fields = map[string]any
	const setup = `
		CREATE TABLE public.ledger (entry text);
		CREATE TABLE public.items ("order id" int, line text, PRIMARY KEY (line, "order id"), qty int);
		INSERT INTO public.items VALUES (7, 'a', 1);
		SELECT fencing.protect('public.items', inserts => 'require', max_advance => 1000);
		UPDATE public.items SET qty = 2, last_fencing_token = 34;
		CREATE TABLE public.loose (note text);
		SELECT fencing.protect('public.loose');
		INSERT INTO public.loose VALUES ('x', 34);
		CREATE TABLE public.reports (id int PRIMARY KEY, title text);
		INSERT INTO public.reports VALUES (1, 'x');
		SELECT fencing.protect('public.reports', fence => 'reports');
		CREATE TABLE public.accounts (id int PRIMARY KEY, owner text);
		INSERT INTO public.accounts VALUES (1, 'x');
		SELECT fencing.protect('public.accounts', fence => 'account/{id}');
		SELECT fencing.claim('reports', 34), fencing.claim('account/1', 34);`
	key := fields{"line": "a", "order id": float64(7)}

	for name, c := range map[string]struct {
		sql    string
		state  string
		table  string
		column string
		detail fields
		says   string
	}{
		"stale, row": {
			under(33, "UPDATE public.items SET qty = 3"), stale, "items", "last_fencing_token",
			fields{"key": key, "presented": 33.0, "stored": 34.0},
			"stale",
		},
		"stale, one's own": {
			under(34, "UPDATE public.items SET qty = 3"), stale, "items", "last_fencing_token",
			fields{"key": key, "presented": 34.0, "stored": 34.0},
			"already",
		},
		"stale, the statement's token": {
			"UPDATE public.items SET qty = 3, last_fencing_token = 33", stale, "items", "last_fencing_token",
			fields{"key": key, "presented": 33.0, "stored": 34.0},
			"stale",
		},
		"stale, delete": {
			under(33, "DELETE FROM public.items"), stale, "items", "last_fencing_token",
			fields{"key": key, "presented": 33.0, "stored": 34.0},
			"stale",
		},
		"stale, no key": {
			under(33, "UPDATE public.loose SET note = 'y'"), stale, "loose", "last_fencing_token",
			fields{"presented": 33.0, "stored": 34.0},
			"stale",
		},
		"stale, named": {
			under(33, "UPDATE public.reports SET title = 'y'"), stale, "reports", "",
			fields{"fence": "reports", "presented": 33.0, "stored": 34.0},
			"stale",
		},
		"stale, template": {
			under(33, "UPDATE public.accounts SET owner = 'y'"), stale, "accounts", "",
			fields{"fence": "account/1", "key": fields{"id": 1.0}, "presented": 33.0, "stored": 34.0},
			"stale",
		},
		"unfenced, row": {
			"UPDATE public.items SET qty = 3", unfenced, "items", "last_fencing_token",
			fields{"key": key, "stored": 34.0},
			"no fencing token",
		},
		"unfenced, insert": {
			"INSERT INTO public.items VALUES (8, 'b', 1)", unfenced, "items", "last_fencing_token",
			fields{"key": fields{"line": "b", "order id": 8.0}},
			"no fencing token",
		},
		"unfenced, named": {
			"DELETE FROM public.reports", unfenced, "reports", "",
			fields{"fence": "reports"},
			"no fencing token",
		},
		"unfenced, template": {
			"INSERT INTO public.accounts VALUES (2, 'x')", unfenced, "accounts", "",
			fields{"fence": "account/2", "key": fields{"id": 2.0}},
			"no fencing token",
		},
		"invalid, NULL": {
			"UPDATE public.items SET last_fencing_token = NULL", invalid, "items", "last_fencing_token",
			fields{"key": key, "stored": 34.0},
			"NULL",
		},
		"invalid, negative": {
			"UPDATE public.items SET last_fencing_token = -1", invalid, "items", "last_fencing_token",
			fields{"key": key, "presented": -1.0, "stored": 34.0},
			"-1",
		},
		"invalid, negative insert": {
			"INSERT INTO public.loose VALUES ('y', -1)", invalid, "loose", "last_fencing_token",
			fields{"presented": -1.0},
			"-1",
		},
		"invalid, beyond max_advance": {
			under(9999, "UPDATE public.items SET qty = 3"), invalid, "items", "last_fencing_token",
			fields{"key": key, "presented": 9999.0, "stored": 34.0},
			"max_advance",
		},
		"invalid, presented to a row": {
			"SET LOCAL fencing.token = -5; UPDATE public.items SET qty = 3", invalid, "items", "last_fencing_token",
			fields{"presented": -5.0},
			"-5",
		},
		"invalid, presented to a named fence": {
			"SET LOCAL fencing.token = -5; UPDATE public.reports SET title = 'y'", invalid, "reports", "",
			fields{"fence": "reports", "presented": -5.0},
			"-5",
		},
		"unclaimed, newer": {
			under(35, "UPDATE public.reports SET title = 'y'"), unclaimed, "reports", "",
			fields{"fence": "reports", "presented": 35.0, "stored": 34.0},
			"not claimed",
		},
		"unclaimed, never": {
			under(35, "INSERT INTO public.accounts VALUES (2, 'x')"), unclaimed, "accounts", "",
			fields{"fence": "account/2", "key": fields{"id": 2.0}, "presented": 35.0},
			"never",
		},
		"truncate, row":      {under(35, "TRUNCATE public.items"), truncate, "items", "last_fencing_token", fields{}, "TRUNCATE"},
		"truncate, template": {under(35, "TRUNCATE public.accounts"), truncate, "accounts", "", fields{"fence": "account/{id}"}, "TRUNCATE"},
		"claim, stale": {
			"SELECT fencing.claim('reports', 33)", stale, "fence", "token",
			fields{"fence": "reports", "presented": 33.0, "stored": 34.0},
			"stale",
		},
		"claim, invalid": {
			"SELECT fencing.claim('reports', -1)", invalid, "fence", "token",
			fields{"fence": "reports", "presented": -1.0},
			"-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			pgtest.Exec(t, pool, setup)
			conn := begin(t, pool, "READ COMMITTED")
			pgtest.Exec(t, conn, "INSERT INTO public.ledger VALUES ('before')")
			refusal := ends(t, try(t, conn, c.sql), c.state)
			schema := map[bool]string{true: "fencing", false: "public"}[c.table == "fence"]
			if diff := cmp.Diff([]string{schema, c.table, c.column}, []string{refusal.SchemaName, refusal.TableName, refusal.ColumnName}); diff != "" {
				t.Errorf("schema, table, column (-want +got):\n%s", diff)
			}
			got := detail(t, refusal)
			if strings.HasPrefix(name, "invalid, presented") {
				// What is no token at all may be found out before the row is looked at.
				delete(got, "key")
				delete(got, "stored")
			}
			if diff := cmp.Diff(c.detail, got); diff != "" {
				t.Errorf("DETAIL (-want +got):\n%s", diff)
			}
			if refusal.Hint == "" {
				t.Error("no HINT")
			}
			if !strings.Contains(refusal.Message, c.says) || strings.Contains(refusal.Message, "\n") {
				t.Errorf("the message %q is not one line that contains %q", refusal.Message, c.says)
			}

			ends(t, try(t, conn, "INSERT INTO public.ledger VALUES ('after')"), transactionAborted)
			if tag := pgtest.Exec(t, conn, "COMMIT"); tag.String() != "ROLLBACK" {
				t.Errorf("COMMIT said %s", tag)
			}
			finds(t, pool, 0, "SELECT count(*) FROM public.ledger")
			finds(t, pool, "2 34", "SELECT qty || ' ' || last_fencing_token FROM public.items")
		})
	}
}

// P1 and P2, over what is committed: whatever a random history of tokens tries, the fence of a row only grows and no
// write without a token is in it.
func TestCommittedTokensOfARowOnlyGrow(t *testing.T) {
	t.Parallel()
	atEachLevel(t, func(t *testing.T, level string) {
		pool := fencedJobs(t, "mode => 'reentrant'")
		pgtest.Exec(t, pool, `CREATE TABLE public.history (n bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL);
			CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.history (token) VALUES (NEW.last_fencing_token); RETURN NULL; END $$;
			CREATE TRIGGER note AFTER UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.note()`)
		const writers, writes = 4, 40
		var running []*pgtest.Statement
		for w := range writers {
			conn := pgtest.Conn(t, pool)
			running = append(running, pgtest.Call(t, conn, func(ctx context.Context) error {
				for i := range writes {
					// Tokens that rise on the whole, in another order for every writer.
					token := 1 + i*writers + (w*7+i*3)%11
					_, err := conn.Exec(ctx, fmt.Sprintf("BEGIN ISOLATION LEVEL %s; SELECT fencing.present(%d); UPDATE public.jobs SET state = '%d' WHERE id = 1; COMMIT", level, token, w))
					switch pgtest.SQLState(err) {
					case "", stale, serializationFailed:
					default:
						return err
					}
					if err != nil {
						if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
							return err
						}
					}
				}
				return nil
			}))
		}
		for _, r := range running {
			ends(t, r.Wait(), accepted)
		}
		finds(t, pool, true, "SELECT bool_and(token >= before) AND count(*) > 1 FROM (SELECT token, lag(token, 1, 1::bigint) OVER (ORDER BY n) AS before FROM public.history) h")
	})
}
