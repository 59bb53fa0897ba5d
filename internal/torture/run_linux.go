package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fencectl/fencectl/internal/torture/history"
)

func capable() capabilities {
	return capabilities{stepClocks: canStepClocks(), pooler: findPooler() != ""}
}

func (c capabilities) missing() []string {
	var all []string
	if !c.stepClocks {
		all = append(all, "the clock of a single process cannot be stepped here: no clock steps")
	}
	if !c.pooler {
		all = append(all, "pgbouncer is not installed: no worker goes through a pooler")
	}
	return all
}

func playPart(ctx context.Context, role string, stdin io.Reader, stdout io.Writer) error {
	lines := bufio.NewReader(stdin)
	settings, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	switch role {
	case roleWorker:
		return work(ctx, settings, bufio.NewScanner(lines), stdout)
	case roleEtcd:
		return etcdMember(ctx, settings, lines, stdout)
	}
	return fmt.Errorf("there is no part %q", role)
}

// A stage is a run while it runs.
type stage struct {
	o       *Options
	can     capabilities
	db      *database
	etcd    *etcdCluster
	pooler  *pooler
	fleet   *fleet
	history string // the directory of the workers' records
	sockets string // the directory of the addresses that workers know the database by; see build

	began    time.Time
	mu       sync.Mutex
	injected []Injected
	seen     map[FaultKind]bool
	// rebirth keeps a promotion and a restore of etcd apart. The promotion may lose the operator's decision about the restored etcd, who then
	// has to make it again before the next restore: nobody else can know that those tokens were issued.
	rebirth sync.Mutex
}

func run(ctx context.Context, o *Options) (_ *Report, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	dir, err := os.MkdirTemp("", directory()) // only its owner may enter
	if err != nil {
		return nil, err
	}
	s := &stage{o: o, can: capable(), history: filepath.Join(dir, "history"), seen: map[FaultKind]bool{}}
	spawner := newSpawner(o.Self)
	defer func() {
		cleanup := context.WithoutCancel(ctx)
		if s.fleet != nil {
			s.fleet.dismiss()
		}
		if s.pooler != nil {
			err = errors.Join(err, s.pooler.kill())
		}
		if s.etcd != nil {
			err = errors.Join(err, s.etcd.close())
		}
		if s.db != nil {
			err = errors.Join(err, s.db.close(cleanup))
		}
		spawner.close()
		err = errors.Join(err, os.RemoveAll(dir))
		if s.sockets != "" {
			err = errors.Join(err, os.RemoveAll(s.sockets))
		}
	}()
	if err := os.Mkdir(s.history, 0o700); err != nil {
		return nil, err
	}
	if err := s.build(ctx, spawner, dir); err != nil {
		return nil, ended(ctx, err)
	}
	report := &Report{Options: *o, ServerVersion: s.db.server().Version(), Missing: s.can.missing(), Planned: schedule(o, s.can), History: &history.History{}}
	if err := s.play(ctx, spawner, report.Planned, fail); err != nil {
		return nil, ended(ctx, err)
	}
	report.Took = time.Since(s.began)
	report.Injected = s.injected
	if report.History.Ops, err = history.Load(s.history); err != nil {
		return nil, err
	}
	if err := s.db.outcome(ctx, report.History); err != nil {
		return nil, ended(ctx, err)
	}
	report.Verdict = history.Check(report.History, nil)
	return report, ctx.Err()
}

// directory is what the names of this process's directories begin with.
func directory() string { return fmt.Sprintf("fencectl-torture-%d-", os.Getpid()) }

// ended prefers the reason why everything was stopped to what the stopping broke off.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// build starts the servers.
func (s *stage) build(ctx context.Context, spawner *spawner, dir string) (err error) {
	if s.db, err = newDatabase(ctx, s.o); err != nil {
		return err
	}
	if s.etcd, err = newEtcd(ctx, spawner, dir); err != nil {
		return err
	}
	_, cluster, err := s.etcd.leader(ctx)
	if err != nil {
		return err
	}
	if err := s.db.register(ctx, cluster); err != nil {
		return err
	}
	owner, err := s.db.owner()
	if err != nil {
		return err
	}
	// Beside the server's own sockets: where its account gets through, and where paths are short enough.
	if s.sockets, err = os.MkdirTemp(filepath.Dir(s.db.server().SocketDir()), directory()); err != nil {
		return err
	}
	if owner != nil {
		if err := os.Chown(s.sockets, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if err := s.db.open(s.sockets); err != nil {
		return err
	}
	if s.can.pooler {
		if s.pooler, err = newPooler(ctx, spawner, findPooler(), s.sockets, owner); err != nil {
			return err
		}
	}
	return nil
}

// play lets the workers work, and the faults happen, until the time is over.
func (s *stage) play(ctx context.Context, spawner *spawner, planned []Fault, fail func(error)) (err error) {
	through := func(number int) string {
		port := relayPort
		if s.pooler != nil && number%3 == 0 {
			port = poolerPort
		}
		return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", s.sockets, port, workerRole, databaseName)
	}
	base := &workerSettings{Dir: s.history, Etcd: s.etcd.clients, Locks: s.o.locks()}
	if s.fleet, err = newFleet(spawner, s.o, base, through, fail); err != nil {
		return err
	}
	s.began = time.Now()
	over := make(chan struct{}) // closed when no further fault begins, except for kinds that have not been seen
	lanes := map[string][]Fault{}
	kinds := map[FaultKind]bool{}
	for _, f := range planned {
		lanes[f.Lane] = append(lanes[f.Lane], f)
		kinds[f.Kind] = true
	}
	var group sync.WaitGroup
	for _, faults := range lanes {
		group.Go(func() {
			if err := s.lane(ctx, faults, over); err != nil {
				fail(err)
			}
		})
	}
	err = s.untilOver(ctx)
	close(over)
	group.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	s.fleet.dismiss()
	return err
}

// untilOver returns when the time is over, or the damage done that was waited for.
func (s *stage) untilOver(ctx context.Context) error {
	end := time.NewTimer(s.o.Duration)
	defer end.Stop()
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-end.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
			if !s.o.UntilDamage {
				continue
			}
			// The server may be away at the moment.
			if damaged, err := s.db.damaged(ctx); err == nil && damaged {
				return nil
			}
		}
	}
}

// lane injects the faults of a lane one after another.
func (s *stage) lane(ctx context.Context, faults []Fault, over <-chan struct{}) error {
	for _, f := range faults {
		due := time.NewTimer(time.Until(s.began.Add(f.At)))
		select {
		case <-due.C:
		case <-over:
			due.Stop()
		case <-ctx.Done():
			due.Stop()
			return nil
		}
		select {
		case <-over:
			if s.o.UntilDamage || !s.first(f.Kind) {
				continue // a slow machine does not get through all of them in time; it does get through one of each kind
			}
		default:
			s.first(f.Kind)
		}
		done := Injected{Fault: f, Began: time.Since(s.began)}
		note, err := s.inject(ctx, f)
		if err != nil {
			return fmt.Errorf("%s at %v: %w", f.Kind, f.At, err)
		}
		done.Ended, done.Note = time.Since(s.began), note
		s.mu.Lock()
		s.injected = append(s.injected, done)
		s.o.Tell(done)
		s.mu.Unlock()
	}
	return nil
}

// first reports whether no fault of the kind has begun before.
func (s *stage) first(kind FaultKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.seen[kind]
	s.seen[kind] = true
	return first
}

func (s *stage) inject(ctx context.Context, f Fault) (note string, err error) {
	switch f.Kind {
	case PauseWorker:
		return s.fleet.pause(ctx, f.Worker, f.For)
	case KillWorker:
		return s.fleet.kill(ctx, f.Worker)
	case StepClock:
		return s.fleet.stepClock(ctx, f.Worker, f.By)
	case KillPostgres:
		return s.db.kill(ctx, f.For)
	case FreezePostgres:
		return "", s.db.freeze(ctx, f.For)
	case PromoteStandby:
		s.rebirth.Lock()
		defer s.rebirth.Unlock()
		if note, err = s.db.promote(ctx, f.For); err != nil {
			return "", err
		}
		_, cluster, err := s.etcd.leader(ctx)
		if err != nil {
			return "", err
		}
		return note, s.db.adopt(ctx, cluster)
	case KillEtcdLeader:
		return s.etcd.killLeader(ctx, f.For)
	case RestoreEtcd:
		return s.restoreEtcd(ctx, f.For)
	case KillPooler:
		if err := s.pooler.kill(); err != nil {
			return "", err
		}
		if err := wait(ctx, f.For); err != nil {
			return "", err
		}
		return "", s.pooler.start(ctx)
	}
	return "", fmt.Errorf("there is no fault %q", f.Kind)
}

// restoreEtcd also is the operator: a restored etcd is another one, and is refused until somebody has adopted it.
func (s *stage) restoreEtcd(ctx context.Context, age time.Duration) (note string, err error) {
	s.rebirth.Lock()
	defer s.rebirth.Unlock()
	cluster, err := s.etcd.restore(ctx, age)
	if err != nil {
		return "", err
	}
	for { // the database may be down
		if err = s.db.adopt(ctx, cluster); err == nil {
			return "adopted", nil
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return "", err
		}
	}
}
