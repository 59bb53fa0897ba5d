package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// A session is one ZooKeeper session on a connection of its own. The client library has requests without a context and keeps to
// itself what session timeout was negotiated; both are mended here.
type session struct {
	conn *zk.Conn
	ttl  atomic.Int64 // negotiated session timeout in nanoseconds, 0 until there is one

	quit     chan struct{} // closed by close
	quitOnce sync.Once

	ready     chan struct{} // closed when the session is there
	readyOnce sync.Once
	gone      chan struct{} // closed when the session is lost, or was away for its whole timeout
	goneOnce  sync.Once

	prepareOnce sync.Once // for Options.Prepare

	mu      sync.Mutex
	goneErr error
	away    *time.Timer // runs while there is no connection
	round   bool        // every server has been tried since the last connection
	sockets []net.Conn  // open ones; the library leaves one that it is authenticating on open
}

func openSession(o *Options) (*session, error) {
	s := &session{quit: make(chan struct{}), ready: make(chan struct{}), gone: make(chan struct{})}
	s.away = time.AfterFunc(o.TTL, func() { s.lose(errors.New("no server could be reached")) })
	conn, _, err := zk.Connect(o.Servers, o.TTL,
		zk.WithLogInfo(false), zk.WithLogger(silent{}), zk.WithHostProvider(&hosts{HostProvider: zk.NewDNSHostProvider(), session: s}),
		zk.WithEventCallback(s.onEvent), zk.WithDialer(s.dialer(o.Dial)))
	if err != nil {
		s.away.Stop()
		return nil, err
	}
	s.conn = conn
	return s, nil
}

// silent drops the library's log lines: what matters of them comes back as errors.
type silent struct{}

func (silent) Printf(string, ...any) {}

// onEvent is called by the library's goroutine. Without a connection the session lives on for at most its timeout.
func (s *session) onEvent(event zk.Event) {
	if event.Type != zk.EventSession {
		return
	}
	switch event.State {
	case zk.StateHasSession:
		s.mu.Lock()
		s.away.Stop()
		s.mu.Unlock()
		s.readyOnce.Do(func() { close(s.ready) })
	case zk.StateDisconnected:
		ttl := time.Duration(s.ttl.Load())
		if ttl == 0 {
			return // never connected: the timer still runs
		}
		s.mu.Lock()
		s.away.Reset(ttl)
		s.mu.Unlock()
	case zk.StateExpired:
		s.lose(zk.ErrSessionExpired)
	case zk.StateAuthFailed:
		s.lose(zk.ErrAuthFailed)
	default: // on the way to one of these
	}
}

func (s *session) lose(why error) {
	s.goneOnce.Do(func() {
		s.mu.Lock()
		s.goneErr = why
		s.mu.Unlock()
		close(s.gone)
	})
}

func (s *session) lostBecause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("the ZooKeeper session is lost: %w", s.goneErr)
}

// close ends the session, and with it every request under way and every node of the session. It takes at most a second or so.
func (s *session) close() {
	s.quitOnce.Do(func() {
		close(s.quit)
		s.away.Stop()
		s.conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, socket := range s.sockets {
			socket.Close()
		}
	})
}

// call runs a request of the library, which knows no context. When ctx ends first, the request ends with the session at the
// latest.
func call[T any](ctx context.Context, s *session, request func(*zk.Conn) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := request(s.conn)
		answers <- answer{value, err}
	}()
	var none T
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-s.gone:
		return none, s.lostBecause()
	case <-s.quit:
		return none, zk.ErrConnectionClosed
	}
}

// hosts takes out the library's pause of a second after a round of all servers, which is too long for a short session
// timeout; the dialer pauses instead.
type hosts struct {
	zk.HostProvider
	session *session
}

func (h *hosts) Next() (string, bool) {
	server, again := h.HostProvider.Next()
	if again {
		h.session.mu.Lock()
		h.session.round = true
		h.session.mu.Unlock()
	}
	return server, false
}

func (s *session) dialer(dial zk.Dialer) zk.Dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		s.mu.Lock()
		pause := s.round
		s.round = false
		s.mu.Unlock()
		if pause {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.quit:
			}
		}
		socket, err := dial(network, address, timeout)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		select {
		case <-s.quit:
			// The library does not look before it authenticates, which can take long.
			socket.Close()
			return nil, net.ErrClosed
		default:
		}
		s.sockets = append(s.sockets, socket)
		return &sniffer{Conn: socket, session: s}, nil
	}
}

// sniffer reads the negotiated session timeout out of the server's first answer: four bytes of length, four of protocol version, four of
// timeout in milliseconds, eight of session id.
type sniffer struct {
	net.Conn
	session *session
	head    []byte
}

const headSize = 4 + 4 + 4 + 8

func (c *sniffer) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if missing := headSize - len(c.head); missing > 0 && n > 0 {
		c.head = append(c.head, p[:min(n, missing)]...)
		if len(c.head) == headSize && binary.BigEndian.Uint64(c.head[12:]) != 0 {
			c.session.ttl.Store(int64(binary.BigEndian.Uint32(c.head[8:])) * int64(time.Millisecond))
		}
	}
	return n, err
}

func (c *sniffer) Close() error {
	c.session.mu.Lock()
	for i, socket := range c.session.sockets {
		if socket == c.Conn {
			c.session.sockets = append(c.session.sockets[:i], c.session.sockets[i+1:]...)
			break
		}
	}
	c.session.mu.Unlock()
	return c.Conn.Close()
}
