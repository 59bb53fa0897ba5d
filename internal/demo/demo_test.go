package demo_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/internal/demo"
	"github.com/fencectl/fencectl/internal/etcdtest"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/internal/redistest"
)

// watching is a narrator that keeps the events, and lets a test act on each.
type watching struct {
	events []demo.Event
	on     func(demo.Event)
}

func (*watching) Chapter(string, string) {}
func (*watching) Round(bool, string)     {}
func (*watching) Ended(demo.Round)       {}
func (*watching) Line(string)            {}
func (*watching) Paragraph(string)       {}
func (*watching) Concluded(*demo.Report) {}

func (w *watching) Event(e demo.Event) {
	w.events = append(w.events, e)
	if w.on != nil {
		w.on(e)
	}
}

func scenario(t *testing.T, name string) demo.Scenario {
	t.Helper()
	all := demo.Scenarios()
	at := slices.IndexFunc(all, func(s demo.Scenario) bool { return s.Name == name })
	if at < 0 {
		t.Fatalf("there is no scenario %q", name)
	}
	return all[at]
}

// databases lists what demos have on the server that the tests use.
func databases(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT datname FROM pg_database WHERE starts_with(datname, $1)", demo.DatabasePrefix)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

func outcomes(events []demo.Event) []string {
	var all []string
	for _, e := range events {
		if e.Kind == demo.Wrote {
			all = append(all, strings.TrimSpace(e.Actor+" "+string(e.Outcome)+" "+e.SQLState))
		}
	}
	return all
}

func TestEveryDamageShowsWithoutProtectionAndNoneWithIt(t *testing.T) {
	pool := pgtest.NewEmpty(t)
	before := databases(t, pool)
	report, err := demo.Run(t.Context(), &demo.Options{DSN: pgtest.DSN(t, pool)})
	if err != nil {
		t.Fatal(err)
	}
	if problems := report.Problems(); problems != nil {
		t.Errorf("problems: %q", problems)
	}
	type rounds struct{ Without, With []string }
	got := map[string]rounds{}
	for _, r := range report.Results {
		got[r.Scenario.Name] = rounds{outcomes(r.Without.Events), outcomes(r.With.Events)}
	}
	want := map[string]rounds{
		"sleeping-owner": {
			Without: []string{"worker B accepted", "worker A accepted"},
			With:    []string{"worker B accepted", "worker A refused " + fenced.SQLStateStale},
		},
		"forgotten-query": {
			Without: []string{"worker B accepted", "worker A no rows", "worker A accepted"},
			With:    []string{"worker B accepted", "worker A no rows", "worker A refused " + fenced.SQLStateUnfenced},
		},
		"lock-held-twice": {
			Without: []string{"worker B accepted", "worker A accepted"},
			With:    []string{"worker B accepted", "worker A refused " + fenced.SQLStateStale},
		},
		"foreign-release": {
			Without: []string{"worker B accepted", "worker C accepted"},
			With:    []string{"worker B accepted"},
		},
		"token-apart": {
			Without: []string{"worker B accepted", "worker A accepted"},
			With:    []string{"worker B accepted", "worker A refused " + fenced.SQLStateStale},
		},
		"leader-revision": {
			Without: []string{"worker A accepted", "worker B refused " + fenced.SQLStateStale, "worker A accepted"},
			With:    []string{"worker A accepted", "worker B accepted", "worker A refused " + fenced.SQLStateStale},
		},
		"lost-update": {
			Without: []string{"worker A accepted", "worker B accepted"},
			With:    []string{"worker A refused " + fenced.SQLStateStale, "worker B accepted"},
		},
		"writer-in-flight": {
			Without: []string{"worker A accepted", "worker B accepted"},
			With:    []string{"worker A accepted", "worker B accepted"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was accepted and refused (-want +got):\n%s", diff)
	}
	if before, after := report.Before.Summary, report.After.Summary; before.Fenced != 0 || before.Findings < before.Tables ||
		after.Fenced != after.Tables || after.Findings != 0 {
		t.Errorf("the audits found %+v and %+v, want every table unfenced, then every one fenced and nothing else", before, after)
	}
	if diff := cmp.Diff(before, databases(t, pool)); diff != "" {
		t.Errorf("databases are left behind:\n%s", diff)
	}
}

func TestTokensGrowAndTimesDoNotGoBack(t *testing.T) {
	pool := pgtest.NewEmpty(t)
	report, err := demo.Run(t.Context(), &demo.Options{DSN: pgtest.DSN(t, pool), Scenarios: []demo.Scenario{scenario(t, "writer-in-flight")}})
	if err != nil {
		t.Fatal(err)
	}
	var last fenced.Token
	for _, round := range []demo.Round{report.Results[0].Without, report.Results[0].With} {
		if !slices.IsSortedFunc(round.Events, func(a, b demo.Event) int { return int(a.At - b.At) }) {
			t.Errorf("the events of %q are out of order: %v", round.Label, round.Events)
		}
		for _, e := range round.Events {
			if e.Kind != demo.Granted {
				continue
			}
			if e.Token <= last {
				t.Errorf("%s got token %v after %v", e.Actor, e.Token, last)
			}
			last = e.Token
		}
	}
}

// What a picture needs to be drawn from the events alone.
func TestEventsSayWhoseLimitPassedAndWhereTheFenceStands(t *testing.T) {
	pool := pgtest.NewEmpty(t)
	report, err := demo.Run(t.Context(), &demo.Options{DSN: pgtest.DSN(t, pool), Scenarios: []demo.Scenario{scenario(t, "sleeping-owner")}})
	if err != nil {
		t.Fatal(err)
	}
	type seen struct {
		Actor    string
		Kind     demo.Kind
		Toward   string
		Concerns string
		Stored   string // whose token the fence stands at
	}
	result := report.Results[0]
	for _, round := range []struct {
		demo.Round
		fenced bool
	}{{result.Without, false}, {result.With, true}} {
		holders := map[fenced.Token]string{}
		var got []seen
		for _, e := range round.Events {
			if e.Kind == demo.Granted {
				holders[e.Token] = e.Actor
				if e.Lasts <= 0 {
					t.Errorf("the grant of %s lasts %v", e.Actor, e.Lasts)
				}
			}
			if e.Kind == demo.Expired || e.Kind == demo.Wrote {
				got = append(got, seen{e.Actor, e.Kind, e.Toward, e.Concerns, holders[e.Stored]})
			}
		}
		stored := ""
		if round.fenced {
			stored = "worker B"
		}
		want := []seen{
			{demo.Locks, demo.Expired, "", "worker A", ""},
			{"worker B", demo.Wrote, demo.Data, "", stored},
			{"worker A", demo.Wrote, demo.Data, "", stored},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", round.Label, diff)
		}
	}
}

// The cause is told before the effect although the server answers both at the same moment.
func TestWhoWaitedIsToldAfterWhoWasWaitedFor(t *testing.T) {
	pool := pgtest.NewEmpty(t)
	report, err := demo.Run(t.Context(), &demo.Options{DSN: pgtest.DSN(t, pool), Scenarios: []demo.Scenario{scenario(t, "writer-in-flight")}})
	if err != nil {
		t.Fatal(err)
	}
	var story []string
	for _, e := range report.Results[0].With.Events {
		// A machine that is slow enough does not have to wait for the lock.
		if e.Kind != demo.Read && e.Kind != demo.Expired && (e.Kind != demo.Waits || e.Token > 0) {
			story = append(story, e.Actor+" "+string(e.Kind))
		}
	}
	want := []string{
		"worker A granted", "worker A claimed", "worker A paused", "worker B granted",
		"worker B waits", "worker A resumed", "worker A wrote", "worker B claimed", "worker B wrote", "data finished",
	}
	if diff := cmp.Diff(want, story); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// problemsOf runs demos of one scenario each, all at once: they spend their time waiting for leases. It returns each one's problems.
func problemsOf(t *testing.T, demos map[string][]demo.Scenario) map[string][]string {
	t.Helper()
	var (
		running  sync.WaitGroup
		mu       sync.Mutex
		problems = map[string][]string{}
	)
	for name, scenarios := range demos {
		dsn := pgtest.DSN(t, pgtest.NewEmpty(t))
		running.Go(func() {
			report, err := demo.Run(t.Context(), &demo.Options{DSN: dsn, Scenarios: scenarios})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			problems[name] = report.Problems()
		})
	}
	running.Wait()
	return problems
}

func TestAFenceThatLetsTheDamageThroughIsAProblem(t *testing.T) {
	demos := map[string][]demo.Scenario{}
	for _, s := range demo.Scenarios() {
		demos[s.Name] = []demo.Scenario{s.Unguarded()}
	}
	for name, problems := range problemsOf(t, demos) {
		if len(problems) != 1 || !strings.Contains(problems[0], name+": the damage happened in spite of the fence") {
			t.Errorf("problems: %q", problems)
		}
	}
}

func TestAControlWithoutDamageIsAProblem(t *testing.T) {
	demos := map[string][]demo.Scenario{}
	for _, s := range demo.Scenarios() {
		demos[s.Name] = []demo.Scenario{s.Guarded()}
	}
	// This protection builds on what the control has set up, an adopted column: let that run first.
	demos["forgotten-query"] = []demo.Scenario{scenario(t, "forgotten-query"), scenario(t, "forgotten-query").Guarded()}
	for name, problems := range problemsOf(t, demos) {
		if len(problems) != 1 || !strings.Contains(problems[0], name+": without protection the damage did not happen") {
			t.Errorf("problems: %q", problems)
		}
	}
}

// Whoever imports the library must not have to compile an etcd server.
func TestTheLibraryDoesNotContainTheServers(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../fenced/...", "../../fencedtest/...", "../../tokensrc/...").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "github.com/redis/go-redis/v9\n") {
		t.Fatalf("this is no list of packages:\n%.500s", out)
	}
	for name := range strings.Lines(string(out)) {
		if strings.Contains(name, "etcd/server") || strings.Contains(name, "miniredis") {
			t.Errorf("the library imports %s", name)
		}
	}
}

func TestAnAuditThatFindsNothingOrLeavesSomethingIsAProblem(t *testing.T) {
	report := demo.Report{Before: &audit.Report{}, After: &audit.Report{Findings: []audit.Finding{{Rule: "unfenced-table"}}}}
	if problems := report.Problems(); len(problems) != 2 {
		t.Errorf("problems: %q", problems)
	}
	report.Before, report.After = nil, nil
	if problems := report.Problems(); problems != nil {
		t.Errorf("without audits there are problems: %q", problems)
	}
}

func TestAnInterruptionLeavesNothingBehind(t *testing.T) {
	pool := pgtest.NewEmpty(t)
	interrupted := errors.New("interrupted")
	for _, kind := range []demo.Kind{demo.Granted, demo.Paused, demo.Waits} {
		t.Run(string(kind), func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			narrator := &watching{on: func(e demo.Event) {
				if e.Kind == kind {
					cancel(interrupted)
				}
			}}
			report, err := demo.Run(ctx, &demo.Options{
				DSN: pgtest.DSN(t, pool), Narrator: narrator, Scenarios: []demo.Scenario{scenario(t, "writer-in-flight")},
			})
			if !errors.Is(err, interrupted) || report != nil {
				t.Errorf("Run returned %v, %v", report, err)
			}
			if left := databases(t, pool); len(left) > 0 {
				t.Errorf("databases are left behind: %q", left)
			}
		})
	}
}

func TestAServerOfItsOwnIsGoneAfterwards(t *testing.T) {
	var directory string
	report, err := demo.Run(t.Context(), &demo.Options{
		Scenarios: []demo.Scenario{scenario(t, "sleeping-owner")},
		Hold: func(ctx context.Context, where string) {
			u, err := url.Parse(where)
			if err != nil {
				t.Errorf("%q is no address: %v", where, err)
				return
			}
			directory = u.Query().Get("host")
			pool, err := pgxpool.New(ctx, where)
			if err != nil {
				t.Error(err)
				return
			}
			defer pool.Close()
			if n := pgtest.Value[int64](t, pool, "SELECT count(*) FROM shop.orders"); n == 0 {
				t.Error("there is nothing to look at in the kept database")
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if report.Problems() != nil {
		t.Errorf("problems: %q", report.Problems())
	}
	if _, err := os.Stat(directory); directory == "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's directory %q is still there (%v)", directory, err)
	}
}

// keysOf lists what demos have in a Redis and in an etcd.
func keysOf(t *testing.T, redis *goredis.Client, etcd *clientv3.Client) []string {
	t.Helper()
	keys, err := redis.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := etcd.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range answer.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func TestGivenServicesAreUsedAndAreLeftAsTheyWere(t *testing.T) {
	pool, server, cluster := pgtest.NewEmpty(t), redistest.Start(t), etcdtest.Start(t, 1)
	redis, etcd := server.Client(t, server.Addr()), cluster.Client(t)
	if err := redis.Set(t.Context(), "theirs", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	var during []string
	narrator := &watching{on: func(e demo.Event) {
		if e.Kind == demo.Granted {
			during = append(during, keysOf(t, redis, etcd)...)
		}
	}}
	report, err := demo.Run(t.Context(), &demo.Options{
		DSN: pgtest.DSN(t, pool), RedisURL: "redis://" + server.Addr(), EtcdEndpoints: cluster.Endpoints(), Narrator: narrator,
		Scenarios: []demo.Scenario{scenario(t, "lock-held-twice"), scenario(t, "leader-revision")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if problems := report.Problems(); problems != nil {
		t.Errorf("problems: %q", problems)
	}
	if !strings.Contains(report.Redis, server.Addr()) || !strings.Contains(report.Etcd, cluster.Endpoints()[0]) {
		t.Errorf("it says that it used %q and %q", report.Redis, report.Etcd)
	}
	if !slices.ContainsFunc(during, func(key string) bool { return strings.HasPrefix(key, "{fencectl-demo-") }) ||
		!slices.ContainsFunc(during, func(key string) bool { return strings.HasPrefix(key, "fencectl-demo-") }) {
		t.Errorf("while it ran there were only %q", during)
	}
	if diff := cmp.Diff([]string{"theirs"}, keysOf(t, redis, etcd)); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
}

// Where redis-server is not installed.
func TestTheRedisInThisProcessShowsTheSame(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	pool := pgtest.NewEmpty(t)
	scenarios := []demo.Scenario{scenario(t, "lock-held-twice"), scenario(t, "foreign-release"), scenario(t, "token-apart")}
	report, err := demo.Run(t.Context(), &demo.Options{DSN: pgtest.DSN(t, pool), Scenarios: scenarios})
	if err != nil {
		t.Fatal(err)
	}
	if problems := report.Problems(); problems != nil {
		t.Errorf("problems: %q", problems)
	}
	if !strings.Contains(report.Redis, "in this process") || report.Etcd != "" {
		t.Errorf("it used %q and %q", report.Redis, report.Etcd)
	}
}

func TestALockServiceThatCannotBeReachedIsAnErrorWithoutItsPassword(t *testing.T) {
	pool := pgtest.NewEmpty(t)
	for name, options := range map[string]demo.Options{
		"redis at 127.0.0.1:1:": {RedisURL: "redis://:hunter2@127.0.0.1:1/0"},
		"--redis-url is no URL": {RedisURL: "redis://:hunter2@ /0"},
		"etcd at 127.0.0.1:1:":  {EtcdEndpoints: []string{"127.0.0.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options.DSN = pgtest.DSN(t, pool)
			options.Scenarios = []demo.Scenario{scenario(t, "leader-revision")}
			if options.RedisURL != "" {
				options.Scenarios = []demo.Scenario{scenario(t, "token-apart")}
			}
			_, err := demo.Run(t.Context(), &options)
			if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestAServerThatCannotBeReachedIsAnError(t *testing.T) {
	_, err := demo.Run(t.Context(), &demo.Options{DSN: "postgres://nobody@127.0.0.1:1/none?connect_timeout=2"})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Run returned %v", err)
	}
}

func TestARoleThatMayCreateADatabaseIsEnoughAndNoOtherIs(t *testing.T) {
	pool := pgtest.NewEmpty(t)
	role := pgtest.Role(t, pool)
	options := &demo.Options{DSN: role.DSN, Scenarios: []demo.Scenario{scenario(t, "sleeping-owner")}}
	if _, err := demo.Run(t.Context(), options); err == nil || !strings.Contains(err.Error(), "use a role with CREATEDB") {
		t.Errorf("a role without CREATEDB: %v", err)
	}
	pgtest.Exec(t, pool, "ALTER ROLE "+role.Name+" CREATEDB")
	report, err := demo.Run(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if problems := report.Problems(); problems != nil {
		t.Errorf("problems: %q", problems)
	}
	if left := databases(t, pool); len(left) > 0 {
		t.Errorf("databases are left behind: %q", left)
	}
}
