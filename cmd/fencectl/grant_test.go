package main

import (
	"strings"
	"testing"

	"github.com/fencectl/fencectl/internal/pgtest"
)

func TestARoleCanDoWhatItWasGrantedForAndNothingElse(t *testing.T) {
	t.Parallel()
	everything := map[string][]string{ // by what they need
		"claim":   {"fence", "claim", "jobs/nightly"},
		"token":   {"token", "next"},
		"lower":   {"fence", "lower", "jobs/nightly", "0", "--reason", "test"},
		"adopt":   {"epoch", "adopt", "etcd", "x"},
		"protect": {"protect", "own.t", "--observe"},
		"status":  {"status"}, "violations": {"violations"}, "list": {"fence", "list"}, "show": {"fence", "show", "jobs/nightly"}, "epochs": {"epoch", "show"},
	}
	for purpose, allowed := range map[string]string{
		"app":             "claim token",
		"migrate":         "protect",
		"monitor":         "status violations list show epochs",
		"operate":         "claim token lower adopt status violations list show epochs",
		"monitor,migrate": "protect status violations list show epochs",
	} {
		t.Run(purpose, func(t *testing.T) {
			t.Parallel()
			pool, owner := shop(t)
			role := pgtest.Role(t, pool)
			pgtest.Exec(t, pool, "CREATE SCHEMA own AUTHORIZATION "+role.Name)
			pgtest.Exec(t, role.Pool, "CREATE TABLE own.t (id bigint PRIMARY KEY)")
			owner.ok("fence", "claim", "jobs/nightly")
			owner.ok("grant", role.Name, "--for", purpose)
			owner.ok("grant", role.Name, "--for", purpose) // again: no harm
			fencectl := newCLI(t, role.DSN)
			for name, args := range everything {
				may := false
				for _, word := range strings.Fields(allowed) {
					may = may || word == name
				}
				if may {
					fencectl.ok(args...)
				} else {
					fencectl.fails(2, []string{"permission denied"}, args...)
				}
			}
		})
	}
}

// A migration role needs no more than its grant for everything that fencing.protect can do to its tables, and its
// application no more than its own privileges to write them under a token.
func TestAMigrationRoleProtectsItsTablesInEveryWay(t *testing.T) {
	t.Parallel()
	pool, owner := shop(t)
	migrate, app := pgtest.Role(t, pool), pgtest.Role(t, pool)
	owner.ok("grant", migrate.Name, "--for", "migrate")
	owner.ok("grant", app.Name)
	pgtest.Exec(t, pool, "CREATE SCHEMA own AUTHORIZATION "+migrate.Name)
	pgtest.Exec(t, migrate.Pool, `CREATE TABLE own.t (id bigint PRIMARY KEY, v text);
		CREATE TABLE own.p (id bigint NOT NULL, at date NOT NULL) PARTITION BY RANGE (at);
		CREATE TABLE own.p1 PARTITION OF own.p FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
		CREATE TABLE own.adopted (id bigint, last_fencing_token bigint DEFAULT 3)`)
	pgtest.Exec(t, migrate.Pool, "GRANT USAGE ON SCHEMA own TO "+app.Name)
	pgtest.Exec(t, migrate.Pool, "GRANT SELECT, INSERT, UPDATE, DELETE ON own.t TO "+app.Name)

	fencectl := newCLI(t, migrate.DSN)
	for _, args := range [][]string{
		{"protect", "own.*"},
		{"protect", "own.*", "--mode", "reentrant", "--inserts", "require", "--max-advance", "10"},
		{"observe", "own.*"},
		{"enforce", "own.*"},
		{"protect", "own.t", "own.p", "--fence", "own/{id}", "--max-advance", "10"},
		{"protect", "own.*", "--fence", "own"},
		{"protect", "own.*"},
		{"unprotect", "own.p", "own.adopted", "--drop-column"},
	} {
		fencectl.ok(args...)
	}
	if got := pgtest.Value[string](t, app.Pool, "SELECT fencing.claim('x', 1)::text || fencing.next_token()"); got != "01" {
		t.Errorf("claim and next_token: %s", got)
	}
	pgtest.Exec(t, app.Pool, "INSERT INTO own.t VALUES (1, 'a')")
	if _, err := app.Pool.Exec(t.Context(), "UPDATE own.t SET v = 'b'"); pgtest.SQLState(err) != "ZF002" {
		t.Errorf("an update without a token: %v", err)
	}
	pgtest.Exec(t, app.Pool, "UPDATE own.t SET v = 'b', last_fencing_token = fencing.present(1)")
}

func TestGrantNamesTheRoleAsPostgreSQLDoes(t *testing.T) {
	t.Parallel()
	pool, fencectl := shop(t)
	role := pgtest.Role(t, pool)
	sql := fencectl.ok("grant", strings.ToUpper(role.Name), "--for", "app,monitor", "--dry-run")
	for _, part := range []string{"GRANT USAGE ON SCHEMA fencing TO " + role.Name, "fencing.claim(fence text, token bigint)", "GRANT SELECT ON fencing.", "fencing.violation"} {
		if !strings.Contains(sql, part) {
			t.Errorf("--dry-run does not print %q:\n%s", part, sql)
		}
	}
	newCLI(t, role.DSN).fails(2, []string{"permission denied"}, "token", "next") // nothing was granted
	pgtest.Exec(t, pool, sql)
	newCLI(t, role.DSN).ok("token", "next")
	newCLI(t, role.DSN).ok("status")

	fencectl.fails(2, []string{"does not exist", "did you mean " + role.Name}, "grant", role.Name[:len(role.Name)-1])
	fencectl.fails(2, []string{"entirely_unlike_any_role does not exist", "CREATE ROLE"}, "grant", "entirely_unlike_any_role")
}
