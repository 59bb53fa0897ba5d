package fenced_test

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

// The same facts are written once in Go and once in SQL; this is where the two are compared.

func migrationText(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("migrations: %v, %v", names, err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

func distinct(text, pattern string) []string {
	found := regexp.MustCompile(pattern).FindAllString(text, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

func TestSQLSTATEsAreThoseOfTheSQLLayer(t *testing.T) {
	inGo := []string{fenced.SQLStateStale, fenced.SQLStateUnfenced, fenced.SQLStateInvalidToken, fenced.SQLStateUnclaimed, fenced.SQLStateUnsupported}
	if diff := cmp.Diff(inGo, distinct(migrationText(t), `\bZF\d{3}\b`)); diff != "" {
		t.Errorf("SQLSTATEs (-Go +SQL):\n%s", diff)
	}
}

func TestTokenIsSplitAsInTheSQLLayer(t *testing.T) {
	pool := pgtest.New(t)
	for _, tt := range []struct {
		epoch int
		seq   int64
	}{{0, 34}, {1, 0}, {1, 34}, {fenced.MaxEpoch, fenced.MaxSeq}} {
		token, err := fenced.NewToken(tt.epoch, tt.seq)
		if err != nil {
			t.Fatal(err)
		}
		if got := pgtest.Value[fenced.Token](t, pool, `SELECT fencing.make_token($1, $2)`, tt.epoch, tt.seq); got != token {
			t.Errorf("%d:%d is %d in SQL, %d in Go", tt.epoch, tt.seq, int64(got), int64(token))
		}
		if got := pgtest.Value[string](t, pool, `SELECT fencing.token_text($1)`, int64(token)); got != token.String() {
			t.Errorf("%d reads %s in SQL, %s in Go", int64(token), got, token)
		}
		if epoch, seq := pgtest.Value[int](t, pool, `SELECT fencing.token_epoch($1)`, int64(token)), pgtest.Value[int64](t, pool, `SELECT fencing.token_counter($1)`, int64(token)); epoch != token.Epoch() || seq != token.Seq() {
			t.Errorf("%v splits into %d and %d in SQL", token, epoch, seq)
		}
	}
}

func TestSettingsAreThoseOfTheSQLLayer(t *testing.T) {
	conn := pgtest.Conn(t, pgtest.New(t))
	pgtest.Exec(t, conn, `BEGIN`)
	pgtest.Exec(t, conn, `SELECT fencing.present(34), fencing.present(35, 'jobs'), fencing.bypass('a test')`)
	for setting, want := range map[string]string{fenced.SettingToken: "34", fenced.SettingTokens: `{"jobs": 35}`, fenced.SettingBypass: "a test"} {
		if got := pgtest.Value[string](t, conn, `SELECT COALESCE(current_setting($1, true), '')`, setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
}

func TestColumnAndChannelAreThoseOfTheSQLLayer(t *testing.T) {
	pool := pgtest.New(t)
	jobs(t, pool, "")
	if n := pgtest.Value[int](t, pool, `SELECT count(*) FROM information_schema.columns WHERE table_schema = 'public' AND table_name = 'jobs' AND column_name = $1 AND data_type = 'bigint'`, fenced.ColumnName); n != 1 {
		t.Errorf("a protected table has no bigint column %q", fenced.ColumnName)
	}
	conn := pgtest.Conn(t, pool)
	pgtest.Exec(t, conn, `LISTEN `+fenced.ChannelLease)
	token := pgtest.Value[int64](t, pool, `SELECT token FROM fencing.acquire_lease('jobs', '5ca1ab1e-0000-4000-8000-000000000000', '1min')`)
	pgtest.Exec(t, pool, `SELECT fencing.release_lease('jobs', '5ca1ab1e-0000-4000-8000-000000000000', $1)`, token)
	notification, err := conn.WaitForNotification(t.Context())
	if err != nil || notification.Channel != fenced.ChannelLease || notification.Payload != "jobs" {
		t.Errorf("released: %+v, %v", notification, err)
	}
	if n := pgtest.Value[int](t, pool, `SELECT count(*) FROM pg_namespace WHERE nspname = $1`, fenced.SchemaName); n != 1 {
		t.Errorf("there is no schema %q", fenced.SchemaName)
	}
}
