//go:build linux

package torture_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/torture"
	"github.com/fencectl/fencectl/internal/torture/history"
)

// asPart makes the test binary one of a run's other processes.
const asPart = "torture-part"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == asPart {
		if err := torture.Part(context.Background(), os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runFor(t *testing.T, o torture.Options) *torture.Report {
	t.Helper()
	var err error
	if o.Self, err = torture.Self(asPart); err != nil {
		t.Fatal(err)
	}
	o.Tell = func(f torture.Injected) {
		t.Logf("%6.2fs to %6.2fs  %s: %s %s", f.Began.Seconds(), f.Ended.Seconds(), f.Lane, f.Kind, f.Note)
	}
	r, err := torture.Run(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations, %+v, %+v", len(r.History.Ops), r.Operations(), r.Refusals())
	return r
}

// accepted counts what the workers got done.
func accepted(r *torture.Report, kind history.Kind) int {
	for _, c := range r.Operations() {
		if c.Kind == kind {
			return c.OK
		}
	}
	return 0
}

func TestWithGuardsNoFaultBreaksAPromise(t *testing.T) {
	r := runFor(t, torture.Options{Duration: 12 * time.Second, Seed: 3, Workers: 8})
	for _, v := range r.Verdict.Violations {
		t.Errorf("%s, %s: %s", v.Rule, v.Subject, v.Text)
		for _, op := range v.Around {
			t.Log(torture.Describe(r, op))
		}
	}
	for _, c := range r.Faults() {
		if c.Injected == 0 {
			t.Errorf("%s was planned %d times, and never happened", c.Kind, c.Planned)
		}
	}
	// A run in which nothing happened proves nothing.
	if grants, writes := accepted(r, history.Grant), accepted(r, history.Write); grants < 5 || writes < 20 {
		t.Errorf("only %d grants and %d writes", grants, writes)
	}
	if r.Verdict.Registers == 0 || r.Verdict.Undecided > 0 {
		t.Errorf("of %d fences %d could not be judged", r.Verdict.Registers, r.Verdict.Undecided)
	}
	sources := map[string]bool{}
	for _, op := range r.History.Ops {
		if op.Kind == history.Grant && op.Outcome == history.OK {
			sources[op.Source] = true
		}
	}
	if len(sources) != 2 {
		t.Errorf("grants from %v only", sources)
	}
}

// The control: the same workers and faults, and nothing that stops a zombie.
func TestWithoutGuardsTheSameFaultsDoDamage(t *testing.T) {
	r := runFor(t, torture.Options{Duration: 2 * time.Minute, Seed: 3, Workers: 8, GuardsOff: true, UntilDamage: true})
	found := map[history.Rule]int{}
	for _, c := range r.Rules() {
		found[c.Rule] = c.N
	}
	for _, rule := range []history.Rule{history.StaleWrite, history.NotLinearizable} {
		if found[rule] == 0 {
			t.Errorf("no violation of %q, but %v", rule, found)
		}
	}
	// What does not depend on the guards holds without them.
	for _, rule := range []history.Rule{history.LostWrite, history.LostClaim, history.TokenReissued, history.TokenWentBack, history.WrittenTwice, history.HalfWritten, history.RefusedWritten, history.LogContradicted} {
		if found[rule] > 0 {
			t.Errorf("%d violations of %q", found[rule], rule)
		}
	}
	var page bytes.Buffer
	if err := torture.WriteHTML(&page, r); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"without guards", history.StaleWrite.Promise() + ": broken", "class=\"involved\"", "style=\"left: "} {
		if !strings.Contains(page.String(), part) {
			t.Errorf("the page does not have %q", part)
		}
	}
	for _, outside := range []string{"<script", "src=", "href=", "url(", "ZgotmplZ"} {
		if strings.Contains(page.String(), outside) {
			t.Errorf("the page has %q", outside)
		}
	}
}

// The control of durability. One kill of the server may lose nothing, so that this takes a minute and is for those who ask for it.
func TestWithoutSynchronousCommitLostWritesAreFound(t *testing.T) {
	if os.Getenv("FENCECTL_TORTURE") != "long" {
		t.Skip("takes a minute: FENCECTL_TORTURE=long")
	}
	r := runFor(t, torture.Options{Duration: time.Minute, Seed: 3, Workers: 8, AsyncCommit: true})
	for _, c := range r.Rules() {
		if (c.Rule == history.LostWrite) != (c.N > 0) && c.Rule != history.NotLinearizable && c.Rule != history.LostUpdate {
			t.Errorf("%d violations of %q", c.N, c.Rule)
		}
	}
}

func TestAnInterruptedRunLeavesNothingBehind(t *testing.T) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	self, err := torture.Self(asPart)
	if err != nil {
		t.Fatal(err)
	}
	before := left(t)
	// In the middle of it all: while a worker is stopped, and something else has just been broken.
	var once sync.Once
	_, err = torture.Run(ctx, &torture.Options{
		Duration: time.Hour, Seed: 1, Workers: 4, Self: self,
		Tell: func(torture.Injected) { once.Do(func() { cancel(stop) }) },
	})
	if !errors.Is(err, stop) {
		t.Fatalf("it ended with %v", err)
	}
	if diff := cmp.Diff(before, left(t)); diff != "" {
		t.Errorf("it left: %s", diff)
	}
}

// left lists this process's children, and the directories of runs and their servers.
func left(t *testing.T) []string {
	t.Helper()
	all := []string{}
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range children {
		pids, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		for _, pid := range strings.Fields(string(pids)) {
			command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			all = append(all, strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return append(all, directories(t, os.Getpid())...)
}

// directories lists those of a process's run.
func directories(t *testing.T, pid int) (all []string) {
	t.Helper()
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp"} { // as internal/pgserver
		found, err := filepath.Glob(filepath.Join(base, fmt.Sprintf("fencectl-torture-%d-*", pid)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

func TestTheKernelEndsThePartsOfARunThatIsKilled(t *testing.T) {
	if os.Getenv(asRun) != "" {
		self, err := torture.Self(asPart)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = torture.Run(context.Background(), &torture.Options{
			Duration: time.Hour, Seed: 1, Workers: 2, Self: self, Tell: func(torture.Injected) { fmt.Println(asRun) },
		})
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	temp := t.TempDir() // of what a killed run cannot remove
	cmd.Env = append(os.Environ(), asRun+"=1", "TMPDIR="+temp)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := make([]byte, len(asRun))
	if _, err := stdout.Read(seen); err != nil || string(seen) != asRun {
		t.Errorf("it said %q, %v", seen, err)
	}
	parts := descendants(t, cmd.Process.Pid)
	if len(parts) < 6 { // two workers, three members of etcd, PostgreSQL
		t.Errorf("it has only the processes %v", parts)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()                                        // killed
	for _, dir := range directories(t, cmd.Process.Pid) { // which no kernel removes
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		parts = slices.DeleteFunc(parts, func(pid string) bool {
			status, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(status), ") Z ") // a zombie of nobody who reaps
		})
		if len(parts) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still running: %v", parts)
		}
	}
}

const asRun = "TORTURE_RUN"

// descendants lists the processes that a process has started.
func descendants(t *testing.T, pid int) (all []string) {
	t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		children, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		all = append(all, strings.Fields(string(children))...)
	}
	return all
}
