// Package machine says on what a run was made. It says nothing that would tell whose machine that is.
package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/stats"
)

// Facts are the machine's: processor, memory, operating system, and how long its disk takes.
func Facts() ([]results.Fact, error) {
	sync, err := syncTime()
	if err != nil {
		return nil, err
	}
	system := runtime.GOOS + "/" + runtime.GOARCH
	if name := field("/etc/os-release", `(?m)^PRETTY_NAME="?([^"\n]*)`); name != "" {
		system = name + ", " + system
	}
	if kernel := field("/proc/sys/kernel/osrelease", `^(\d+\.\d+)`); kernel != "" {
		system += ", kernel " + kernel
	}
	facts := []results.Fact{{Name: "processor", Value: strconv.Itoa(runtime.NumCPU()) + " cores"}}
	if model := field("/proc/cpuinfo", `(?m)^model name\s*: (.*)$`); model != "" {
		facts[0].Value += ", " + model
	}
	if kb, err := strconv.ParseFloat(field("/proc/meminfo", `(?m)^MemTotal:\s*(\d+) kB`), 64); err == nil {
		facts = append(facts, results.Fact{Name: "memory", Value: fmt.Sprintf("%.0f GiB", kb/(1<<20))})
	}
	return append(facts,
		results.Fact{Name: "system", Value: system},
		results.Fact{Name: "disk", Value: fmt.Sprintf("8 kB written and synced in %.0f µs (median)", float64(sync)/float64(time.Microsecond))}), nil
}

// field is the first group of a pattern's match in a file, empty where there is none: not every system has the file.
func field(path, pattern string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	match := regexp.MustCompile(pattern).FindSubmatch(content)
	if match == nil {
		return ""
	}
	return strings.TrimSpace(string(match[1]))
}

// syncTime is how long it takes to write a page and have it on the disk where temporary files are, as the servers' data is.
func syncTime() (time.Duration, error) {
	f, err := os.CreateTemp("", "bench-sync-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var took []float64
	page := make([]byte, 8192)
	for range 50 {
		begun := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(begun)))
	}
	return time.Duration(stats.Median(took)), nil
}

// Load is the machine's load average over the last minute, 0 where the system does not say.
func Load() float64 {
	load, err := strconv.ParseFloat(field("/proc/loadavg", `^(\S+)`), 64)
	if err != nil {
		return 0
	}
	return load
}

// Revision is the commit of the work tree at root, with "-dirty" where tracked files differ from it.
func Revision(ctx context.Context, root string) string {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	revision, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	// What a run itself publishes is no change of what it measured.
	if changed, err := git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results", ":!docs", ":!README.md"); err != nil || changed != "" {
		revision += "-dirty"
	}
	return revision
}

// Versions are those of Go, of the libraries that are compared, and of the services' programs on this machine.
func Versions(ctx context.Context) []results.Fact {
	facts := []results.Fact{{Name: "Go", Value: strings.TrimPrefix(runtime.Version(), "go")}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			switch dep.Path {
			case "github.com/jackc/pgx/v5", "cirello.io/pglock", "go.etcd.io/etcd/server/v3", "github.com/redis/go-redis/v9", "github.com/go-redsync/redsync/v4",
				"github.com/bsm/redislock", "github.com/go-zookeeper/zk":
				facts = append(facts, results.Fact{Name: dep.Path, Value: strings.TrimPrefix(dep.Version, "v")})
			}
		}
	}
	if out, err := exec.CommandContext(ctx, "redis-server", "--version").Output(); err == nil {
		if match := regexp.MustCompile(`v=(\S+)`).FindSubmatch(out); match != nil {
			facts = append(facts, results.Fact{Name: "Redis", Value: string(match[1])})
		}
	}
	// Debian's package is a link to the versioned file.
	if target, err := filepath.EvalSymlinks("/usr/share/java/zookeeper.jar"); err == nil {
		if match := regexp.MustCompile(`zookeeper-(.*)\.jar$`).FindStringSubmatch(target); match != nil {
			facts = append(facts, results.Fact{Name: "ZooKeeper", Value: match[1]})
		}
	}
	return facts
}
