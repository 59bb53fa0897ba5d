package torture

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// A relay is the address that clients know the database by, whichever server has it: a virtual IP, so to say. It is a Unix socket
// that looks like a server's own.
type relay struct {
	listener net.Listener
	mu       sync.Mutex
	target   string // the socket of the server; empty while there is none
	conns    map[net.Conn]struct{}
	group    sync.WaitGroup
}

const relayPort = 5432

// socketName is what a PostgreSQL client looks for in a directory.
func socketName(dir string, port int) string {
	return filepath.Join(dir, fmt.Sprintf(".s.PGSQL.%d", port))
}

func newRelay(dir string) (*relay, error) {
	name := socketName(dir, relayPort)
	listener, err := net.Listen("unix", name)
	if err != nil {
		return nil, err
	}
	r := &relay{listener: listener, conns: map[net.Conn]struct{}{}}
	// The directory is what keeps others out; PgBouncer, under another account, is to get in.
	if err := os.Chmod(name, 0o777); err != nil {
		return nil, err
	}
	r.group.Go(r.serve)
	return r, nil
}

// point leads new connections to a server's socket, or nowhere, and breaks the old ones.
func (r *relay) point(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
	for conn := range r.conns {
		_ = conn.Close()
	}
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.point("")
	r.group.Wait()
}

func (r *relay) serve() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.group.Go(func() { r.forward(client) })
	}
}

func (r *relay) forward(client net.Conn) {
	defer client.Close()
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	if target == "" {
		return
	}
	server, err := net.Dial("unix", target)
	if err != nil {
		return
	}
	defer server.Close()
	if !r.track(target, client, server) {
		return
	}
	defer r.forget(client, server)
	both := make(chan struct{}, 2)
	pump := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // it ends with the connection
		both <- struct{}{}
	}
	go pump(server, client)
	go pump(client, server)
	<-both
	_ = client.Close()
	_ = server.Close()
	<-both
}

// track refuses a connection that was made while the target changed.
func (r *relay) track(target string, conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.target != target {
		return false
	}
	for _, conn := range conns {
		r.conns[conn] = struct{}{}
	}
	return true
}

func (r *relay) forget(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range conns {
		delete(r.conns, conn)
	}
}
