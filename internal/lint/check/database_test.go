package check_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/lint/check"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// applied is what a migration makes, with every kind of thing that the catalog knows.
const applied = `
CREATE SCHEMA app;
CREATE TABLE app.jobs (id bigint PRIMARY KEY, state text);
CREATE TABLE app.runs (id bigint PRIMARY KEY, state text, last_fencing_token bigint NOT NULL DEFAULT 0);
CREATE TABLE app.report (day date PRIMARY KEY, sold bigint);
CREATE TABLE app."Order Items" (id bigint PRIMARY KEY, note text);
CREATE TABLE app.events (id bigint, at date NOT NULL) PARTITION BY RANGE (at);
CREATE TABLE app.events_2026 PARTITION OF app.events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE app.free (id bigint);
CREATE VIEW app.open_jobs AS SELECT * FROM app.jobs WHERE state = 'open';
CREATE VIEW app.counted AS SELECT state, count(*) FROM app.jobs GROUP BY state;
SELECT fencing.protect('app.jobs');
SELECT fencing.protect('app.runs', 'reentrant', inserts => 'require');
SELECT fencing.protect('app.report', fence => 'report');
SELECT fencing.protect('app."Order Items"', fence => 'item/{id}');
SELECT fencing.protect('app.events', observe => true);
`

// asked has a statement for each of them.
const asked = `
-- name: A :exec
UPDATE app.jobs SET state = 'x';
-- name: B :exec
UPDATE app.runs SET last_fencing_token = $1 WHERE last_fencing_token < $1;
-- name: C :exec
INSERT INTO app.runs (id) VALUES (1);
-- name: D :exec
UPDATE app.report SET sold = 1 WHERE fencing.present($1) > 0;
-- name: E :exec
DELETE FROM app."Order Items";
-- name: F :exec
DELETE FROM app.events_2026;
-- name: G :exec
UPDATE app.open_jobs SET state = 'y';
-- name: H :exec
UPDATE app.free SET id = 2;
-- name: I :many
SELECT * FROM app.counted, app.nothing;
-- name: J :exec
TRUNCATE app.events;
`

// Whether a server has applied the migrations or they are only read: the same is found.
func TestADatabaseAndItsMigrationsSayTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	migration, queries := filepath.Join(dir, "1_app.sql"), filepath.Join(dir, "queries.sql")
	write(t, migration, "-- +goose Up\n"+applied)
	write(t, queries, asked)
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, applied)
	tables, err := catalog.Load(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}

	found := func(options *check.Options) (lines []string) {
		report, err := check.Run(t.Context(), []string{queries}, options)
		if err != nil {
			t.Fatal(err)
		}
		if report.Summary.Tables != 5 || len(report.Notes) > 0 {
			t.Errorf("%d protected tables are known, and %q", report.Summary.Tables, report.Notes)
		}
		for _, f := range report.Findings {
			lines = append(lines, strings.Join([]string{f.Rule, f.Object, f.Message}, ": "))
		}
		return lines
	}
	static := found(&check.Options{Dir: dir, Migrations: []string{migration}})
	live := found(&check.Options{Dir: dir, Catalog: tables, Schema: "a database"})
	if diff := cmp.Diff(static, live); diff != "" {
		t.Errorf("(-read +asked):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"unfenced-write: app.jobs: UPDATE of app.jobs presents no token",
		"token-predicate: app.runs: UPDATE of app.runs wants last_fencing_token < the token, but its fences are reentrant: the holder's second write of a row finds none, and is taken for stale",
		"unfenced-write: app.runs: INSERT of app.runs presents no token",
		"unfenced-write: app.report: UPDATE of app.report presents its token too late: the guard of a fence for the whole table fires before anything in the statement is evaluated",
		`unfenced-write: app."Order Items": DELETE of app."Order Items" presents no token`,
		"unfenced-write: app.events_2026: DELETE of app.events_2026, a partition of app.events, presents no token",
		"unfenced-write: app.open_jobs: UPDATE of app.open_jobs, a view of app.jobs, presents no token",
		"unknown-table: app.nothing: there is no table app.nothing",
		"truncate-refused: app.events: TRUNCATE of app.events is always refused: its fences are in its rows",
	}, live); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What is said to be refused is refused, and what is said to be fine is not: each statement alone, in a transaction that presents nothing, with
// token 34 as its first parameter.
func TestTheServerAgrees(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	migration := filepath.Join(dir, "1_app.sql")
	write(t, migration, applied)
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, applied)
	for _, sql := range []string{
		"INSERT INTO app.jobs (id, state) VALUES (1, 'open')", "INSERT INTO app.free VALUES (1)",
		"SELECT fencing.claim('report', 34)", "SELECT fencing.claim('item/1', 34)",
	} {
		pgtest.Exec(t, pool, sql)
	}
	for statement, refused := range map[string]bool{
		"UPDATE app.jobs SET state = 'x' WHERE $1::bigint > 0":                                                                                         true,
		"UPDATE app.jobs SET state = 'x', last_fencing_token = $1 WHERE last_fencing_token < $1":                                                       false,
		"UPDATE app.jobs SET state = 'x', last_fencing_token = fencing.present($1)":                                                                    false,
		"UPDATE app.jobs SET state = 'x' WHERE fencing.present($1) > 0":                                                                                false,
		"UPDATE app.open_jobs SET state = 'x' WHERE $1::bigint > 0":                                                                                    true,
		"WITH p AS (SELECT fencing.present($1)) UPDATE app.jobs SET state = 'x'":                                                                       true,
		"WITH p AS (SELECT fencing.present($1) AS t) UPDATE app.jobs SET state = 'x' FROM p":                                                           false,
		"DELETE FROM app.jobs WHERE last_fencing_token < $1":                                                                                           true,
		"DELETE FROM app.jobs WHERE last_fencing_token < fencing.present($1)":                                                                          false,
		"INSERT INTO app.jobs (id) SELECT $1":                                                                                                          false,
		"INSERT INTO app.jobs (id) SELECT 1 WHERE $1::bigint > 0 ON CONFLICT (id) DO UPDATE SET state = 'x'":                                           true,
		"INSERT INTO app.jobs (id, last_fencing_token) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET last_fencing_token = EXCLUDED.last_fencing_token": false,
		"INSERT INTO app.runs (id) SELECT $1":                                                                                                          true,
		"INSERT INTO app.runs (id, last_fencing_token) VALUES (1, $1)":                                                                                 false,
		"INSERT INTO app.report (day, sold) SELECT now(), fencing.present($1)":                                                                         true,
		`INSERT INTO app."Order Items" (id) SELECT 1 WHERE fencing.present($1) > 0`:                                                                    false,
		`INSERT INTO app."Order Items" (id) SELECT 1 WHERE (SELECT fencing.hold('item/1', $1)) = $1`:                                                   false,
		`INSERT INTO app."Order Items" (id) SELECT 1 WHERE $1::bigint > 0`:                                                                             true,
		"MERGE INTO app.jobs USING app.free ON jobs.id = free.id WHEN MATCHED THEN UPDATE SET state = 'x', last_fencing_token = $1":                    false,
		"MERGE INTO app.jobs USING app.free ON jobs.id = free.id AND $1::bigint > 0 WHEN MATCHED THEN UPDATE SET state = 'x'":                          true,
		"WITH gone AS (DELETE FROM app.jobs WHERE $1::bigint > 0 RETURNING *) SELECT * FROM gone":                                                      true,
	} {
		if strings.HasPrefix(statement, "MERGE") && pgtest.ServerVersion(t) < 15 {
			continue
		}
		query := filepath.Join(t.TempDir(), "query.sql")
		write(t, query, "-- name: A :exec\n"+statement+";\n")
		report, err := check.Run(t.Context(), []string{query}, &check.Options{Dir: dir, Migrations: []string{migration}})
		if err != nil {
			t.Fatal(err)
		}
		if found := len(report.Findings) > 0; found != refused {
			t.Errorf("%s: found %+v", statement, report.Findings)
		}
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), statement, int64(34))
		if state := pgtest.SQLState(err); (state != "") != refused || (refused && state != "ZF002") {
			t.Errorf("%s: the server says %v", statement, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Files that nobody can read do not stop the rest silently.
func TestAFileThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tables.sql"), "CREATE TABLE jobs (id int); SELECT fencing.protect('jobs');")
	if err := os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, "dangling.sql")); err != nil {
		t.Fatal(err)
	}
	if _, err := check.Run(t.Context(), []string{dir}, nil); err == nil || !strings.Contains(err.Error(), "dangling.sql") {
		t.Errorf("the error is %v", err)
	}
}
