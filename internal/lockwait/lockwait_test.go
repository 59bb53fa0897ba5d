package lockwait_test

import (
	"testing"
	"time"

	"github.com/fencectl/fencectl/internal/lockwait"
	"github.com/fencectl/fencectl/internal/pgtest"
)

func TestASessionIsDescribedByWhatIsKnownOfIt(t *testing.T) {
	for want, session := range map[string]lockwait.Session{
		"a prepared transaction (see pg_prepared_xacts)": {PID: 0, TransactionMS: -1},
		"pid 7":            {PID: 7, TransactionMS: -1},
		"pid 7 (role app)": {PID: 7, Role: "app", TransactionMS: -1},
		"pid 7 (nightly, role app, idle in transaction for 12m3s)": {PID: 7, ApplicationName: "nightly", Role: "app", State: "idle in transaction", TransactionMS: 723_000},
		"pid 7 (in a transaction for 2h5m)":                        {PID: 7, TransactionMS: (2*time.Hour + 5*time.Minute + 9*time.Second).Milliseconds()},
	} {
		if got := session.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAgesAreRoundedForPeople(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234567 * time.Nanosecond:           "1ms",
		1234 * time.Millisecond:             "1.2s",
		time.Minute + 1500*time.Millisecond: "1m2s",
		25*time.Hour + 59*time.Second:       "25h1m",
	} {
		if got := lockwait.Age(d); got != want {
			t.Errorf("Age(%v) = %s, want %s", d, got, want)
		}
	}
}

// A prepared transaction holds its locks without any session, and reports pid 0.
func TestAPreparedTransactionIsNamedAsWhatItIs(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	pgtest.Exec(t, pool, "CREATE TABLE public.jobs (id bigint)")
	conn := pgtest.Conn(t, pool)
	pgtest.Exec(t, conn, "BEGIN")
	pgtest.Exec(t, conn, "LOCK TABLE public.jobs")
	pgtest.Exec(t, conn, "PREPARE TRANSACTION 'forgotten'")
	waiter := pgtest.Go(t, pgtest.Conn(t, pool), "SELECT FROM public.jobs").Blocked()
	sessions, err := lockwait.Blocking(t.Context(), pool, int32(waiter.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if len(sessions) != 1 || sessions[0].PID != 0 {
		t.Errorf("blocking: %+v", sessions)
	}
	pgtest.Exec(t, pool, "ROLLBACK PREPARED 'forgotten'")
	if err := waiter.Wait(); err != nil {
		t.Error(err)
	}
}
