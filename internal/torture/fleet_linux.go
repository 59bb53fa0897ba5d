package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A fleet is the workers. Each number is a place; whoever is killed is followed by another process in its place.
type fleet struct {
	spawner *spawner
	base    workerSettings
	o       *Options
	through func(number int) string // the address of the database for a worker
	failed  func(error)
	members []*member
}

type member struct {
	number int
	mu     sync.Mutex
	life   int
	part   *part
	holds  bool
	told   chan struct{} // closed and replaced whenever the worker says something
	clock  chan string   // its answers about the clock
}

func newFleet(s *spawner, o *Options, base *workerSettings, through func(int) string, failed func(error)) (*fleet, error) {
	f := &fleet{spawner: s, base: *base, o: o, through: through, failed: failed}
	for i := range o.Workers {
		m := &member{number: i + 1, told: make(chan struct{})}
		f.members = append(f.members, m)
		if err := f.enlist(m); err != nil {
			return f, err
		}
	}
	return f, nil
}

// enlist starts the next process in a worker's place.
func (f *fleet) enlist(m *member) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life++
	settings := f.base
	settings.Name = fmt.Sprintf("w%d.%d", m.number, m.life)
	settings.DSN = f.through(m.number)
	settings.Careful = m.number%2 == 0
	settings.Seed = f.o.Seed ^ rand.New(rand.NewPCG(uint64(m.number), uint64(m.life))).Uint64()
	p, err := f.spawner.part(roleWorker, settings)
	if err != nil {
		return err
	}
	m.part, m.holds, m.clock = p, false, make(chan string, 1)
	go m.listen(p, m.clock)
	go func() {
		<-p.exited
		m.mu.Lock()
		current := m.part == p
		m.mu.Unlock()
		if current { // nobody killed it
			f.failed(fmt.Errorf("worker %s ended: %s", settings.Name, p.stderr))
		}
	}()
	return nil
}

// What workers say.
const (
	saysHolds = "holds"
	saysFree  = "free"
	saysClock = "clock "
)

func (m *member) listen(p *part, clock chan<- string) {
	for p.stdout.Scan() {
		line := p.stdout.Text()
		if answer, ok := strings.CutPrefix(line, saysClock); ok {
			clock <- answer
			continue
		}
		m.mu.Lock()
		if m.part == p {
			m.holds = line == saysHolds
			close(m.told)
			m.told = make(chan struct{})
		}
		m.mu.Unlock()
	}
}

// waitHolds returns when the worker holds a lock, or after a while.
func (m *member) waitHolds(ctx context.Context) (holds bool, err error) {
	const patience = 3 * time.Second
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		m.mu.Lock()
		holds, told := m.holds, m.told
		m.mu.Unlock()
		if holds {
			return true, nil
		}
		select {
		case <-told:
		case <-timer.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// pause stops a worker, preferably one that holds a lock, and lets it go on after a while.
func (f *fleet) pause(ctx context.Context, number int, during time.Duration) (note string, err error) {
	m := f.members[number-1]
	holds, err := m.waitHolds(ctx)
	if err != nil {
		return "", err
	}
	if err := m.part.signal(syscall.SIGSTOP); err != nil {
		return "", err
	}
	waited := wait(ctx, during)
	if err := m.part.signal(syscall.SIGCONT); err != nil {
		return "", err
	}
	return holding(holds), waited
}

// kill kills a worker, preferably one that holds a lock, and starts another in its place.
func (f *fleet) kill(ctx context.Context, number int) (note string, err error) {
	m := f.members[number-1]
	holds, err := m.waitHolds(ctx)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	p := m.part
	m.part = nil // so that nobody takes it for an accident
	m.mu.Unlock()
	if err := p.kill(); err != nil {
		return "", err
	}
	return holding(holds), f.enlist(m)
}

func holding(holds bool) string {
	if holds {
		return "it held a lock"
	}
	return "it held no lock"
}

// stepClock makes the wall clock of a worker jump.
func (f *fleet) stepClock(ctx context.Context, number int, by time.Duration) (note string, err error) {
	m := f.members[number-1]
	if err := m.part.say(saysClock + by.String()); err != nil {
		return "", err
	}
	select {
	case answer := <-m.clock:
		if answer != "" {
			return "", fmt.Errorf("worker %d: %s", number, answer)
		}
		return fmt.Sprintf("by %v", by), nil
	case <-m.part.exited:
		return "", fmt.Errorf("worker %d ended while its clock was stepped: %s", number, m.part.stderr)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// dismiss lets all workers end what they are doing.
func (f *fleet) dismiss() {
	const patience = 10 * time.Second
	var group sync.WaitGroup
	for _, m := range f.members {
		m.mu.Lock()
		p := m.part
		m.part = nil
		m.mu.Unlock()
		if p != nil {
			// Whoever does not end in time is killed: what it had under way has no outcome, and is judged so.
			group.Go(func() { _ = p.leave(patience) })
		}
	}
	group.Wait()
}
