package migrations_test

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/migrations"
)

// Facts that package fenced and the SQL layer each write down once. Everything here is asked of a real server.

func TestTheSettingsAreTheOnesThatFencedNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	conn := begin(t, pool, "READ COMMITTED")
	pgtest.Exec(t, conn, "SELECT fencing.present(34), fencing.present(35, 'a'), fencing.present(36, 'b'), fencing.bypass('a reason')")
	finds(t, conn, "34", "SELECT current_setting($1)", fenced.SettingToken)
	finds(t, conn, "a reason", "SELECT current_setting($1)", fenced.SettingBypass)
	var tokens map[string]any
	if err := json.Unmarshal([]byte(pgtest.Value[string](t, conn, "SELECT current_setting($1)", fenced.SettingTokens)), &tokens); err != nil || len(tokens) != 2 {
		t.Errorf("%s holds %v (%v), want an object with both fences", fenced.SettingTokens, tokens, err)
	}
	// As fenced writes it itself: a JSON object from fence to token.
	pgtest.Exec(t, conn, "SELECT set_config($1, '45', true)", fenced.SettingToken)
	pgtest.Exec(t, conn, `SELECT set_config($1, '{"a": 46, "b": "47"}', true)`, fenced.SettingTokens)
	finds(t, conn, []int64{45, 46, 47, 45}, "SELECT ARRAY[fencing.presented(), fencing.presented('a'), fencing.presented('b'), fencing.presented('c')]")
}

func TestTheColumnAndTheSchemaAreTheOnesThatFencedNames(t *testing.T) {
	t.Parallel()
	pool := fencedJobs(t, "")
	finds(t, pool, "bigint", "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'public.jobs'::regclass AND attname = $1", fenced.ColumnName)
	if fenced.SchemaName != migrations.Schema {
		t.Errorf("%q and %q", fenced.SchemaName, migrations.Schema)
	}
	finds(t, pool, true, "SELECT to_regnamespace($1) IS NOT NULL", fenced.SchemaName)
}

func TestTheSQLStatesAreTheOnesThatFencedNames(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]string{stale, unfenced, invalid, unclaimed, truncate},
		[]string{fenced.SQLStateStale, fenced.SQLStateUnfenced, fenced.SQLStateInvalidToken, fenced.SQLStateUnclaimed, fenced.SQLStateUnsupported}); diff != "" {
		t.Errorf("as the tests name them, as fenced does:\n%s", diff)
	}
	pool := fencedJobs(t, "")
	pgtest.Exec(t, pool, "CREATE TABLE public.runs (id int); SELECT fencing.protect('public.runs', fence => 'runs'); SELECT fencing.claim('runs', 33)")
	pgtest.Exec(t, pool, under(34, "UPDATE public.jobs SET state = 'x'"))
	for sql, want := range map[string]error{
		under(33, "UPDATE public.jobs SET state = 'x'"):                     fenced.ErrStale,
		"UPDATE public.jobs SET state = 'x'":                                fenced.ErrUnfenced,
		"UPDATE public.jobs SET last_fencing_token = -1":                    fenced.ErrInvalidToken,
		under(34, "DELETE FROM public.runs"):                                fenced.ErrUnclaimed,
		under(34, "TRUNCATE public.jobs"):                                   fenced.ErrUnsupported,
		"SELECT fencing.claim('runs', 32)":                                  fenced.ErrStale,
		"SELECT fencing.present(0)":                                         fenced.ErrInvalidToken,
		"SELECT fencing.claim('runs', 0)":                                   fenced.ErrInvalidToken,
		"SET LOCAL fencing.token = 'x'; UPDATE public.jobs SET state = 'x'": fenced.ErrInvalidToken,
	} {
		if err := fenced.AsError(try(t, pool, sql)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", sql, err, want)
		}
	}
}

func TestATokenIsTheSameNumberInGoAndInSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct {
		epoch int
		seq   int64
	}{{0, 1}, {0, 34}, {0, fenced.MaxSeq}, {1, 0}, {1, 34}, {77, 123_456_789}, {fenced.MaxEpoch, 0}, {fenced.MaxEpoch, fenced.MaxSeq}} {
		token, err := fenced.NewToken(c.epoch, c.seq)
		if err != nil {
			t.Fatal(err)
		}
		finds(t, pool, int64(token), "SELECT fencing.make_token($1, $2)", c.epoch, c.seq)
		finds(t, pool, c.epoch, "SELECT fencing.token_epoch($1)", int64(token))
		finds(t, pool, c.seq, "SELECT fencing.token_counter($1)", int64(token))
		finds(t, pool, token.String(), "SELECT fencing.token_text($1)", int64(token))
	}
	for _, token := range []int64{0, -1, math.MinInt64} {
		finds(t, pool, fenced.Token(token).String(), "SELECT fencing.token_text($1)", token)
	}
	finds(t, pool, int64(math.MaxInt64), "SELECT fencing.make_token($1, $2)", fenced.MaxEpoch, fenced.MaxSeq)
	// The limits, where SQL has them on its own.
	finds(t, pool, int64(fenced.MaxSeq), "SELECT seqmax FROM pg_sequence WHERE seqrelid = 'fencing.token_seq'::regclass")
	ends(t, try(t, pool, "UPDATE fencing.source SET epoch = 32767"), accepted)
	ends(t, try(t, pool, "UPDATE fencing.source SET epoch = 32768"), "23514")
	if fenced.MaxEpoch != 32767 {
		t.Errorf("MaxEpoch is %d", fenced.MaxEpoch)
	}
}

func TestAReleasedLeaseIsAnnouncedOnTheChannelThatFencedNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	waiter := pgtest.Conn(t, pool)
	pgtest.Exec(t, waiter, "LISTEN "+pgx.Identifier{fenced.ChannelLease}.Sanitize())
	owner := pgtest.Value[string](t, pool, "SELECT gen_random_uuid()::text")
	token := pgtest.Value[int64](t, pool, "SELECT token FROM fencing.acquire_lease('jobs/nightly', $1::text::uuid, '1h')", owner)
	finds(t, pool, true, "SELECT fencing.release_lease('jobs/nightly', $1::text::uuid, $2)", owner, token)
	notification, err := waiter.WaitForNotification(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if notification.Channel != fenced.ChannelLease || notification.Payload != "jobs/nightly" {
		t.Errorf("notified %q on %q", notification.Payload, notification.Channel)
	}
}
