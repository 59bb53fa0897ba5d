package migrationfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/migrationfile"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func directory(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("-- somebody else's\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNumbersContinueTheConventionOfTheDirectory(t *testing.T) {
	one := migrationfile.Migration{Name: "one", Up: "SELECT 1;\n", Down: "SELECT 2;\n"}
	two := migrationfile.Migration{Name: "two", Up: "SELECT 1;\n", Down: "SELECT 2;\n"}
	for _, tt := range []struct {
		name     string
		existing []string
		want     []string
	}{
		{"empty", nil, []string{"20260304120000_one.sql", "20260304120001_two.sql"}},
		{"no migrations", []string{"README.md", "V1__flyway.sql"}, []string{"20260304120000_one.sql", "20260304120001_two.sql"}},
		{"sequence", []string{"00001_a.sql", "00009_b.go"}, []string{"00010_one.sql", "00011_two.sql"}},
		{"narrow sequence", []string{"1_a.sql", "9_b.sql"}, []string{"10_one.sql", "11_two.sql"}},
		{"tests of Go migrations do not count", []string{"00001_a.go", "00002_a_test.go"}, []string{"00002_one.sql", "00003_two.sql"}},
		{"time", []string{"20250101000000_a.sql"}, []string{"20260304120000_one.sql", "20260304120001_two.sql"}},
		{"time in the future", []string{"20270101235959_a.sql"}, []string{"20270102000000_one.sql", "20270102000001_two.sql"}},
		{"from sequence to time", []string{"00001_a.sql", "20250101000000_b.sql"}, []string{"20260304120000_one.sql", "20260304120001_two.sql"}},
		{"Unix time", []string{"1700000000_a.up.sql"}, []string{"1772625600_one.sql", "1772625601_two.sql"}},
	} {
		dir := directory(t, tt.existing...)
		paths, err := migrationfile.Write(dir, migrationfile.Goose, noon, one, two)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var got []string
		for _, path := range paths {
			got = append(got, filepath.Base(path))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestBothFormatsHoldTheSameStatements(t *testing.T) {
	m := migrationfile.Migration{
		Name: "Protect Größe & co.", Comment: "What it is.\n+goose Down is no comment",
		Up:   migrationfile.Statements("SELECT 'a -- b'", "SELECT 1"),
		Down: migrationfile.Statements("SELECT 2"),
	}
	dir := directory(t, "001_a.up.sql", "001_a.down.sql")
	paths, err := migrationfile.Write(dir, migrationfile.SQL, noon, m)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(dir, "002_protect_gr_e_co.up.sql"), filepath.Join(dir, "002_protect_gr_e_co.down.sql")}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Fatal(diff)
	}
	for i, text := range []string{"-- What it is.\n\nSELECT 'a -- b';\nSELECT 1;\n", "-- What it is.\n\nSELECT 2;\n"} {
		if got := read(t, paths[i]); got != text {
			t.Errorf("%s:\n%s\nwant:\n%s", paths[i], got, text)
		}
	}

	paths, err = migrationfile.Write(directory(t), migrationfile.Goose, noon, m)
	if err != nil {
		t.Fatal(err)
	}
	text := "-- What it is.\n\n-- +goose Up\n-- +goose StatementBegin\nSELECT 'a -- b';\n-- +goose StatementEnd\nSELECT 1;\n\n-- +goose Down\nSELECT 2;\n"
	if got := read(t, paths[0]); got != text {
		t.Errorf("goose:\n%s\nwant:\n%s", got, text)
	}
}

func TestAGooseFileTakenApartAndWrittenAgainIsTheSame(t *testing.T) {
	const text = "-- A comment\n-- of two lines\n\n-- +goose Up\nSELECT 1;\n\n-- +goose Down\nSELECT 2;\n"
	m, err := migrationfile.ParseGoose(text)
	if err != nil {
		t.Fatal(err)
	}
	m.Name = "x"
	paths, err := migrationfile.Write(directory(t), migrationfile.Goose, noon, m)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text, read(t, paths[0])); diff != "" {
		t.Error(diff)
	}
	if _, err := migrationfile.ParseGoose("SELECT 1;\n"); err == nil {
		t.Error("a file without an Up part must be refused")
	}
}

func TestNothingIsOverwrittenAndNothingIsLeftBehind(t *testing.T) {
	dir := directory(t, "00001_a.sql")
	m := migrationfile.Migration{Name: "x", Up: "SELECT 1;\n", Down: "SELECT 2;\n"}
	if _, err := migrationfile.Write(dir, migrationfile.SQL, noon, m); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, "00001_a.sql")); got != "-- somebody else's\n" {
		t.Errorf("the existing file was changed: %s", got)
	}

	if _, err := migrationfile.Write(filepath.Join(dir, "missing"), migrationfile.Goose, noon, m); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a missing directory must be named, got %v", err)
	}
	before, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrationfile.Write(dir, "flyway", noon, m); err == nil {
		t.Error("an unknown format must be refused")
	}
	after, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) {
		t.Errorf("a failed write left files behind: %v", after)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestTwoWritersAtOnceNeverShareAFile(t *testing.T) {
	dir := directory(t, "00001_a.sql")
	const writers = 8
	results := make(chan []string, writers)
	for range writers {
		go func() {
			paths, err := migrationfile.Write(dir, migrationfile.Goose, noon, migrationfile.Migration{Name: "same", Up: "SELECT 1;\n", Down: "SELECT 2;\n"})
			if err != nil && !strings.Contains(err.Error(), "cannot create") {
				t.Error(err)
			}
			results <- paths
		}()
	}
	written := map[string]bool{}
	for range writers {
		for _, path := range <-results {
			if written[path] {
				t.Errorf("two writers were told that %s is theirs", path)
			}
			written[path] = true
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(written)+1 {
		t.Errorf("%d files for %d successful writes", len(files)-1, len(written))
	}
}
