package migrations_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// acceptFoundBinaries are the client programs of this machine, oldest version first for each name.
var acceptFoundBinaries = sync.OnceValue(func() map[string]map[int]string {
	directories, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well-formed
	if dir := os.Getenv(pgserver.BinDirVariable); dir != "" {
		directories = append(directories, dir)
	}
	directories = append(directories, filepath.SplitList(os.Getenv("PATH"))...)
	found := map[string]map[int]string{}
	for _, name := range []string{"pg_dump", "pg_restore", "psql"} {
		found[name] = map[int]string{}
		for _, dir := range directories {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err != nil {
				continue
			}
			out, err := exec.Command(path, "--version").Output()
			if match := acceptVersion.FindSubmatch(out); err == nil && match != nil {
				major, _ := strconv.Atoi(string(match[1])) // the pattern is digits
				if found[name][major] == "" {
					found[name][major] = path
				}
			}
		}
	}
	return found
})

// acceptDumpBinary is the oldest client program of that name that is not older than the server: pg_dump refuses newer
// servers, and a newer pg_dump's output is for newer servers.
func acceptDumpBinary(t testing.TB, name string) (string, error) {
	t.Helper()
	server := pgtest.ServerVersion(t)
	best := 0
	for major := range acceptFoundBinaries()[name] {
		if major >= server && (best == 0 || major < best) {
			best = major
		}
	}
	if best == 0 {
		return "", fmt.Errorf("no %s of version %d or later on this machine: install PostgreSQL's client package of that version", name, server)
	}
	return acceptFoundBinaries()[name][best], nil
}

// acceptTool is a client program, or the test is skipped.
func acceptTool(t testing.TB, name string) string {
	t.Helper()
	binary, err := acceptDumpBinary(t, name)
	if err != nil {
		t.Skip(err)
	}
	return binary
}

// acceptDump runs pg_dump and returns what it prints.
func acceptDump(t testing.TB, binary, dsn string, arguments ...string) string {
	t.Helper()
	if acceptKnowsRestrict(binary) {
		// Without a key of ours the dump begins and ends with a random one, and no two dumps are alike.
		arguments = append(arguments, "--restrict-key=acceptance")
	}
	return acceptCommand(t, "", binary, append([]string{"--dbname=" + dsn}, arguments...)...)
}

var acceptRestrict sync.Map // of binary to bool

func acceptKnowsRestrict(binary string) bool {
	known, ok := acceptRestrict.Load(binary)
	if !ok {
		out, err := exec.Command(binary, "--help").Output()
		known = err == nil && bytes.Contains(out, []byte("--restrict-key"))
		acceptRestrict.Store(binary, known)
	}
	return known.(bool)
}

// acceptCommand runs a program that must succeed without a word on standard error, and returns its standard output.
func acceptCommand(t testing.TB, stdin, program string, arguments ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, arguments...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments[1:], " "), err, stderr.Bytes())
	}
	return stdout.String()
}
