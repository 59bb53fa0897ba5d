package postgres

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// listener hears of released leases while somebody waits, on one connection for all of a source's waiters. Its goroutine and its
// connection last from the first of them until rest is called, which is not done while others wait for their turn to listen: a
// lock that is handed on all the time would else cost a connection every time.
type listener struct {
	pool   *pgxpool.Pool
	logger *slog.Logger

	mu      sync.Mutex
	waiters map[string]chan struct{}
	cancel  context.CancelFunc // nil while nobody listens
	stopped chan struct{}      // closed when the goroutine has ended
}

// listen returns a channel that has a value whenever the lease of that name may have become free. A name has one waiter at a time.
func (l *listener) listen(name string) (woken <-chan struct{}, stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wake := make(chan struct{}, 1)
	if l.waiters == nil {
		l.waiters = make(map[string]chan struct{})
	}
	l.waiters[name] = wake
	if l.cancel == nil {
		ctx, cancel := context.WithCancel(context.Background())
		before := l.stopped
		l.cancel, l.stopped = cancel, make(chan struct{})
		go l.run(ctx, before, l.stopped)
	} else {
		// Whoever joins while the connection listens already must look once more: the release may have come between its attempt and now.
		wake <- struct{}{}
	}
	return wake, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiters, name)
	}
}

// rest ends the listening, unless somebody waits. It returns when nothing is left running.
func (l *listener) rest() {
	l.mu.Lock()
	if len(l.waiters) > 0 || l.stopped == nil {
		l.mu.Unlock()
		return
	}
	if l.cancel != nil {
		l.cancel()
		l.cancel = nil
	}
	stopped := l.stopped
	l.mu.Unlock()
	<-stopped
}

func (l *listener) run(ctx context.Context, before <-chan struct{}, stopped chan<- struct{}) {
	defer close(stopped)
	if before != nil {
		<-before
	}
	for ctx.Err() == nil {
		err := l.receive(ctx)
		if ctx.Err() != nil {
			return
		}
		if l.logger != nil {
			l.logger.Debug("cannot listen for released leases, waiters poll", "error", err)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (l *listener) receive(ctx context.Context) error {
	conn, err := dial(ctx, l.pool, nil)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	if _, err := conn.Exec(ctx, sqlListen); err != nil {
		return err
	}
	l.wake("") // what was released before we listened
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		l.wake(notification.Payload)
	}
}

// wake wakes the waiter of a name, or all for "".
func (l *listener) wake(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for waiting, wake := range l.waiters {
		if name == "" || name == waiting {
			select {
			case wake <- struct{}{}:
			default: // it is about to look anyway
			}
		}
	}
}
