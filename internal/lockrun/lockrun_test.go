package lockrun_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lockrun"
	"github.com/fencectl/fencectl/internal/pgtest"
)

func value(environ []string, name string) string {
	at := slices.IndexFunc(environ, func(variable string) bool { return strings.HasPrefix(variable, name+"=") })
	if at < 0 {
		return ""
	}
	return strings.TrimPrefix(environ[at], name+"=")
}

func TestEnvironReplacesWhatAnotherLockHasSetAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	before := []string{"FENCING_TOKEN=1", "HOME=/root", "FENCING_LOCK=a", "PGOPTIONS=-c jit=off", "FENCING_TOKEN=2", `FENCING_TOKENS={"a":1}`, "PGOPTIONS=-c jit=on"}
	unchanged := slices.Clone(before)
	got, err := lockrun.Environ(before, "b", 7)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"HOME=/root", "FENCING_LOCK=b", "FENCING_TOKEN=7", `FENCING_TOKENS={"a":1,"b":7}`,
		`PGOPTIONS=-c jit=off -c fencing.token=7 -c fencing.tokens={"a":1,"b":7}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(unchanged, before); diff != "" {
		t.Errorf("the environment that was given has changed:\n%s", diff)
	}
}

// What stands between the variable and the server, libpq's startup packet and the server's parsing of it, is the server's and
// libpq's own here.
func TestEveryNameOfALockGetsThroughPGOPTIONS(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	names := []string{
		"plain", "two words", "tab\tand\nline", `back\slash`, `\\`, `"quoted"`, "it's", "-c jit=on", "é", "日本", "😀", "a=b", "{}", "$HOME", "\u00a0", "\u0085", "\x01", "<&>",
	}
	environ := []string{}
	for i, name := range names {
		var err error
		if environ, err = lockrun.Environ(environ, name, fenced.Token(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range names {
		psql := exec.CommandContext(t.Context(), "psql", "-XAt", "-v", "name="+name, "-d", pgtest.DSN(t, pool))
		psql.Env = []string{"PATH=" + os.Getenv("PATH"), "PGOPTIONS=" + value(environ, "PGOPTIONS"), "PGCLIENTENCODING=UTF8"}
		psql.Stdin = strings.NewReader("SELECT fencing.presented(:'name') = " + fenced.Token(i+1).String() + ", fencing.presented()")
		out, err := psql.CombinedOutput()
		if want := "t|" + fenced.Token(len(names)).String() + "\n"; err != nil || string(out) != want {
			t.Errorf("%q: %v\n%s", name, err, out)
		}
	}
}

func TestHeldRefusesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"34", "[]", "null", `{"a":"1"}`, `{"a":0}`, `{"a":-1}`, `{"a":1.5}`, "{"} {
		if held, err := lockrun.Held([]string{"FENCING_TOKENS=" + text}); err == nil || !strings.Contains(err.Error(), "FENCING_TOKENS") {
			t.Errorf("%s: %v, %v", text, held, err)
		}
	}
	for _, environ := range [][]string{nil, {"FENCING_TOKENS="}, {"FENCING_TOKENS={}"}} {
		if held, err := lockrun.Held(environ); err != nil || len(held) != 0 {
			t.Errorf("%v: %v, %v", environ, held, err)
		}
	}
}

func TestFindTellsWhatIsMissingFromWhatCannotBeExecuted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("what is executable goes by the name there")
	}
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"program": 0o755, "data": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	if path, err := lockrun.Find("program"); err != nil || path != filepath.Join(dir, "program") {
		t.Errorf("%s, %v", path, err)
	}
	for name, want := range map[string]struct {
		status int
		is     error
	}{
		"missing":                     {127, exec.ErrNotFound},
		filepath.Join(dir, "missing"): {127, fs.ErrNotExist},
		"data":                        {126, fs.ErrPermission},
		filepath.Join(dir, "data"):    {126, fs.ErrPermission},
		dir:                           {126, nil},
	} {
		_, err := lockrun.Find(name)
		var start *lockrun.StartError
		if !errors.As(err, &start) || start.Status() != want.status || want.is != nil && !errors.Is(err, want.is) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
