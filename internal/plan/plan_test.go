package plan_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/internal/plan"
	"github.com/fencectl/fencectl/migrations"
)

// Each case is a database, and what is proposed for it: the command, and then each reason and caution. A line may be cut at "…".
var cases = []struct {
	name  string
	sql   string
	stats string // a condition on the statistics, which before PostgreSQL 15 come in late
	want  []string
}{
	{
		name: "nothing is known but the definition",
		sql:  `CREATE TABLE public.jobs (id bigint PRIMARY KEY)`,
		want: []string{"fencectl protect public.jobs --observe", "No write was seen…"},
	},
	{
		name:  "rows are updated now and then",
		sql:   `CREATE TABLE public.jobs (id bigint PRIMARY KEY); INSERT INTO public.jobs SELECT generate_series(1, 9); UPDATE public.jobs SET id = id WHERE id < 4`,
		stats: `pg_catalog.pg_stat_get_tuples_updated('public.jobs'::regclass) = 3`,
		want:  []string{"fencectl protect public.jobs --observe", "Rows are updated, and not deleted…"},
	},
	{
		name: "rows are updated again and again",
		sql: `CREATE TABLE public.jobs (id bigint PRIMARY KEY); INSERT INTO public.jobs VALUES (1), (2);
			UPDATE public.jobs SET id = id; UPDATE public.jobs SET id = id; UPDATE public.jobs SET id = id`,
		stats: `pg_catalog.pg_stat_get_tuples_updated('public.jobs'::regclass) = 6`,
		want:  []string{"fencectl protect public.jobs --mode reentrant --observe", "Its rows are written again and again (6 updates of 2 rows)…"},
	},
	{
		name:  "rows are deleted",
		sql:   `CREATE TABLE public."Order Items" ("order" uuid, no smallint, PRIMARY KEY ("order", no)); INSERT INTO public."Order Items" SELECT gen_random_uuid(), 1; DELETE FROM public."Order Items"`,
		stats: `pg_catalog.pg_stat_get_tuples_deleted('public."Order Items"'::regclass) = 1`,
		want:  []string{`fencectl protect public."Order Items" --fence public."Order Items"/{order}/{no} --observe`, "Rows are deleted (1 so far)…"},
	},
	{
		name:  "rows are deleted, and no key names them",
		sql:   `CREATE TABLE public.a (at timestamptz PRIMARY KEY); INSERT INTO public.a VALUES (now()); DELETE FROM public.a; CREATE TABLE public."{b}" (id int); INSERT INTO public."{b}" VALUES (1); DELETE FROM public."{b}"`,
		stats: `pg_catalog.pg_stat_get_tuples_deleted('public."{b}"'::regclass) = 1`,
		want: []string{
			"fencectl protect public.a --fence public.a --observe", "Rows are deleted…", "Its primary key (at) cannot name a row's fence…",
			`fencectl protect public."{b}" --fence public."(b)" --observe`, "Rows are deleted…", "It has no primary key…",
		},
	},
	{
		name:  "rows are only inserted",
		sql:   `CREATE TABLE public.log (id bigint PRIMARY KEY); INSERT INTO public.log VALUES (1)`,
		stats: `pg_catalog.pg_stat_get_tuples_inserted('public.log'::regclass) = 1`,
		want:  []string{"fencectl protect public.log --fence public.log --observe", "Rows were only inserted…"},
	},
	{
		name: "rows belong to others, at two levels, in the order of the parent's key",
		sql: `CREATE TABLE public.orders (shop int, id text, PRIMARY KEY (shop, id));
			CREATE TABLE public.items (id bigint PRIMARY KEY, order_id text NOT NULL, shop_id int NOT NULL,
				CONSTRAINT belongs FOREIGN KEY (order_id, shop_id) REFERENCES public.orders (id, shop) ON DELETE CASCADE);
			CREATE TABLE public.notes (id bigint PRIMARY KEY, item_id bigint REFERENCES public.items ON DELETE CASCADE)`,
		want: []string{
			"fencectl protect public.items --fence public.orders/{shop_id}/{order_id} --observe",
			"Its rows belong to public.orders and are deleted with it (foreign key belongs): one fence for both…",
			"A write of public.orders deletes its rows (foreign key belongs): protect both…",
			"fencectl protect public.notes --fence public.notes/{id} --observe",
			"Its rows are deleted with those of public.items (foreign key notes_item_id_fkey)…",
			"A write of public.items deletes its rows…",
			"fencectl protect public.orders --fence public.orders/{shop}/{id} --observe",
			"What belongs to its rows is deleted with them (public.items): one fence for a row and all that belongs to it.",
		},
	},
	{
		name: "rows belong to a protected table",
		sql: `CREATE TABLE public.orders (id bigint PRIMARY KEY); SELECT fencing.protect('public.orders', fence => 'order/{id}');
			CREATE TABLE public.shops (id bigint PRIMARY KEY); SELECT fencing.protect('public.shops', fence => 'it''s the größte');
			CREATE TABLE public.people (id bigint PRIMARY KEY); SELECT fencing.protect('public.people');
			CREATE TABLE public.a (id bigint PRIMARY KEY REFERENCES public.orders ON DELETE CASCADE);
			CREATE TABLE public.b (id bigint PRIMARY KEY, shop bigint REFERENCES public.shops ON DELETE CASCADE);
			CREATE TABLE public.c (id bigint PRIMARY KEY, person bigint NOT NULL REFERENCES public.people ON DELETE CASCADE);
			CREATE TABLE public.d (id bigint PRIMARY KEY, "order" bigint REFERENCES public.orders ON DELETE CASCADE)`,
		want: []string{
			"fencectl protect public.a --fence order/{id} --observe", "Its rows belong to public.orders…",
			"fencectl protect public.b --fence it's the größte --observe", "Its rows belong to public.shops…",
			"fencectl protect public.c --fence public.c/{id} --observe", "Its rows are deleted with those of public.people…",
			"fencectl protect public.d --fence public.d/{id} --observe", "Its rows are deleted with those of public.orders…", // the column may be NULL
		},
	},
	{
		name: "tables refer to each other, and to themselves",
		sql: `CREATE TABLE public.a (id bigint PRIMARY KEY, up bigint REFERENCES public.a ON DELETE CASCADE);
			CREATE TABLE public.b (id bigint PRIMARY KEY, a bigint NOT NULL REFERENCES public.a ON DELETE CASCADE);
			ALTER TABLE public.a ADD b bigint NOT NULL REFERENCES public.b ON DELETE CASCADE`,
		want: []string{
			"fencectl protect public.a --fence public.b/{b} --observe", "Its rows belong to public.b…", "A write of public.b deletes its rows…",
			"fencectl protect public.b --fence public.b/{id} --observe", "Its rows are deleted with those of public.a…",
			"What belongs to its rows is deleted with them (public.a)…", "A write of public.a deletes its rows…",
		},
	},
	{
		name: "what a fence in the rows cannot be on, and what else is to be minded",
		sql: `CREATE UNLOGGED TABLE public.sessions (id uuid PRIMARY KEY);
			CREATE TABLE public.odd (id bigint PRIMARY KEY, last_fencing_token text);
			CREATE TABLE public.had (id bigint PRIMARY KEY, last_fencing_token bigint);
			CREATE TABLE public.customers (id bigint PRIMARY KEY); CREATE TABLE public.visits (id bigint PRIMARY KEY, customer bigint REFERENCES public.customers ON UPDATE CASCADE);
			CREATE TABLE public.parts (id bigint NOT NULL) PARTITION BY LIST (id); CREATE TABLE public.parts_1 PARTITION OF public.parts FOR VALUES IN (1);
			CREATE RULE "Quiet" AS ON DELETE TO public.parts DO INSTEAD NOTHING;
			CREATE TABLE public.top (id bigint); CREATE TABLE public.under () INHERITS (public.top)`,
		want: []string{
			"fencectl protect public.customers --observe", "No write was seen…",
			"fencectl protect public.had --observe", "No write was seen…", "It has a column last_fencing_token already, which is adopted.",
			"fencectl protect public.odd --fence public.odd/{id} --observe", "It has a column last_fencing_token of its own, of type text…",
			"fencectl protect public.parts --observe", "No write was seen…", "It is partitioned…", `Its rule "Quiet" rewrites statements…`,
			"fencectl protect public.sessions --fence public.sessions/{id} --observe", "It is unlogged…",
			"fencectl protect public.top --observe", "No write was seen…", "1 table inherits from it…",
			"fencectl protect public.under --observe", "No write was seen…",
			"fencectl protect public.visits --observe", "No write was seen…", "A write of public.customers changes its rows (foreign key visits_customer_fkey)…",
		},
	},
	{
		name: "what a plan is not about",
		sql: `CREATE TABLE public.jobs (id bigint PRIMARY KEY); SELECT fencing.protect('public.jobs'); CREATE TABLE public.schema_migrations (version text);
			CREATE VIEW public.v AS SELECT 1; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE public.f (id bigint) SERVER s`,
	},
}

func TestFencesAreProposedFromWhatTheCatalogsSay(t *testing.T) {
	t.Parallel()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			execute(t, pool, c.sql)
			if c.stats != "" {
				await(t, pool, c.stats)
			}
			made := run(t, pool)
			if diff := cmp.Diff(cutLike(c.want, lines(made)), lines(made)); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			// What is proposed can be done.
			for _, p := range made.Proposals {
				pgtest.Exec(t, pool, "SELECT fencing.protect($1::text::regclass, COALESCE(NULLIF($2, ''), 'strict'), NULLIF($3, ''), observe => true)", p.Quoted, p.Mode, p.Fence)
			}
			if rest := lines(run(t, pool)); len(rest) > 0 {
				t.Errorf("after all was protected, these are proposed: %q", rest)
			}
		})
	}
}

// serverWith is a server of its own, with libraries loaded and the fencing schema, that has pg_stat_statements to install.
func serverWith(t *testing.T, libraries ...string) *pgxpool.Pool {
	t.Helper()
	server, err := pgserver.Start(t.Context(), &pgserver.Options{Preload: libraries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if !pgtest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_stat_statements')") {
		t.Skip("this PostgreSQL comes without pg_stat_statements")
	}
	if _, err := migrations.Up(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	return pool
}

// Without the library the view is there and fails: a plan must not.
func TestStatementsThatAreNotLoadedAreNotSeen(t *testing.T) {
	t.Parallel()
	pool := serverWith(t)
	pgtest.Exec(t, pool, "CREATE EXTENSION pg_stat_statements SCHEMA public")
	pgtest.Exec(t, pool, "ALTER SYSTEM SET track_counts = off")
	pgtest.Exec(t, pool, "SELECT pg_reload_conf()")
	await(t, pool, "current_setting('track_counts') = 'off'")
	if diff := cmp.Diff([]plan.NotSeen{
		{What: "writes", Reason: "the server counts none: track_counts is off"},
		{What: "statements", Reason: "pg_stat_statements is installed and not loaded: it has to be in shared_preload_libraries when the server starts"},
	}, run(t, pool).NotSeen); diff != "" {
		t.Error(diff)
	}
}

func TestStatementsTellWhatCountersCannot(t *testing.T) {
	t.Parallel()
	pool := serverWith(t, "pg_stat_statements")
	execute(t, pool, `CREATE TABLE public.bulk (id bigint PRIMARY KEY, v int); CREATE TABLE public.loaded (id bigint PRIMARY KEY); CREATE TABLE public.accounts (id bigint PRIMARY KEY, v int);
		CREATE TABLE public.orm (id bigint PRIMARY KEY, v int, w int); CREATE SCHEMA a; CREATE SCHEMA b; CREATE TABLE a.twice (id bigint); CREATE TABLE b.twice (id bigint);
		CREATE SCHEMA ext`)
	work := []string{
		"INSERT INTO bulk SELECT g, g FROM generate_series(1, 250) g", "UPDATE bulk SET v = v + 1", "TRUNCATE loaded",
		"INSERT INTO accounts VALUES (1, 1), (2, 2)", "SELECT v FROM accounts WHERE id = 1 FOR UPDATE", "UPDATE accounts SET v = 3 WHERE id = 1",
		"INSERT INTO orm VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3)", "UPDATE orm SET v = 2 WHERE id = 1", "UPDATE orm SET w = 2 WHERE id = 1",
		"SET search_path = a", "TRUNCATE twice",
	}
	want := func(missing ...plan.NotSeen) {
		t.Helper()
		if diff := cmp.Diff(missing, run(t, pool).NotSeen); diff != "" {
			t.Errorf("not seen (-want +got):\n%s", diff)
		}
	}
	want(plan.NotSeen{What: "statements", Reason: "pg_stat_statements is not installed in this database (CREATE EXTENSION pg_stat_statements)"})
	pgtest.Exec(t, pool, "CREATE EXTENSION pg_stat_statements SCHEMA ext")
	execute(t, pool, strings.Join(append([]string{"SET search_path = public"}, work...), ";"))
	await(t, pool, "pg_catalog.pg_stat_get_tuples_updated('public.orm'::regclass) = 2")
	got := lines(run(t, pool))
	wanted := []string{
		"fencectl protect public.bulk --fence public.bulk --observe", "A statement changes 250 rows a call…",
		"fencectl protect public.orm --mode reentrant --observe", "2 different statements update it…",
		"fencectl protect public.accounts --fence public.accounts/{id} --observe", "Statements lock what they read and write it later (FOR UPDATE, 1 call)…",
		"fencectl protect a.twice --observe", "No write was seen…", // a name without a schema could be either's
		"fencectl protect b.twice --observe", "No write was seen…",
		"fencectl protect public.loaded --fence public.loaded --observe", "It is truncated (1 time in pg_stat_statements)…",
	}
	if diff := cmp.Diff(cutLike(wanted, got), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if seen := run(t, pool).NotSeen; len(seen) > 0 {
		t.Errorf("not seen: %+v", seen)
	}

	// A role sees what it may see, and says what it may not.
	pgtest.Exec(t, pool, "CREATE ROLE looker LOGIN")
	config := pool.Config().ConnConfig.Copy()
	config.User = "looker"
	looker, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = looker.Close(context.WithoutCancel(t.Context())) })
	unseen := func() string {
		t.Helper()
		made, err := plan.Run(t.Context(), looker, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(made.NotSeen) != 1 {
			return fmt.Sprintf("%+v", made.NotSeen)
		}
		return made.NotSeen[0].Reason
	}
	if got := unseen(); got != "pg_stat_statements may not be read: this needs SELECT on the view, and USAGE on its schema" {
		t.Errorf("without the schema: %s", got)
	}
	pgtest.Exec(t, pool, "GRANT USAGE ON SCHEMA ext TO looker")
	if got := unseen(); !strings.HasSuffix(got, "statements in pg_stat_statements is hidden: this needs membership in pg_read_all_stats") {
		t.Errorf("without pg_read_all_stats: %s", got)
	}
	pgtest.Exec(t, pool, "GRANT pg_read_all_stats TO looker")
	if got := unseen(); got != "[]" {
		t.Errorf("with all: %s", got)
	}
}

// A plan is asked of a busy server: it must not be able to change anything, whatever is in the database.
func TestAPlanIsReadOnly(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	execute(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	db := &watched{pool: pool}
	if _, err := plan.Run(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]pgx.TxOptions{{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}}, db.begun); diff != "" {
		t.Error(diff)
	}
}

// watched notes which transactions are begun.
type watched struct {
	pool  *pgxpool.Pool
	begun []pgx.TxOptions
}

func (w *watched) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	w.begun = append(w.begun, options)
	return w.pool.BeginTx(ctx, options)
}

func TestTheNumberOfStatementsDoesNotGrowWithTheNumberOfTables(t *testing.T) {
	t.Parallel()
	var sent counter
	pool := pgtest.New(t, pgtest.Configure(func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent }))
	count := func() int64 {
		run(t, pool)
		before := sent.Load()
		run(t, pool)
		return sent.Load() - before
	}
	execute(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY)")
	one := count()
	execute(t, pool, `DO $$ BEGIN FOR i IN 1..40 LOOP
		EXECUTE format('CREATE TABLE public.t%s (id bigint PRIMARY KEY, job bigint NOT NULL REFERENCES public.jobs ON DELETE CASCADE)', i); END LOOP; END $$`)
	if many := count(); many != one || one == 0 {
		t.Errorf("%d statements for one table, %d for 41", one, many)
	}
}

// counter counts the statements that are sent.
type counter struct{ atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.Add(1)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestProtectedTablesThatAreNamedAreToldApart(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	execute(t, pool, "CREATE TABLE public.jobs (id bigint PRIMARY KEY); CREATE TABLE public.schema_migrations (version text); SELECT fencing.protect('public.jobs')")
	made, err := plan.Run(t.Context(), pool, []string{"public.jobs", "public.schema_migrations"})
	if err != nil {
		t.Fatal(err)
	}
	if len(made.Protected) != 1 || made.Protected[0].Name != "jobs" || len(made.Proposals) != 1 {
		t.Errorf("plan: %+v", made)
	}
}

func run(t *testing.T, db plan.DB) *plan.Plan {
	t.Helper()
	made, err := plan.Run(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// lines is a plan in the words of the cases.
func lines(made *plan.Plan) []string {
	var all []string
	for _, p := range made.Proposals {
		all = append(all, strings.Join(p.Words(), " "))
		all = append(all, p.Reasons...)
		all = append(all, p.Cautions...)
	}
	return all
}

// cutLike completes each wanted line that is cut, where the line in its place begins like it.
func cutLike(want, got []string) []string {
	full := append([]string(nil), want...)
	for i, line := range full {
		if start, ok := strings.CutSuffix(line, "…"); ok && i < len(got) && strings.HasPrefix(got[i], start) {
			full[i] = got[i]
		}
	}
	return full
}

// execute runs statements in a session of their own: it reports its statistics when it ends.
func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	_, failure := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if failure != nil {
		t.Fatalf("%v\n%s", failure, sql)
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
