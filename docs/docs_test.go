// Package docs_test holds the documentation to its word: what a page says to type is typed, what it says one sees is compared
// with what one sees, and its links lead somewhere.
package docs_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// root is the repository's top directory.
const root = ".."

// A block is a fenced code block.
type block struct {
	file, language, text string
	line                 int // of its first line of text, from 1
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

// pages lists the repository's Markdown files, relative to root.
func pages(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != root || entry.Name() == "testdata" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case filepath.Ext(path) == ".md":
			name, err := filepath.Rel(root, path)
			names = append(names, name)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 5 {
		t.Fatalf("only %q: this is not the repository", names)
	}
	return names
}

func read(t *testing.T, page string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// blocks are the fenced code blocks of a page, and prose is everything else.
func blocks(t *testing.T, page string) (found []block, prose string) {
	t.Helper()
	var rest strings.Builder
	var current *block
	lines := bufio.NewScanner(strings.NewReader(read(t, page)))
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && current == nil:
			current = &block{file: page, language: language, line: number + 1}
		case fence:
			found = append(found, *current)
			current = nil
		case current != nil:
			current.text += line + "\n"
		default:
			rest.WriteString(line + "\n")
		}
	}
	if current != nil {
		t.Fatalf("%s: a code block is not closed", current)
	}
	return found, rest.String()
}

// changing is what differs from one machine to the next in the outputs that the pages show.
var changing = regexp.MustCompile(`PostgreSQL \d[\w.]*`)

// The README's shell blocks are run one after another in one shell, as somebody would paste them. Where a block's output is
// shown, that is what comes out; every other line succeeds.
func TestReadmeWorksWhenPasted(t *testing.T) {
	if testing.Short() {
		t.Skip("builds fencectl and runs the demo")
	}
	const address = "postgres://postgres:fencectl@127.0.0.1:5432/postgres"
	server, err := pgserver.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})

	all, _ := blocks(t, "README.md")
	var script strings.Builder
	var shown []block // what each marked block should print; no language where anything will do
	const mark = "--- end of block"
	for i, b := range all {
		if b.language != "sh" {
			continue
		}
		expected := block{}
		if i+1 < len(all) && all[i+1].language == "text" {
			expected = all[i+1]
		}
		// Where the output is compared, it is the judge of failures: some are to be shown.
		option := "set -e"
		if expected.language != "" {
			option = "set +e"
		}
		fmt.Fprintf(&script, "%s\n%s\nset +e\necho %q\n", option, strings.ReplaceAll(b.text, address, server.TCPDSN("postgres")), mark)
		shown = append(shown, expected)
	}
	if !strings.Contains(read(t, "README.md"), address) || len(shown) < 5 {
		t.Fatalf("the README has %d shell blocks, and may not name %s any more", len(shown), address)
	}

	psqlrc := filepath.Join(t.TempDir(), "psqlrc")
	if err := os.WriteFile(psqlrc, []byte(`\set SHOW_CONTEXT never`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	shell := exec.CommandContext(t.Context(), "bash")
	shell.Dir = root
	shell.Stdin = strings.NewReader(script.String())
	shell.Env = append(withoutDatabase(os.Environ()), "PSQLRC="+psqlrc, "PSQL_PAGER=cat", "LC_ALL=C.UTF-8")
	output, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v; the output:\n%s", err, output)
	}
	parts := strings.Split(string(output), mark+"\n")
	if len(parts) != len(shown)+1 {
		t.Fatalf("%d of %d blocks were run:\n%s", len(parts)-1, len(shown), output)
	}
	for i, expected := range shown {
		if expected.language == "" {
			continue
		}
		got := buildNoise.ReplaceAllString(parts[i], "")
		if diff := cmp.Diff(lines(expected.text), lines(got)); diff != "" {
			t.Errorf("%s: (-shown +printed):\n%s", expected, diff)
		}
	}
}

// buildNoise is what make says while it builds.
var buildNoise = regexp.MustCompile(`(?m)^(go build|make\[\d+\]:) .*\n`)

func lines(text string) []string {
	var all []string
	for line := range strings.Lines(strings.TrimRight(text, "\n")) { // psql ends a table with an empty line
		all = append(all, changing.ReplaceAllString(strings.TrimRightFunc(line, unicode.IsSpace), "PostgreSQL N"))
	}
	return all
}

// withoutDatabase drops what would lead commands to another server than the test's.
func withoutDatabase(environment []string) []string {
	return slices.DeleteFunc(environment, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, "PG") || name == "DATABASE_URL" || name == "FENCECTL_DSN" || strings.HasPrefix(name, "MAKE") || name == "MFLAGS"
	})
}

// fencectl builds the program, once for each test that needs it.
func fencectl(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "fencectl")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/fencectl")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return binary
}

// What the pages beside the README say to type depends on tables of the reader's own; that its commands and flags exist is
// checked by asking each line for help.
func TestEveryFencectlLineIsOneThatFencectlKnows(t *testing.T) {
	binary := fencectl(t)
	known := 0
	for _, page := range pages(t) {
		all, _ := blocks(t, page)
		for _, b := range all {
			if b.language != "sh" {
				continue
			}
			for line := range strings.Lines(b.text) {
				for _, command := range strings.Split(line, "&&") {
					if command = strings.TrimSpace(command); !strings.HasPrefix(command, "fencectl ") {
						continue
					}
					known++
					command, _, _ = strings.Cut(command, " -- ") // what follows is for the command that is run
					shell := exec.CommandContext(t.Context(), "bash", "-c", command+" --help")
					shell.Env = append(withoutDatabase(os.Environ()), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
					if output, err := shell.CombinedOutput(); err != nil {
						t.Errorf("%s: %s: %v\n%s", b, command, err, output)
					}
				}
			}
		}
	}
	if known < 8 {
		t.Errorf("only %d command lines were found", known)
	}
}

// The tables that the pages' SQL speaks of.
const tables = `
	CREATE TABLE jobs (id bigint PRIMARY KEY, state text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0);
	CREATE TABLE accounts (account_id bigint PRIMARY KEY, balance bigint NOT NULL);
	CREATE TABLE orders (order_id bigint PRIMARY KEY, status text NOT NULL);
	CREATE TABLE events (event_id bigint PRIMARY KEY);`

// Every SQL block of the pages runs as it stands, each page's one after another.
func TestEverySQLBlockRuns(t *testing.T) {
	for _, page := range pages(t) {
		all, _ := blocks(t, page)
		all = slices.DeleteFunc(all, func(b block) bool {
			return b.language != "sql" || strings.HasPrefix(b.file, "docs/rules/") || strings.HasPrefix(b.file, "docs/lint/")
		})
		if len(all) == 0 {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			conn := pgtest.Conn(t, pool)
			pgtest.Exec(t, conn, "SET search_path = public")
			script(t, conn, tables)
			for _, b := range all {
				text := b.text
				if pgtest.ServerVersion(t) < 17 {
					text = regexp.MustCompile(`(?m)^.*from PostgreSQL 17.*\n`).ReplaceAllString(text, "")
				}
				if _, err := conn.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Errorf("%s: %v", b, err)
				}
				// A block may end in the middle of a transaction; the next one is another story.
				if conn.PgConn().TxStatus() != 'I' {
					script(t, conn, "ROLLBACK")
				}
				// And what is protected on one line is written without a token on another.
				script(t, conn, "SELECT fencing.unprotect(relid::regclass) FROM fencing.protection")
			}
		})
	}
}

func script(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v in: %s", err, sql)
	}
}

// goBlocks lays out every Go block of the pages as a package of its own, in directories that exist for the compiler alone. It
// returns the packages by their blocks, and what to give to go build's -overlay.
func goBlocks(t *testing.T, more map[string]string) (packages map[string]string, overlay string) {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	scratch := t.TempDir()
	replace := map[string]string{}
	lay := func(name, text string) {
		file := filepath.Join(scratch, fmt.Sprintf("file%d.go", len(replace)))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(top, name, "block.go")] = file
	}
	packages = map[string]string{}
	for _, page := range pages(t) {
		all, _ := blocks(t, page)
		for _, b := range all {
			if b.language == "go" {
				name := fmt.Sprintf("documented/%s%d", strings.NewReplacer("/", "_", ".", "_").Replace(page), len(packages))
				packages[b.text] = name
				lay(name, b.text)
			}
		}
	}
	for name, text := range more {
		lay(name, text)
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(scratch, "overlay.json")
	if err := os.WriteFile(overlay, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return packages, overlay
}

func TestEveryGoBlockCompiles(t *testing.T) {
	packages, overlay := goBlocks(t, nil)
	arguments := []string{"build", "-overlay", overlay}
	for _, name := range packages {
		arguments = append(arguments, "./"+name)
	}
	if len(packages) == 0 {
		t.Fatal("there is no Go block: the README should have one")
	}
	build := exec.CommandContext(t.Context(), "go", arguments...)
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// The README's Go block does what it says, on a protected table; and the write of an older token is refused afterwards.
func TestReadmeGoBlockPaysIn(t *testing.T) {
	all, _ := blocks(t, "README.md")
	at := slices.IndexFunc(all, func(b block) bool { return b.language == "go" })
	if at < 0 {
		t.Fatal("the README has no Go block")
	}
	packages, _ := goBlocks(t, nil)
	_, overlay := goBlocks(t, map[string]string{"documented/program": `package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	accounts "github.com/fencectl/fencectl/` + packages[all[at].text] + `"
)

func main() {
	pool, err := pgxpool.New(context.Background(), os.Args[1])
	if err == nil {
		defer pool.Close()
		err = accounts.Deposit(context.Background(), pool, 50)
	}
	if err != nil {
		log.Fatal(err)
	}
}
`})
	program := filepath.Join(t.TempDir(), "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", program, "./documented/program")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}

	pool := pgtest.New(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.accounts (account_id bigint PRIMARY KEY, balance bigint NOT NULL)")
	pgtest.Exec(t, pool, "INSERT INTO public.accounts VALUES (7, 100)")
	pgtest.Exec(t, pool, "SELECT fencing.protect('public.accounts', fence => 'account/{account_id}')")
	old := pgtest.Value[int64](t, pool, "SELECT fencing.next_token()")

	run := exec.CommandContext(t.Context(), program, pgtest.DSN(t, pool))
	run.Env = append(withoutDatabase(os.Environ()), "PGOPTIONS=-c search_path=public")
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if balance := pgtest.Value[int64](t, pool, "SELECT balance FROM public.accounts"); balance != 150 {
		t.Errorf("the balance is %d, want 150", balance)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	pgtest.Exec(t, tx, "SELECT fencing.present($1)", old)
	if _, err := tx.Exec(t.Context(), "UPDATE public.accounts SET balance = 0"); pgtest.SQLState(err) != fenced.SQLStateStale {
		t.Errorf("an older token's write: %v", err)
	}
}

var (
	link    = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	anchor  = regexp.MustCompile(`<a id="([^"]+)">`)
)

// anchors are the places in a page that a link can lead to, as GitHub names them.
func anchors(t *testing.T, page string) []string {
	t.Helper()
	_, prose := blocks(t, page)
	var all []string
	for _, match := range heading.FindAllStringSubmatch(prose, -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, match[1])
		all = append(all, slug)
	}
	for _, match := range anchor.FindAllStringSubmatch(prose, -1) {
		all = append(all, match[1])
	}
	return all
}

func TestEveryRelativeLinkLeadsSomewhere(t *testing.T) {
	checked := 0
	for _, page := range pages(t) {
		_, prose := blocks(t, page)
		for _, match := range link.FindAllStringSubmatch(prose, -1) {
			target := match[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checked++
			path, place, _ := strings.Cut(target, "#")
			file := page
			if path != "" {
				file = filepath.Join(filepath.Dir(page), path)
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					t.Errorf("%s: %s: %v", page, target, err)
					continue
				}
			}
			if place != "" && !slices.Contains(anchors(t, file), place) {
				t.Errorf("%s: %s has no heading %s; it has %q", page, file, place, anchors(t, file))
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d links were found", checked)
	}
}

// The functions that are for everybody have a comment in the catalog; they, the tables and the views with their columns are in
// docs/sql.md, each under its own name.
func TestSQLPageNamesEverythingThatIsPublic(t *testing.T) {
	page := read(t, "docs/sql.md")
	pool := pgtest.New(t)
	for what, query := range map[string]string{
		"function": `SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p
			WHERE p.pronamespace = 'fencing'::regnamespace AND pg_catalog.obj_description(p.oid, 'pg_proc') IS NOT NULL`,
		"relation": `SELECT c.relname FROM pg_catalog.pg_class c
			WHERE c.relnamespace = 'fencing'::regnamespace AND c.relkind IN ('r', 'v') AND pg_catalog.obj_description(c.oid, 'pg_class') IS NOT NULL`,
		"column": `SELECT DISTINCT a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
			WHERE c.relnamespace = 'fencing'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname NOT IN ('guard', 'goose_db_version')
			  AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> 'id'`,
	} {
		rows, err := pool.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if len(names) < 5 {
			t.Errorf("only %q are public: the query finds something else than it used to", names)
		}
		for _, name := range names {
			// As code: `name`, `fencing.name`, or `fencing.name(…)`.
			if !regexp.MustCompile("`(fencing\\.)?" + regexp.QuoteMeta(name) + "[`(]").MatchString(page) {
				t.Errorf("docs/sql.md does not name the %s %s", what, name)
			}
		}
	}
}

// docs/json.md names every field that the commands print.
func TestJSONPageNamesEveryField(t *testing.T) {
	binary := fencectl(t)
	pool := pgtest.New(t)
	for _, sql := range []string{
		"CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text)", "INSERT INTO public.jobs VALUES (1, 'queued')",
		"CREATE TABLE public.accounts (account_id bigint PRIMARY KEY)", "CREATE TABLE public.other (id bigint)",
		"SELECT fencing.protect('public.jobs', observe => true, max_advance => 1000)", "UPDATE public.jobs SET state = 'running'",
		"SELECT fencing.protect('public.accounts', fence => 'account/{account_id}')",
		"SELECT fencing.claim('account/7', fencing.next_token())",
		"SELECT fencing.acquire_lease('account/7', gen_random_uuid(), '1 minute')",
	} {
		pgtest.Exec(t, pool, sql)
	}
	linted := t.TempDir()
	if err := os.WriteFile(filepath.Join(linted, "queries.sql"), []byte("-- name: A :exec\nUPDATE public.jobs SET state = 'x';\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	page := read(t, "docs/json.md")
	locked := "public.other"
	busy := hold(t, pool, locked)
	commands := []string{
		"status", "violations", "fence list", "fence show account/7", "fence claim account/7", "fence lower account/7 1 --reason test",
		"token next", "epoch show", "epoch adopt etcd 2", "protect public.jobs --observe", "audit --fail-on never", "lint . --fail-on never", "version", "demo sleeping-owner", "demo --list",
		"protect " + locked + " --lock-timeout 10ms --retries 0",
	}
	for _, command := range commands {
		var out, errs bytes.Buffer
		run := exec.CommandContext(t.Context(), binary, append(strings.Fields(command), "--format", "json", "--dsn", pgtest.DSN(t, pool))...)
		run.Env, run.Stdout, run.Stderr = withoutDatabase(os.Environ()), &out, &errs
		run.Dir = linted
		if err := run.Run(); err != nil && !(strings.Contains(command, locked) && errors.As(err, new(*exec.ExitError))) {
			t.Errorf("%s: %v\n%s", command, err, errs.String())
			continue
		}
		var document any
		if err := json.Unmarshal(out.Bytes(), &document); err != nil {
			t.Errorf("%s: %v in:\n%s", command, err, out.String())
			continue
		}
		for _, field := range fields(document, false) {
			if !strings.Contains(page, "`"+field+"`") {
				t.Errorf("%s: docs/json.md does not name the field %s", command, field)
			}
		}
	}
	busy()
}

// hold keeps a table locked until the returned function is called.
func hold(t *testing.T, pool *pgxpool.Pool, table string) (release func()) {
	t.Helper()
	conn := pgtest.Conn(t, pool)
	script(t, conn, "BEGIN; LOCK TABLE "+table)
	return func() { script(t, conn, "ROLLBACK") }
}

// fields are the names of a document's fields, at every depth. Names within are data where the document is a key.
func fields(document any, data bool) []string {
	var names []string
	switch d := document.(type) {
	case map[string]any:
		for name, value := range d {
			if !data {
				names = append(names, name)
			}
			names = append(names, fields(value, name == "key" || data)...)
		}
	case []any:
		for _, value := range d {
			names = append(names, fields(value, data)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
