// Package sourcetest is the conformance suite of token sources: what tokensrc promises, tried against a source and the real
// service behind it. A source written elsewhere runs it too:
//
//	func TestSource(t *testing.T) {
//		sourcetest.Run(t, sourcetest.Config{TTL: time.Second, New: func(t testing.TB) tokensrc.Source { … }})
//	}
package sourcetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// Config tells the suite how to reach the source.
type Config struct {
	// New makes a source on connections of its own, as another process would have, and closes them when the test ends.
	New func(t testing.TB) tokensrc.Source
	// TTL is the time to live of the locks of New and NewLinked. Use the shortest that the service keeps reliably.
	TTL time.Duration
	// NewLinked is New through a link that the suite can break. Nil skips what happens when the service is away.
	NewLinked func(t testing.TB) (tokensrc.Source, Link)
	// LocksOnClose says that the service frees a lock as soon as its connection breaks, and needs no TTL to know it
	// (a PostgreSQL advisory lock). A short outage then costs the lock.
	LocksOnClose bool
	// NoLock says that the source excludes nobody ("the newest run wins"): only what concerns tokens and grants is tried.
	NoLock bool
	// Connections counts the connections that the service has from this process; nil skips the check that none is leaked.
	Connections func(t testing.TB) int
	// Contenders is how many rivals fight for one lock, 24 when 0, and Rounds for how long, 3 s when 0. The environment variables
	// SOURCETEST_CONTENDERS and SOURCETEST_ROUNDS (a duration) override both.
	Contenders int
	Rounds     time.Duration
}

// A Link is a breakable connection to the service.
type Link interface {
	// Cut breaks all connections and refuses new ones.
	Cut()
	// Stall keeps connections open, but nothing passes.
	Stall()
	// Heal undoes both.
	Heal()
}

// Run runs the suite.
func Run(t *testing.T, config Config) {
	if config.Contenders == 0 {
		config.Contenders = 24
	}
	if config.Rounds == 0 {
		config.Rounds = 3 * time.Second
	}
	if text := os.Getenv("SOURCETEST_CONTENDERS"); text != "" {
		if _, err := fmt.Sscan(text, &config.Contenders); err != nil {
			t.Fatalf("SOURCETEST_CONTENDERS: %v", err)
		}
	}
	if text := os.Getenv("SOURCETEST_ROUNDS"); text != "" {
		var err error
		if config.Rounds, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SOURCETEST_ROUNDS: %v", err)
		}
	}
	s := suite{config}
	t.Run("TokensOnlyGrow", s.tokensOnlyGrow)
	t.Run("NamesAreIndependent", s.namesAreIndependent)
	t.Run("AnyNameWorks", s.anyNameWorks)
	t.Run("BadNamesAreRefused", s.badNamesAreRefused)
	t.Run("ReleaseEndsTheContextAndIsIdempotent", s.releaseIsIdempotent)
	t.Run("ParentContextEndsTheGrant", s.parentEndsGrant)
	t.Run("NothingIsLeaked", s.nothingIsLeaked)
	if config.NoLock {
		return
	}
	t.Run("TryAcquireSaysHeld", s.tryAcquireSaysHeld)
	t.Run("OneHolderAmongManyContenders", s.oneHolder)
	t.Run("RivalsInOneSourceExcludeEachOther", s.rivalsInOneSource)
	t.Run("ReleaseHandsOverSoonerThanTheTTL", s.releaseHandsOver)
	t.Run("AcquireHonoursItsContext", s.acquireHonoursContext)
	t.Run("AcquireWithinLimitsOnlyTheWaiting", s.acquireWithin)
	t.Run("RenewalOutlastsTheTTL", s.renewalOutlastsTTL)
	if config.NewLinked == nil {
		return
	}
	t.Run("ContextEndsBeforeAnotherCanHoldTheLock", s.contextEndsFirst)
	t.Run("LateReleaseFreesNobodyElse", s.lateRelease)
	t.Run("ServiceAwayAtAcquire", s.awayAtAcquire)
	t.Run("ServiceAwayWhileWaiting", s.awayWhileWaiting)
	t.Run("ServiceAwayDuringRenewal", s.awayDuringRenewal)
	t.Run("ServiceAwayAtRelease", s.awayAtRelease)
	t.Run("NothingIsLeakedWhileTheServiceIsAway", s.nothingIsLeakedAway)
}

type suite struct{ Config }

// patience is for what must happen, but has no promised time.
const patience = 30 * time.Second

func (s suite) name(t testing.TB) string {
	return strings.ReplaceAll(t.Name(), "/", ".") + fmt.Sprintf(".%08x", rand.Uint32())
}

func acquire(t testing.TB, source tokensrc.Source, name string) tokensrc.Grant {
	t.Helper()
	grant, err := tokensrc.AcquireWithin(context.Background(), source, name, patience)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		grant.Release(ctx)
	})
	if !grant.Token().Valid() {
		t.Fatalf("Acquire(%q) came with the token %d", name, int64(grant.Token()))
	}
	if grant.Name() != name {
		t.Fatalf("the grant of %q says its name is %q", name, grant.Name())
	}
	return grant
}

func release(t testing.TB, grant tokensrc.Grant) {
	t.Helper()
	if err := grant.Release(context.Background()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func ended(grant tokensrc.Grant) bool { return grant.Context().Err() != nil }

func waitEnd(t testing.TB, grant tokensrc.Grant) error {
	t.Helper()
	select {
	case <-grant.Context().Done():
		return context.Cause(grant.Context())
	case <-time.After(patience):
		t.Fatalf("the grant's context has not ended after %v", patience)
		return nil
	}
}

func (s suite) tokensOnlyGrow(t *testing.T) {
	name, last := s.name(t), fenced.Token(0)
	one, other := s.New(t), s.New(t)
	for i := range 10 {
		grant := acquire(t, []tokensrc.Source{one, other}[i%2], name)
		if grant.Token() <= last {
			t.Fatalf("grant %d has token %v after %v", i, grant.Token(), last)
		}
		last = grant.Token()
		release(t, grant)
	}
}

func (s suite) namesAreIndependent(t *testing.T) {
	// One name is the path prefix of the other, which trips services that keep locks in a tree.
	name, source := s.name(t), s.New(t)
	outer := acquire(t, source, name)
	inner, err := source.TryAcquire(t.Context(), name+"/nightly")
	if err != nil {
		t.Fatalf("a lock below a held one: %v", err)
	}
	release(t, outer)
	again, err := source.TryAcquire(t.Context(), name)
	if err != nil {
		t.Fatalf("a lock above a held one: %v", err)
	}
	release(t, again)
	release(t, inner)
}

func (s suite) anyNameWorks(t *testing.T) {
	source := s.New(t)
	for _, name := range []string{"a", "account/17", "/leading", "trailing/", "a//b", ".", "..", "with space", `quo'te"\`, "ünïcødé/漢字", "percent%2Fsign", "{tag}", "*", strings.Repeat("x", 200)} {
		name = s.name(t) + name
		grant := acquire(t, source, name)
		if !s.NoLock {
			if _, err := source.TryAcquire(t.Context(), name); !errors.Is(err, tokensrc.ErrHeld) {
				t.Errorf("TryAcquire of held %q: %v", name, err)
			}
		}
		release(t, grant)
	}
	for _, name := range []string{".", "..", "/", "%2F"} { // alone, where they may mean something to the service
		release(t, acquire(t, source, name))
	}
}

func (s suite) badNamesAreRefused(t *testing.T) {
	source := s.New(t)
	for _, name := range []string{"", "nul\x00", "\xff", strings.Repeat("x", 513)} {
		if grant, err := source.TryAcquire(t.Context(), name); err == nil {
			release(t, grant)
			t.Errorf("TryAcquire(%.10q) succeeded", name)
		}
		if grant, err := source.Acquire(t.Context(), name); err == nil {
			release(t, grant)
			t.Errorf("Acquire(%.10q) succeeded", name)
		}
	}
}

func (s suite) releaseIsIdempotent(t *testing.T) {
	grant := acquire(t, s.New(t), s.name(t))
	if ended(grant) {
		t.Fatalf("the context of a new grant has ended: %v", context.Cause(grant.Context()))
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := grant.Release(context.Background()); err != nil {
				t.Errorf("concurrent Release: %v", err)
			}
		})
	}
	group.Wait()
	release(t, grant)
	if cause := context.Cause(grant.Context()); !errors.Is(cause, tokensrc.ErrReleased) {
		t.Errorf("the cause after Release is %v", cause)
	}
}

func (s suite) parentEndsGrant(t *testing.T) {
	type key struct{}
	why := errors.New("the program stops")
	parent, cancel := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
	source, name := s.New(t), s.name(t)
	grant, err := source.Acquire(parent, name)
	if err != nil {
		t.Fatal(err)
	}
	if grant.Context().Value(key{}) != "value" {
		t.Error("the grant's context does not carry the values of Acquire's")
	}
	cancel(why)
	if cause := waitEnd(t, grant); !errors.Is(cause, why) {
		t.Errorf("the cause is %v, want the parent's", cause)
	}
	release(t, grant)
	if !s.NoLock {
		next, err := source.TryAcquire(context.Background(), name)
		if err != nil {
			t.Fatalf("after Release: %v", err)
		}
		release(t, next)
	}
}

func (s suite) nothingIsLeaked(t *testing.T) {
	source, name := s.New(t), s.name(t)
	cycle := func() {
		grant := acquire(t, source, name)
		if !s.NoLock {
			if _, err := source.TryAcquire(t.Context(), name); !errors.Is(err, tokensrc.ErrHeld) {
				t.Fatalf("TryAcquire of a held lock: %v", err)
			}
			waiting, cancel := context.WithTimeout(t.Context(), s.TTL/8)
			if _, err := source.Acquire(waiting, name); err == nil {
				t.Fatal("Acquire of a held lock succeeded")
			}
			cancel()
		}
		release(t, grant)
	}
	cycle() // clients start goroutines and connections of their own at the first use
	goroutines, connections := runtime.NumGoroutine(), s.connections(t)
	for range 5 {
		cycle()
	}
	settle(t, "goroutines", goroutines, runtime.NumGoroutine)
	settle(t, "connections", connections, func() int { return s.connections(t) })
}

func (s suite) connections(t testing.TB) int {
	if s.Connections == nil {
		return 0
	}
	return s.Connections(t)
}

// settle waits until a count is back to what it was; what is leaked never goes.
func settle(t testing.TB, what string, before int, count func() int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for count() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d %s before, %d ten seconds after\n%s", before, what, count(), stacks[:runtime.Stack(stacks, true)])
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (s suite) tryAcquireSaysHeld(t *testing.T) {
	name := s.name(t)
	holder, rival := s.New(t), s.New(t)
	grant := acquire(t, holder, name)
	for _, source := range []tokensrc.Source{holder, rival} {
		if other, err := source.TryAcquire(t.Context(), name); !errors.Is(err, tokensrc.ErrHeld) {
			t.Fatalf("TryAcquire of a held lock: %v, %v; want ErrHeld", other, err)
		}
	}
	if ended(grant) {
		t.Fatalf("the holder lost the lock: %v", context.Cause(grant.Context()))
	}
	release(t, grant)
	next, err := rival.TryAcquire(t.Context(), name)
	if err != nil {
		t.Fatalf("TryAcquire of a released lock: %v", err)
	}
	if next.Token() <= grant.Token() {
		t.Errorf("token %v after %v", next.Token(), grant.Token())
	}
	release(t, next)
}

// ledger records grants as they begin and end, and finds overlaps and tokens that did not grow.
type ledger struct {
	mu      sync.Mutex
	holding map[tokensrc.Grant]bool
	tokens  []fenced.Token // in the order in which grants began
	grants  map[int]int    // per contender
	wrong   []string
}

func (l *ledger) hold(contender int, grant tokensrc.Grant, work func()) {
	l.mu.Lock()
	for other := range l.holding {
		// A grant that was lost is no holder: its context must have ended by the time another is granted.
		if !ended(other) && !ended(grant) {
			l.wrong = append(l.wrong, fmt.Sprintf("contender %d began under token %v while %v is held", contender, grant.Token(), other.Token()))
		}
	}
	l.holding[grant] = true
	l.tokens = append(l.tokens, grant.Token())
	l.grants[contender]++
	l.mu.Unlock()
	work()
	l.mu.Lock()
	delete(l.holding, grant)
	l.mu.Unlock()
}

func (l *ledger) check(t *testing.T, contenders int) {
	t.Helper()
	for _, wrong := range l.wrong {
		t.Error(wrong)
	}
	if !slices.IsSortedFunc(l.tokens, func(a, b fenced.Token) int {
		if a == b {
			return 1 // equal is as wrong as less
		}
		return cmp.Compare(a, b)
	}) {
		t.Errorf("tokens do not grow strictly: %v", l.tokens)
	}
	least, most := len(l.tokens), 0
	for i := range contenders {
		least, most = min(least, l.grants[i]), max(most, l.grants[i])
	}
	t.Logf("%d grants among %d contenders, %d to %d each", len(l.tokens), contenders, least, most)
	if least == 0 {
		t.Errorf("a contender starved: %v", l.grants)
	}
}

func (s suite) contend(t *testing.T, contenders int, source func(i int) tokensrc.Source) {
	name := s.name(t)
	l := &ledger{grants: make(map[int]int), holding: make(map[tokensrc.Grant]bool)}
	stop := time.Now().Add(s.Rounds)
	var group sync.WaitGroup
	for i := range contenders {
		group.Go(func() {
			own := source(i)
			// Every contender plays until the time is up and it has had its turn: one that starves fails the test by its patience.
			for turns := 0; turns == 0 || time.Now().Before(stop); turns++ {
				grant, err := tokensrc.AcquireWithin(context.Background(), own, name, s.Rounds+patience)
				if err != nil {
					t.Errorf("contender %d: %v", i, err)
					return
				}
				l.hold(i, grant, runtime.Gosched)
				if err := grant.Release(context.Background()); err != nil {
					t.Errorf("contender %d: %v", i, err)
				}
			}
		})
	}
	group.Wait()
	l.check(t, contenders)
}

func (s suite) oneHolder(t *testing.T) {
	// A few processes with several contenders each.
	sources := make([]tokensrc.Source, 4)
	for i := range sources {
		sources[i] = s.New(t)
		grant := acquire(t, sources[i], s.name(t)) // warm up
		release(t, grant)
	}
	goroutines := runtime.NumGoroutine()
	s.contend(t, s.Contenders, func(i int) tokensrc.Source { return sources[i%len(sources)] })
	settle(t, "goroutines", goroutines+8, runtime.NumGoroutine) // clients grow their pools under load
}

func (s suite) rivalsInOneSource(t *testing.T) {
	source := s.New(t)
	s.contend(t, 8, func(int) tokensrc.Source { return source })
}

func (s suite) releaseHandsOver(t *testing.T) {
	name, waiter := s.name(t), s.New(t)
	grant := acquire(t, s.New(t), name)
	type result struct {
		grant tokensrc.Grant
		err   error
		at    time.Time
	}
	got := make(chan result, 1)
	go func() {
		next, err := tokensrc.AcquireWithin(context.Background(), waiter, name, patience)
		got <- result{next, err, time.Now()}
	}()
	select {
	case r := <-got:
		t.Fatalf("Acquire of a held lock returned %v, %v", r.grant, r.err)
	case <-time.After(s.TTL / 2):
	}
	released := time.Now()
	release(t, grant)
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer release(t, r.grant)
	if r.grant.Token() <= grant.Token() {
		t.Errorf("token %v after %v", r.grant.Token(), grant.Token())
	}
	if took := r.at.Sub(released); took >= s.TTL {
		t.Errorf("the waiter got the lock %v after its release, no sooner than by waiting for the TTL of %v", took, s.TTL)
	}
}

func (s suite) acquireHonoursContext(t *testing.T) {
	name, source := s.name(t), s.New(t)
	grant := acquire(t, source, name)
	why := errors.New("tired of waiting")
	waiting, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := source.Acquire(waiting, name)
		result <- err
	}()
	select {
	case err := <-result:
		t.Fatalf("Acquire of a held lock returned %v", err)
	case <-time.After(s.TTL / 4):
	}
	cancel(why)
	select {
	case err := <-result:
		if !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Acquire has not returned 5 s after its context ended")
	}
	// The waiter that left must not stand in anybody's way.
	release(t, grant)
	next, err := s.New(t).TryAcquire(t.Context(), name)
	if err != nil {
		t.Fatalf("after the only waiter has left: %v", err)
	}
	release(t, next)

	done, cancelDone := context.WithCancel(t.Context())
	cancelDone()
	if grant, err := source.Acquire(done, name); err == nil {
		release(t, grant)
		t.Error("Acquire succeeded with a context that had ended")
	}
}

func (s suite) acquireWithin(t *testing.T) {
	name, source := s.name(t), s.New(t)
	grant := acquire(t, source, name)
	if _, err := tokensrc.AcquireWithin(t.Context(), source, name, s.TTL/4); !errors.Is(err, tokensrc.ErrHeld) {
		t.Fatalf("AcquireWithin a quarter of the TTL: %v; want ErrHeld", err)
	}
	release(t, grant)
	next, err := tokensrc.AcquireWithin(t.Context(), source, name, s.TTL/2)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-next.Context().Done():
		t.Fatalf("the grant ended with the wait: %v", context.Cause(next.Context()))
	case <-time.After(s.TTL):
	}
	release(t, next)
}

func (s suite) renewalOutlastsTTL(t *testing.T) {
	name, rival := s.name(t), s.New(t)
	grant := acquire(t, s.New(t), name)
	bounded, ok := grant.(fenced.Bounded)
	for end := time.Now().Add(2*s.TTL + s.TTL/2); time.Now().Before(end); time.Sleep(s.TTL / 10) {
		if ended(grant) {
			t.Fatalf("the lock was lost although the service is there: %v", context.Cause(grant.Context()))
		}
		if ok {
			if left, limited := bounded.TimeLeft(); limited && (left <= 0 || left >= s.TTL) {
				t.Fatalf("TimeLeft is %v under a TTL of %v", left, s.TTL)
			}
		}
		if other, err := rival.TryAcquire(t.Context(), name); !errors.Is(err, tokensrc.ErrHeld) {
			t.Fatalf("TryAcquire of a held lock: %v, %v; want ErrHeld", other, err)
		}
	}
	if checker, ok := grant.(fenced.Checker); ok {
		if err := checker.Check(t.Context()); err != nil {
			t.Errorf("Check of a held lock: %v", err)
		}
	}
	release(t, grant)
	if checker, ok := grant.(fenced.Checker); ok {
		if err := checker.Check(t.Context()); err == nil {
			t.Error("Check of a released lock says it is held")
		}
	}
}

func (s suite) contextEndsFirst(t *testing.T) {
	for _, fault := range []struct {
		name string
		do   func(Link)
	}{{"stalled", Link.Stall}, {"cut", Link.Cut}} {
		t.Run(fault.name, func(t *testing.T) {
			if s.LocksOnClose && fault.name == "cut" {
				t.Skip("the service frees the lock of a broken connection at once; no client can know it sooner")
			}
			name, rival := s.name(t), s.New(t)
			source, link := s.NewLinked(t)
			grant := acquire(t, source, name)
			fault.do(link)
			broken := time.Now()
			next := acquire(t, rival, name)
			if !ended(grant) {
				t.Error("another holds the lock, and the first grant's context has not ended")
			}
			if cause := waitEnd(t, grant); !errors.Is(cause, tokensrc.ErrLost) {
				t.Errorf("the cause is %v, want ErrLost", cause)
			}
			t.Logf("taken over %v after the link broke, with a TTL of %v", time.Since(broken).Round(time.Millisecond), s.TTL)
			if next.Token() <= grant.Token() {
				t.Errorf("token %v after %v", next.Token(), grant.Token())
			}
			if bounded, ok := grant.(fenced.Bounded); ok {
				if left, limited := bounded.TimeLeft(); !limited || left != 0 {
					t.Errorf("TimeLeft of a lost grant is %v, %v", left, limited)
				}
			}
			release(t, next)
			link.Heal()
		})
	}
}

func (s suite) lateRelease(t *testing.T) {
	name, rival := s.name(t), s.New(t)
	source, link := s.NewLinked(t)
	late := acquire(t, source, name)
	link.Stall()
	if cause := waitEnd(t, late); !errors.Is(cause, tokensrc.ErrLost) {
		t.Errorf("the cause is %v, want ErrLost", cause)
	}
	next := acquire(t, rival, name)
	link.Heal()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := late.Release(ctx); err != nil {
		t.Logf("late release: %v", err) // it may or may not reach the service; what matters is the other grant
	}
	if _, err := s.New(t).TryAcquire(t.Context(), name); !errors.Is(err, tokensrc.ErrHeld) {
		t.Fatalf("after a late release of an earlier grant TryAcquire says %v; want ErrHeld", err)
	}
	if checker, ok := next.(fenced.Checker); ok {
		if err := checker.Check(t.Context()); err != nil {
			t.Errorf("the later grant is no longer held: %v", err)
		}
	}
	release(t, next)
}

func (s suite) awayAtAcquire(t *testing.T) {
	for _, fault := range []struct {
		name string
		do   func(Link)
	}{{"cut", Link.Cut}, {"stalled", Link.Stall}} {
		t.Run(fault.name, func(t *testing.T) {
			name := s.name(t)
			source, link := s.NewLinked(t)
			release(t, acquire(t, source, name))
			fault.do(link)
			for what, call := range map[string]func(context.Context, string) (tokensrc.Grant, error){"Acquire": source.Acquire, "TryAcquire": source.TryAcquire} {
				ctx, cancel := context.WithTimeout(t.Context(), s.TTL/2)
				begun := time.Now()
				grant, err := call(ctx, name)
				cancel()
				if err == nil {
					t.Fatalf("%s without the service granted %v", what, grant.Token())
				}
				if errors.Is(err, tokensrc.ErrHeld) {
					t.Errorf("%s without the service says the lock is held: %v", what, err)
				}
				if took := time.Since(begun); took > s.TTL/2+5*time.Second {
					t.Errorf("%s took %v to give up, its context ended after %v", what, took, s.TTL/2)
				}
			}
			link.Heal()
			// Whatever reached the service after all lapses.
			release(t, acquireEventually(t, source, name))
		})
	}
}

// acquireEventually keeps trying over the errors of a service that has just come back.
func acquireEventually(t testing.TB, source tokensrc.Source, name string) tokensrc.Grant {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var grant tokensrc.Grant
		if grant, err = tokensrc.AcquireWithin(t.Context(), source, name, patience); err == nil {
			return grant
		}
	}
	t.Fatalf("no grant in %v after the service came back: %v", patience, err)
	return nil
}

// awayWhileWaiting: a waiter that is cut off must neither hang for ever nor believe that it holds the lock.
func (s suite) awayWhileWaiting(t *testing.T) {
	name := s.name(t)
	source, link := s.NewLinked(t)
	holder := acquire(t, s.New(t), name)
	ctx, cancel := context.WithTimeout(t.Context(), 2*s.TTL)
	defer cancel()
	result := make(chan error, 1)
	go func() {
		grant, err := source.Acquire(ctx, name)
		if err == nil {
			defer grant.Release(context.Background())
		}
		result <- err
	}()
	select {
	case err := <-result:
		t.Fatalf("Acquire of a held lock returned %v", err)
	case <-time.After(s.TTL / 4):
	}
	link.Stall()
	select {
	case err := <-result:
		if err == nil {
			t.Fatal("a waiter that was cut off got a lock that is held")
		}
	case <-time.After(2*s.TTL + 5*time.Second):
		t.Fatal("Acquire has not returned 5 s after its context ended")
	}
	link.Heal()
	if ended(holder) {
		t.Fatalf("the holder lost the lock: %v", context.Cause(holder.Context()))
	}
	release(t, holder)
	release(t, acquireEventually(t, source, name))
}

func (s suite) awayDuringRenewal(t *testing.T) {
	if s.LocksOnClose {
		t.Skip("the service frees the lock of a broken connection at once")
	}
	name, rival := s.name(t), s.New(t)
	source, link := s.NewLinked(t)
	grant := acquire(t, source, name)
	// Away for less than the TTL, across the moment of a renewal: the lock must survive.
	<-time.After(s.TTL / 4)
	link.Cut()
	<-time.After(s.TTL / 4)
	link.Heal()
	for end := time.Now().Add(2 * s.TTL); time.Now().Before(end); time.Sleep(s.TTL / 10) {
		if ended(grant) {
			t.Fatalf("a short outage cost the lock: %v", context.Cause(grant.Context()))
		}
		if other, err := rival.TryAcquire(t.Context(), name); !errors.Is(err, tokensrc.ErrHeld) {
			t.Fatalf("TryAcquire of a held lock: %v, %v; want ErrHeld", other, err)
		}
	}
	release(t, grant)
}

func (s suite) awayAtRelease(t *testing.T) {
	name, rival := s.name(t), s.New(t)
	source, link := s.NewLinked(t)
	grant := acquire(t, source, name)
	link.Stall()
	ctx, cancel := context.WithTimeout(t.Context(), s.TTL/4)
	defer cancel()
	begun := time.Now()
	err := grant.Release(ctx)
	if err == nil && !s.LocksOnClose {
		t.Error("Release without the service says it succeeded")
	}
	if took := time.Since(begun); took > s.TTL/4+5*time.Second {
		t.Errorf("Release took %v to give up", took)
	}
	if !ended(grant) {
		t.Error("the context of a grant that is being released has not ended")
	}
	next := acquire(t, rival, name) // it lapses
	link.Heal()
	release(t, grant) // and a second try is harmless
	if _, err := s.New(t).TryAcquire(t.Context(), name); !errors.Is(err, tokensrc.ErrHeld) {
		t.Errorf("the second try of a release freed somebody else's lock: %v", err)
	}
	release(t, next)
}

// nothingIsLeakedAway: what gave up on a service that was away must not go on waiting for it.
func (s suite) nothingIsLeakedAway(t *testing.T) {
	name := s.name(t)
	source, link := s.NewLinked(t)
	release(t, acquire(t, source, name))
	goroutines := runtime.NumGoroutine()
	link.Stall()
	for range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), s.TTL/20)
		if grant, err := source.Acquire(ctx, name); err == nil {
			t.Fatalf("Acquire without the service granted %v", grant.Token())
		}
		cancel()
	}
	link.Heal()
	release(t, acquireEventually(t, source, name))
	// A client that reconnected may have more than before, with what relays its connections, but not one for each call.
	settle(t, "goroutines", goroutines+20, runtime.NumGoroutine)
}
