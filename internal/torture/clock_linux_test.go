package torture

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// In a process of its own: its clock is not good for anything afterwards.
func TestTheWallClockOfOneProcessIsSteppedAndNoOther(t *testing.T) {
	if !canStepClocks() {
		t.Skip("not on this machine")
	}
	const inside = "TORTURE_CLOCK"
	if os.Getenv(inside) == "" {
		began := time.Now()
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		wall, monotonic := time.Now().Round(0).Sub(began.Round(0)), time.Since(began)
		if (wall - monotonic).Abs() > time.Minute {
			t.Errorf("here %v passed, on the wall %v", monotonic, wall)
		}
		return
	}
	clock, err := interceptWallClock()
	if err != nil {
		t.Fatal(err)
	}
	defer clock.Close()
	began, machine := time.Now(), now()
	for _, step := range []time.Duration{time.Hour, -3 * time.Hour} {
		if err := clock.Step(step); err != nil {
			t.Fatal(err)
		}
	}
	if wall := time.Now().Round(0).Sub(began.Round(0)); (wall + 2*time.Hour).Abs() > time.Minute {
		t.Errorf("the wall clock moved by %v", wall)
	}
	if monotonic := time.Since(began); monotonic < 0 || monotonic > time.Minute {
		t.Errorf("the monotonic clock moved by %v", monotonic)
	}
	if passed := time.Duration(now() - machine); passed < 0 || passed > time.Minute {
		t.Errorf("the machine's clock moved by %v", passed)
	}
}
