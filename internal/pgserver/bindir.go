package pgserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BinDirVariable names the environment variable that says where the server's binaries are. It wins over every other place.
const BinDirVariable = "FENCECTL_PG_BIN"

// NotFoundError says that no usable PostgreSQL server binaries were found, where they were looked for, and what to do.
type NotFoundError struct {
	Looked []string // the places, as a person would name them
	TooOld []string // binaries that were found but are older than OldestMajor
}

func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pgserver: no PostgreSQL server binaries (initdb, postgres) of version %d or later", OldestMajor)
	if len(e.Looked) > 0 {
		fmt.Fprintf(&b, "; looked in %s", strings.Join(e.Looked, ", "))
	}
	if len(e.TooOld) > 0 {
		fmt.Fprintf(&b, "; too old: %s", strings.Join(e.TooOld, ", "))
	}
	install := "install PostgreSQL's server package"
	switch runtime.GOOS {
	case "linux":
		install += " (Debian, Ubuntu: 'apt-get install postgresql'; Fedora: 'dnf install postgresql-server'; Alpine: 'apk add postgresql')"
	case "darwin":
		install += " ('brew install postgresql@18')"
	}
	fmt.Fprintf(&b, ". To go on, %s, or set %s to the directory that holds initdb and postgres", install, BinDirVariable)
	return b.String()
}

// FindBinDir is the directory of the PostgreSQL server binaries to use: the one that FENCECTL_PG_BIN names, else the one
// that pg_config names, else the one on PATH, else the newest where the usual packages put them. Anything older than
// OldestMajor is passed over. A FENCECTL_PG_BIN that does not hold the binaries is an error, never ignored; where nothing
// is found the error is a *NotFoundError.
func FindBinDir() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if dir := os.Getenv(BinDirVariable); dir != "" {
		if !hasBinaries(dir) {
			return "", fmt.Errorf("pgserver: %s=%s does not hold initdb and postgres: set it to the directory that does, or unset it", BinDirVariable, dir)
		}
		return filepath.Abs(dir)
	}

	missing := &NotFoundError{Looked: []string{"$" + BinDirVariable, "pg_config --bindir", "$PATH"}}
	var candidates []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		candidates = append(candidates, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		// What is on PATH may be a link; initdb and the libraries are beside what it points to.
		if target, err := filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, filepath.Dir(target))
		}
		candidates = append(candidates, filepath.Dir(path))
	}
	for _, pattern := range packagePlaces {
		missing.Looked = append(missing.Looked, pattern)
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("pgserver: %s: %w", pattern, err)
		}
		fixed, _, _ := strings.Cut(pattern, "*")
		version := func(path string) int { return numberIn(strings.TrimPrefix(path, fixed)) }
		slices.SortStableFunc(found, func(a, b string) int { return version(b) - version(a) })
		candidates = append(candidates, found...)
	}
	for _, dir := range candidates {
		if !hasBinaries(dir) {
			continue
		}
		major, err := majorVersion(ctx, dir)
		switch {
		case err != nil:
			continue // not for this machine, or not for this user: the next one may be
		case major < OldestMajor:
			missing.TooOld = append(missing.TooOld, fmt.Sprintf("%s (PostgreSQL %d)", dir, major))
		default:
			return filepath.Abs(dir)
		}
	}
	return "", missing
}

// packagePlaces are where packages put the server's binaries: Debian, Red Hat, Alpine, Homebrew (Apple silicon, Intel),
// Postgres.app.
var packagePlaces = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

var digits = regexp.MustCompile(`\d+`)

// numberIn is the first number in a text, 0 without one. After the fixed part of each of packagePlaces that is the major
// version.
func numberIn(text string) int {
	n, err := strconv.Atoi(digits.FindString(text))
	if err != nil {
		return 0
	}
	return n
}

func hasBinaries(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// majorVersion asks the binaries for their major version.
func majorVersion(ctx context.Context, binDir string) (int, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(binDir, "postgres"), "--version").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgserver: %s --version: %w\n%s", filepath.Join(binDir, "postgres"), err, tail(out))
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("pgserver: %s --version says %q, which names no PostgreSQL version", filepath.Join(binDir, "postgres"), out)
	}
	return strconv.Atoi(string(match[1]))
}

// hasLibrary tells whether a loadable module is installed for these binaries. pg_config, which would know the directory,
// is often not installed with the server; the layouts of the usual packages are few.
func hasLibrary(binDir, name string) bool {
	if target, err := filepath.EvalSymlinks(filepath.Join(binDir, "postgres")); err == nil {
		binDir = filepath.Dir(target)
	}
	for _, lib := range []string{"../lib", "../lib/postgresql", "../lib64", "../lib64/pgsql", "../../lib/postgresql"} {
		for _, suffix := range []string{".so", ".dylib"} {
			if _, err := os.Stat(filepath.Join(binDir, lib, name+suffix)); err == nil {
				return true
			}
		}
	}
	return false
}
