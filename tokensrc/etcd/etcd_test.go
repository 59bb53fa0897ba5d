package etcd_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/internal/etcdtest"
	"github.com/fencectl/fencectl/internal/netfault"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/sourcetest"
)

func TestConformance(t *testing.T) {
	kinds := map[string]func(*clientv3.Client, *etcd.Options) *etcd.Source{"mutex": etcd.NewMutex, "election": etcd.NewElection}
	for kind, newSource := range kinds {
		t.Run(kind, func(t *testing.T) {
			cluster := etcdtest.Start(t, 1)
			options := &etcd.Options{TTL: 2 * time.Second}
			sourcetest.Run(t, sourcetest.Config{
				TTL: options.TTL,
				New: func(t testing.TB) tokensrc.Source { return newSource(cluster.Client(t), options) },
				NewLinked: func(t testing.TB) (tokensrc.Source, sourcetest.Link) {
					link := netfault.New(t, cluster.Endpoints()[0])
					return newSource(cluster.Client(t, link.Addr()), options), link
				},
			})
		})
	}
}
