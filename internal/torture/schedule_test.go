package torture_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/internal/torture"
)

func plan(t *testing.T, o torture.Options) []torture.Fault {
	t.Helper()
	faults, err := torture.Plan(&o)
	if err != nil {
		t.Fatal(err)
	}
	return faults
}

func TestTheFaultsFollowFromTheSeed(t *testing.T) {
	o := torture.Options{Duration: 10 * time.Minute, Seed: 42}
	first := plan(t, o)
	if diff := cmp.Diff(first, plan(t, o)); diff != "" {
		t.Errorf("one seed, two plans: %s", diff)
	}
	off := o
	off.GuardsOff = true
	if diff := cmp.Diff(first, plan(t, off)); diff != "" {
		t.Errorf("the control has another plan: %s", diff)
	}
	o.Seed++
	if cmp.Equal(first, plan(t, o)) {
		t.Error("two seeds, one plan")
	}
}

func TestTenMinutesHaveHundredsOfFaultsOfEveryKind(t *testing.T) {
	for seed := range uint64(20) {
		kinds := map[torture.FaultKind]int{}
		faults := plan(t, torture.Options{Duration: 10 * time.Minute, Seed: seed})
		lanes := map[string]time.Duration{}
		for _, f := range faults {
			kinds[f.Kind]++
			if f.At <= lanes[f.Lane] {
				t.Errorf("seed %d: %s at %v comes after the one at %v", seed, f.Kind, f.At, lanes[f.Lane])
			}
			lanes[f.Lane] = f.At
		}
		if len(faults) < 300 {
			t.Errorf("seed %d: %d faults", seed, len(faults))
		}
		for _, kind := range []torture.FaultKind{
			torture.PauseWorker, torture.KillWorker, torture.KillPostgres, torture.FreezePostgres, torture.PromoteStandby, torture.KillEtcdLeader, torture.RestoreEtcd,
		} {
			if kinds[kind] < 10 {
				t.Errorf("seed %d: %s only %d times", seed, kind, kinds[kind])
			}
		}
	}
}

func TestEvenAShortRunHasEveryKindOfFault(t *testing.T) {
	all := map[torture.FaultKind]bool{}
	for _, f := range plan(t, torture.Options{Duration: 10 * time.Minute, Seed: 1}) {
		all[f.Kind] = true
	}
	for seed := range uint64(50) {
		kinds := map[torture.FaultKind]bool{}
		for _, f := range plan(t, torture.Options{Duration: time.Second, Seed: seed, Workers: 2}) {
			kinds[f.Kind] = true
		}
		if diff := cmp.Diff(all, kinds); diff != "" {
			t.Errorf("seed %d: %s", seed, diff)
		}
	}
}

func TestOptionsThatMakeNoRunAreRefused(t *testing.T) {
	for _, o := range []torture.Options{{}, {Duration: time.Millisecond}, {Duration: time.Minute, Workers: 1}, {Duration: time.Minute, Workers: 1000}} {
		if _, err := torture.Plan(&o); err == nil {
			t.Errorf("%+v", o)
		}
	}
}
