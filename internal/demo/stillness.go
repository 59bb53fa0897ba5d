package demo

import (
	"context"
	"net"
	"sync"
)

// A stillness is what a pause of a worker is for the rest of the world: while it lasts, not a byte of the worker's arrives anywhere and
// none reaches it, so that nothing it does in the background, such as renewing its lock, goes on either. To a server that is the
// same as a stopped process or a frozen VM: connections that stand, and nobody behind them.
type stillness struct {
	mu    sync.Mutex
	moves chan struct{} // closed while the worker moves
}

func newStillness() *stillness {
	s := &stillness{moves: make(chan struct{})}
	close(s.moves)
	return s
}

func (s *stillness) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moves = make(chan struct{})
}

// end is also for a worker that moves.
func (s *stillness) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.moves:
	default:
		close(s.moves)
	}
}

func (s *stillness) now() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moves
}

// A dialer is what the clients of PostgreSQL, Redis and etcd call to connect.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// over is the dialer whose connections stand still with the worker.
func (s *stillness) over(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case <-s.now():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &stillConn{Conn: conn, stillness: s, closed: make(chan struct{})}, nil
	}
}

// A stillConn takes no notice of deadlines while it stands still: nor would a stopped process.
type stillConn struct {
	net.Conn
	stillness *stillness
	closing   sync.Once
	closed    chan struct{}
}

func (c *stillConn) wait() {
	select {
	case <-c.stillness.now():
	case <-c.closed: // the call that follows fails
	}
}

func (c *stillConn) Read(b []byte) (int, error) {
	c.wait()
	n, err := c.Conn.Read(b)
	c.wait() // what arrived during the pause is read after it
	return n, err
}

func (c *stillConn) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

func (c *stillConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
