package migrations_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

func nextToken(t *testing.T, q pgtest.Querier) int64 {
	t.Helper()
	return pgtest.Value[int64](t, q, "SELECT fencing.next_token()")
}

func TestTheFirstTokensAreThePlainCounter(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	finds(t, pool, true, "SELECT incarnation IS NULL AND epoch = 0 FROM fencing.source WHERE name = 'postgres'")
	for want := range int64(3) {
		finds(t, pool, want+1, "SELECT fencing.next_token()")
	}
	finds(t, pool, true, `SELECT incarnation = (pg_control_system()).system_identifier || '/1' AND epoch = 0 FROM fencing.source WHERE name = 'postgres'`)
}

// incarnation sets what fencing.source remembers: another system, or this one on a timeline that is behind by so many.
func incarnation(t *testing.T, pool *pgxpool.Pool, remembered string) {
	t.Helper()
	pgtest.Exec(t, pool, "UPDATE fencing.source SET incarnation = "+remembered+" WHERE name = 'postgres'")
}

func TestATokenIsGreaterThanEveryOneBeforeItWhateverHappenedToTheServer(t *testing.T) {
	t.Parallel()
	const system = "(pg_control_system()).system_identifier"
	pool := pgtest.New(t)
	var last int64
	epoch := 0
	for _, c := range []struct {
		name, remembered string
		step             int
	}{
		{"restored elsewhere", "'7000000000000000000/1'", 1},
		{"restored elsewhere, from a server on a later timeline", "'7000000000000000000/9'", 1},
		{"promoted", system + " || '/0'", 1},
		{"promoted twice", system + " || '/-1'", 2}, // the timeline of the test server is 1
		{"recovered to a point before a promotion", system + " || '/7'", 1},
		{"unchanged", system + " || '/1'", 0},
	} {
		last = max(last, nextToken(t, pool))
		incarnation(t, pool, c.remembered)
		// The numbers of the sequence went back with the data.
		pgtest.Exec(t, pool, "SELECT setval('fencing.token_seq', 1, $1)", c.step == 0)
		if c.step == 0 {
			pgtest.Exec(t, pool, "SELECT setval('fencing.token_seq', $1 & 281474976710655)", last)
		}
		epoch += c.step
		token := nextToken(t, pool)
		if token <= last {
			t.Errorf("%s: token %d after %d", c.name, token, last)
		}
		finds(t, pool, epoch, "SELECT fencing.token_epoch($1)", token)
		finds(t, pool, epoch, "SELECT epoch FROM fencing.source WHERE name = 'postgres'")
		last = token
		if next := nextToken(t, pool); next != last+1 {
			t.Errorf("%s: the next token is %d, want %d", c.name, next, last+1)
		}
	}
}

// Many sessions notice a new incarnation at once: one decides, the epoch rises once, and none draws in the old one.
func TestAPromotionIsNoticedOnceByManySessions(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, pgtest.MaxConns(20))
	before := nextToken(t, pool)
	incarnation(t, pool, "'7000000000000000000/1'")
	// All of them stand before the row, and go on together.
	holder := begin(t, pool, "READ COMMITTED")
	pgtest.Exec(t, holder, "SELECT FROM fencing.source WHERE name = 'postgres' FOR UPDATE")
	const sessions = 8
	tokens := make([]int64, sessions)
	drawing := make([]*pgtest.Statement, sessions)
	for i := range sessions {
		conn := pgtest.Conn(t, pool)
		drawing[i] = pgtest.Call(t, conn, scanInto(conn, &tokens[i], "SELECT fencing.next_token()")).Blocked()
	}
	pgtest.Exec(t, holder, "COMMIT")
	seen := map[int64]bool{before: true}
	for i, d := range drawing {
		ends(t, d.Wait(), accepted)
		if tokens[i]>>48 != 1 || seen[tokens[i]] {
			t.Errorf("token %d: not of epoch 1, or issued twice", tokens[i])
		}
		seen[tokens[i]] = true
	}
	finds(t, pool, 1, "SELECT epoch FROM fencing.source WHERE name = 'postgres'")
}

func TestConcurrentSessionsNeverDrawTheSameToken(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const sessions, draws = 6, 50
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range sessions {
		conn := pgtest.Conn(t, pool)
		wg.Go(func() {
			last := int64(0)
			for range draws {
				var token int64
				if err := conn.QueryRow(t.Context(), "SELECT fencing.next_token()").Scan(&token); err != nil {
					t.Error(err)
					return
				}
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				last = token
				mu.Lock()
				if seen[token] {
					t.Errorf("token %d was issued twice", token)
				}
				seen[token] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestAnOutsideSourcesEpochIsRaisedOnlyByAnOperator(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	epoch := func(function, incarnation string) any {
		return pgtest.Value[any](t, pool, "SELECT fencing."+function+"('etcd', $1)", incarnation)
	}
	for _, step := range []struct {
		function, incarnation string
		want                  any
	}{
		{"source_epoch", "cluster a", int32(0)},
		{"source_epoch", "cluster a", int32(0)},
		{"source_epoch", "cluster b", nil}, // a worker pointed at the wrong cluster gets no epoch
		{"source_epoch", "cluster a", int32(0)},
		{"adopt_epoch", "cluster b", int32(1)},
		{"source_epoch", "cluster b", int32(1)},
		{"adopt_epoch", "cluster b", int32(2)}, // restored in place: the same identity, older numbers
		{"source_epoch", "cluster b", int32(2)},
		{"source_epoch", "cluster a", nil},
		{"adopt_epoch", "cluster a", int32(3)},
	} {
		if got := epoch(step.function, step.incarnation); got != step.want {
			t.Errorf("%s(%s): %v, want %v", step.function, step.incarnation, got, step.want)
		}
	}
	finds(t, pool, int32(0), "SELECT fencing.adopt_epoch('redis', 'run 1')")
	for _, function := range []string{"source_epoch", "adopt_epoch"} {
		for _, arguments := range []string{"'postgres', 'x'", "'', 'x'", "NULL, 'x'", "'etcd', ''", "'etcd', NULL"} {
			ends(t, try(t, pool, fmt.Sprintf("SELECT fencing.%s(%s)", function, arguments)), "22023")
		}
	}
	pgtest.Exec(t, pool, "UPDATE fencing.source SET epoch = 32767 WHERE name = 'etcd'")
	ends(t, try(t, pool, "SELECT fencing.adopt_epoch('etcd', 'cluster z')"), "54000")
}

func TestTheFirstIncarnationIsOneThoughTwoCome(t *testing.T) {
	t.Parallel()
	atEachLevel(t, func(t *testing.T, level string) {
		pool := pgtest.New(t)
		first, second := begin(t, pool, level), begin(t, pool, level)
		pgtest.Exec(t, second, "SELECT FROM fencing.source")
		finds(t, first, any(int32(0)), "SELECT fencing.source_epoch('etcd', 'cluster a')")
		var epoch any
		racing := pgtest.Call(t, second, scanInto(second, &epoch, "SELECT fencing.source_epoch('etcd', 'cluster b')")).Blocked()
		pgtest.Exec(t, first, "COMMIT")
		err := racing.Wait()
		ends(t, err, map[bool]string{true: accepted, false: serializationFailed}[level == "READ COMMITTED"])
		if err == nil && epoch != nil {
			t.Errorf("the second incarnation got epoch %v", epoch)
		}
	})
}

// The row fence of a table from before a failover refuses what the old primary still issues.
func TestATokenOfAnOldEpochIsStale(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	zombie := nextToken(t, pool)
	incarnation(t, pool, "'7000000000000000000/1'")
	token := nextToken(t, pool)
	ends(t, try(t, pool, under(token, "UPDATE public.jobs SET state = 'after the failover'")), accepted)
	refusal := ends(t, try(t, pool, under(zombie+1000, "UPDATE public.jobs SET state = 'zombie'")), stale)
	if !strings.Contains(refusal.Message, fmt.Sprintf("has accepted 1:%d", token&(1<<48-1))) {
		t.Errorf("the message %q does not show the epoch", refusal.Message)
	}
}
