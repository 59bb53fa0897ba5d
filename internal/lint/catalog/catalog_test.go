package catalog_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/pgtree"
	"github.com/fencectl/fencectl/internal/lint/sqlfile"
)

func apply(t *testing.T, c *catalog.Catalog, script string) {
	t.Helper()
	f := sqlfile.Read("script.sql", script)
	for _, s := range f.Statements {
		text := f.Text[s.Start:s.End]
		tree, err := pgtree.Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		c.Apply(tree, text, "script.sql")
	}
}

func protected(c *catalog.Catalog) (names []string) {
	for _, t := range c.Protected() {
		p, _ := t.Protection()
		what := t.Label() + " " + p.Fence
		for option, is := range map[string]bool{"reentrant": p.Reentrant, "inserts": p.RequireInserts} {
			if is {
				what += " " + option
			}
		}
		names = append(names, strings.Join(strings.Fields(what), " "))
	}
	return names
}

func TestMigrationsSayWhatIsProtected(t *testing.T) {
	t.Parallel()
	for script, want := range map[string][]string{
		`CREATE TABLE jobs (id int); SELECT fencing.protect('jobs')`:                                                                                        {"public.jobs"},
		`CREATE TABLE a.jobs (id int); SELECT fencing.protect('a.jobs'::regclass, mode => 'reentrant')`:                                                     {"a.jobs reentrant"},
		`CREATE TABLE a."Order" (id int); SELECT fencing.protect('a."Order"', 'strict', NULL, 'require')`:                                                   {`a."Order" inserts`},
		`CREATE TABLE Jobs (id int); SELECT fencing.protect('JOBS', fence := 'all')`:                                                                        {"public.jobs all"},
		`SET search_path = app, public; CREATE TABLE jobs (id int); SELECT fencing.protect('jobs')`:                                                         {"app.jobs"},
		`SELECT set_config('search_path', 'app', false); CREATE TABLE jobs (id int); SELECT fencing.protect('jobs')`:                                        {"app.jobs"},
		`CREATE TABLE jobs (id int); SELECT fencing.protect('jobs'); SELECT fencing.unprotect('jobs')`:                                                      nil,
		`CREATE TABLE jobs (id int); SELECT fencing.protect('jobs'); ALTER TABLE jobs RENAME TO tasks`:                                                      {"public.tasks"},
		`CREATE TABLE jobs (id int); SELECT fencing.protect('jobs'); ALTER TABLE jobs SET SCHEMA app`:                                                       {"app.jobs"},
		`CREATE TABLE a.jobs (id int); SELECT fencing.protect('a.jobs'); ALTER SCHEMA a RENAME TO b`:                                                        {"b.jobs"},
		`CREATE TABLE jobs (id int); SELECT fencing.protect('jobs'); DROP TABLE jobs`:                                                                       nil,
		`CREATE TABLE a.jobs (id int); SELECT fencing.protect('a.jobs'); DROP SCHEMA a CASCADE`:                                                             nil,
		`CREATE TABLE jobs (id int); SELECT fencing.protect('jobs'); DROP TABLE jobs; CREATE TABLE jobs (id int)`:                                           nil,
		`CREATE TABLE jobs (id int); DO $$ BEGIN PERFORM fencing.protect('jobs', fence => 'j'); END $$`:                                                     {"public.jobs j"},
		`CREATE TEMPORARY TABLE jobs (id int)`:                                                                                                              nil,
		`SELECT fencing.protect('jobs')`:                                                                                                                    {"public.jobs"},
		`CREATE TABLE jobs (id int); CREATE TABLE IF NOT EXISTS jobs (id int); SELECT fencing.protect('public.jobs'), fencing.protect('jobs', 'reentrant')`: {"public.jobs reentrant"},
	} {
		c := catalog.New()
		apply(t, c, script)
		if diff := cmp.Diff(want, protected(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", script, diff)
		}
		if len(c.Unread) > 0 {
			t.Errorf("%s: %q", script, c.Unread)
		}
	}
}

func TestWhatCannotBeReadIsSaid(t *testing.T) {
	t.Parallel()
	c := catalog.New()
	apply(t, c, `CREATE EXTENSION pg_stat_statements;
		SELECT fencing.protect(relid) FROM chosen;
		DO $$ BEGIN EXECUTE 'CREATE TABLE a (id int)'; END $$;`)
	if len(c.Gaps) != 2 || len(c.Unread) != 1 {
		t.Errorf("%q, %q", c.Gaps, c.Unread)
	}
}

func TestPartitionsAndViewsAreProtectedByWhatTheyAreOf(t *testing.T) {
	t.Parallel()
	c := catalog.New()
	apply(t, c, `
		CREATE TABLE e (at date) PARTITION BY RANGE (at);
		CREATE TABLE e1 PARTITION OF e FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
		CREATE TABLE e2 (at date);
		SELECT fencing.protect('e');
		CREATE VIEW v AS SELECT * FROM e WHERE at > now();
		CREATE VIEW w AS SELECT * FROM v;
		CREATE VIEW counted AS SELECT count(*) FROM e GROUP BY at;
		CREATE VIEW joined AS SELECT e.* FROM e, e2;`)
	of := func(name string) string {
		t.Helper()
		table := c.Find("", name)
		if table == nil {
			return "nothing"
		}
		if _, by := table.Protection(); by != nil {
			return by.Name
		}
		return ""
	}
	for name, want := range map[string]string{"e": "e", "e1": "e", "e2": "", "v": "e", "w": "e", "counted": "", "joined": "", "x": "nothing"} {
		if got := of(name); got != want {
			t.Errorf("%s is protected by %q, want %q", name, got, want)
		}
	}
	apply(t, c, "ALTER TABLE e DETACH PARTITION e1; ALTER TABLE e ATTACH PARTITION e2 FOR VALUES FROM ('2027-01-01') TO ('2028-01-01')")
	if of("e1") != "" || of("e2") != "e" {
		t.Errorf("%q, %q", of("e1"), of("e2"))
	}
}

func TestNamesAreReadAndWrittenAsSQLHasThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"jobs": {"", "jobs"}, "Public.JOBS": {"public", "jobs"}, `"My Schema"."a.b"`: {"My Schema", "a.b"}, `a."b""c"`: {"a", `b"c`},
	} {
		schema, name, ok := catalog.ParseName(text)
		if !ok || schema != want[0] || name != want[1] {
			t.Errorf("%s is %q, %q, %t", text, schema, name, ok)
		}
	}
	for _, text := range []string{"", "a.b.c", `"a`, "a."} {
		if _, _, ok := catalog.ParseName(text); ok {
			t.Errorf("%q is a name", text)
		}
	}
	for name, want := range map[string]string{"jobs": "jobs", "Order Items": `"Order Items"`, "order": `"order"`, `a"b`: `"a""b"`, "größe": `"größe"`, "1a": `"1a"`} {
		if got := catalog.Quote(name); got != want {
			t.Errorf("%s is quoted as %s", name, got)
		}
	}
}
