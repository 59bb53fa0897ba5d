// Package wirepause is a relay between a PostgreSQL client and its server that can hold the client's next write, or its COMMIT, on
// the wire: to the server the client then looks like a process that was paused just there.
package wirepause

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
)

// A Point is where a client is held.
type Point int

const (
	// Write is the first statement that changes data.
	Write Point = iota
	// Commit is the end of the transaction.
	Commit
)

// A Relay relays the connections of one client.
type Relay struct {
	network, target string
	listener        net.Listener
	group           sync.WaitGroup

	mu     sync.Mutex
	point  Point
	held   chan string   // receives the statement that was held; nil when nothing is to be held
	resume chan struct{} // closed to let it go on
	conns  map[net.Conn]struct{}
}

// New starts a relay to a server, named as for net.Dial. Close it.
func New(network, target string) (*Relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{network: network, target: target, listener: listener, resume: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(r.resume)
	r.group.Add(1)
	go r.serve()
	return r, nil
}

// Addr is the relay's own host:port.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Hold holds the first message that gets to the point, from now on, and sends its statement to the returned channel.
func (r *Relay) Hold(point Point) <-chan string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.point, r.held, r.resume = point, make(chan string, 1), make(chan struct{})
	return r.held
}

// Resume lets what is held go on.
func (r *Relay) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = nil
	select {
	case <-r.resume:
	default:
		close(r.resume)
	}
}

// Close breaks the connections and waits for the relay to end.
func (r *Relay) Close() {
	r.Resume()
	r.listener.Close()
	r.mu.Lock()
	for conn := range r.conns {
		conn.Close()
	}
	r.conns = nil
	r.mu.Unlock()
	r.group.Wait()
}

func (r *Relay) serve() {
	defer r.group.Done()
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.group.Add(1)
		go r.relay(client)
	}
}

func (r *Relay) relay(client net.Conn) {
	defer r.group.Done()
	defer client.Close()
	server, err := net.Dial(r.network, r.target)
	if err != nil {
		return
	}
	defer server.Close()
	r.mu.Lock()
	closed := r.conns == nil
	if !closed {
		r.conns[client], r.conns[server] = struct{}{}, struct{}{}
	}
	r.mu.Unlock()
	if closed {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(client, server) // ends with either connection
		client.Close()
	}()
	r.forward(server, client)
	server.Close()
	<-back
	r.mu.Lock()
	delete(r.conns, client)
	delete(r.conns, server)
	r.mu.Unlock()
}

// forward relays the client's messages one by one: first the startup message, which has no type byte.
func (r *Relay) forward(server, client net.Conn) {
	prepared := make(map[string]string) // statement name to text
	typed := false
	for {
		head := make([]byte, 4, 5)
		if typed {
			head = head[:5]
		}
		if _, err := io.ReadFull(client, head); err != nil {
			return
		}
		length := int64(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
		if length < 0 || length > 1<<30 {
			return
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		if typed {
			r.wait(statement(head[0], body, prepared))
		}
		typed = true
		if _, err := server.Write(append(head, body...)); err != nil {
			return
		}
	}
}

// statement is the text that a message is about to execute, or "".
func statement(kind byte, body []byte, prepared map[string]string) string {
	word := func() string {
		text, rest, _ := bytes.Cut(body, []byte{0})
		body = rest
		return string(text)
	}
	switch kind {
	case 'Q': // simple query
		return word()
	case 'P': // parse: name, text
		name := word()
		prepared[name] = word()
	case 'B': // bind: portal, statement name
		word()
		return prepared[word()]
	}
	return ""
}

var (
	comments = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/`)
	writes   = regexp.MustCompile(`(?is)^\s*(with\b.*\b)?(insert|update|delete|merge|copy)\b`)
	commits  = regexp.MustCompile(`(?is)(^|;)\s*(commit|end)\b`)
)

func (r *Relay) wait(sql string) {
	if sql == "" {
		return
	}
	sql = strings.TrimSpace(comments.ReplaceAllString(sql, ""))
	r.mu.Lock()
	reached := r.held != nil && (r.point == Write && writes.MatchString(sql) || r.point == Commit && commits.MatchString(sql))
	if reached {
		r.held <- sql
		r.held = nil
	}
	resume := r.resume
	r.mu.Unlock()
	if reached {
		<-resume
	}
}
