package fenced_test

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/fencectl/fencectl/"

// Whoever uses one package must not compile the clients of services they do not have.
func TestPackagesCompileOnlyWhatTheyAreAbout(t *testing.T) {
	const (
		etcd, redis, zookeeper = "go.etcd.io/", "github.com/redis/", "github.com/go-zookeeper/"
		otel, libpq, grpc      = "go.opentelemetry.io/", "github.com/lib/pq", "google.golang.org/"
		cobra, goose           = "github.com/spf13/", "github.com/pressly/"
	)
	never := []string{libpq, cobra, goose, "testing"}
	for pkg, without := range map[string][]string{
		"fenced":             {etcd, redis, zookeeper, otel, grpc, module + "tokensrc", module + "internal/", module + "migrations"},
		"fenced/fencedotel":  {etcd, redis, zookeeper, grpc, module + "internal/", module + "migrations", "go.opentelemetry.io/otel/sdk"},
		"tokensrc":           {etcd, redis, zookeeper, otel, grpc, module + "internal/", module + "migrations"},
		"tokensrc/postgres":  {etcd, redis, zookeeper, otel, grpc, module + "internal/", module + "migrations"},
		"tokensrc/redis":     {etcd, zookeeper, otel, grpc, module + "internal/", module + "migrations"},
		"tokensrc/zookeeper": {etcd, redis, otel, grpc, module + "internal/", module + "migrations"},
		"tokensrc/etcd":      {redis, zookeeper, module + "internal/", module + "migrations", "go.etcd.io/etcd/server/"},
	} {
		t.Run(pkg, func(t *testing.T) {
			out, err := exec.Command("go", "list", "-deps", module+pkg).Output()
			if err != nil {
				t.Fatal(err)
			}
			for dependency := range strings.Lines(string(out)) {
				dependency = strings.TrimSpace(dependency)
				for _, unwanted := range append(without, never...) {
					if strings.HasPrefix(dependency, unwanted) {
						t.Errorf("%s compiles %s", pkg, dependency)
					}
				}
			}
		})
	}
	t.Run("fencedtest", func(t *testing.T) { // a test kit may compile testing, but no service's client either
		out, err := exec.Command("go", "list", "-deps", module+"fencedtest").Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, unwanted := range []string{etcd, redis, zookeeper, otel, libpq, goose} {
			if strings.Contains(string(out), "\n"+unwanted) {
				t.Errorf("fencedtest compiles something of %s", unwanted)
			}
		}
	})
}
