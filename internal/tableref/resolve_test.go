package tableref_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/internal/tableref"
)

var longName = strings.Repeat("a_very_long_name", 4)[:63]

// hostile is a database with every kind of relation, and with names that break naive quoting.
func hostile(t *testing.T, opts ...pgtest.Option) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t, opts...)
	pgtest.Exec(t, pool, `
		CREATE TABLE public.jobs (id bigint);
		CREATE TABLE public."Order Items" (id bigint);
		CREATE TABLE public."Größe" (id bigint);
		CREATE TABLE public."select" (id bigint);
		CREATE TABLE public."a.b" (id bigint);
		CREATE TABLE public."say ""hi""" (id bigint);
		CREATE TABLE public."star*" (id bigint);
		CREATE TABLE public.`+longName+` (id bigint, last_fencing_token bigint);
		CREATE SCHEMA "dotted.schema";
		CREATE TABLE "dotted.schema".jobs (id bigint);
		CREATE TABLE "dotted.schema".only_here (id bigint);
		CREATE SCHEMA billing;
		CREATE TABLE billing.jobs (id bigint);
		CREATE TABLE billing."Jobs" (id bigint);
		CREATE TABLE billing.events (at date) PARTITION BY RANGE (at);
		CREATE TABLE billing.events_2026 PARTITION OF billing.events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01') PARTITION BY RANGE (at);
		CREATE TABLE billing.events_2026_01 PARTITION OF billing.events_2026 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
		CREATE VIEW billing.open_jobs AS SELECT * FROM billing.jobs;
		CREATE MATERIALIZED VIEW billing.totals AS SELECT count(*) FROM billing.jobs;
		CREATE SEQUENCE billing.numbers;
		CREATE FOREIGN DATA WRAPPER nowhere;
		CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
		CREATE FOREIGN TABLE billing.remote (id bigint) SERVER elsewhere;`)
	return pool
}

func read(t *testing.T, pool *pgxpool.Pool) *tableref.Catalog {
	t.Helper()
	catalog, err := tableref.Read(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	return catalog
}

func quoted(tables []tableref.Table) []string {
	var names []string
	for _, table := range tables {
		names = append(names, table.Quoted)
	}
	return names
}

func TestArgumentsFindTheirTables(t *testing.T) {
	t.Parallel()
	catalog := read(t, hostile(t))
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"public.jobs"}, []string{"public.jobs"}},
		{[]string{"PUBLIC.Jobs"}, []string{"public.jobs"}},
		{[]string{"Order Items"}, []string{`public."Order Items"`}},
		{[]string{`"Order Items"`}, []string{`public."Order Items"`}},
		{[]string{"Größe"}, []string{`public."Größe"`}},
		{[]string{"select"}, []string{`public."select"`}},
		{[]string{`public."a.b"`}, []string{`public."a.b"`}},
		{[]string{`"a.b"`}, []string{`public."a.b"`}},
		{[]string{`"say ""hi"""`}, []string{`public."say ""hi"""`}},
		{[]string{`"star*"`}, []string{`public."star*"`}},
		{[]string{longName}, []string{"public." + longName}},
		{[]string{`"dotted.schema".jobs`}, []string{`"dotted.schema".jobs`}},
		{[]string{"only_here"}, []string{`"dotted.schema".only_here`}}, // the only one of its name
		{[]string{`billing."Jobs"`}, []string{`billing."Jobs"`}},
		{[]string{"billing.jobs"}, []string{"billing.jobs"}},
		{[]string{"events"}, []string{"billing.events"}},
		// patterns take ordinary tables and roots of partitioned ones, nothing else
		{[]string{"billing.*"}, []string{`billing."Jobs"`, "billing.events", "billing.jobs"}},
		{[]string{"*.jobs"}, []string{"billing.jobs", `"dotted.schema".jobs`, "public.jobs"}},
		{[]string{"b*.e?ents"}, []string{"billing.events"}},
		// several arguments: in their order, each table once
		{[]string{"public.jobs", "billing.events", "public.j*"}, []string{"public.jobs", "billing.events"}},
	} {
		tables, err := catalog.Resolve(tt.args, nil, "table")
		if err != nil {
			t.Errorf("%q: %v", tt.args, err)
			continue
		}
		got, want := quoted(tables), slices.Clone(tt.want)
		if len(tt.args) == 1 {
			slices.Sort(got)
			slices.Sort(want)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.args, diff)
		}
	}
}

func TestAWildcardOverEverythingLeavesOutWhatIsNotTheApplications(t *testing.T) {
	t.Parallel()
	pool := hostile(t)
	pgtest.Exec(t, pool, `CREATE TABLE public.from_extension (id bigint)`)
	// Without a CREATE EXTENSION that ships a table: membership is what pg_depend says.
	pgtest.Exec(t, pool, `INSERT INTO pg_catalog.pg_depend
		SELECT 'pg_class'::regclass, 'public.from_extension'::regclass, 0, 'pg_extension'::regclass, e.oid, 0, 'e' FROM pg_extension e WHERE extname = 'plpgsql'`)
	tables, err := read(t, pool).Resolve([]string{"*.*"}, nil, "table")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range quoted(tables) {
		if strings.HasPrefix(name, "fencing.") || strings.HasPrefix(name, "pg_") || strings.HasPrefix(name, "information_schema.") ||
			strings.Contains(name, "events_2026") || strings.Contains(name, "from_extension") {
			t.Errorf("the pattern matched %s", name)
		}
	}
	if len(tables) != 13 {
		t.Errorf("want the 13 tables of the application, got %d: %q", len(tables), quoted(tables))
	}
	pgtest.Exec(t, pool, `DELETE FROM pg_catalog.pg_depend WHERE objid = 'public.from_extension'::regclass AND deptype = 'e'`)
}

func TestTheSearchPathDecidesBetweenTablesOfOneName(t *testing.T) {
	t.Parallel()
	pool := hostile(t, pgtest.Param("search_path", "billing, public"))
	catalog := read(t, pool)
	for _, tt := range []struct{ arg, want string }{
		{"jobs", "billing.jobs"},
		{`"Jobs"`, `billing."Jobs"`},
		{"Größe", `public."Größe"`},
		{"only_here", `"dotted.schema".only_here`},
	} {
		tables, err := catalog.Resolve([]string{tt.arg}, nil, "table")
		if err != nil {
			t.Errorf("%s: %v", tt.arg, err)
			continue
		}
		if got := quoted(tables); !cmp.Equal(got, []string{tt.want}) {
			t.Errorf("%s: got %q, want %s", tt.arg, got, tt.want)
		}
	}
	// A pattern without schema means what the search_path shows.
	tables, err := catalog.Resolve([]string{"*ob*"}, nil, "table")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := quoted(tables), []string{`billing."Jobs"`, "billing.jobs", "public.jobs"}; !cmp.Equal(got, want) {
		t.Errorf("*ob*: got %q, want %q", got, want)
	}
}

func TestAnArgumentThatNamesNoTableIsToldWhyAndWhatToDo(t *testing.T) {
	t.Parallel()
	pool := hostile(t)
	other := pgtest.Conn(t, pool)
	pgtest.Exec(t, other, "CREATE TEMPORARY TABLE scratch (id bigint)")
	catalog := read(t, pool)
	for _, tt := range []struct {
		arg   string
		parts []string
	}{
		{"jobz", []string{"jobz does not exist", "did you mean"}},
		{"billing.event", []string{"billing.event does not exist", "did you mean billing.events"}},
		{"biling.events", []string{"biling.events does not exist", "did you mean billing.events"}},
		{"nothing_like_it", []string{"nothing_like_it does not exist"}},
		{"jobs", []string{"ambiguous", "public.jobs", "billing.jobs", `"dotted.schema".jobs`}},
		{"billing.JOBS", nil},
		{"billing.open_jobs", []string{"billing.open_jobs is a view", "table below"}},
		{"totals", []string{"billing.totals is a materialized view"}},
		{"billing.remote", []string{"billing.remote is a foreign table", "other server"}},
		{"numbers", []string{"billing.numbers is a sequence"}},
		{"billing.events_2026", []string{"billing.events_2026 is a partition", "billing.events,"}},
		{"events_2026_01", []string{"events_2026_01 is a partition", "billing.events,"}},
		{"scratch", []string{"scratch is a temporary table"}},
		{"fencing.fence", []string{"fencing.fence belongs to fencectl"}},
		{"pg_catalog.pg_class", []string{"pg_class belongs to PostgreSQL"}},
		{"pg_class", []string{"pg_class belongs to PostgreSQL"}},
		{"billing.x*", []string{"no table matches billing.x*"}},
		{"j*", []string{"no table matches j*", "search_path", "'*.j*'"}},
		{"a.b.c", []string{"more than one dot"}},
	} {
		_, err := catalog.Resolve([]string{tt.arg}, nil, "table")
		if tt.parts == nil {
			if err != nil {
				t.Errorf("%s: %v", tt.arg, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: no error", tt.arg)
			continue
		}
		var name *tableref.NameError
		var syntax *tableref.SyntaxError
		if !errors.As(err, &name) && !errors.As(err, &syntax) {
			t.Errorf("%s: want a *NameError or *SyntaxError, got %T", tt.arg, err)
		}
		for _, part := range tt.parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error does not name %q: %v", tt.arg, part, err)
			}
		}
	}
}

func TestCapitalsThatMayMeanTwoTablesAreAskedBack(t *testing.T) {
	t.Parallel()
	catalog := read(t, hostile(t))
	// billing.Jobs: to PostgreSQL it is billing.jobs, to somebody whose shell took the quotes billing."Jobs".
	_, err := catalog.Resolve([]string{"billing.Jobs"}, nil, "table")
	if err == nil || !strings.Contains(err.Error(), "ambiguous") {
		t.Errorf("want an ambiguity, got %v", err)
	}
}

func TestATableKnowsWhetherItHasTheTokenColumn(t *testing.T) {
	t.Parallel()
	catalog := read(t, hostile(t))
	tables, err := catalog.Resolve([]string{longName, "public.jobs"}, nil, "table")
	if err != nil {
		t.Fatal(err)
	}
	if !tables[0].HasColumn || tables[1].HasColumn {
		t.Errorf("HasColumn: %v and %v", tables[0].HasColumn, tables[1].HasColumn)
	}
}

func TestKeepNarrowsPatternsAndNotNames(t *testing.T) {
	t.Parallel()
	catalog := read(t, hostile(t))
	onlyEvents := func(table tableref.Table) bool { return table.Name == "events" }
	tables, err := catalog.Resolve([]string{"billing.*", "public.jobs"}, onlyEvents, "protected table")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := quoted(tables), []string{"billing.events", "public.jobs"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := catalog.Resolve([]string{"public.*"}, onlyEvents, "protected table"); err == nil || !strings.Contains(err.Error(), "no protected table matches public.*") {
		t.Errorf("got %v", err)
	}
}

func TestAPatternLeavesTheTablesOfMigrationToolsOut(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `CREATE TABLE public.goose_db_version (id bigint); CREATE TABLE public."SequelizeMeta" (name text); CREATE TABLE public.jobs (id bigint)`)
	catalog := read(t, pool)
	for _, tt := range []struct {
		arg  string
		keep func(tableref.Table) bool
		want []string
	}{
		{"public.*", nil, []string{"public.jobs"}},
		{"public.goose_db_version", nil, []string{"public.goose_db_version"}}, // whoever names it means it
		{"public.*", func(tableref.Table) bool { return true }, []string{`public."SequelizeMeta"`, "public.goose_db_version", "public.jobs"}},
	} {
		tables, err := catalog.Resolve([]string{tt.arg}, tt.keep, "table")
		if err != nil {
			t.Fatal(err)
		}
		got := quoted(tables)
		slices.Sort(got)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.arg, diff)
		}
	}
}
