package torture

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// A FaultKind is one way of breaking something.
type FaultKind string

// The kinds of faults.
const (
	PauseWorker    FaultKind = "pause-worker"     // SIGSTOP of a worker that holds a lock, past its lease, then SIGCONT
	KillWorker     FaultKind = "kill-worker"      // kill -9 of a worker; another takes its place
	StepClock      FaultKind = "step-clock"       // a worker's wall clock jumps
	KillPostgres   FaultKind = "kill-postgres"    // kill -9 of the server and all its backends, then recovery
	FreezePostgres FaultKind = "freeze-postgres"  // SIGSTOP of the server and all its backends, past the leases, then SIGCONT
	PromoteStandby FaultKind = "promote-standby"  // of a standby that lacks the last transactions; the old primary is killed first
	KillEtcdLeader FaultKind = "kill-etcd-leader" // kill -9 of the member that leads; it comes back later
	RestoreEtcd    FaultKind = "restore-etcd"     // from a snapshot: revisions go back; the operator adopts the new cluster
	KillPooler     FaultKind = "kill-pooler"      // kill -9 of PgBouncer, then its restart
)

// What says of a kind of fault what it is, for people.
func (k FaultKind) What() string {
	return map[FaultKind]string{
		PauseWorker:    "worker stopped past its lease (SIGSTOP, SIGCONT)",
		KillWorker:     "worker killed (SIGKILL)",
		StepClock:      "wall clock of a worker stepped",
		KillPostgres:   "PostgreSQL killed (SIGKILL) and recovered",
		FreezePostgres: "PostgreSQL stopped past the leases (SIGSTOP, SIGCONT)",
		PromoteStandby: "standby promoted that lacked transactions",
		KillEtcdLeader: "leader of etcd killed (SIGKILL)",
		RestoreEtcd:    "etcd restored from a snapshot",
		KillPooler:     "PgBouncer killed (SIGKILL)",
	}[k]
}

// A Fault is one planned fault.
type Fault struct {
	// Lane is what the fault happens to; a lane's faults happen one after another, those of different lanes may overlap.
	Lane string
	// At is when, since the workers began. A fault that is due while the one before it in its lane is not over waits for it.
	At   time.Duration
	Kind FaultKind
	// Worker is the number of the worker, from 1; 0 when it is not about one.
	Worker int
	// For is how long something stays stopped, or dead, before it goes on.
	For time.Duration
	// By is how far a clock jumps.
	By time.Duration
}

// workerLane is the name of the lane of a worker.
func workerLane(number int) string { return "worker " + strconv.Itoa(number) }

// A lane is a sequence of faults of some kinds.
type lane struct {
	name   string
	worker int
	kinds  []FaultKind // drawn like cards: each as often as it is in here before any comes again
	every  time.Duration
}

// lanes are what there is to break.
func lanes(o *Options, can capabilities) []lane {
	var all []lane
	for i := range o.Workers {
		kinds := []FaultKind{PauseWorker, PauseWorker, PauseWorker, KillWorker}
		if can.stepClocks {
			kinds = append(kinds, StepClock)
		}
		all = append(all, lane{name: workerLane(i + 1), worker: i + 1, kinds: kinds, every: 8 * time.Second})
	}
	all = append(all,
		lane{name: "postgres", kinds: []FaultKind{KillPostgres, PromoteStandby, FreezePostgres}, every: 9 * time.Second},
		lane{name: "etcd", kinds: []FaultKind{KillEtcdLeader, RestoreEtcd, KillEtcdLeader}, every: 11 * time.Second})
	if can.pooler {
		all = append(all, lane{name: "pooler", kinds: []FaultKind{KillPooler}, every: 23 * time.Second})
	}
	return all
}

// schedule plans the faults of a run. It depends on the seed, the duration, the number of workers and on what can be broken on this
// machine, and on nothing else.
func schedule(o *Options, can capabilities) []Fault {
	var faults []Fault
	for i, l := range lanes(o, can) {
		random := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		var cards []FaultKind
		// Something happens soon in every lane, so that a short run has seen all; and not everything at once.
		at := time.Second + time.Duration(random.Int64N(int64(l.every)/2))
		// A short run has every kind of fault, too: those that are due after its end prolong it.
		for drawn := map[FaultKind]bool{}; at < o.Duration || l.worker <= 1 && len(drawn) < distinct(l.kinds); {
			if len(cards) == 0 {
				cards = slices.Clone(l.kinds)
				random.Shuffle(len(cards), func(i, j int) { cards[i], cards[j] = cards[j], cards[i] })
			}
			f := Fault{Lane: l.name, At: at.Truncate(time.Millisecond), Kind: cards[0], Worker: l.worker}
			cards, drawn[f.Kind] = cards[1:], true
			between := func(from, to time.Duration) time.Duration {
				return (from + time.Duration(random.Int64N(int64(to-from)))).Truncate(time.Millisecond)
			}
			switch f.Kind {
			case PauseWorker:
				f.For = between(leaseTTL*3/2, leaseTTL*4)
			case StepClock:
				f.By = between(-2*time.Hour, 2*time.Hour)
			case KillPostgres, KillPooler:
				f.For = between(0, 300*time.Millisecond)
			case FreezePostgres:
				f.For = between(leaseTTL, leaseTTL*2)
			case PromoteStandby:
				f.For = between(200*time.Millisecond, time.Second) // how long the old primary goes on without the standby
			case KillEtcdLeader:
				f.For = between(500*time.Millisecond, 3*time.Second)
			case RestoreEtcd:
				f.For = between(500*time.Millisecond, 2*time.Second) // how old the snapshot is
			case KillWorker:
			}
			faults = append(faults, f)
			at += l.every/2 + time.Duration(random.Int64N(int64(l.every)))
		}
	}
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Lane, b.Lane)) })
	return faults
}

func distinct(kinds []FaultKind) int {
	seen := map[FaultKind]bool{}
	for _, kind := range kinds {
		seen[kind] = true
	}
	return len(seen)
}
