package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/servers"
	"github.com/fencectl/fencectl/bench/internal/workload"
)

// The test binary is also the etcd of the workloads.
func TestMain(m *testing.M) {
	if isServer, err := servers.Main(os.Args); isServer {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestAQuickRunOfAWorkloadPrintsItsFiguresAndWritesNothing(t *testing.T) {
	root := t.TempDir()
	var out, errs bytes.Buffer
	// One in pairs of variants, and one whose server is this program.
	if err := run(t.Context(), []string{"-quick", "-root", root, "-only", "row_bulk_set,etcd_vs_raw"}, &out, &errs); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	for _, want := range []string{"bulk-update/20000", "fencectl, statement sets it", "locks/alone", "row_bulk_set  ", "etcd_vs_raw  "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "PL/pgSQL guard") {
		t.Errorf("a variant was measured that neither figure needs:\n%s", out.String())
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("the run wrote %v (%v)", entries, err)
	}
}

func TestAnInterruptedFullRunLeavesTheLastResults(t *testing.T) {
	root := t.TempDir()
	latest := filepath.Join(root, "bench/results/latest.json")
	if err := results.Replace(latest, []byte("the last run's")); err != nil {
		t.Fatal(err)
	}
	interrupted := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	errs := writer(func([]byte) { cancel(interrupted) }) // as soon as it has something to say: the server is up
	if err := run(ctx, []string{"-root", root}, new(bytes.Buffer), errs); !errors.Is(err, interrupted) {
		t.Errorf("the error is %v", err)
	}
	content, err := os.ReadFile(latest)
	if err != nil || string(content) != "the last run's" {
		t.Errorf("the results are %q (%v)", content, err)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "bench/results")); err != nil || len(entries) != 1 {
		t.Errorf("there is %v (%v)", entries, err)
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

func TestWhatIsNotThereCannotBeSelected(t *testing.T) {
	if err := run(t.Context(), []string{"-only", "nonsense"}, new(bytes.Buffer), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
		t.Errorf("the error is %v", err)
	}
}

// Every ratio can be selected alone, and its cells are those of a workload.
func TestEveryRatioSelectsItsWorkload(t *testing.T) {
	for _, scale := range []workload.Scale{workload.Full, workload.Quick} {
		for _, ratio := range scale.Ratios() {
			selection, err := workload.Select(scale, "..", []string{ratio.Name})
			if err != nil {
				t.Fatal(err)
			}
			if got := selection.Workloads(); len(got) != 1 || !strings.HasPrefix(ratio.Cells[0], got[0].Name+"/") {
				t.Errorf("%s selects %d workloads for %v", ratio.Name, len(got), ratio.Cells)
			}
		}
	}
	// What others look for in the results.
	var names []string
	for _, ratio := range workload.Full.Ratios() {
		names = append(names, ratio.Name)
	}
	for _, name := range []string{"row_single", "row_bulk_set", "row_bulk_presented", "named_bulk", "named_hot_32", "lease_vs_pglock", "etcd_vs_raw", "audit_10000_ms"} {
		if !strings.Contains(strings.Join(names, " "), name) {
			t.Errorf("there is no %s among %v", name, names)
		}
	}
}
