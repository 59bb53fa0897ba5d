package migrations_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

func up(t *testing.T, pool *pgxpool.Pool) *migrations.Result {
	t.Helper()
	result, err := migrations.Up(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// inventory is all that a database has beyond what every database has, with the privileges on it.
func inventory(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return pgtest.Value[[]string](t, pool, `
		SELECT coalesce(array_agg(o ORDER BY o), '{}') FROM (
			SELECT 'schema ' || nspname || ' ' || coalesce(nspacl::text, '') AS o FROM pg_namespace WHERE nspname !~ '^pg_'
			UNION ALL SELECT 'relation ' || c.oid::regclass || ' ' || c.relkind::text || ' ' || coalesce(c.relacl::text, '') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname !~ '^(pg_|information_schema)'
			UNION ALL SELECT 'column ' || a.attrelid::regclass || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
				FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
				WHERE n.nspname !~ '^(pg_|information_schema)' AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind <> 'i'
			UNION ALL SELECT 'function ' || p.oid::regprocedure || ' ' || coalesce(p.proacl::text, '') FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname !~ '^(pg_|information_schema)'
			UNION ALL SELECT 'trigger ' || pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text FROM pg_trigger t WHERE NOT t.tgisinternal
			UNION ALL SELECT 'type ' || t.oid::regtype FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname !~ '^(pg_|information_schema)'
			UNION ALL SELECT 'defaults ' || d.defaclacl::text FROM pg_default_acl d
			UNION ALL SELECT 'extension ' || e.extname FROM pg_extension e
			UNION ALL SELECT 'comment ' || d.description FROM pg_description d WHERE d.objoid >= 16384) s`)
}

func TestUpIsIdempotentAndSaysWhatItDid(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pending, err := migrations.Pending(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(migrations.Files(), pending); diff != "" {
		t.Errorf("pending before (-want +got):\n%s", diff)
	}
	first := up(t, pool)
	var names []string
	for _, a := range first.Applied {
		names = append(names, filepath.Base(a.Name))
	}
	if diff := cmp.Diff(migrations.Files(), names); diff != "" || first.Version != migrations.Latest() || first.External {
		t.Errorf("version %d, external %t; applied (-want +got):\n%s", first.Version, first.External, diff)
	}
	before := inventory(t, pool)
	second := up(t, pool)
	if len(second.Applied) != 0 || second.Version != migrations.Latest() {
		t.Errorf("the second call applied %v, and is at version %d", second.Applied, second.Version)
	}
	if diff := cmp.Diff(before, inventory(t, pool)); diff != "" {
		t.Errorf("the second call changed (-before +after):\n%s", diff)
	}
	if pending, err := migrations.Pending(t.Context(), pool); err != nil || len(pending) > 0 {
		t.Errorf("pending afterwards: %v, %v", pending, err)
	}
	if pool.Ping(t.Context()) != nil {
		t.Error("the pool was closed")
	}
}

func TestUpMayBeCalledByManyAtOnce(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]*migrations.Options{"session": nil, "transaction pooler": {TransactionPooler: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.NewEmpty(t)
			const callers = 12
			results := make([]*migrations.Result, callers)
			errs := make([]error, callers)
			start := make(chan struct{})
			var wg sync.WaitGroup
			for i := range callers {
				own, err := pgxpool.NewWithConfig(t.Context(), pool.Config())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(own.Close)
				wg.Go(func() {
					<-start
					results[i], errs[i] = migrations.Up(t.Context(), own, options)
				})
			}
			close(start)
			wg.Wait()
			applied := 0
			for i := range callers {
				if errs[i] != nil {
					t.Errorf("caller %d: %v", i, errs[i])
					continue
				}
				applied += len(results[i].Applied)
			}
			if applied != len(migrations.Files()) {
				t.Errorf("%d migrations were applied by somebody, want each of %d once", applied, len(migrations.Files()))
			}
			finds(t, pool, int64(1), "SELECT fencing.next_token()")
		})
	}
}

func TestUpLeavesASchemaToTheMigrationsThatInstalledIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	for _, name := range migrations.Files() {
		install, _, err := migrations.Sections(name)
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, pool, install)
	}
	before := inventory(t, pool)
	if result := up(t, pool); !result.External || len(result.Applied) > 0 {
		t.Errorf("Up: %+v", result)
	}
	if diff := cmp.Diff(before, inventory(t, pool)); diff != "" {
		t.Errorf("Up changed (-before +after):\n%s", diff)
	}
	if pending, err := migrations.Pending(t.Context(), pool); err != nil || len(pending) > 0 {
		t.Errorf("pending: %v, %v", pending, err)
	}
	// It is the same schema that Up makes, but for the book-keeping.
	own := pgtest.New(t)
	pgtest.Exec(t, own, "DROP TABLE fencing.goose_db_version")
	if diff := cmp.Diff(inventory(t, own), before); diff != "" {
		t.Errorf("installed by Up and by the sections (-Up +sections):\n%s", diff)
	}
}

func TestUpGoesOnWhereAnInterruptedOneStopped(t *testing.T) {
	t.Parallel()
	// What makes each migration but the first fail: something of the same name is in its way.
	for i, obstacle := range []struct{ create, drop string }{
		{"TABLE fencing.lease ()", "TABLE fencing.lease"},
		{"FUNCTION fencing.claim(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'", "FUNCTION fencing.claim"},
		{"FUNCTION fencing.guard_named() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'", "FUNCTION fencing.guard_named"},
		{"VIEW fencing.protection AS SELECT 1 AS one", "VIEW fencing.protection"},
	} {
		done := i + 1
		t.Run(migrations.Files()[done], func(t *testing.T) {
			t.Parallel()
			pool := pgtest.NewEmpty(t)
			pgtest.Exec(t, pool, "CREATE SCHEMA fencing; CREATE "+obstacle.create)
			if _, err := migrations.Up(t.Context(), pool, nil); err == nil {
				t.Fatal("it did not fail")
			}
			finds(t, pool, done, "SELECT max(version_id) FROM fencing.goose_db_version")
			pending, err := migrations.Pending(t.Context(), pool)
			if diff := cmp.Diff(migrations.Files()[done:], pending); diff != "" || err != nil {
				t.Errorf("pending: %v (-want +got):\n%s", err, diff)
			}
			pgtest.Exec(t, pool, "DROP "+obstacle.drop)
			if result := up(t, pool); len(result.Applied) != len(migrations.Files())-done || result.Version != migrations.Latest() {
				t.Errorf("the next Up: %+v", result)
			}
		})
	}
}

func TestUpRefusesASchemaNewerThanItself(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "INSERT INTO fencing.goose_db_version (version_id, is_applied) VALUES ($1, true)", migrations.Latest()+1)
	_, err := migrations.Up(t.Context(), pool, nil)
	var newer *migrations.NewerError
	if !errors.As(err, &newer) || newer.Database != migrations.Latest()+1 || newer.Known != migrations.Latest() {
		t.Errorf("Up: %v", err)
	}
}

func TestUpWithoutThePrivilegeNamesWhatItCouldNotDo(t *testing.T) {
	t.Parallel()
	role := pgtest.Role(t, pgtest.NewEmpty(t))
	_, err := migrations.Up(t.Context(), role.Pool, nil)
	if pgtest.SQLState(err) != noPrivilege || !strings.Contains(err.Error(), "create schema fencing") {
		t.Errorf("Up: %v", err)
	}
}

func TestUpHonoursItsContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := migrations.Up(ctx, pool, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Up: %v", err)
	}
	finds(t, pool, true, "SELECT to_regnamespace('fencing') IS NULL")
}

func TestAnOldServerIsNamedInTheError(t *testing.T) {
	t.Parallel()
	err := &migrations.ServerTooOldError{Version: 130012}
	if got, want := err.Error(), "PostgreSQL 13 is too old: fencing needs 14 or later"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDownRestoresTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, jobs)
	before := inventory(t, pool)
	up(t, pool)
	pgtest.Exec(t, pool, `SELECT fencing.protect('public.jobs'), fencing.claim('nightly', fencing.next_token());
		UPDATE public.jobs SET state = 'x', last_fencing_token = 34;
		SELECT fencing.unprotect('public.jobs', drop_column => true)`)
	if err := migrations.Down(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, inventory(t, pool)); diff != "" {
		t.Errorf("before Up and after Down (-before +after):\n%s", diff)
	}
	if result := up(t, pool); len(result.Applied) != len(migrations.Files()) {
		t.Errorf("Up after Down: %+v", result)
	}
	if err := migrations.Down(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}

func TestDownIsRefusedWhileATableIsProtectedAndChangesNothing(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{"'strict'", "fence => 'nightly'", "fence => 'job/{id}'"} {
		pool := fencedJobs(t, arguments)
		claim(t, pool, "nightly", 34)
		before := inventory(t, pool)
		err := migrations.Down(t.Context(), pool)
		ends(t, errors.Unwrap(err), dependentObjects)
		if diff := cmp.Diff(before, inventory(t, pool)); diff != "" {
			t.Errorf("Down changed (-before +after):\n%s", diff)
		}
		finds(t, pool, int64(34), "SELECT token FROM fencing.fence")
		ends(t, try(t, pool, "UPDATE public.jobs SET state = 'x'"), unfenced)
	}
}

// A standby is a server that could become the primary: what is wanted there is an address, not a schema.
func TestAStandbyIsRefused(t *testing.T) {
	t.Parallel()
	// Not t.TempDir, which lets nobody but the test's own user in: where that is root, the server runs as another.
	parent, err := os.MkdirTemp("", "fencectl-standby-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "data")
	server, err := pgserver.Start(t.Context(), &pgserver.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	standby, err := pgserver.Start(t.Context(), &pgserver.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Stop(t.Context()) //nolint:errcheck // nothing is kept
	pool, err := pgxpool.New(t.Context(), standby.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := migrations.Up(t.Context(), pool, nil); !errors.Is(err, migrations.ErrStandby) {
		t.Errorf("Up: %v, want %v", err, migrations.ErrStandby)
	}
}
