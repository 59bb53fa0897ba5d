package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Backup is a physical backup of a running server, as pg_basebackup would take: the state to which a restore goes back.
type Backup struct {
	source   *Server
	dir      *workDir
	data     string
	password string
}

// Backup takes a base backup of the server, which goes on meanwhile. The caller removes it with Remove.
func (s *Server) Backup(ctx context.Context) (_ *Backup, err error) {
	dir, err := newWorkDir(s.account)
	if err != nil {
		return nil, err
	}
	b := &Backup{source: s, dir: dir, data: filepath.Join(dir.path, "data"), password: s.password}
	if err := s.copyTo(ctx, b.data); err != nil {
		return nil, errors.Join(err, b.Remove())
	}
	return b, nil
}

// Remove deletes the backup. Servers that were restored from it are not touched.
func (b *Backup) Remove() error { return b.dir.remove() }

// Restore starts another server in the state of the backup. As after every point-in-time recovery, it has the source's
// system identifier and a timeline of its own. The options' DataDir must be empty or absent, their Password is not looked
// at. The caller stops the server with Stop.
func (b *Backup) Restore(ctx context.Context, opts *Options) (*Server, error) {
	s, err := start(ctx, withBinaries(opts, b.source), func(s *Server, _ context.Context) error {
		s.password = b.password
		if err := copyDir(b.data, s.data, nil); err != nil {
			return err
		}
		// Everything up to the state of the backup is in its own pg_wal: the command finds nothing, but must be there.
		if err := s.recoverWith("recovery.signal", "restore_command = 'false'\nrecovery_target = 'immediate'\nrecovery_target_action = 'promote'\n"); err != nil {
			return err
		}
		return s.account.own(s.data)
	})
	if err != nil {
		return nil, err
	}
	if err := s.waitFor(ctx, "the end of the recovery", "SELECT NOT pg_catalog.pg_is_in_recovery()"); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// StartStandby starts a server that follows this one by streaming replication, asynchronously, and returns when it answers
// read-only queries. The options' DataDir must be empty or absent, their Password is not looked at. The caller stops the
// standby with Stop; this server keeps a replication slot for it, and with it all WAL that the standby has not received.
func (s *Server) StartStandby(ctx context.Context, opts *Options) (*Server, error) {
	slot := "standby_" + strings.ToLower(rand.Text()) // a slot first: no WAL may be recycled between the backup and the connection
	if err := s.query(ctx, "SELECT true FROM pg_catalog.pg_create_physical_replication_slot($1, true)", slot); err != nil {
		return nil, fmt.Errorf("pgserver: replication slot: %w", err)
	}
	return start(ctx, withBinaries(opts, s), func(standby *Server, ctx context.Context) error {
		standby.password = s.password
		if err := s.copyTo(ctx, standby.data); err != nil {
			return err
		}
		conninfo := fmt.Sprintf("host=%s port=%d user=%s password=%s", s.SocketDir(), s.Port(), Superuser, quoteConninfo(s.password))
		settings := fmt.Sprintf("primary_conninfo = %s\nprimary_slot_name = %s\n", quoteSetting(conninfo), quoteSetting(slot))
		if err := standby.recoverWith("standby.signal", settings); err != nil {
			return err
		}
		return standby.account.own(standby.data)
	})
}

// WaitReplayed returns when this standby has replayed all that the primary has committed so far.
func (s *Server) WaitReplayed(ctx context.Context, primary *Server) error {
	var lsn string
	if err := primary.scan(ctx, &lsn, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text"); err != nil {
		return fmt.Errorf("pgserver: the primary's position: %w", err)
	}
	return s.waitFor(ctx, "the standby to catch up", "SELECT pg_catalog.pg_last_wal_replay_lsn() >= $1::pg_lsn", lsn)
}

// Disconnect ends this standby's replication: what the primary commits from now on never arrives, and is lost when the
// standby is promoted. It returns when the connection is closed.
func (s *Server) Disconnect(ctx context.Context) error {
	for _, sql := range []string{
		"ALTER SYSTEM SET primary_conninfo = ''",
		"SELECT pg_catalog.pg_reload_conf()",
	} {
		if err := s.exec(ctx, sql); err != nil {
			return fmt.Errorf("pgserver: disconnecting: %w", err)
		}
	}
	return s.waitFor(ctx, "the connection to the primary to end", "SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_stat_wal_receiver)")
}

// Promote makes this standby a primary, on a timeline of its own, and returns when it takes writes. The old primary is not
// told.
func (s *Server) Promote(ctx context.Context) error {
	if err := s.query(ctx, "SELECT pg_catalog.pg_promote()"); err != nil {
		return fmt.Errorf("pgserver: promote: %w", err)
	}
	return nil
}

// copyTo makes the directory a base backup of this running server.
func (s *Server) copyTo(ctx context.Context, target string) error {
	begin, end := "SELECT pg_catalog.pg_backup_start('fencectl', true)", "SELECT labelfile FROM pg_catalog.pg_backup_stop(false)"
	if s.major < 15 {
		begin, end = "SELECT pg_catalog.pg_start_backup('fencectl', true, false)", "SELECT labelfile FROM pg_catalog.pg_stop_backup(false, false)"
	}
	conn, err := pgx.Connect(ctx, s.DSN("postgres")) // one session: the server forgets a backup whose session ends
	if err != nil {
		return fmt.Errorf("pgserver: backup: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, begin); err != nil {
		return fmt.Errorf("pgserver: backup: %w", err)
	}
	if err := copyDir(s.data, target, notInBackup); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		return fmt.Errorf("pgserver: backup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(target, "backup_label"), []byte(label), 0o600); err != nil {
		return fmt.Errorf("pgserver: backup: %w", err)
	}
	// The log is copied last: only now does it reach to the end of the backup.
	return copyDir(filepath.Join(s.data, "pg_wal"), filepath.Join(target, "pg_wal"), nil)
}

// notInBackup names what a base backup leaves out: what belongs to the running server, and what it makes anew at its start.
func notInBackup(path string) bool {
	switch path {
	case "postmaster.pid", "postmaster.opts", "pg_internal.init", "backup_label", "standby.signal", "recovery.signal":
		return true
	}
	switch dir := filepath.Dir(path); dir {
	case "pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans":
		return true
	}
	return strings.HasPrefix(filepath.Base(path), "pgsql_tmp")
}

// copyDir copies a directory of a server that may be running: a file that vanishes meanwhile was not needed.
func copyDir(source, target string, skip func(path string) bool) error {
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != source {
			return nil
		}
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		switch {
		case skip != nil && skip(inside):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(target, inside), 0o700)
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory: tablespaces are not supported", path)
		}
		if err := copyFile(path, filepath.Join(target, inside)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("pgserver: copying a data directory: %w", err)
	}
	return nil
}

func copyFile(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}

// recoverWith prepares the data directory for a start in recovery. The settings go into a file, not into the command line,
// so that ALTER SYSTEM can change them.
func (s *Server) recoverWith(signal, settings string) error {
	auto, err := os.OpenFile(filepath.Join(s.data, "postgresql.auto.conf"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = auto.WriteString(settings)
		err = errors.Join(err, auto.Close())
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(s.data, signal), nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("pgserver: recovery settings: %w", err)
	}
	return nil
}

// withBinaries is a copy of the options that uses the source's binaries and password: a data directory fits one major.
func withBinaries(opts *Options, source *Server) *Options {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.BinDir == "" {
		o.BinDir = source.bin
	}
	o.Password = source.opts.Password
	return &o
}

// quoteConninfo quotes a value of a libpq connection string.
func quoteConninfo(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

// quoteSetting quotes a value in a configuration file of the server, which knows backslashes too.
func quoteSetting(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(value) + "'"
}

// waitFor returns when the query, which returns a boolean, returns true.
func (s *Server) waitFor(ctx context.Context, what, sql string, args ...any) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, startTimeout)
		defer cancel()
	}
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		var done bool
		err := s.scan(ctx, &done, sql, args...)
		if err == nil && !done {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		tick.Stop()
		if err != nil {
			return fmt.Errorf("pgserver: waiting for %s: %w; the log ends with:\n%s", what, err, tail([]byte(readFrom(s.LogFile(), 0))))
		}
		return nil
	}
}

// query runs a query that must return true.
func (s *Server) query(ctx context.Context, sql string, args ...any) error {
	var ok bool
	if err := s.scan(ctx, &ok, sql, args...); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%s returned false", sql)
	}
	return nil
}

// scan runs a query on a connection of its own and reads its single value.
func (s *Server) scan(ctx context.Context, value any, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, sql, args...).Scan(value)
}

func (s *Server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}
