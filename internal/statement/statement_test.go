package statement_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/statement"
)

func TestAStatementsTablesAreReadFromItsText(t *testing.T) {
	t.Parallel()
	use := func(kind statement.Kind, name ...string) statement.Use {
		if len(name) == 2 {
			return statement.Use{Schema: name[0], Table: name[1], Kind: kind}
		}
		return statement.Use{Table: name[0], Kind: kind}
	}
	for text, want := range map[string][]statement.Use{
		`UPDATE jobs SET state = $1 WHERE id = $2`:                                                  {use(statement.Update, "jobs")},
		`update only "My Schema"."Order ""Items""" as o set a = 1 from customers c where c.id = 1`:  {use(statement.Update, "My Schema", `Order "Items"`)},
		`UPDATE shop.PUBLIC.Jobs SET a = 1`:                                                         {use(statement.Update, "public", "jobs")},
		`/* UPDATE a SET /* nested */ b */ DELETE -- FROM a` + "\nFROM ONLY (b) USING c":            {use(statement.Delete, "b")},
		`INSERT INTO jobs (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET state = EXCLUDED.state`:   {use(statement.Insert, "jobs"), use(statement.Update, "jobs")},
		`INSERT INTO jobs SELECT 'UPDATE a SET', E'it\'s DELETE FROM b', $q$UPDATE c SET$q$ FROM d`: {use(statement.Insert, "jobs")},
		`WITH gone AS (DELETE FROM jobs RETURNING *), u AS (UPDATE a SET x = 1) INSERT INTO old SELECT * FROM gone`: {
			use(statement.Delete, "jobs"), use(statement.Update, "a"), use(statement.Insert, "old"),
		},
		`MERGE INTO stock s USING sale ON s.id = sale.id WHEN MATCHED THEN UPDATE SET n = 1 WHEN NOT MATCHED THEN INSERT VALUES (1)`: {
			use(statement.Update, "stock"), use(statement.Insert, "stock"),
		},
		`MERGE INTO stock USING sale ON true WHEN MATCHED THEN DELETE`:                       {use(statement.Delete, "stock")},
		`TRUNCATE TABLE ONLY a, public.b RESTART IDENTITY CASCADE`:                           {use(statement.Truncate, "a"), use(statement.Truncate, "public", "b")},
		`COPY jobs (id, state) FROM STDIN`:                                                   {use(statement.Insert, "jobs")},
		`COPY jobs TO STDOUT`:                                                                nil,
		`COPY (SELECT * FROM jobs) TO STDOUT`:                                                nil,
		`SELECT * FROM accounts a JOIN public.owners o ON o.id = a.owner FOR NO KEY UPDATE`:  {use(statement.Lock, "accounts"), use(statement.Lock, "public", "owners")},
		`SELECT * FROM jobs WHERE a IS DISTINCT FROM b FOR UPDATE SKIP LOCKED`:               {use(statement.Lock, "jobs")},
		`SELECT * FROM jobs FOR SHARE`:                                                       nil,
		`SELECT "update", "delete" FROM jobs`:                                                nil,
		`CREATE FUNCTION f() RETURNS void AS 'x' LANGUAGE sql`:                               nil,
		`GRANT UPDATE, DELETE ON jobs TO app`:                                                nil,
		`ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES c ON DELETE CASCADE ON UPDATE CASCADE`: nil,
		``:                               nil,
		`UPDATE`:                         nil,
		`UPDATE "unfinished`:             {use(statement.Update, "unfinished")},
		`DELETE FROM größe WHERE a = 'x`: {use(statement.Delete, "größe")},
	} {
		if diff := cmp.Diff(want, statement.Uses(text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestANameInACommentIsNotMentioned(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`UPDATE jobs SET LAST_FENCING_TOKEN = $1`:                       true,
		`UPDATE jobs SET "last_fencing_token" = $1`:                     true,
		`SELECT set_config('fencing.token', $1, true)`:                  true,
		`SET LOCAL fencing.token = 34`:                                  true,
		`UPDATE jobs SET a = 1 -- last_fencing_token`:                   false,
		`UPDATE jobs SET last_fencing_tokens = 1, a = $1 /* fencing */`: false,
	} {
		if got := statement.Mentions(text, "last_fencing_token", "fencing"); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

// What PostgreSQL accepted once is anybody's text: reading it never fails.
func FuzzUses(f *testing.F) {
	for _, text := range []string{`UPDATE a SET b = E'\'`, `/*`, `$a$`, `"`, `TRUNCATE ,`, `COPY`, "MERGE INTO"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, use := range statement.Uses(text) {
			if use.Table == "" {
				t.Errorf("a table without a name in %q", text)
			}
		}
	})
}
