package migrations_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/fencectl/fencectl/internal/pgtest"
)

var acceptUpdate = flag.Bool("accept.update", false, "rewrite the expectations in testdata/acceptance from what the server says")

// TestAcceptance runs testdata/acceptance/*.txtar, each in a database of its own. A case is a script: its sections are
// carried out in order, on one connection.
//
//	schema.sql     the application's schema, as it was before anybody thought of fencing
//	protect*.sql   statements, run twice: the second time must report the same errors and change no trigger
//	*.sql          statements, run once
//	output         what the section before said: rows, warnings, and errors with SQLSTATE and hint. Without this section
//	               it must have said nothing
//	guards         the guard triggers there are now, as pg_get_triggerdef prints them; clones by name
//	columns        the last_fencing_token columns there are now
//
// When the script is over, pg_dump must print the very bytes that it printed after schema.sql, and the catalog's own
// account of the schema must be the same. (Where pg_dump is older than the server the second has to do.)
//
// Lines of the comment on top such as "requires: PostgreSQL 15", "encoding: LATIN1" and "setting: DateStyle=German" say
// where a case runs.
func TestAcceptance(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/acceptance/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("there are no cases in testdata/acceptance")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			acceptRun(t, file)
		})
	}
}

func acceptRun(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var (
		pool     = acceptDatabase(t, archive)
		session  = newAcceptSession(t, pool)
		actual   = &txtar.Archive{Comment: archive.Comment}
		before   acceptSnapshot
		settings = acceptDirectives(archive, "setting")
	)
	report := func(name, text string) {
		if text != "" {
			text += "\n"
		}
		actual.Files = append(actual.Files, txtar.File{Name: name, Data: []byte(text)})
	}

	for i, section := range archive.Files {
		switch {
		case section.Name == "schema.sql":
			pgtest.Exec(t, session.conn, string(section.Data))
			before = takeAcceptSnapshot(t, pool)
			for _, setting := range settings {
				name, value, _ := strings.Cut(setting, "=")
				pgtest.Exec(t, session.conn, "SELECT set_config($1, $2, false)", name, value)
			}
			actual.Files = append(actual.Files, section)
		case strings.HasSuffix(section.Name, ".sql"):
			output := session.run(string(section.Data))
			if strings.HasPrefix(section.Name, "protect") {
				acceptIdempotent(t, pool, session, string(section.Data), output)
			}
			actual.Files = append(actual.Files, section)
			if output != "" {
				report("output", output)
			}
		case section.Name == "output":
			if i == 0 || !strings.HasSuffix(archive.Files[i-1].Name, ".sql") {
				t.Fatalf("%s: section %d: output follows no .sql section", file, i)
			}
		case section.Name == "guards":
			report("guards", acceptGuards(t, pool))
		case section.Name == "columns":
			report("columns", acceptColumns(t, pool))
		default:
			t.Fatalf("%s: section %q is of no known kind", file, section.Name)
		}
	}

	want, got := string(txtar.Format(archive)), string(txtar.Format(actual))
	switch diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); {
	case diff == "":
	case *acceptUpdate:
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: what is expected (-) is not what happened (+):\n%s", file, diff)
	}
	before.mustEqual(t, takeAcceptSnapshot(t, pool))
}

// acceptIdempotent runs the statements again: the same errors, and not one trigger touched (the oid is a new one when it
// is made anew, the xmin when it is replaced).
func acceptIdempotent(t *testing.T, pool *pgxpool.Pool, session *acceptSession, sql, first string) {
	t.Helper()
	before := acceptTriggerVersions(t, pool)
	second := session.run(sql)
	if diff := cmp.Diff(acceptErrors(first), acceptErrors(second)); diff != "" {
		t.Errorf("the same statements again say something else:\n%s", diff)
	}
	if diff := cmp.Diff(before, acceptTriggerVersions(t, pool)); diff != "" {
		t.Errorf("the same statements again change the triggers:\n%s\n%s", sql, diff)
	}
}

// acceptErrors leaves out warnings, which protect gives only when it does something.
func acceptErrors(output string) []string {
	var kept []string
	for line := range strings.Lines(output) {
		if !strings.HasPrefix(line, "WARNING:") && !strings.HasPrefix(line, "NOTICE:") {
			kept = append(kept, line)
		}
	}
	return kept
}

// acceptTriggerVersions lists every trigger, with what changes when it is replaced, switched or made anew.
func acceptTriggerVersions(t testing.TB, q pgtest.Querier) []string {
	t.Helper()
	return acceptLines(t, q, `
		SELECT format('%s %s oid=%s xmin=%s enabled=%s', t.tgrelid::regclass, t.tgname, t.oid, t.xmin, t.tgenabled)
		  FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
		 WHERE c.relnamespace <> 'fencing'::regnamespace ORDER BY 1`)
}

// acceptGuards prints the guards that exist, one a line. A clone's definition is its parent's, so it is only named.
func acceptGuards(t testing.TB, q pgtest.Querier) string {
	t.Helper()
	return strings.Join(acceptLines(t, q, `
		SELECT line FROM (
			SELECT 1 AS part, t.tgrelid::regclass::text AS relation, t.tgname::text AS name,
			       pg_get_triggerdef(t.oid) || CASE t.tgenabled WHEN 'O' THEN '' ELSE ' -- enabled: ' || t.tgenabled::text END AS line
			  FROM pg_catalog.pg_trigger t
			 WHERE t.tgname LIKE E'zzz\\_fencing\\_%' AND t.tgparentid = 0
			UNION ALL
			SELECT 2, t.tgrelid::regclass::text, '',
			       'clones on ' || t.tgrelid::regclass || ': ' || string_agg(
			           t.tgname || CASE t.tgenabled WHEN 'O' THEN '' ELSE ' (enabled: ' || t.tgenabled::text || ')' END, ', ' ORDER BY t.tgname)
			  FROM pg_catalog.pg_trigger t
			 WHERE t.tgname LIKE E'zzz\\_fencing\\_%' AND t.tgparentid <> 0
			 GROUP BY t.tgrelid) AS guards
		 ORDER BY part, relation COLLATE "C", name COLLATE "C"`), "\n")
}

// acceptColumns prints the token columns that exist.
func acceptColumns(t testing.TB, q pgtest.Querier) string {
	t.Helper()
	return strings.Join(acceptLines(t, q, `
		SELECT concat_ws(' ', a.attrelid::regclass, format_type(a.atttypid, a.atttypmod),
		                 CASE WHEN a.attnotnull THEN 'NOT NULL' END, 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid))
		  FROM pg_catalog.pg_attribute a
		  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')
		  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		 WHERE a.attname = 'last_fencing_token' AND NOT a.attisdropped
		 ORDER BY a.attrelid::regclass::text COLLATE "C"`), "\n")
}

// acceptLines runs a query of one text column.
func acceptLines(t testing.TB, q pgtest.Querier, sql string, args ...any) []string {
	t.Helper()
	querier, ok := q.(interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	})
	if !ok {
		t.Fatalf("%T cannot query", q)
	}
	rows, err := querier.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
	return lines
}

// acceptDirectives are the values of the comment's lines "name: value".
func acceptDirectives(archive *txtar.Archive, name string) []string {
	var values []string
	for line := range strings.Lines(string(archive.Comment)) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			values = append(values, strings.TrimSpace(value))
		}
	}
	return values
}

// acceptDatabase is the database that a case asks for.
func acceptDatabase(t *testing.T, archive *txtar.Archive) *pgxpool.Pool {
	t.Helper()
	for _, requirement := range acceptDirectives(archive, "requires") {
		major, err := strconv.Atoi(strings.TrimPrefix(requirement, "PostgreSQL "))
		if err != nil {
			t.Fatal(err)
		}
		if version := pgtest.ServerVersion(t); version < major {
			t.Skipf("needs PostgreSQL %d, the server is %d", major, version)
		}
	}
	if encodings := acceptDirectives(archive, "encoding"); len(encodings) > 0 {
		return acceptCreateDatabase(t, fmt.Sprintf("ENCODING '%s' LOCALE 'C'", encodings[0]))
	}
	return pgtest.New(t)
}

// acceptVoid is the oid of the type void, which protect and its like return: nothing to print.
const acceptVoid = 2278

// acceptSession runs statements as psql would, and prints what comes back.
type acceptSession struct {
	t       *testing.T
	conn    *pgx.Conn
	notices []string
}

func newAcceptSession(t *testing.T, pool *pgxpool.Pool) *acceptSession {
	t.Helper()
	s := &acceptSession{t: t}
	config := pool.Config().ConnConfig
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		s.notices = append(s.notices, fmt.Sprintf("%s: %s", n.SeverityUnlocalized, n.Message))
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	s.conn = conn
	return s
}

// run carries out statements one by one, each in a transaction of its own unless they say BEGIN.
func (s *acceptSession) run(sql string) string {
	s.t.Helper()
	var output []string
	for _, statement := range acceptStatements(sql) {
		s.notices = nil
		results, err := s.conn.PgConn().Exec(s.t.Context(), statement).ReadAll()
		output = append(output, s.notices...)
		for _, result := range results {
			for _, row := range result.Rows {
				if len(result.FieldDescriptions) == 1 && result.FieldDescriptions[0].DataTypeOID == acceptVoid {
					continue
				}
				var values []string
				for _, value := range row {
					if value == nil {
						value = []byte("NULL")
					}
					values = append(values, string(value))
				}
				output = append(output, strings.Join(values, " | "))
			}
		}
		if err != nil {
			output = append(output, acceptError(err))
		}
	}
	return acceptTemporary.ReplaceAllString(strings.Join(output, "\n"), "pg_temp_N")
}

// acceptTemporary matches the schema of temporary tables, which is another one in every session.
var acceptTemporary = regexp.MustCompile(`pg_temp_[0-9]+`)

// acceptError is a server's error as a person would like to read it.
func acceptError(err error) string {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err.Error()
	}
	text := fmt.Sprintf("ERROR: %s: %s", pgErr.Code, pgErr.Message)
	if pgErr.Hint != "" {
		text += "\nHINT: " + pgErr.Hint
	}
	return text
}

// acceptStatements splits at the semicolons that end a line, outside of dollar quotes.
func acceptStatements(sql string) []string {
	var statements []string
	var statement strings.Builder
	for line := range strings.Lines(sql) {
		statement.WriteString(line)
		if strings.HasSuffix(strings.TrimSpace(line), ";") && strings.Count(statement.String(), "$$")%2 == 0 {
			statements = append(statements, statement.String())
			statement.Reset()
		}
	}
	if rest := strings.TrimSpace(statement.String()); rest != "" {
		statements = append(statements, rest)
	}
	return statements
}

// acceptSnapshot is a database's schema, twice: as pg_dump tells it and as the catalogs do.
type acceptSnapshot struct {
	dump    string // "" where no pg_dump is new enough for the server
	catalog []string
}

func takeAcceptSnapshot(t testing.TB, pool *pgxpool.Pool) acceptSnapshot {
	t.Helper()
	snapshot := acceptSnapshot{catalog: acceptCatalog(t, pool)}
	if binary, err := acceptDumpBinary(t, "pg_dump"); err == nil {
		snapshot.dump = acceptDump(t, binary, pgtest.DSN(t, pool), "--schema-only")
	}
	return snapshot
}

func (s acceptSnapshot) mustEqual(t testing.TB, after acceptSnapshot) {
	t.Helper()
	if s.dump != after.dump {
		t.Errorf("the dump is not what it was before (-), but (+):\n%s",
			cmp.Diff(strings.Split(s.dump, "\n"), strings.Split(after.dump, "\n")))
	}
	if diff := cmp.Diff(s.catalog, after.catalog); diff != "" {
		t.Errorf("the catalog is not what it was before (-), but (+):\n%s", diff)
	}
}

// acceptCatalog describes the schema outside of fencing: what pg_dump would print, and some things that it would not.
func acceptCatalog(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	return acceptLines(t, pool, `
		WITH relation AS (
			SELECT c.*, c.oid::regclass::text AS label FROM pg_catalog.pg_class c
			  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'fencing') AND n.nspname !~ '^pg_')
		SELECT format('relation %s: kind=%s persistence=%s acl=%s options=%s rls=%s/%s comment=%s', label, relkind, relpersistence,
		              relacl, reloptions, relrowsecurity, relforcerowsecurity, obj_description(oid, 'pg_class'))
		  FROM relation
		UNION ALL
		SELECT format('column %s.%s: type=%s notnull=%s local=%s inherited=%s identity=%s generated=%s default=%s acl=%s comment=%s',
		              r.label, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attislocal, a.attinhcount,
		              a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid), a.attacl, col_description(a.attrelid, a.attnum))
		  FROM relation r JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
		  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		UNION ALL
		SELECT format('constraint %s.%s: %s local=%s inherited=%s', r.label, n.conname, pg_get_constraintdef(n.oid), n.conislocal, n.coninhcount)
		  FROM relation r JOIN pg_catalog.pg_constraint n ON n.conrelid = r.oid
		UNION ALL
		SELECT format('trigger %s: %s enabled=%s', t.tgname, pg_get_triggerdef(t.oid), t.tgenabled)
		  FROM relation r JOIN pg_catalog.pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
		UNION ALL
		SELECT format('index %s', pg_get_indexdef(i.indexrelid)) FROM relation r JOIN pg_catalog.pg_index i ON i.indrelid = r.oid
		UNION ALL
		SELECT format('rule %s', pg_get_ruledef(w.oid)) FROM relation r JOIN pg_catalog.pg_rewrite w ON w.ev_class = r.oid
		UNION ALL
		SELECT format('policy %s.%s: %s %s %s', r.label, p.polname, p.polcmd, pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
		  FROM relation r JOIN pg_catalog.pg_policy p ON p.polrelid = r.oid
		UNION ALL
		SELECT format('published %s by %s', r.label, p.pubname)
		  FROM relation r JOIN pg_catalog.pg_publication_rel m ON m.prrelid = r.oid JOIN pg_catalog.pg_publication p ON p.oid = m.prpubid
		UNION ALL
		SELECT format('statistics %s', pg_get_statisticsobjdef(s.oid))
		  FROM relation r JOIN pg_catalog.pg_statistic_ext s ON s.stxrelid = r.oid
		UNION ALL
		SELECT format('depends on fencing: %s', pg_describe_object(d.classid, d.objid, d.objsubid))
		  FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_proc p ON d.refclassid = 'pg_catalog.pg_proc'::regclass AND d.refobjid = p.oid
		  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'fencing'
		 WHERE d.classid IN ('pg_catalog.pg_attrdef'::regclass, 'pg_catalog.pg_trigger'::regclass)
		   AND pg_describe_object(d.classid, d.objid, d.objsubid) !~ ' table fencing\.'
		ORDER BY 1`)
}

var acceptVersion = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)
