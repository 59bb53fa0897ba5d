package migrations_test

import (
	"testing"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// A holder that is paused in a transaction must not keep its successor waiting for longer than its lease, and no longer than its
// session allows it anyway.
func TestATransactionIsLimitedUnlessAShorterLimitIsSet(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct {
		session string // its setting
		limit   int64  // milliseconds
		want    string
	}{
		{"0", 15_000, "15s"},
		{"0", 0, "0"},
		{"1500ms", 15_000, "1500ms"},
		{"15s", 15_000, "15s"},
		{"1min", 15_000, "15s"},
		{"1min", 90_000, "1min"},
		{"1min", 0, "1min"},
		{"2h", 7_199_999, "7199999ms"},
		{"1d", 90_000_000, "1d"},
		{"20d", 600_000, "10min"},
	} {
		for _, setting := range []struct{ name, call string }{
			{"idle_in_transaction_session_timeout", "SELECT fencing.limit_transaction($1, 0)"},
			{"transaction_timeout", "SELECT fencing.limit_transaction(0, $1)"},
			{"idle_in_transaction_session_timeout", "CALL fencing.present(34, $1, 0)"},
			{"transaction_timeout", "CALL fencing.present(34, 0, $1)"},
		} {
			conn := pgtest.Conn(t, pool)
			if setting.name == "transaction_timeout" && pgtest.ServerVersion(t) < 17 {
				pgtest.Exec(t, conn, setting.call, c.limit) // not known, and no error
				continue
			}
			pgtest.Exec(t, conn, "SELECT set_config($1, $2, false)", setting.name, c.session)
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, tx, setting.call, c.limit)
			finds(t, tx, c.want, "SELECT current_setting($1)", setting.name)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			finds(t, conn, c.session, "SELECT current_setting($1)", setting.name) // the next transaction is not limited
		}
	}
}

// The call that comes with BEGIN: both limits at once, and the token is refused as by the function.
func TestACallPresentsAndLimitsAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, token := range []string{"0", "-1", "NULL"} {
		ends(t, try(t, pool, "CALL fencing.present("+token+", 15000, 15000)"), "ZF003")
	}
	for call, want := range map[string][]string{
		"CALL fencing.present(34, 15000, 7000)": {"15s", "7s"},
		"CALL fencing.present(34, 15000, 0)":    {"15s", "0"},
		"CALL fencing.present(34, 0, 0)":        {"0", "0"},
		"CALL fencing.present(34, NULL, NULL)":  {"0", "0"},
	} {
		tx, err := pgtest.Conn(t, pool).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, call)
		finds(t, tx, int64(34), "SELECT fencing.presented()")
		finds(t, tx, want[0], "SELECT current_setting('idle_in_transaction_session_timeout')")
		if pgtest.ServerVersion(t) >= 17 {
			finds(t, tx, want[1], "SELECT current_setting('transaction_timeout')")
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
