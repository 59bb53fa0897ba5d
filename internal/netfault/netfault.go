// Package netfault is a TCP relay that tests put between a client and a real server to take the server away: by refusing and
// cutting connections, or by letting them stand while no byte passes.
package netfault

import (
	"net"
	"strings"
	"sync"
	"testing"
)

// A Proxy relays to one server.
type Proxy struct {
	target   string
	listener net.Listener

	mu    sync.Mutex
	flow  chan struct{} // closed while bytes may pass
	cut   bool
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

// New starts a relay on a free local port to target, which is host:port or the path of a Unix socket, and stops it when the
// test ends.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, listener: listener, flow: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(p.flow)
	p.wg.Add(1)
	go p.serve()
	t.Cleanup(func() {
		listener.Close()
		p.Heal() // whoever waits for the flow must see its connection closed
		p.closeAll()
		p.wg.Wait()
	})
	return p
}

// Addr is the relay's own host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut breaks every connection, and every new one as soon as it is made.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	p.closeAll()
}

// Stall keeps connections open and accepts new ones, but no byte passes: a partition, or a server that hangs.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flow:
		p.flow = make(chan struct{})
	default:
	}
}

// Heal undoes Cut and Stall. Bytes that were held back arrive now.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
	select {
	case <-p.flow:
	default:
		close(p.flow)
	}
}

func (p *Proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

func (p *Proxy) serve() {
	defer p.wg.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Add(1)
		go p.relay(client)
	}
}

func (p *Proxy) relay(client net.Conn) {
	defer p.wg.Done()
	defer client.Close()
	if !p.track(client) {
		return
	}
	defer p.untrack(client)
	network := "tcp"
	if strings.HasPrefix(p.target, "/") {
		network = "unix"
	}
	server, err := net.Dial(network, p.target)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.track(server) {
		return
	}
	defer p.untrack(server)
	both := make(chan struct{}, 2)
	pump := func(to, from net.Conn) {
		defer func() { both <- struct{}{} }()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				p.wait()
				if _, err := to.Write(buffer[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	go pump(server, client)
	go pump(client, server)
	<-both
	client.Close()
	server.Close()
	<-both
}

func (p *Proxy) wait() {
	p.mu.Lock()
	flow := p.flow
	p.mu.Unlock()
	<-flow
}

// track refuses a connection made while the link is cut.
func (p *Proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) untrack(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}
