package migrations_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// The holes that hand-written fencing leaves open (section 3 of the design). Each test shows the damage first, on
// public.plain or with the wrong design, and then that a protected table does not suffer it.

// byHand is the usual predicate: it fences the statements that have it.
func byHand(token int64, set string) string {
	return fmt.Sprintf("UPDATE public.plain SET %s, last_fencing_token = %d WHERE id = 1 AND last_fencing_token < %[2]d", set, token)
}

func TestAForgottenStatementIsRefused(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	pgtest.Exec(t, pool, byHand(34, "state = 'new holder'"))
	pgtest.Exec(t, pool, under(34, "UPDATE public.jobs SET state = 'new holder' WHERE id = 1"))

	forgotten := []string{
		"UPDATE public.%s SET state = 'zombie' WHERE id = 1",
		"INSERT INTO public.%s (id, state) VALUES (1, 'zombie') ON CONFLICT (id) DO UPDATE SET state = excluded.state",
		"WITH w AS (UPDATE public.%s SET state = 'zombie' WHERE id = 1 RETURNING id) SELECT FROM w",
		"DO $$ BEGIN UPDATE public.%s SET state = 'zombie' WHERE id = 1; END $$",
		"DELETE FROM public.%s WHERE id = 1",
	}
	if pgtest.ServerVersion(t) >= 15 {
		forgotten = append(forgotten,
			"MERGE INTO public.%s AS j USING (VALUES (1)) AS v (id) ON j.id = v.id WHEN MATCHED THEN UPDATE SET state = 'zombie'",
			"MERGE INTO public.%s AS j USING (VALUES (1)) AS v (id) ON j.id = v.id WHEN MATCHED THEN DELETE")
	}
	for _, sql := range forgotten {
		control := begin(t, pool, "READ COMMITTED")
		ends(t, try(t, control, fmt.Sprintf(sql, "plain")), accepted)
		if got := pgtest.Value[string](t, control, "SELECT coalesce((SELECT state FROM public.plain WHERE id = 1), 'no row')"); got == "new holder" {
			t.Errorf("control: %s did no damage", sql)
		}
		pgtest.Exec(t, control, "ROLLBACK")

		ends(t, try(t, pool, fmt.Sprintf(sql, "jobs")), unfenced)
		ends(t, try(t, pool, under(33, fmt.Sprintf(sql, "jobs"))), stale)
	}
	finds(t, pool, "new holder", "SELECT state FROM public.jobs WHERE id = 1")
}

func TestTheHoldersSecondWriteIsPossible(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		arguments string
		want      string
	}{
		"strict: refused, and says that it is one's own": {"", stale},
		"reentrant": {"mode => 'reentrant'", accepted},
		"named":     {"fence => 'nightly'", accepted},
		"template":  {"fence => 'job/{id}'", accepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, c.arguments)
			claim(t, pool, "nightly", 34)
			claim(t, pool, "job/1", 34)
			// Control: by hand, the second write under one token finds no row.
			for i, want := range []int64{1, 0} {
				if got := pgtest.Exec(t, pool, byHand(34, "state = 'x'")).RowsAffected(); got != want {
					t.Errorf("control: write %d by hand changed %d rows, want %d", i+1, got, want)
				}
			}
			write := under(34, "UPDATE public.jobs SET state = state || '+' WHERE id = 1")
			pgtest.Exec(t, pool, write)
			refusal := ends(t, try(t, pool, write), c.want)
			if c.want == stale {
				d := detail(t, refusal)
				if d["presented"] != d["stored"] {
					t.Errorf("DETAIL %v does not tell that it is the same token", d)
				}
			}
			// And both in one transaction.
			ends(t, try(t, pool, under(34, "UPDATE public.jobs SET state = state || '+' WHERE id = 1; UPDATE public.jobs SET state = state || '+' WHERE id = 1")), c.want)
		})
	}
}

// The new holder has read, an older writer commits, the new holder writes what it computed from what it read: the older
// holder's work is gone although every token was checked. Claiming before reading closes it.
func TestClaimBeforeReadPreventsTheLostUpdate(t *testing.T) {
	t.Parallel()
	const setup = "CREATE TABLE public.accounts (id int PRIMARY KEY, balance int NOT NULL); INSERT INTO public.accounts VALUES (1, 100);"
	const read = "SELECT balance FROM public.accounts WHERE id = 1"

	t.Run("control: without a claim it happens", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.New(t)
		pgtest.Exec(t, pool, setup+"SELECT fencing.protect('public.accounts', 'reentrant')")
		older := beginUnder(t, pool, "READ COMMITTED", 33)
		pgtest.Exec(t, older, "UPDATE public.accounts SET balance = balance - 50 WHERE id = 1")
		newer := beginUnder(t, pool, "READ COMMITTED", 34)
		balance := pgtest.Value[int](t, newer, read)
		pgtest.Exec(t, older, "COMMIT")
		pgtest.Exec(t, newer, "UPDATE public.accounts SET balance = $1 WHERE id = 1", balance+10)
		pgtest.Exec(t, newer, "COMMIT")
		finds(t, pool, 110, read) // 60 is right
	})
	t.Run("with a claim it cannot", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.New(t)
		pgtest.Exec(t, pool, setup+"SELECT fencing.protect('public.accounts', fence => 'account/{id}')")
		claim(t, pool, "account/1", 33)
		older := beginUnder(t, pool, "READ COMMITTED", 33)
		pgtest.Exec(t, older, "UPDATE public.accounts SET balance = balance - 50 WHERE id = 1")
		claiming := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('account/1', 34)").Blocked()
		pgtest.Exec(t, older, "COMMIT")
		ends(t, claiming.Wait(), accepted)
		newer := beginUnder(t, pool, "READ COMMITTED", 34)
		balance := pgtest.Value[int](t, newer, read)
		ends(t, try(t, pool, under(33, "UPDATE public.accounts SET balance = balance - 50 WHERE id = 1")), stale)
		pgtest.Exec(t, newer, "UPDATE public.accounts SET balance = $1 WHERE id = 1", balance+10)
		pgtest.Exec(t, newer, "COMMIT")
		finds(t, pool, 60, read)
	})
}

func TestAnOldHolderCannotWriteARowThatTheNewOneHasNotTouched(t *testing.T) {
	t.Parallel()
	atEachLevel(t, func(t *testing.T, level string) {
		pool := fencedJobs(t, "")
		pgtest.Exec(t, pool, under(34, "UPDATE public.jobs SET state = 'new holder' WHERE id = 1"))
		untouched := "UPDATE public.jobs SET state = 'zombie' WHERE id = 2"
		// Control: a row fence knows only its own row.
		ends(t, try(t, pool, under(33, untouched)), accepted)

		pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', fence => 'nightly')")
		claim(t, pool, "nightly", 34)
		old := beginUnder(t, pool, level, 33)
		ends(t, try(t, old, untouched), stale)
		pgtest.Exec(t, old, "ROLLBACK")
		ends(t, try(t, pool, under(34, untouched)), accepted)
	})
}

func TestAnOldHolderCannotBringBackWhatTheNewOneDeleted(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	again := "INSERT INTO public.jobs (id, state) VALUES (1, 'zombie')"
	pgtest.Exec(t, pool, under(34, "DELETE FROM public.jobs WHERE id = 1"))
	// Control: the row fence went with its row.
	ends(t, try(t, pool, under(33, again)), accepted)

	for _, fence := range []string{"nightly", "job/{id}"} {
		pgtest.Exec(t, pool, fmt.Sprintf("SELECT fencing.protect('public.jobs', fence => '%s')", fence))
		claim(t, pool, "nightly", 35)
		claim(t, pool, "job/1", 35)
		pgtest.Exec(t, pool, under(35, "DELETE FROM public.jobs WHERE id = 1"))
		ends(t, try(t, pool, under(33, again)), stale)
		ends(t, try(t, pool, again), unfenced)
	}
}

func TestTruncateDoesNotEraseFences(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	// Control: the fence kept by hand is gone, and the zombie's write goes through.
	pgtest.Exec(t, pool, byHand(34, "state = 'new holder'")+"; TRUNCATE public.plain; INSERT INTO public.plain VALUES (1, 'new')")
	if got := pgtest.Exec(t, pool, byHand(33, "state = 'zombie'")).RowsAffected(); got != 1 {
		t.Errorf("control: the zombie changed %d rows, want 1", got)
	}

	ends(t, try(t, pool, "TRUNCATE public.jobs"), truncate)
	pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', fence => 'job/{id}')")
	ends(t, try(t, pool, under(34, "TRUNCATE public.jobs")), truncate)
	pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', fence => 'nightly')")
	claim(t, pool, "nightly", 34)
	ends(t, try(t, pool, "TRUNCATE public.jobs"), unfenced)
	ends(t, try(t, pool, under(33, "TRUNCATE public.jobs")), stale)
	ends(t, try(t, pool, under(34, "TRUNCATE public.jobs")), accepted)
	ends(t, try(t, pool, under(33, "INSERT INTO public.jobs (id, state) VALUES (1, 'zombie')")), stale)

	// A TRUNCATE that comes by a foreign key is a TRUNCATE.
	pgtest.Exec(t, pool, "CREATE TABLE public.batches (id int PRIMARY KEY); ALTER TABLE public.jobs ADD batch int REFERENCES public.batches")
	ends(t, try(t, pool, "TRUNCATE public.batches CASCADE"), unfenced)
}

func TestAPausedHolderInATransactionDoesNotBlockItsSuccessorForEver(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "fence => 'nightly'")
	claim(t, pool, "nightly", 33)
	write := "UPDATE public.jobs SET state = 'paused' WHERE id = 1"

	// Control: the successor waits for as long as the holder is paused.
	paused := beginUnder(t, pool, "READ COMMITTED", 33)
	pgtest.Exec(t, paused, write)
	claiming := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('nightly', 34)").Blocked()
	pgtest.Exec(t, paused, "ROLLBACK")
	ends(t, claiming.Wait(), accepted)

	// A transaction that is bounded by its lease.
	paused = beginUnder(t, pool, "READ COMMITTED", 34)
	pgtest.Exec(t, paused, "SET LOCAL idle_in_transaction_session_timeout = '1s'")
	pgtest.Exec(t, paused, write)
	successor := pgtest.Conn(t, pool)
	claiming = pgtest.Go(t, successor, "SELECT fencing.claim('nightly', 35)")
	ends(t, claiming.Wait(), accepted)
	if err := try(t, paused, "COMMIT"); err == nil {
		t.Error("the paused holder committed after its lease")
	}
	finds(t, pool, "new", "SELECT state FROM public.jobs WHERE id = 1")
	ends(t, try(t, pool, under(34, write)), stale)
}

func TestAPresentationDoesNotLeakToTheNextUserOfAConnection(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "mode => 'reentrant'")
	conn := pgtest.Conn(t, pool)
	next := "UPDATE public.jobs SET state = 'another user' WHERE id = 1"

	// Control: a setting of the session stays.
	pgtest.Exec(t, conn, "BEGIN; SET fencing.token = 34; UPDATE public.jobs SET state = 'first user' WHERE id = 1; COMMIT")
	ends(t, try(t, conn, next), accepted)
	pgtest.Exec(t, conn, "RESET fencing.token")

	for _, ending := range []string{"COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "PREPARE TRANSACTION 'leak'"} {
		pgtest.Exec(t, conn, "BEGIN; SELECT fencing.present(34), fencing.present(34, 'nightly'), fencing.bypass('repair')")
		pgtest.Exec(t, conn, ending)
		if ending == "PREPARE TRANSACTION 'leak'" {
			pgtest.Exec(t, conn, "ROLLBACK PREPARED 'leak'")
		}
		finds(t, conn, true, "SELECT fencing.presented() IS NULL AND fencing.presented('nightly') IS NULL")
		ends(t, try(t, conn, next), unfenced)
		pgtest.Exec(t, conn, "ROLLBACK")
	}
	// Nor out of a procedure that commits in its middle.
	ends(t, try(t, conn, `DO $$ BEGIN PERFORM fencing.present(34); COMMIT; UPDATE public.jobs SET state = 'after' WHERE id = 1; END $$`), unfenced)
}

func TestANullTokenIsRefused(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	// Control: a guard that asks whether the token is stale lets NULL pass, which then lets everything pass.
	pgtest.Exec(t, pool, `
		ALTER TABLE public.plain ALTER last_fencing_token DROP NOT NULL;
		CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'stale'; END $$;
		CREATE TRIGGER naive BEFORE UPDATE ON public.plain FOR EACH ROW WHEN (NEW.last_fencing_token <= OLD.last_fencing_token) EXECUTE FUNCTION public.refuse();
		UPDATE public.plain SET last_fencing_token = 34;
		UPDATE public.plain SET last_fencing_token = NULL;
		UPDATE public.plain SET state = 'zombie', last_fencing_token = 33 WHERE id = 1;`)
	finds(t, pool, "zombie 33", "SELECT state || ' ' || last_fencing_token FROM public.plain WHERE id = 1")

	pgtest.Exec(t, pool, under(34, "UPDATE public.jobs SET state = 'new holder'"))
	ends(t, try(t, pool, "UPDATE public.jobs SET last_fencing_token = NULL"), invalid)
	ends(t, try(t, pool, under(35, "UPDATE public.jobs SET last_fencing_token = NULL")), invalid)
	ends(t, try(t, pool, "INSERT INTO public.jobs VALUES (3, 'x', NULL)"), notNullViolation)
	ends(t, try(t, pool, "SELECT fencing.present(NULL)"), invalid)
	ends(t, try(t, pool, "SELECT fencing.present(NULL, 'nightly')"), invalid)
	ends(t, try(t, pool, "SELECT fencing.claim('nightly', NULL)"), invalid)
	if err := try(t, pool, "SELECT fencing.claim(NULL, 34)"); err == nil {
		t.Error("a fence without a name was claimed")
	}
}

// "0 rows" by hand means two things, and a CTE that asks which sees a snapshot older than the lock. The guard's answer is
// an error exactly when the row is there and newer.
func TestAStaleWriteIsAnErrorAndAMissingRowIsNot(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	const classify = `WITH written AS (UPDATE public.plain SET state = 'zombie', last_fencing_token = 33
		WHERE id = 1 AND last_fencing_token < 33 RETURNING id)
		SELECT CASE WHEN EXISTS (SELECT FROM written) THEN 'written' WHEN (SELECT last_fencing_token >= 33 FROM public.plain WHERE id = 1) THEN 'stale' ELSE 'not found' END`
	for _, c := range []struct{ table, newer string }{
		{"plain", byHand(34, "state = 'new holder'")},
		{"jobs", under(34, "UPDATE public.jobs SET state = 'new holder' WHERE id = 1")},
	} {
		newer := begin(t, pool, "READ COMMITTED")
		pgtest.Exec(t, newer, c.newer)
		older := pgtest.Conn(t, pool)
		var answer string
		var racing *pgtest.Statement
		if c.table == "plain" {
			racing = pgtest.Call(t, older, scanInto(older, &answer, classify))
		} else {
			racing = pgtest.Go(t, older, under(33, "UPDATE public.jobs SET state = 'zombie' WHERE id = 1"))
		}
		racing.Blocked()
		pgtest.Exec(t, newer, "COMMIT")
		if c.table == "plain" {
			ends(t, racing.Wait(), accepted)
			if answer != "not found" {
				t.Errorf("control: the statement said %q", answer)
			}
		} else {
			ends(t, racing.Wait(), stale)
		}
	}
	if got := pgtest.Exec(t, pool, "UPDATE public.jobs SET state = 'x' WHERE id = 99").RowsAffected(); got != 0 {
		t.Errorf("%d rows", got)
	}
}

// The wrong designs: what is checked is right at the time, and no longer when the write commits.
func TestWeakerChecksLetAStaleWriteThroughAndOursDoesNot(t *testing.T) {
	t.Parallel()
	// Each guard checks public.fence, its claim raises it.
	const guard = `
		CREATE TABLE public.fence (name text PRIMARY KEY, token bigint NOT NULL);
		INSERT INTO public.fence VALUES ('nightly', 33);
		CREATE FUNCTION public.check_token() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN %s
			IF (SELECT token FROM public.fence WHERE name = 'nightly') > current_setting('fencing.token')::bigint THEN RAISE EXCEPTION 'stale'; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER check_token BEFORE UPDATE ON public.plain FOR EACH ROW EXECUTE FUNCTION public.check_token()`
	write := "UPDATE public.plain SET state = 'zombie' WHERE id = 1"

	for name, c := range map[string]struct {
		level, lock, claim string
		early              bool // the claim comes before the write: the snapshot is what misleads
	}{
		"plain SELECT":                          {"READ COMMITTED", "", "", false},
		"plain SELECT, repeatable read":         {"REPEATABLE READ", "", "", true},
		"FOR KEY SHARE":                         {"READ COMMITTED", "PERFORM FROM public.fence WHERE name = 'nightly' FOR KEY SHARE;", "", false},
		"shared advisory lock, repeatable read": {"REPEATABLE READ", "PERFORM pg_advisory_xact_lock_shared(1);", "SELECT pg_advisory_xact_lock(1);", true},
	} {
		t.Run("control: "+name, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, "")
			pgtest.Exec(t, pool, fmt.Sprintf(guard, c.lock))
			older := beginUnder(t, pool, c.level, 33)
			if !c.early {
				pgtest.Exec(t, older, write)
			}
			pgtest.Exec(t, older, "SELECT FROM public.plain") // takes the snapshot
			// The claim does not wait, and whoever reads now has not seen what commits later.
			pgtest.Exec(t, pool, c.claim+"UPDATE public.fence SET token = 34 WHERE name = 'nightly'")
			if c.early {
				pgtest.Exec(t, older, write)
			}
			pgtest.Exec(t, older, "COMMIT")
			finds(t, pool, "zombie", "SELECT state FROM public.plain WHERE id = 1")
		})
	}

	atEachLevel(t, func(t *testing.T, level string) {
		pool := fencedJobs(t, "fence => 'nightly'")
		claim(t, pool, "nightly", 33)
		write := "UPDATE public.jobs SET state = state || '+' WHERE id = 1"

		// Written first: the claim waits for it.
		older := beginUnder(t, pool, level, 33)
		pgtest.Exec(t, older, write)
		claiming := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('nightly', 34)").Blocked()
		pgtest.Exec(t, older, "COMMIT")
		ends(t, claiming.Wait(), accepted)

		// The snapshot first, then the claim: the write finds out.
		older = beginUnder(t, pool, level, 34)
		pgtest.Exec(t, older, "SELECT FROM public.jobs")
		claim(t, pool, "nightly", 35)
		endsOneOf(t, try(t, older, write), map[bool][]string{true: {stale}, false: {serializationFailed}}[level == "READ COMMITTED"]...)
		finds(t, pool, "new+", "SELECT state FROM public.jobs WHERE id = 1")
	})
}

func TestClaimsAndGuardsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	t.Run("control: a guard that raises the fence itself", func(t *testing.T) {
		t.Parallel()
		pool := fencedJobs(t, "")
		pgtest.Exec(t, pool, "CREATE TABLE public.fence (name text PRIMARY KEY, token bigint NOT NULL); INSERT INTO public.fence VALUES ('nightly', 33)")
		first, second := begin(t, pool, "READ COMMITTED"), begin(t, pool, "READ COMMITTED")
		pgtest.Exec(t, first, "SELECT FROM public.fence FOR SHARE")
		pgtest.Exec(t, second, "SELECT FROM public.fence FOR SHARE")
		raising := pgtest.Go(t, first, "UPDATE public.fence SET token = 34").Blocked()
		err := try(t, second, "UPDATE public.fence SET token = 34")
		pgtest.Exec(t, second, "ROLLBACK")
		endsOneOf(t, errorOf(err, raising.Wait()), deadlockDetected)
	})
	t.Run("ours", func(t *testing.T) {
		t.Parallel()
		pool := fencedJobs(t, "fence => 'nightly'")
		claim(t, pool, "nightly", 33)
		writes := func(id int) string {
			return fmt.Sprintf("UPDATE public.jobs SET state = state || '+' WHERE id = %d", id)
		}
		first, second := beginUnder(t, pool, "READ COMMITTED", 33), beginUnder(t, pool, "READ COMMITTED", 33)
		pgtest.Exec(t, first, writes(1))
		pgtest.Exec(t, second, writes(2))
		claims := []*pgtest.Statement{
			pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('nightly', 34)").Blocked(),
			pgtest.Go(t, pgtest.Conn(t, pool), "SELECT fencing.claim('nightly', 35)").Blocked(),
		}
		// The writers go on beside the waiting claims, and end.
		pgtest.Exec(t, first, writes(1))
		pgtest.Exec(t, second, writes(2))
		pgtest.Exec(t, first, "COMMIT")
		pgtest.Exec(t, second, "COMMIT")
		for _, c := range claims {
			endsOneOf(t, c.Wait(), accepted, stale) // 34 is stale where 35 came first
		}
		finds(t, pool, int64(35), "SELECT token FROM fencing.fence WHERE name = 'nightly'")
		finds(t, pool, "new++,new++", "SELECT string_agg(state, ',') FROM public.jobs")
	})
}

func errorOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestTokensOfTheSequenceComeInOrder(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	first, second := pgtest.Conn(t, pool), pgtest.Conn(t, pool)
	alternate := func(sql string) (values [3]int64) {
		values[0] = pgtest.Value[int64](t, first, sql)
		values[1] = pgtest.Value[int64](t, second, sql)
		values[2] = pgtest.Value[int64](t, first, sql)
		return values
	}
	// Control: a session that holds a block of numbers hands out old ones later.
	pgtest.Exec(t, pool, "CREATE SEQUENCE public.cached CACHE 10")
	if v := alternate("SELECT nextval('public.cached')"); v[2] > v[1] {
		t.Errorf("control: a cached sequence gave %v", v)
	}
	// Control: a cycling one begins again.
	pgtest.Exec(t, pool, "CREATE SEQUENCE public.cycling MAXVALUE 2 CYCLE")
	if v := alternate("SELECT nextval('public.cycling')"); v[2] > v[1] {
		t.Errorf("control: a cycling sequence gave %v", v)
	}
	if v := alternate("SELECT fencing.next_token()"); v[0] >= v[1] || v[1] >= v[2] {
		t.Errorf("next_token gave %v", v)
	}
	finds(t, pool, "bigint 1 false p", `SELECT format_type(s.seqtypid, NULL) || ' ' || s.seqcache || ' ' || s.seqcycle || ' ' || c.relpersistence::text
		FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid WHERE s.seqrelid = 'fencing.token_seq'::regclass`)
	// It ends with an error, never from the start again.
	pgtest.Exec(t, pool, "SELECT setval('fencing.token_seq', 281474976710655)")
	ends(t, try(t, pool, "SELECT fencing.next_token()"), "2200H")
}

func TestOneAbsurdTokenDoesNotLockEverybodyOut(t *testing.T) {
	t.Parallel()
	const absurd = 9_000_000_000_000
	const epoch = int64(1) << 48
	t.Run("row fence", func(t *testing.T) {
		t.Parallel()
		pool := fencedJobs(t, "")
		write := "UPDATE public.jobs SET state = state || '+' WHERE id = 1"
		pgtest.Exec(t, pool, under(34, write))
		// Control: without a limit the next holder is locked out.
		control := begin(t, pool, "READ COMMITTED")
		pgtest.Exec(t, control, under(absurd, write))
		ends(t, try(t, control, under(35, write)), stale)
		pgtest.Exec(t, control, "ROLLBACK")

		pgtest.Exec(t, pool, "SELECT fencing.protect('public.jobs', max_advance => 1000)")
		for _, sql := range []string{
			under(absurd, write),
			under(35, fmt.Sprintf("UPDATE public.jobs SET state = 'x', last_fencing_token = %d WHERE id = 1", absurd)),
			under(1035, write),
			under(epoch+35, write), // the epoch is not one that this database knows
		} {
			refusal := ends(t, try(t, pool, sql), invalid)
			if d := detail(t, refusal); d["stored"] != float64(34) || refusal.TableName != "jobs" {
				t.Errorf("%s: DETAIL %v, table %q", sql, d, refusal.TableName)
			}
		}
		ends(t, try(t, pool, under(1034, write)), accepted)
		pgtest.Exec(t, pool, "SELECT fencing.source_epoch('etcd', 'a'), fencing.adopt_epoch('etcd', 'b')")
		ends(t, try(t, pool, under(epoch+1034+1001, write)), invalid)
		ends(t, try(t, pool, under(2*epoch+1, write)), invalid)
		ends(t, try(t, pool, under(epoch+35, write)), accepted)
		// A row that was never fenced has nothing to measure from.
		ends(t, try(t, pool, under(absurd, "UPDATE public.jobs SET state = 'x' WHERE id = 2")), accepted)
	})
	for _, fence := range []string{"account/7", "account/{id}"} {
		t.Run("named fence "+fence, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, fmt.Sprintf("fence => '%s'", fence))
			claims := func(token int64) string { return fmt.Sprintf("SELECT fencing.claim('account/7', %d)", token) }
			claim(t, pool, "account/7", 34)
			// Control.
			control := begin(t, pool, "READ COMMITTED")
			pgtest.Exec(t, control, claims(absurd))
			ends(t, try(t, control, claims(35)), stale)
			pgtest.Exec(t, control, "ROLLBACK")

			pgtest.Exec(t, pool, fmt.Sprintf("SELECT fencing.protect('public.jobs', fence => '%s', max_advance => 1000)", fence))
			refusal := ends(t, try(t, pool, claims(absurd)), invalid)
			if d := detail(t, refusal); d["fence"] != "account/7" || d["stored"] != float64(34) || d["presented"] != float64(absurd) {
				t.Errorf("DETAIL %v", d)
			}
			ends(t, try(t, pool, claims(1035)), invalid)
			ends(t, try(t, pool, claims(epoch+35)), invalid)
			ends(t, try(t, pool, claims(1034)), accepted)
			pgtest.Exec(t, pool, "SELECT fencing.source_epoch('etcd', 'a'), fencing.adopt_epoch('etcd', 'b')")
			ends(t, try(t, pool, claims(epoch+1034+1001)), invalid)
			ends(t, try(t, pool, claims(epoch+35)), accepted)
			// A fence of no table has no limit; one that only looks like the template's neither.
			claim(t, pool, "accountx7", 1)
			ends(t, try(t, pool, fmt.Sprintf("SELECT fencing.claim('accountx7', %d)", absurd)), accepted)
		})
	}
	t.Run("an operator lowers the fence", func(t *testing.T) {
		t.Parallel()
		pool := fencedJobs(t, "fence => 'nightly'")
		claim(t, pool, "nightly", absurd)
		finds(t, pool, int64(absurd), "SELECT fencing.lower_fence('nightly', 34, 'a bug in the token source')")
		ends(t, try(t, pool, under(33, "UPDATE public.jobs SET state = 'x'")), stale)
		ends(t, try(t, pool, "SELECT fencing.claim('nightly', 35)"), accepted)
		finds(t, pool, true, `SELECT reason LIKE '%nightly%34%a bug in the token source%' AND role_name = session_user FROM fencing.bypass_log`)
	})
}

// The guards run last, so what another trigger makes of the token is what they see.
func TestAnEarlierTriggerThatRewritesTheTokenIsSeenThrough(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rewrite string
		want    string
	}{
		"lowered":          {"NEW.last_fencing_token := 1", stale},
		"cleared":          {"NEW.last_fencing_token := NULL", invalid},
		"zeroed":           {"NEW.last_fencing_token := 0", stale},
		"taken back":       {"NEW.last_fencing_token := OLD.last_fencing_token", accepted}, // and stamped again
		"OLD row returned": {"NEW := OLD", accepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := fencedJobs(t, "")
			pgtest.Exec(t, pool, under(34, "UPDATE public.jobs SET state = 'x'"))
			pgtest.Exec(t, pool, fmt.Sprintf(`CREATE FUNCTION public.rewrite() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s; RETURN NEW; END $$;
				CREATE TRIGGER updated_at BEFORE UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.rewrite()`, c.rewrite))
			ends(t, try(t, pool, under(35, "UPDATE public.jobs SET state = 'y', last_fencing_token = 35")), c.want)
			want := int64(34)
			if c.want == accepted {
				want = 35
			}
			finds(t, pool, want, "SELECT min(last_fencing_token) FROM public.jobs")
		})
	}
	t.Run("control: a later one undoes it, and protect warns", func(t *testing.T) {
		t.Parallel()
		pool := fencedJobs(t, "")
		pgtest.Exec(t, pool, under(34, "UPDATE public.jobs SET state = 'x'"))
		pgtest.Exec(t, pool, `CREATE FUNCTION public.rewrite() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.last_fencing_token := 1; RETURN NEW; END $$;
			CREATE TRIGGER zzzz BEFORE UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.rewrite()`)
		ends(t, try(t, pool, under(35, "UPDATE public.jobs SET state = 'y'")), accepted)
		finds(t, pool, int64(1), "SELECT min(last_fencing_token) FROM public.jobs")
	})
}

// Only a superuser can switch the guards off for a session, and then they are off: the audit looks for it.
func TestOnlyASuperuserCanSwitchTheGuardsOff(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	ends(t, try(t, pool, "SET LOCAL session_replication_role = replica; UPDATE public.jobs SET state = 'replicated' WHERE id = 1"), accepted)
	app := pgtest.Role(t, pool, "ALL ON public.jobs")
	ends(t, try(t, app.Pool, "SET LOCAL session_replication_role = replica; UPDATE public.jobs SET state = 'zombie' WHERE id = 1"), noPrivilege)
	ends(t, try(t, app.Pool, "ALTER TABLE public.jobs DISABLE TRIGGER ALL"), noPrivilege)
	ends(t, try(t, app.Pool, "DROP TRIGGER zzz_fencing_update ON public.jobs"), noPrivilege)
	ends(t, try(t, app.Pool, "SELECT fencing.unprotect('public.jobs')"), noPrivilege)
	// Deferring constraints defers no guard.
	ends(t, try(t, app.Pool, "SET CONSTRAINTS ALL DEFERRED; UPDATE public.jobs SET state = 'zombie' WHERE id = 1"), unfenced)
}

// Two holders race for one row. By hand the one without the predicate wins; a guard decides by the row as it is when
// the lock is got.
func TestOfTwoRacingWritersTheNewerTokenStays(t *testing.T) {
	t.Parallel()
	race := func(t *testing.T, pool *pgxpool.Pool, level, table string, first, second int64) error {
		t.Helper()
		write := fmt.Sprintf("UPDATE public.%s SET state = '%%d' WHERE id = 1", table)
		ahead, behind := beginUnder(t, pool, level, first), beginUnder(t, pool, level, second)
		pgtest.Exec(t, behind, "SELECT FROM public.jobs") // its snapshot is older than what it waits for
		pgtest.Exec(t, ahead, fmt.Sprintf(write, first))
		racing := pgtest.Go(t, behind, fmt.Sprintf(write, second)).Blocked()
		pgtest.Exec(t, ahead, "COMMIT")
		err := racing.Wait()
		pgtest.Exec(t, behind, "COMMIT")
		return err
	}
	atEachLevel(t, func(t *testing.T, level string) {
		pool := fencedJobs(t, "")
		readCommitted := level == "READ COMMITTED"
		err := race(t, pool, level, "plain", 34, 33)
		if readCommitted {
			ends(t, err, accepted)
			finds(t, pool, "33", "SELECT state FROM public.plain WHERE id = 1") // the damage
		} else {
			ends(t, err, serializationFailed)
		}
		err = race(t, pool, level, "jobs", 34, 33)
		ends(t, err, map[bool]string{true: stale, false: serializationFailed}[readCommitted])
		finds(t, pool, "34", "SELECT state FROM public.jobs WHERE id = 1")
		err = race(t, pool, level, "jobs", 35, 36)
		ends(t, err, map[bool]string{true: accepted, false: serializationFailed}[readCommitted])
	})
}
