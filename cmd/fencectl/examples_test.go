package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// TestMain lets the test binary be fencectl itself, when it is called by that name: the examples run in a real shell.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "fencectl" {
		main()
	}
	os.Exit(m.Run())
}

// before brings a database into the state that the examples of a command speak about. What is not listed needs none.
var before = map[string]string{
	"fencectl audit": `SELECT fencing.protect('public.jobs'), fencing.protect('public.orders'), fencing.protect('public."Order Items"'),
		fencing.protect('billing.accounts'), fencing.protect('billing.events')`,
	"fencectl lint":        "SELECT fencing.protect('public.jobs')",
	"fencectl unprotect":   "SELECT fencing.protect('public.jobs'), fencing.protect('billing.accounts')",
	"fencectl enforce":     "SELECT fencing.protect('public.jobs', observe => true), fencing.protect('billing.accounts', observe => true)",
	"fencectl observe":     "SELECT fencing.protect('public.jobs'), fencing.protect('billing.accounts')",
	"fencectl violations":  "SELECT fencing.protect('public.jobs', observe => true)",
	"fencectl fence":       "SELECT fencing.claim('jobs/nightly', fencing.next_token())",
	"fencectl fence list":  "SELECT fencing.claim('account/' || n, 7) FROM generate_series(1, 20) n",
	"fencectl fence show":  "SELECT fencing.claim('jobs/nightly', 7)",
	"fencectl fence lower": "SELECT fencing.claim('jobs/nightly', 99999999)",
	"fencectl epoch":       "SELECT fencing.source_epoch('etcd', '1')",
	"fencectl epoch adopt": "SELECT fencing.source_epoch('etcd', '1')",
}

// files are what the examples of a command find in the directory where they are pasted. What is not listed needs none.
var files = map[string]map[string]string{
	"fencectl lint": {
		"db/migrations/00001_jobs.sql": "CREATE TABLE jobs (id bigint PRIMARY KEY, state text NOT NULL);\nSELECT fencing.protect('public.jobs');\n",
		"db/queries/jobs.sql":          "-- name: Finish :exec\nUPDATE public.jobs SET state = 'done', last_fencing_token = fencing.present(@token) WHERE id = @id;\n",
		"fencectl.yaml":                "schema:\n  migrations: [db/migrations]\n",
		"go.mod":                       "module example.com/app\n",
	},
}

// notRun are commands whose examples need what is not built for the tests; that their flags exist is checked all the same.
var notRun = map[string]string{
	"fencectl generate": "it needs sqlc; the command is run by the README's test, and its results are tested in internal/generate",
}

// commandsWithExamples are a command and all below it, but for those that cobra makes.
func commandsWithExamples(cmd *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	if cmd.Name() == "help" || cmd.Name() == "completion" || cmd.Hidden {
		return nil // cobra's own, and what nobody types
	}
	all = append(all, cmd)
	for _, sub := range cmd.Commands() {
		all = append(all, commandsWithExamples(sub)...)
	}
	return all
}

// Every line of every command's examples works when it is pasted into a shell, in the order in which it stands.
func TestExamplesWorkWhenPasted(t *testing.T) {
	t.Parallel()
	bin := installed(t)
	a := &app{getenv: func(string) string { return "" }}
	root := a.rootCommand()
	roles := pgtest.NewEmpty(t)
	makeRoles(t, roles, "shop_app", "shop_migrations", "shop_oncall")

	for _, cmd := range commandsWithExamples(root) {
		path := cmd.CommandPath()
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			if cmd.Example == "" {
				t.Fatal("the command has no examples")
			}
			if !strings.Contains(cmd.Long, "Exit status: ") {
				t.Error("its help says nothing about the exit status")
			}
			var pool *pgxpool.Pool
			if path == "fencectl" || path == "fencectl install" {
				pool = pgtest.NewEmpty(t)
			} else {
				pool = pgtest.New(t)
			}
			pgtest.Exec(t, pool, tables)
			if sql := before[path]; sql != "" {
				pgtest.Exec(t, pool, sql)
			}
			dir := t.TempDir()
			for _, sub := range []string{"db/migrations", "db/plain"} {
				if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for name, content := range files[path] {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for line := range strings.Lines(cmd.Example) {
				line = strings.TrimSpace(line)
				if notRun[path] != "" {
					line += " --help"
				}
				if !strings.HasPrefix(line, "fencectl ") {
					t.Errorf("not a command line: %s", line)
					continue
				}
				shell := exec.CommandContext(t.Context(), "bash", "-c", line)
				shell.Dir = dir
				shell.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "FENCECTL_DSN="+pgtest.DSN(t, pool))
				out, err := shell.CombinedOutput()
				if err != nil {
					t.Errorf("$ %s\n%s%v", line, out, err)
				}
			}
		})
	}
}

// installed is a directory with an executable fencectl.
func installed(t *testing.T) (dir string) {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "fencectl")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The same as TestAnInterruptedProtectSaysWhatIsDoneAndExitsLikeASignal, with a process and a signal.
func TestCtrlCEndsTheProcessCleanly(t *testing.T) {
	t.Parallel()
	pool, _ := shop(t)
	holder, err := pgtest.Conn(t, pool).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, holder, "LOCK TABLE public.jobs IN ACCESS SHARE MODE")
	pid := pgtest.Value[int32](t, holder, "SELECT pg_backend_pid()")

	cmd := exec.CommandContext(t.Context(), filepath.Join(installed(t), "fencectl"), "protect", "billing.accounts", "public.jobs", "--lock-timeout", "1h")
	cmd.Env = append(os.Environ(), "FENCECTL_DSN="+pgtest.DSN(t, pool))
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pgtest.WaitBlockedBy(t, pool, uint32(pid))
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its status is what is looked at
	if status := cmd.ProcessState.ExitCode(); status != 130 {
		t.Errorf("exit status %d", status)
	}
	if want := "protected billing.accounts (row, strict)\nfencectl: interrupted after 1 of 2 tables; left as they were: public.jobs\n"; output.String() != want {
		t.Errorf("output:\n%s", output.String())
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := protection(t, pool); got != "billing.accounts row strict allow enforce" {
		t.Errorf("protected: %s", got)
	}
}

// makeRoles creates roles of fixed names. They belong to the whole server, so they are given up once their grants are gone.
func makeRoles(t *testing.T, pool *pgxpool.Pool, names ...string) {
	t.Helper()
	for _, name := range names {
		pgtest.Exec(t, pool, "DO $$ BEGIN CREATE ROLE "+name+"; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
	}
	t.Cleanup(func() {
		for _, name := range names {
			// Runs after the subtests, whose databases took the grants with them. Another test process may still use the role.
			if _, err := pool.Exec(context.Background(), "DROP ROLE IF EXISTS "+name); err != nil && pgtest.SQLState(err) != "2BP01" {
				t.Error(err)
			}
		}
	})
}
