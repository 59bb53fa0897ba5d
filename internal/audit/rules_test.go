package audit_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

// Each case is a database in which nothing is to be found, what somebody does to it, the findings that this makes, and that
// the fixes of these findings, run as they are printed, leave nothing to be found.
type ruleCase struct {
	name  string
	from  int      // the first server version that has what the case needs
	until int      // the last one; 0: all that follow
	clean string   // SQL; what then is there gives no finding
	then  string   // SQL; what somebody does
	want  []string // severity, rule, object and message of each finding; the message may be cut at "…"
	// fixes says how many of the findings' fixes are needed: the first ones mend the rest. 0: all.
	fixes int
	skip  int    // but for so many at the beginning, which the rest mend
	leave string // SQL, at the end: what does not go with the database
	stats string // a condition on the statistics, which before PostgreSQL 15 come in late
}

const protectedJobs = `
	CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'new');
	INSERT INTO public.jobs (id) VALUES (1), (2);
	SELECT fencing.protect('public.jobs');`

const partitionedEvents = `
	CREATE TABLE public.events (id bigint NOT NULL, region text NOT NULL, day date NOT NULL, PRIMARY KEY (id, region, day)) PARTITION BY LIST (region);
	CREATE TABLE public.events_eu PARTITION OF public.events FOR VALUES IN ('eu') PARTITION BY RANGE (day);
	CREATE TABLE public.events_eu_2026 PARTITION OF public.events_eu FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
	CREATE TABLE public.events_us PARTITION OF public.events FOR VALUES IN ('us');
	INSERT INTO public.events VALUES (1, 'eu', '2026-05-01'), (2, 'us', '2026-05-01');`

// migrationUndone leaves a database as the version before the last migration left it.
var migrationUndone = func() string {
	names := migrations.Files()
	_, down, err := migrations.Sections(names[len(names)-1])
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("%s; DELETE FROM fencing.goose_db_version WHERE version_id = %d", down, migrations.Latest())
}()

var ruleCases = []ruleCase{
	{
		name: "a table without a fence",
		then: `CREATE TABLE public.jobs (id bigint PRIMARY KEY)`,
		want: []string{"warning unfenced-table public.jobs: has no fence; no write was seen since its statistics began"},
	},
	{
		name: "tables whose names need quoting",
		then: `CREATE SCHEMA "my.schema"; CREATE SCHEMA "$HOME";
			CREATE TABLE "my.schema"."Order Items" (id bigint PRIMARY KEY);
			CREATE TABLE public."Größe" (id bigint);
			CREATE TABLE public."it's ""quoted"" \ and %s $1 {id} *" (id bigint);
			CREATE TABLE "$HOME"."select" (id bigint);
			CREATE TABLE public.` + strings.Repeat("n", 63) + ` (id bigint)`,
		want: []string{
			`warning unfenced-table "$HOME"."select": has no fence…`,
			`warning unfenced-table "my.schema"."Order Items": has no fence…`,
			`warning unfenced-table public."Größe": has no fence…`,
			`warning unfenced-table public."it's ""quoted"" \ and %s $1 {id} *": has no fence…`,
			`warning unfenced-table public.` + strings.Repeat("n", 63) + `: has no fence…`,
		},
	},
	{
		name: "a partitioned table three deep counts once",
		then: partitionedEvents,
		want: []string{"warning unfenced-table public.events: has no fence…"},
	},
	{
		name:  "guards of a row fence are dropped",
		clean: protectedJobs,
		then:  `DROP TRIGGER zzz_fencing_delete ON public.jobs; DROP TRIGGER zzz_fencing_insert ON public.jobs`,
		want:  []string{"error guard-missing public.jobs: 2 of its guards are gone: zzz_fencing_delete, zzz_fencing_insert"},
	},
	{
		name: "a guard of a row fence with every option is dropped",
		clean: `CREATE TABLE public."Odd 'Jobs'" (id bigint PRIMARY KEY);
			SELECT fencing.protect('public."Odd ''Jobs''"', 'reentrant', inserts => 'require', max_advance => 4000000000)`,
		then: `DROP TRIGGER zzz_fencing_update ON public."Odd 'Jobs'"`,
		want: []string{`error guard-missing public."Odd 'Jobs'": one of its guards is gone: zzz_fencing_update`},
	},
	{
		name: "a guard of a template is dropped",
		clean: `CREATE TABLE public.accounts (id bigint PRIMARY KEY, owner varchar(20) NOT NULL);
			SELECT fencing.protect('public.accounts', fence => 'it''s/{owner}\{id}')`,
		then: `DROP TRIGGER zzz_fencing_insert ON public.accounts`,
		want: []string{"error guard-missing public.accounts: one of its guards is gone: zzz_fencing_insert"},
	},
	{
		name:  "the row guard of a partitioned table with a named fence is dropped",
		clean: partitionedEvents + `SELECT fencing.protect('public.events', fence => 'events')`,
		then:  `DROP TRIGGER zzz_fencing_row ON public.events`,
		want:  []string{"error guard-missing public.events: one of its guards is gone: zzz_fencing_row"},
	},
	{
		name:  "all guards of a row fence are dropped",
		clean: protectedJobs,
		then: `DO $$ DECLARE g record; BEGIN
			FOR g IN SELECT tgname FROM pg_catalog.pg_trigger WHERE tgrelid = 'public.jobs'::regclass LOOP
				EXECUTE format('DROP TRIGGER %I ON public.jobs', g.tgname);
			END LOOP; END $$`,
		want: []string{"error guard-missing public.jobs: has the token column of a row fence and no guard…"},
	},
	{
		name:  "a table is copied with LIKE",
		clean: protectedJobs,
		then:  `CREATE TABLE public.jobs_next (LIKE public.jobs INCLUDING ALL)`,
		want:  []string{"error guard-missing public.jobs_next: has the token column of a row fence and no guard…"},
	},
	{
		name: "a column of a template is renamed",
		clean: `CREATE TABLE public.accounts (id bigint PRIMARY KEY, owner varchar(20) NOT NULL, "own er" text);
			SELECT fencing.protect('public.accounts', fence => 'it''s/{owner}\{id}', max_advance => 9, observe => true);
			SELECT fencing.enforce('public.accounts')`,
		then: `ALTER TABLE public.accounts RENAME COLUMN owner TO "The Owner"`,
		want: []string{"error guard-altered public.accounts: zzz_fencing_delete, zzz_fencing_insert, zzz_fencing_update are not as protect makes them…"},
	},
	{
		name:  "a guard is switched off",
		clean: protectedJobs,
		then:  `ALTER TABLE public.jobs DISABLE TRIGGER zzz_fencing_update`,
		want:  []string{"error guard-disabled public.jobs: its guard zzz_fencing_update is switched off"},
	},
	{
		name:  "all triggers are switched off",
		clean: protectedJobs,
		then:  `ALTER TABLE public.jobs DISABLE TRIGGER ALL`,
		want: []string{"error guard-disabled public.jobs: its guards zzz_fencing_delete, zzz_fencing_insert, zzz_fencing_stamp, " +
			"zzz_fencing_truncate, zzz_fencing_update are switched off"},
	},
	{
		name:  "a guard fires for replicas only",
		clean: protectedJobs,
		then:  `ALTER TABLE public.jobs ENABLE REPLICA TRIGGER zzz_fencing_delete`,
		want:  []string{"error guard-disabled public.jobs: its guard zzz_fencing_delete is switched off"},
	},
	{
		name:  "a guard fires always",
		clean: protectedJobs + `ALTER TABLE public.jobs ENABLE ALWAYS TRIGGER zzz_fencing_delete`,
	},
	{
		name:  "a guard of one partition is switched off",
		clean: partitionedEvents + `SELECT fencing.protect('public.events')`,
		then:  `ALTER TABLE public.events_eu_2026 DISABLE TRIGGER zzz_fencing_delete`,
		want:  []string{"error guard-disabled public.events: its guard zzz_fencing_delete is switched off on public.events_eu_2026"},
	},
	{
		name:  "a role starts its sessions as a replica",
		clean: protectedJobs + `CREATE ROLE "fencectl Replica"`,
		then:  `ALTER ROLE "fencectl Replica" IN DATABASE :database SET session_replication_role = replica`,
		want: []string{`error guard-disabled role "fencectl Replica": every session of this role in this database starts with ` +
			`session_replication_role = replica, in which no guard fires`},
		leave: `DROP ROLE "fencectl Replica"`,
	},
	{
		name:  "every session of a database starts as a replica",
		clean: protectedJobs,
		then:  `ALTER DATABASE :database SET session_replication_role = replica`,
		want:  []string{"error guard-disabled database :database: every session in this database starts with…"},
	},
	{
		name:  "a guard gets another condition",
		clean: protectedJobs,
		then: `CREATE OR REPLACE TRIGGER zzz_fencing_update BEFORE UPDATE ON public.jobs FOR EACH ROW WHEN (false)
			EXECUTE FUNCTION fencing.guard_row('strict', 'enforce')`,
		want: []string{"error guard-altered public.jobs: zzz_fencing_update is not as protect makes it…"},
	},
	{
		name:  "a guard calls another function",
		clean: protectedJobs + `CREATE FUNCTION public.pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`,
		then: `CREATE OR REPLACE TRIGGER zzz_fencing_update BEFORE UPDATE ON public.jobs FOR EACH ROW
			WHEN ((new.last_fencing_token > old.last_fencing_token) IS NOT TRUE) EXECUTE FUNCTION public.pass()`,
		want: []string{"error guard-altered public.jobs: zzz_fencing_update is not as protect makes it…"},
	},
	{
		name:  "a guard has arguments of its own",
		clean: protectedJobs,
		then: `CREATE OR REPLACE TRIGGER zzz_fencing_delete BEFORE DELETE ON public.jobs FOR EACH ROW
			WHEN ((fencing.presented() > old.last_fencing_token) IS NOT TRUE) EXECUTE FUNCTION fencing.guard_row('strict', 'observe')`,
		want: []string{"error guard-altered public.jobs: zzz_fencing_delete is not as protect makes it…"},
	},
	{
		name: "a guard fires for some columns only",
		clean: `CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text);
			SELECT fencing.protect('public.jobs', fence => 'jobs')`,
		then: `CREATE OR REPLACE TRIGGER zzz_fencing_statement BEFORE INSERT OR DELETE OR UPDATE OF state OR TRUNCATE ON public.jobs
			FOR EACH STATEMENT EXECUTE FUNCTION fencing.guard_named('jobs', 'enforce')`,
		want: []string{"error guard-altered public.jobs: zzz_fencing_statement is not as protect makes it…"},
	},
	{
		name:  "a guard is there twice",
		clean: protectedJobs,
		then:  `CREATE TRIGGER another AFTER DELETE ON public.jobs FOR EACH ROW EXECUTE FUNCTION fencing.guard_row('strict', 'enforce')`,
		want:  []string{"error guard-altered public.jobs: another is a guard that protect does not make"},
	},
	{
		name:  "a guard function is replaced",
		clean: protectedJobs,
		then: `CREATE OR REPLACE FUNCTION fencing.guard_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
			SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NEW; END'`,
		want: []string{"error guard-altered function fencing.guard_row(): is not the function that fencectl installed"},
	},
	{
		name:  "functions are altered in other ways than their body",
		clean: protectedJobs,
		then: `ALTER FUNCTION fencing.guard_named() SECURITY INVOKER; ALTER FUNCTION fencing.presented(text) RESET search_path;
			CREATE OR REPLACE FUNCTION fencing.presented() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 9223372036854775807'`,
		want: []string{
			"error guard-altered function fencing.guard_named(): is not the function that fencectl installed",
			"error guard-altered function fencing.presented(): is not the function that fencectl installed",
			"error guard-altered function fencing.presented(fence text): is not the function that fencectl installed",
		},
	},
	{
		name:  "the triggers that keep named fences are dropped and switched off",
		clean: protectedJobs,
		then:  `DROP TRIGGER keep_fences ON fencing.fence; ALTER TABLE fencing.fence DISABLE TRIGGER keep_fence`,
		want: []string{
			"error guard-missing fencing.fence: its trigger keep_fences is gone: fences can be lowered and deleted by hand",
			"error guard-disabled fencing.fence: its trigger keep_fence is switched off: fences can be lowered and deleted by hand",
		},
	},
	{
		name: "a trigger that keeps named fences is another",
		then: `CREATE OR REPLACE TRIGGER keep_fence BEFORE UPDATE ON fencing.fence FOR EACH ROW WHEN (false) EXECUTE FUNCTION fencing.keep_fence()`,
		want: []string{"error guard-altered fencing.fence: its trigger keep_fence is not the one that fencectl installed"},
	},
	{
		name: "triggers run after the guards of a row fence",
		clean: protectedJobs + `
			CREATE FUNCTION public.pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
			CREATE TRIGGER a_first BEFORE UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.pass();
			CREATE TRIGGER zzzz_insert BEFORE INSERT ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.pass();
			CREATE TRIGGER zzzz_delete BEFORE DELETE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.pass();
			CREATE TRIGGER zzzz_after AFTER UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.pass();
			CREATE TRIGGER zzzz_statement BEFORE UPDATE ON public.jobs FOR EACH STATEMENT EXECUTE FUNCTION public.pass();`,
		then: `CREATE TRIGGER zzzz_touch BEFORE UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.pass();
			CREATE TRIGGER "zzz_fencing_update '2'" BEFORE UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.pass();
			CREATE TRIGGER ` + strings.Repeat("z", 63) + ` BEFORE INSERT OR UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.pass();`,
		want: []string{
			`error guard-not-last public.jobs: its trigger "zzz_fencing_update '2'" runs after zzz_fencing_update…`,
			"error guard-not-last public.jobs: its trigger zzzz_touch runs after zzz_fencing_update…",
			"error guard-not-last public.jobs: its trigger " + strings.Repeat("z", 63) + " runs after zzz_fencing_update…",
		},
	},
	{
		name: "a trigger runs after the guards of a template, on a partitioned table",
		clean: partitionedEvents + `SELECT fencing.protect('public.events', fence => 'events/{region}');
			CREATE FUNCTION public.pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';`,
		then: `CREATE TRIGGER zzzz_insert BEFORE INSERT ON public.events FOR EACH ROW EXECUTE FUNCTION public.pass()`,
		want: []string{"error guard-not-last public.events: its trigger zzzz_insert runs after zzz_fencing_insert…"},
		from: 15,
	},
	{
		// Before PostgreSQL 15 renaming a trigger leaves its clones as they are.
		name:  "a trigger runs after the guards of a partitioned table, and its clones after theirs",
		until: 14,
		clean: partitionedEvents + `SELECT fencing.protect('public.events');
			CREATE FUNCTION public.pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';`,
		then: `CREATE TRIGGER zzzz_touch BEFORE UPDATE ON public.events FOR EACH ROW EXECUTE FUNCTION public.pass()`,
		want: []string{
			"error guard-not-last public.events: its trigger zzzz_touch runs after zzz_fencing_update…",
			"error guard-not-last public.events_eu: its trigger zzzz_touch runs after zzz_fencing_update…",
			"error guard-not-last public.events_eu_2026: its trigger zzzz_touch runs after zzz_fencing_update…",
			"error guard-not-last public.events_us: its trigger zzzz_touch runs after zzz_fencing_update…",
		},
	},
	{
		name: "triggers after the guard of a constant fence do no harm",
		clean: `CREATE TABLE public.jobs (id bigint PRIMARY KEY); SELECT fencing.protect('public.jobs', fence => 'jobs');
			CREATE FUNCTION public.pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
			CREATE TRIGGER zzzz_touch BEFORE INSERT OR UPDATE ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.pass();`,
	},
	{
		name:  "the token column may be NULL, and is",
		clean: protectedJobs,
		then: `ALTER TABLE public.jobs ALTER COLUMN last_fencing_token DROP NOT NULL;
			INSERT INTO public.jobs (id, last_fencing_token) VALUES (3, NULL)`,
		want: []string{"error column-invalid public.jobs: its column last_fencing_token may be NULL, which compares with no token"},
	},
	{
		name:  "the token column has no default",
		clean: protectedJobs,
		then:  `ALTER TABLE public.jobs ALTER COLUMN last_fencing_token DROP DEFAULT`,
		want:  []string{"error column-invalid public.jobs: its column last_fencing_token has no default, so new rows are not stamped with the token"},
	},
	{
		name:  "the token column of one partition has another default",
		clean: partitionedEvents + `SELECT fencing.protect('public.events')`,
		then:  `ALTER TABLE public.events_eu_2026 ALTER COLUMN last_fencing_token SET DEFAULT 0`,
		want:  []string{"error column-invalid public.events_eu_2026: its column last_fencing_token has another default than the presented token"},
	},
	{
		name:  "the token column is an identity column that may be NULL, or rather not",
		clean: protectedJobs,
		then: `ALTER TABLE public.jobs ALTER COLUMN last_fencing_token DROP DEFAULT;
			ALTER TABLE public.jobs ALTER COLUMN last_fencing_token ADD GENERATED BY DEFAULT AS IDENTITY`,
		want: []string{"error column-invalid public.jobs: its column last_fencing_token is an identity column"},
	},
	{
		name:  "the token column is dropped, and most guards with it",
		clean: protectedJobs,
		then:  `ALTER TABLE public.jobs DROP COLUMN last_fencing_token CASCADE`,
		want: []string{
			"error guard-missing public.jobs: 4 of its guards are gone: zzz_fencing_delete, zzz_fencing_insert, zzz_fencing_stamp, zzz_fencing_update",
			"error column-invalid public.jobs: its column last_fencing_token is missing",
		},
		fixes: 1,
	},
	{
		name:  "the token column gets another type, for which its guards are dropped",
		clean: protectedJobs,
		then: `DROP TRIGGER zzz_fencing_delete ON public.jobs; DROP TRIGGER zzz_fencing_insert ON public.jobs;
			DROP TRIGGER zzz_fencing_stamp ON public.jobs; DROP TRIGGER zzz_fencing_update ON public.jobs;
			ALTER TABLE public.jobs ALTER COLUMN last_fencing_token TYPE numeric`,
		want: []string{
			"error column-invalid public.jobs: its column last_fencing_token is numeric, not bigint",
			"error partition-unguarded public.jobs: has lost all its row guards…",
		},
	},
	{
		name:  "partitions are added to a table with row fences",
		clean: partitionedEvents + `SELECT fencing.protect('public.events')`,
		then: `CREATE TABLE public.events_asia PARTITION OF public.events FOR VALUES IN ('asia') PARTITION BY RANGE (day);
			CREATE TABLE public.events_asia_2026 PARTITION OF public.events_asia FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
			CREATE TABLE public.events_eu_2027 PARTITION OF public.events_eu FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');
			CREATE TABLE public.events_rest PARTITION OF public.events DEFAULT`,
		want: []string{"warning partition-unguarded public.events: 4 partitions were added and not protected since, so that a TRUNCATE of them " +
			"is not checked: public.events_asia, public.events_asia_2026, public.events_eu_2027 and 1 more"},
	},
	{
		name:  "a partition is added to a table with a named fence",
		clean: partitionedEvents + `SELECT fencing.protect('public.events', fence => 'events', observe => false)`,
		then:  `CREATE TABLE public.events_rest PARTITION OF public.events DEFAULT`,
		want:  []string{"warning partition-unguarded public.events: a partition was added and not protected since, so that a TRUNCATE of it is not checked: public.events_rest"},
	},
	{
		name:  "a partition is detached",
		clean: partitionedEvents + `SELECT fencing.protect('public.events', 'reentrant')`,
		then:  `ALTER TABLE public.events DETACH PARTITION public.events_us`,
		want:  []string{"error partition-unguarded public.events_us: has lost all its row guards, as a partition does when it is detached…"},
	},
	{
		name:  "a partition that was never protected is detached",
		clean: partitionedEvents + `SELECT fencing.protect('public.events', 'reentrant')`,
		then: `CREATE TABLE public.events_rest PARTITION OF public.events DEFAULT;
			ALTER TABLE public.events DETACH PARTITION public.events_rest`,
		want: []string{"error guard-missing public.events_rest: has the token column of a row fence and no guard…"},
	},
	{
		name: "protected tables are attached to one that is not",
		clean: protectedJobs + `CREATE TABLE public.named (id bigint NOT NULL, state text NOT NULL); SELECT fencing.protect('public.named', fence => 'it''s mine', max_advance => 7);
			CREATE TABLE public.alike (id bigint NOT NULL); SELECT fencing.protect('public.alike', 'reentrant', inserts => 'require', max_advance => 9)`,
		then: `CREATE TABLE public.all_alike (LIKE public.alike INCLUDING ALL) PARTITION BY RANGE (id);
			ALTER TABLE public.all_alike ATTACH PARTITION public.alike FOR VALUES FROM (0) TO (100);
			CREATE TABLE public.all_named (id bigint NOT NULL, state text NOT NULL) PARTITION BY RANGE (id);
			ALTER TABLE public.all_named ATTACH PARTITION public.named FOR VALUES FROM (0) TO (100)`,
		want: []string{
			"error guard-missing public.all_alike: has the token column of a row fence and no guard…",
			"warning partition-unguarded public.alike: has guards of its own and is a partition of public.all_alike…",
			"warning partition-unguarded public.named: has guards of its own and is a partition of public.all_named, which is not protected…",
			"warning unfenced-table public.all_named: has no fence…",
		},
		skip:  1,
		fixes: 3,
	},
	{
		name:  "a protected table is attached to one whose column differs from its own",
		clean: protectedJobs,
		then: `CREATE TABLE public.all_jobs (id bigint NOT NULL, state text NOT NULL, last_fencing_token bigint) PARTITION BY RANGE (id);
			ALTER TABLE public.all_jobs ATTACH PARTITION public.jobs FOR VALUES FROM (0) TO (100)`,
		want: []string{
			"warning partition-unguarded public.jobs: has guards of its own and is a partition of public.all_jobs, which is not protected…",
			"warning unfenced-table public.all_jobs: has no fence…",
		},
	},
	{
		name:  "a child inherits from a protected table",
		clean: protectedJobs,
		then:  `CREATE TABLE public."Child" (extra text) INHERITS (public.jobs)`,
		want:  []string{`error inheritance-unguarded public."Child": inherits from public.jobs, which is protected, and has no guard`},
	},
	{
		name:  "a protected child",
		clean: protectedJobs + `CREATE TABLE public.child () INHERITS (public.jobs); SELECT fencing.protect('public.jobs')`,
	},
	{
		name:  "an unlogged table with row fences",
		clean: protectedJobs + `CREATE UNLOGGED TABLE public.sessions (id bigint PRIMARY KEY); SELECT fencing.protect('public.sessions', fence => 'sessions')`,
		then:  `ALTER TABLE public.jobs SET UNLOGGED`,
		want:  []string{"error unlogged-table public.jobs: is unlogged: a crash empties it, and the fences in its rows with it"},
	},
	{
		name:  "the fences themselves are unlogged",
		clean: protectedJobs,
		then:  `ALTER TABLE fencing.fence SET UNLOGGED; ALTER TABLE fencing.lease SET UNLOGGED`,
		want: []string{
			"error unlogged-table fencing.fence: is unlogged: a crash empties it, and every old token is accepted again",
			"error unlogged-table fencing.lease: is unlogged: a crash empties it, and every old token is accepted again",
		},
	},
	{
		name: "rules on a protected table",
		clean: protectedJobs + `CREATE VIEW public.open_jobs AS SELECT id FROM public.jobs; CREATE TABLE public.other (id bigint);
			SELECT fencing.protect('public.other', fence => 'other'); CREATE RULE r AS ON UPDATE TO public.open_jobs DO INSTEAD NOTHING`,
		then: `CREATE RULE "Redirect" AS ON DELETE TO public.jobs DO INSTEAD NOTHING; CREATE RULE also AS ON INSERT TO public.jobs DO ALSO SELECT 1`,
		want: []string{
			`error rule-redirects-write public.jobs: its rule "Redirect" rewrites DELETE`,
			"error rule-redirects-write public.jobs: its rule also rewrites INSERT",
		},
	},
	{
		name:  "the token sequence is cached, counts on and may start over",
		clean: protectedJobs,
		then:  `ALTER SEQUENCE fencing.token_seq CACHE 10 CYCLE NO MAXVALUE`,
		want: []string{
			"error sequence-unsafe fencing.token_seq: keeps 10 numbers ready in each session: a session issues an older token after another has issued a newer one",
			"error sequence-unsafe fencing.token_seq: starts over when it is used up",
			"error sequence-unsafe fencing.token_seq: may count beyond 48 bits, into the epoch of its tokens",
		},
	},
	{
		name: "the token sequence is an integer that counts down",
		then: `ALTER SEQUENCE fencing.token_seq AS integer INCREMENT BY -1 MAXVALUE 1000`,
		want: []string{
			"error sequence-unsafe fencing.token_seq: counts down",
			"error sequence-unsafe fencing.token_seq: is integer: it runs out of tokens early",
		},
	},
	{
		name: "the token sequence is unlogged",
		from: 15,
		then: `ALTER SEQUENCE fencing.token_seq SET UNLOGGED`,
		want: []string{"error sequence-unsafe fencing.token_seq: is unlogged: a crash resets it, and it issues the same tokens again"},
	},
	{
		name:  "the token sequence is moved backwards",
		clean: `SELECT fencing.next_token() FROM generate_series(1, 7); SELECT fencing.acquire_lease('nightly', gen_random_uuid(), '1h')`,
		then:  `SELECT setval('fencing.token_seq', 5)`,
		want:  []string{"error sequence-unsafe fencing.token_seq: was moved backwards: it stands at 5, and has issued 8"},
	},
	{
		name:  "the token sequence is restarted",
		clean: `SELECT fencing.acquire_lease('nightly', gen_random_uuid(), '1h')`,
		then:  `ALTER SEQUENCE fencing.token_seq RESTART`,
		want:  []string{"error sequence-unsafe fencing.token_seq: was moved backwards: it stands at 0, and has issued 1"},
	},
	{
		name: "an absurd token is claimed under the name of a lease",
		clean: `SELECT fencing.acquire_lease('it''s nightly', gen_random_uuid(), '1h'); SELECT fencing.claim('it''s nightly', 1);
			SELECT fencing.claim('fed by etcd', 99999999)`,
		then: `SELECT fencing.claim('it''s nightly', 99999999)`,
		want: []string{"error token-ahead-of-source fence it's nightly: stands at 99999999, and the newest token ever issued for it is 1: every holder is refused"},
	},
	{
		name: "a foreign key cascades from a table without a fence",
		clean: `CREATE TABLE public.customers (id bigint PRIMARY KEY, v bigint UNIQUE); SELECT fencing.protect('public.customers', 'reentrant');
			CREATE TABLE public.orders (id bigint PRIMARY KEY, customer_id bigint REFERENCES public.customers ON DELETE CASCADE, v bigint REFERENCES public.orders ON DELETE CASCADE);
			SELECT fencing.protect('public.orders')`,
		then: `SELECT fencing.unprotect('public.customers')`,
		want: []string{
			"warning unfenced-table public.customers: has no fence…",
			"warning cascade-from-unfenced public.orders: a write of public.customers, which has no fence, changes it through orders_customer_id_fkey (ON DELETE CASCADE)",
		},
		fixes: 1,
	},
	{
		name: "a foreign key of a partitioned table updates from a partitioned table without a fence",
		clean: `CREATE TABLE public.days (day date PRIMARY KEY) PARTITION BY RANGE (day);
			CREATE TABLE public.days_2026 PARTITION OF public.days FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
			SELECT fencing.protect('public.days', fence => 'days');
			CREATE TABLE public.plans (id bigint, day date REFERENCES public.days ON UPDATE CASCADE ON DELETE SET NULL) PARTITION BY LIST (id);
			CREATE TABLE public.plans_1 PARTITION OF public.plans FOR VALUES IN (1);
			SELECT fencing.protect('public.plans', fence => 'plans')`,
		then: `SELECT fencing.unprotect('public.days')`,
		want: []string{
			"warning unfenced-table public.days: has no fence…",
			"warning cascade-from-unfenced public.plans: a write of public.days, which has no fence, changes it through plans_day_fkey (ON DELETE SET NULL, ON UPDATE CASCADE)",
		},
		fixes: 1,
	},
	{
		name:  "rows with row fences are deleted",
		clean: protectedJobs,
		then:  `BEGIN; SELECT fencing.present(7); DELETE FROM public.jobs WHERE id = 2; COMMIT`,
		stats: "pg_catalog.pg_stat_get_tuples_deleted('public.jobs'::regclass) > 0",
		want:  []string{"warning row-fence-with-deletes public.jobs: fences each row in itself, and 1 row was deleted since its statistics began: a deleted row leaves no fence behind"},
	},
	{
		name: "rows with row fences are deleted, and no column may name a fence",
		clean: `CREATE TABLE public."{odd}" (at timestamptz PRIMARY KEY); INSERT INTO public."{odd}" VALUES (now());
			SELECT fencing.protect('public."{odd}"', max_advance => 100)`,
		then:  `BEGIN; SELECT fencing.present(7); DELETE FROM public."{odd}"; COMMIT`,
		stats: `pg_catalog.pg_stat_get_tuples_deleted('public."{odd}"'::regclass) > 0`,
		want:  []string{`warning row-fence-with-deletes public."{odd}": fences each row in itself, and 1 row was deleted…`},
	},
	{
		name:  "an earlier version installed the schema",
		clean: protectedJobs,
		then:  migrationUndone,
		want:  []string{"warning guard-outdated schema fencing: lacks the functions of 00005_protection.sql, which this fencectl installs"},
	},
	{
		name: "the application owns what it writes",
		clean: `CREATE ROLE "audit App" LOGIN; CREATE ROLE audit_writer LOGIN; CREATE ROLE audit_group NOLOGIN; CREATE SCHEMA shop;
			CREATE TABLE shop.granted (id bigint PRIMARY KEY); SELECT fencing.protect('shop.granted'); ALTER TABLE shop.granted OWNER TO "audit App"; GRANT INSERT ON shop.granted TO audit_writer;
			CREATE TABLE shop.columns (id bigint PRIMARY KEY, v int); SELECT fencing.protect('shop.columns'); ALTER TABLE shop.columns OWNER TO "audit App"; GRANT UPDATE (v) ON shop.columns TO audit_writer;
			CREATE TABLE shop.grouped (id bigint PRIMARY KEY); SELECT fencing.protect('shop.grouped'); ALTER TABLE shop.grouped OWNER TO audit_group;
			CREATE TABLE shop.jobs (id serial PRIMARY KEY); SELECT fencing.protect('shop.jobs'); GRANT SELECT ON shop.jobs TO audit_writer;
			CREATE TABLE shop.parts (id bigint) PARTITION BY LIST (id); CREATE TABLE shop.parts_1 PARTITION OF shop.parts FOR VALUES IN (1); SELECT fencing.protect('shop.parts', fence => 'parts');`,
		then:  `CREATE ROLE "audit App_owner"; ALTER TABLE shop.jobs OWNER TO "audit App"; ALTER TABLE shop.parts OWNER TO "audit App"; ALTER TABLE shop.parts_1 OWNER TO "audit App"`,
		want:  []string{`info owner-can-bypass role "audit App": owns 2 protected tables (shop.jobs, shop.parts), can log in, and is the only one who may write them: who writes there can switch the guards off`},
		leave: `DROP OWNED BY "audit App", audit_writer, audit_group, "audit App_owner", "audit App_owner2"; DROP ROLE "audit App", audit_writer, audit_group, "audit App_owner", "audit App_owner2"`,
	},
	{
		name:  "a table is only observed",
		clean: protectedJobs,
		then:  `SELECT fencing.observe('public.jobs'); UPDATE public.jobs SET state = 'done'; UPDATE public.jobs SET state = 'new'`,
		want:  []string{"warning observing public.jobs: is only observed; 1 violation was recorded in the last 24 hours"},
	},
	{
		name:  "a partitioned table is only observed",
		clean: partitionedEvents + `SELECT fencing.protect('public.events')`,
		then:  `SELECT fencing.observe('public.events'); DO $$ BEGIN UPDATE public.events SET id = 3 WHERE id = 1; END $$; UPDATE public.events SET id = 4 WHERE id = 2`,
		want:  []string{"warning observing public.events: is only observed; 2 violations were recorded in the last 24 hours"},
	},
}

func TestEachRuleFindsWhatItIsForAndItsFixMendsIt(t *testing.T) {
	t.Parallel()
	covered := map[string]bool{}
	for _, c := range ruleCases {
		for _, want := range c.want {
			covered[strings.Fields(want)[1]] = true
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if pgtest.ServerVersion(t) < c.from {
				t.Skipf("needs PostgreSQL %d", c.from)
			}
			if c.until > 0 && pgtest.ServerVersion(t) > c.until {
				t.Skipf("needs PostgreSQL %d at most", c.until)
			}
			pool := pgtest.New(t)
			database := pgtest.Value[string](t, pool, "SELECT quote_ident(current_database())")
			in := func(text string) string { return strings.ReplaceAll(text, ":database", database) }
			if c.leave != "" {
				t.Cleanup(func() {
					if _, err := pool.Exec(context.WithoutCancel(t.Context()), c.leave); err != nil {
						t.Error(err)
					}
				})
			}

			runSQL(t, pool, c.clean)
			if got := found(run(t, pool, nil)); len(got) > 0 {
				t.Fatalf("nothing should be found before, but:\n%s", strings.Join(got, "\n"))
			}
			runSQL(t, pool, in(c.then))
			if c.stats != "" {
				await(t, pool, c.stats)
			}
			report := run(t, pool, nil)
			var want []string
			for _, text := range c.want {
				want = append(want, in(text))
			}
			if diff := cmp.Diff(want, cutLike(found(report), want)); diff != "" {
				t.Fatalf("findings (-want +got):\n%s", diff)
			}

			fixes := report.Findings
			if c.fixes > 0 {
				fixes = fixes[:c.fixes]
			}
			fixes = fixes[c.skip:]
			for _, f := range fixes {
				t.Logf("%s: %s", f.Key, f.Fix)
				runFix(t, pool, f.Fix)
			}
			if got := found(run(t, pool, nil)); len(got) > 0 {
				t.Errorf("the fixes should leave nothing to be found, but:\n%s", strings.Join(got, "\n"))
			}
		})
	}
	for _, rule := range audit.Rules() {
		if !covered[rule.Name] && rule.Name != "subscription-writes" && rule.Name != "unfenced-statement" { // have tests of their own
			t.Errorf("no case for the rule %s", rule.Name)
		}
	}
}

// A rule that mends several findings with one fix could hide that the others' fixes do nothing: each is tried alone.
func TestEachFixMendsItsOwnFinding(t *testing.T) {
	t.Parallel()
	for _, c := range ruleCases {
		if c.fixes == 0 || pgtest.ServerVersion(t) < c.from {
			continue
		}
		for i := c.fixes; i < len(c.want); i++ {
			t.Run(fmt.Sprintf("%s: %s", c.name, strings.Fields(c.want[i])[1]), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.New(t)
				runSQL(t, pool, c.clean)
				runSQL(t, pool, c.then)
				finding := run(t, pool, nil).Findings[i]
				runFix(t, pool, finding.Fix)
				for _, f := range run(t, pool, nil).Findings {
					if f.Key == finding.Key {
						t.Errorf("%s is still found after %s", f.Key, finding.Fix)
					}
				}
			})
		}
	}
}

func run(t *testing.T, db audit.DB, options *audit.Options) *audit.Report {
	t.Helper()
	report, err := audit.Run(t.Context(), db, options)
	if err != nil {
		t.Fatal(err)
	}
	// The databases of the tests come without pg_stat_statements; that this is said has a test of its own.
	report.Skipped = slices.DeleteFunc(report.Skipped, func(s audit.Skipped) bool {
		return s.Rule == "unfenced-statement" && strings.HasPrefix(s.Reason, "pg_stat_statements is not installed")
	})
	return report
}

// found is the findings in the words of the cases.
func found(report *audit.Report) []string {
	var lines []string
	for _, f := range report.Findings {
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", f.Severity, f.Rule, f.Object, f.Message))
	}
	return lines
}

// cutLike cuts each line where the wanted one is cut.
func cutLike(lines, want []string) []string {
	for i, line := range lines {
		if i < len(want) {
			if start, ok := strings.CutSuffix(want[i], "…"); ok && strings.HasPrefix(line, start) {
				lines[i] = want[i]
			}
		}
	}
	return lines
}

func runSQL(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if sql == "" {
		return
	}
	// One session for all of it, as psql has one. It reports its statistics when it ends.
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	_, execErr := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if execErr != nil {
		t.Fatalf("%v\n%s", execErr, sql)
	}
	await(t, pool, fmt.Sprintf("NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = %d)", conn.PgConn().PID()))
}

// await asks the server until a condition is true.
func await(t *testing.T, pool *pgxpool.Pool, condition string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for reached := false; !reached; {
		if err := pool.QueryRow(ctx, "SELECT "+condition).Scan(&reached); err != nil {
			t.Fatalf("waiting for %s: %v", condition, err)
		}
	}
}

// runFix runs what mends a finding as it is printed: in psql when it is SQL, in a shell when it is a command.
func runFix(t *testing.T, pool *pgxpool.Pool, fix string) {
	t.Helper()
	if strings.HasSuffix(fix, ";") {
		runSQL(t, pool, fix)
		return
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", fix)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") }),
		"PATH="+filepath.Dir(fencectl(t))+":"+os.Getenv("PATH"), "FENCECTL_DSN="+pgtest.DSN(t, pool))
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", fix, err, output)
	}
}

// binDir is where the command is built.
var binDir string

func TestMain(m *testing.M) {
	var err error
	if binDir, err = os.MkdirTemp("", "fencectl-audit-test"); err != nil {
		panic(err)
	}
	status := m.Run()
	if err := os.RemoveAll(binDir); err != nil {
		panic(err)
	}
	os.Exit(status)
}

var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "fencectl")
	output, err := exec.Command("go", "build", "-o", path, "github.com/fencectl/fencectl/cmd/fencectl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	return path, nil
})

// fencectl is the command itself, built once.
func fencectl(t *testing.T) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatalf("building fencectl: %v", err)
	}
	return path
}
