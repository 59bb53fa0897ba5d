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
	queues map[string][]chan struct{} // the head has the turn; its channel is closed
}

// Wait returns when it is the caller's turn for name, or with ctx's cause. done passes the turn on; it must be called once.
func (t *Turns) Wait(ctx context.Context, name string) (done func(), err error) {
	turn := make(chan struct{})
	t.mu.Lock()
	if t.queues == nil {
		t.queues = make(map[string][]chan struct{})
	}
	t.queues[name] = append(t.queues[name], turn)
	if len(t.queues[name]) == 1 {
		close(turn)
	}
	t.mu.Unlock()

	done = func() { t.leave(name, turn) }
	select {
	case <-turn:
		return done, nil
	case <-ctx.Done():
		done() // also when the turn came at the same moment: somebody else must get it
		return nil, context.Cause(ctx)
	}
}

func (t *Turns) leave(name string, turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue := t.queues[name]
	for i, waiting := range queue {
		if waiting != turn {
			continue
		}
		rest := append(queue[:i:i], queue[i+1:]...)
		if len(rest) == 0 {
			delete(t.queues, name)
			return
		}
		t.queues[name] = rest
		if i == 0 {
			close(rest[0])
		}
		return
	}
}
