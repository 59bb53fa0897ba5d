package pgtest_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/internal/pgserver"
)

// Two test processes share a server that the environment names: the tests of each pass, the template is made once and
// kept, what a killed process left is dropped, and what a living one uses is not.
func TestAnExistingServerIsSharedAndKeptClean(t *testing.T) {
	t.Parallel()
	if os.Getenv("FENCECTL_TEST_DSN") != "" {
		t.Skip("this is the test process on the existing server")
	}
	server, err := pgserver.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	const (
		abandoned = "fencectl_test_00000000000000aa_1"
		otherOld  = "fencectl_template_00000000000000ab"
		inUse     = "fencectl_test_00000000000000ac_1"
		foreign   = "fencectl_test_of_somebody_else"
	)
	for _, sql := range []string{
		"CREATE DATABASE " + abandoned,
		"CREATE DATABASE " + otherOld + " IS_TEMPLATE true ALLOW_CONNECTIONS false",
		"CREATE DATABASE " + inUse,
		"CREATE DATABASE " + foreign,
		"SELECT pg_advisory_lock_shared(x'ac'::bigint)",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	keywords := "host=" + server.SocketDir() + " user=postgres dbname=postgres port=" + strconv.Itoa(server.Port())
	results := make(chan string, 2)
	for _, dsn := range []string{server.DSN("postgres"), keywords} { // both ways to write an address
		cmd := exec.CommandContext(t.Context(), self, "-test.v",
			"-test.run=^(TestNewHasTheSchemaAndNewEmptyDoesNot|TestEverySessionHasAnEmptySearchPath|TestARoleHasOnlyWhatItWasGranted)$")
		cmd.Env = append(os.Environ(), "FENCECTL_TEST_DSN="+dsn)
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Count(string(out), "--- PASS") != 3 {
				results <- string(out)
				return
			}
			results <- ""
		}()
	}
	for range 2 {
		if out := <-results; out != "" {
			t.Errorf("a test process on the server failed:\n%s", out)
		}
	}

	rows, err := conn.Query(t.Context(), "SELECT datname::text FROM pg_database WHERE datname LIKE 'fencectl%' ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	templates := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, "fencectl_template_") })
	if len(templates) != 1 || templates[0] == otherOld {
		t.Errorf("templates %v: want the one of these migrations", templates)
	}
	if others := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(templates, name) }); !slices.Equal(others, []string{inUse, foreign}) {
		t.Errorf("databases %v, want %v", others, []string{inUse, foreign})
	}
}
