package zookeeper_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencectl/fencectl/internal/netfault"
	"github.com/fencectl/fencectl/internal/zktest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/sourcetest"
	"github.com/fencectl/fencectl/tokensrc/zookeeper"
)

// ttl is as short as the client library's own pace of reconnecting allows.
const ttl = 3 * time.Second

func newSource(t testing.TB, addr string) *zookeeper.Source {
	t.Helper()
	source, err := zookeeper.New(zookeeper.Options{Servers: []string{addr}, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func TestConformance(t *testing.T) {
	server := zktest.Start(t)
	sourcetest.Run(t, sourcetest.Config{
		TTL: ttl,
		New: func(t testing.TB) tokensrc.Source { return newSource(t, server.Addr()) },
		NewLinked: func(t testing.TB) (tokensrc.Source, sourcetest.Link) {
			link := netfault.New(t, server.Addr())
			return newSource(t, link.Addr()), link
		},
		Connections: func(t testing.TB) int {
			answer, err := server.Command("cons")
			if err != nil {
				t.Fatal(err)
			}
			return strings.Count(answer, "sid=")
		},
	})
}

func TestTokensGrowAcrossARestart(t *testing.T) {
	server := zktest.Start(t)
	source := newSource(t, server.Addr())
	before, err := source.Acquire(t.Context(), "jobs/nightly")
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	after, err := source.Acquire(t.Context(), "jobs/nightly")
	if err != nil {
		t.Fatal(err)
	}
	if after.Token() <= before.Token() {
		t.Errorf("token %v after %v", after.Token(), before.Token())
	}
	if err := after.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestTheServersShorterTimeoutIsNoticed(t *testing.T) {
	server := zktest.Start(t)
	source, err := zookeeper.New(zookeeper.Options{Servers: []string{server.Addr()}, TTL: time.Hour}) // the server allows 20 ticks
	if err != nil {
		t.Fatal(err)
	}
	grant, err := source.Acquire(t.Context(), "jobs/nightly")
	if err != nil {
		t.Fatal(err)
	}
	defer grant.Release(t.Context())
	left, limited := grant.(interface{ TimeLeft() (time.Duration, bool) }).TimeLeft()
	if !limited || left <= 0 || left > 20*zktest.Tick*2/3 {
		t.Errorf("TimeLeft is %v, %v; the server keeps the session for %v", left, limited, 20*zktest.Tick)
	}
}

func TestNodesCanBeKeptFromOthers(t *testing.T) {
	server := zktest.Start(t)
	options := zookeeper.Options{
		Servers: []string{server.Addr()}, TTL: ttl, Root: "/private/fencing", ACL: zk.DigestACL(zk.PermAll, "app", "secret"),
		Prepare: func(conn *zk.Conn) error { return conn.AddAuth("digest", []byte("app:secret")) },
	}
	source, err := zookeeper.New(options)
	if err != nil {
		t.Fatal(err)
	}
	grant, err := source.Acquire(t.Context(), "jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer grant.Release(t.Context())
	options.Prepare = nil // another user
	stranger, err := zookeeper.New(options)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.TryAcquire(t.Context(), "jobs"); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a stranger: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, options := range map[string]zookeeper.Options{
		"no servers": {}, "root without a slash": {Servers: []string{"x:1"}, Root: "fencing"}, "root ends with one": {Servers: []string{"x:1"}, Root: "/fencing/"},
	} {
		if _, err := zookeeper.New(options); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
