// Package torture breaks everything that fencing has to survive, on purpose and for minutes, and has a judge look at what came of it.
//
// Worker processes compete for locks (leases of PostgreSQL, mutexes of a three-node etcd), claim, read and write, some of them through
// PgBouncer in transaction mode. Half of them are careful: they watch the context of their grant. The others only hold a
// number, as a program in another language would, and go on writing when they wake up late: those are the zombies that the fences are
// for. Meanwhile workers are stopped past their leases, killed, and have their clocks stepped; PostgreSQL is killed, frozen, and
// replaced by a standby that lacks the last transactions; etcd loses its leader, and is restored from a snapshot. The plan of
// the faults follows from a seed.
//
// What every worker did and was told is recorded; package history compares it with what the database says in the end. With the guards
// off, and all else the same, the judge has to find damage: that is the control.
//
// The servers run without fsync. No fault here needs it: what a killed process has written is in the operating system's cache and
// survives it, and only the loss of the machine's power would not be. synchronous_commit is on.
package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/fencectl/fencectl/internal/torture/history"
)

// leaseTTL is how long a worker's lock lasts without renewal, whichever the source. Less is not possible with etcd.
const leaseTTL = time.Second

// Options are the settings of a run.
type Options struct {
	// Duration is how long the workers work. The run lasts longer by its beginning and its end, and until every kind of fault has been
	// seen once.
	Duration time.Duration
	// Seed decides the plan of the faults.
	Seed uint64
	// Workers is the number of worker processes, at least 2. 0 is the default, 10.
	Workers int
	// GuardsOff leaves the tables unprotected: the control.
	GuardsOff bool
	// AsyncCommit has the workers' sessions acknowledge writes before they are on disk (synchronous_commit = off): the control of durability. A
	// server that is killed then loses what it acknowledged last, and the judge has to find that. Claims and tokens do not follow the setting.
	AsyncCommit bool
	// UntilDamage ends the run as soon as an older token has written after a newer one, when the guards are off.
	UntilDamage bool
	// Self is the command that starts this program as one of the run's parts: it calls [Part] with the argument that follows, its input and
	// its output.
	Self []string
	// Tell is called for every fault when it is over; nil for nobody.
	Tell func(Injected)
	// Logger is told what is done, at debug level; nil for none.
	Logger *slog.Logger
}

// DefaultWorkers is the number of workers when nobody says otherwise.
const DefaultWorkers = 10

// Check says what is wrong with the options.
func (o *Options) Check() error {
	switch {
	case o.Duration < time.Second:
		return errors.New("the duration must be a second or more")
	case o.Workers != 0 && o.Workers < 2:
		return errors.New("there must be two workers or more: one alone has no rival")
	case o.Workers > 200:
		return errors.New("there can be 200 workers at most")
	}
	return nil
}

// Plan is the faults that a run with these options would inject on this machine, in the order in which they are due.
func Plan(o *Options) ([]Fault, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	with := o.withDefaults()
	return schedule(with, capable()), nil
}

func (o *Options) withDefaults() *Options {
	with := *o
	if with.Workers == 0 {
		with.Workers = DefaultWorkers
	}
	if with.Tell == nil {
		with.Tell = func(Injected) {}
	}
	if with.Logger == nil {
		with.Logger = slog.New(slog.DiscardHandler)
	}
	return &with
}

// A lock is what workers compete for.
type lock struct {
	Name   string
	Source string // sourcePostgres or sourceEtcd
}

// The token sources, as histories name them.
const (
	sourcePostgres = "postgres"
	sourceEtcd     = "etcd"
)

// locks are far fewer than workers, so that there is always somebody to take over; half of them are from each source.
func (o *Options) locks() []lock {
	var all []lock
	for i := range 2 * max(1, o.Workers/5) {
		source := sourcePostgres
		if i%2 == 1 {
			source = sourceEtcd
		}
		all = append(all, lock{fmt.Sprintf("%s-%d", source, i/2+1), source})
	}
	return all
}

// capabilities are what of a run depends on the machine.
type capabilities struct {
	stepClocks bool
	pooler     bool
}

// An Injected is a fault that was.
type Injected struct {
	Fault
	Began, Ended time.Duration // since the workers began
	Note         string        // what came of it, for people; may be empty
}

// A Report is the result of a run.
type Report struct {
	Options       Options
	ServerVersion int // PostgreSQL's major version
	// Missing says what could not be done on this machine, and why; empty when all could.
	Missing  []string
	Took     time.Duration // of the workers' work
	Planned  []Fault
	Injected []Injected
	History  *history.History
	Verdict  *history.Verdict
}

// Run runs workers and faults, and judges. The error says why it could not; violations are in the report. When ctx ends it takes
// everything down, and returns the context's cause.
func Run(ctx context.Context, options *Options) (*Report, error) {
	if err := options.Check(); err != nil {
		return nil, err
	}
	return run(ctx, options.withDefaults())
}

// The roles of the other processes.
const (
	roleWorker = "worker"
	roleEtcd   = "etcd"
)

// Part is what another process of a run does, in the role that it was started in. It returns when its input ends.
func Part(ctx context.Context, role string, stdin io.Reader, stdout io.Writer) error {
	return playPart(ctx, role, stdin, stdout)
}

// Self is the command that starts this program as a part, for a program that calls [Part] when its first arguments are those given.
func Self(arguments ...string) ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return append([]string{program}, arguments...), nil
}
