package turns_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/fencectl/fencectl/tokensrc/internal/turns"
)

func TestTurnsComeInTheOrderOfArrivalOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns
		_, first, err := all.Wait(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		_, other, err := all.Wait(t.Context(), "b") // another name's queue
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		var group sync.WaitGroup
		for i := range 5 {
			group.Go(func() {
				_, done, err := all.Wait(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i) // no lock: the turn is one
				done()
			})
			synctest.Wait() // it queues before the next comes
		}
		if len(order) > 0 {
			t.Errorf("%v went ahead of the first", order)
		}
		first()
		group.Wait()
		other()
		for i, got := range order {
			if got != i {
				t.Fatalf("the order is %v", order)
			}
		}
	})
}

func TestWhoeverLeavesTheQueueHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns
		_, head, err := all.Wait(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		why := errors.New("tired")
		ctx, cancel := context.WithCancelCause(t.Context())
		left := make(chan error, 1)
		go func() {
			_, _, err := all.Wait(ctx, "a")
			left <- err
		}()
		synctest.Wait()
		got := make(chan func(), 1)
		go func() {
			_, done, err := all.Wait(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			got <- done
		}()
		synctest.Wait()
		cancel(why)
		if err := <-left; !errors.Is(err, why) {
			t.Errorf("the one that left: %v", err)
		}
		head()
		(<-got)()
	})
}

// The turn comes at the very moment at which its waiter gives up.
func TestATurnThatNobodyTakesIsPassedOn(t *testing.T) {
	for range 200 {
		var all turns.Turns
		_, head, err := all.Wait(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, done, err := all.Wait(ctx, "a")
			if err == nil {
				done()
			}
			result <- err
		}()
		go cancel()
		head()
		<-result
		_, done, err := all.Wait(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		done()
	}
}

func TestAWakeIsForWhoeverHasTheTurnAndIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns
		all.Wake("a") // nobody waits: nothing happens
		woken, head, err := all.Wait(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-woken:
			t.Error("woken by a release before it came")
		default:
		}
		next := make(chan (<-chan struct{}), 1)
		go func() {
			woken, done, err := all.Wait(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			next <- woken
			<-woken
			done()
		}()
		synctest.Wait()
		all.Wake("b") // another lock
		select {
		case <-woken:
			t.Error("woken by the release of another lock")
		default:
		}
		for range 3 { // while the head is asking, say
			all.Wake("a")
		}
		<-woken
		select {
		case <-woken:
			t.Error("several releases, and it is told so more than once")
		default:
		}
		head()
		select {
		case <-<-next:
			t.Error("the one behind was woken as well")
		default:
		}
		if all.Empty() {
			t.Error("empty, and somebody has the turn")
		}
		all.Wake("a")
		synctest.Wait()
		if !all.Empty() {
			t.Error("not empty when all have left")
		}
	})
}
