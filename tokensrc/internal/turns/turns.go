// Package turns lets the goroutines of one process that want the same lock ask the service one at a time, in the order in
// which they came. A service whose waiters have to poll is then asked by one waiter per process instead of by all.
package turns

import (
	"context"
	"sync"
)

// Turns is a set of queues, one per name. The zero value is ready.
type Turns struct {
	mu     sync.Mutex
	queues map[string][]waiter // the head has the turn
}

type waiter struct {
	turn  chan struct{} // closed when the turn comes
	woken chan struct{} // of capacity 1
}

// Wait returns when it is the caller's turn for name, or with ctx's cause. woken has a value whenever somebody in this process has called
// Wake since. done passes the turn on; it must be called once.
func (t *Turns) Wait(ctx context.Context, name string) (woken <-chan struct{}, done func(), err error) {
	w := waiter{turn: make(chan struct{}), woken: make(chan struct{}, 1)}
	t.mu.Lock()
	if t.queues == nil {
		t.queues = make(map[string][]waiter)
	}
	t.queues[name] = append(t.queues[name], w)
	if len(t.queues[name]) == 1 {
		close(w.turn)
	}
	t.mu.Unlock()

	done = func() { t.leave(name, w) }
	select {
	case <-w.turn:
		return w.woken, done, nil
	case <-ctx.Done():
		done() // also when the turn came at the same moment: somebody else must get it
		return nil, nil, context.Cause(ctx)
	}
}

// Wake tells whoever has the turn for name, if anybody, to ask the service again: this process has just given the lock back. It is not
// lost on one who is asking at this moment.
func (t *Turns) Wake(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if queue := t.queues[name]; len(queue) > 0 {
		select {
		case queue[0].woken <- struct{}{}:
		default: // it is going to ask anyway
		}
	}
}

// Empty tells whether nobody has a turn or waits for one, whatever the name.
func (t *Turns) Empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queues) == 0
}

func (t *Turns) leave(name string, w waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue := t.queues[name]
	for i, waiting := range queue {
		if waiting != w {
			continue
		}
		rest := append(queue[:i:i], queue[i+1:]...)
		if len(rest) == 0 {
			delete(t.queues, name)
			return
		}
		t.queues[name] = rest
		if i == 0 {
			close(rest[0].turn)
		}
		return
	}
}
