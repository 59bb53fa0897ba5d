//go:build linux || darwin || freebsd

package pgserver_test

import (
	"context"
	"testing"

	"github.com/fencectl/fencectl/internal/pgserver"
)

const timeline = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

func TestPromotedStandbyLacksWhatItNeverReceived(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*pgserver.Options{"trust": nil, "password": {Password: `it's a \password`}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := start(t, opts)
			run(t, primary.DSN("postgres"), "CREATE TABLE public.t AS SELECT 'before' AS i")
			standby, err := primary.StartStandby(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stop(t, standby) })
			run(t, primary.DSN("postgres"), "INSERT INTO public.t VALUES ('streamed')")
			if err := standby.WaitReplayed(t.Context(), primary); err != nil {
				t.Fatal(err)
			}
			const rows = "SELECT string_agg(i, ',' ORDER BY i) FROM public.t"
			if got := value(t, standby.DSN("postgres"), rows); got != "before,streamed" {
				t.Errorf("the standby has %q", got)
			}
			if err := standby.Disconnect(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, primary.DSN("postgres"), "INSERT INTO public.t VALUES ('lost')")
			before := value(t, primary.DSN("postgres"), timeline)
			if err := primary.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, standby.DSN("postgres"), "INSERT INTO public.t VALUES ('new')")
			if got := value(t, standby.DSN("postgres"), rows); got != "before,new,streamed" {
				t.Errorf("the promoted standby has %q", got)
			}
			if after := value(t, standby.DSN("postgres"), timeline); after == before {
				t.Errorf("the timeline is still %s", after)
			}
			if err := standby.Restart(t.Context()); err != nil {
				t.Fatalf("restarting the promoted standby: %v", err)
			}
		})
	}
}

func TestRestoreGoesBackToTheBackupOnATimelineOfItsOwn(t *testing.T) {
	t.Parallel()
	source := start(t, nil)
	run(t, source.DSN("postgres"), "CREATE SEQUENCE public.s")
	value(t, source.DSN("postgres"), "nextval('public.s')")
	backup, err := source.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := backup.Remove(); err != nil {
			t.Error(err)
		}
	}()
	run(t, source.DSN("postgres"), "SELECT nextval('public.s') FROM generate_series(1, 1000)")
	want := value(t, source.DSN("postgres"), "SELECT system_identifier FROM pg_control_system()")

	for range 2 { // a backup may be restored more than once
		restored, err := backup.Restore(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stop(t, restored) })
		if got := value(t, restored.DSN("postgres"), "nextval('public.s') < 1000"); got != "true" {
			t.Error("the restored sequence did not go back")
		}
		if got := value(t, restored.DSN("postgres"), "SELECT system_identifier FROM pg_control_system()"); got != want {
			t.Errorf("the system identifier changed from %s to %s", want, got)
		}
		if was, is := value(t, source.DSN("postgres"), timeline), value(t, restored.DSN("postgres"), timeline); was == is {
			t.Errorf("both are on timeline %s", is)
		}
	}
}

func stop(t *testing.T, server *pgserver.Server) {
	t.Helper()
	if err := server.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}
