package pgserver

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// workDirPrefix starts the name of every directory that this package creates.
const workDirPrefix = "fencectl-pg-"

// lockName is the file in a work directory whose lock says that the directory's owner is alive. The kernel releases the
// lock when the owner ends, however it ends.
const lockName = "owner.lock"

// longestSocketDir keeps "<dir>/.s.PGSQL.65535.lock" below 104 bytes, the shortest sun_path among the systems we run on.
const longestSocketDir = 104 - len("/.s.PGSQL.65535.lock") - 1

// workDir is a temporary directory of one server: its socket, its log and, unless the caller gave one, its data.
type workDir struct {
	path string
	lock *lockedFile
}

// newWorkDir makes a work directory that only the account (or, without one, the caller) can enter.
func newWorkDir(a *account) (*workDir, error) {
	var reasons []error
	for _, base := range workDirBases() {
		if blocked := a.blockedAt(filepath.Join(base, "x")); blocked != "" {
			reasons = append(reasons, fmt.Errorf("user %s may not enter %s", a.name, blocked))
			continue
		}
		const random = 10 // os.MkdirTemp appends at most ten digits
		if length := len(base) + len("/"+workDirPrefix) + random; length > longestSocketDir {
			reasons = append(reasons, fmt.Errorf("%s is too long for a Unix socket", base))
			continue
		}
		dir, err := newWorkDirIn(base, a)
		if err == nil {
			return dir, nil
		}
		reasons = append(reasons, err)
	}
	return nil, fmt.Errorf("pgserver: no place for a temporary directory (set TMPDIR to one): %w", errors.Join(reasons...))
}

// workDirBases are the directories that may hold work directories, the preferred first.
func workDirBases() []string {
	var bases []string
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if !slices.Contains(bases, filepath.Clean(base)) {
			bases = append(bases, filepath.Clean(base))
		}
	}
	return bases
}

func newWorkDirIn(base string, a *account) (*workDir, error) {
	const attempts = 10
	for range attempts {
		path, err := os.MkdirTemp(base, workDirPrefix)
		if err != nil {
			return nil, err
		}
		lock, err := lockFile(filepath.Join(path, lockName))
		if errors.Is(err, errLocked) {
			continue // removeAbandoned of another process was faster: between our MkdirTemp and our lock it looked abandoned
		}
		if err == nil {
			err = a.own(path)
		}
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(path))
		}
		return &workDir{path: path, lock: lock}, nil
	}
	return nil, fmt.Errorf("could not lock a new directory in %s in %d attempts", base, attempts)
}

// remove deletes the directory, then lets go of its lock. A nil directory has nothing to remove.
func (d *workDir) remove() error {
	if d == nil {
		return nil
	}
	err := removeAll(d.path)
	return errors.Join(err, d.lock.Close())
}

// removeAll is os.RemoveAll for a directory in which a dying server may still create a file.
func removeAll(path string) error {
	const attempts = 20
	var err error
	for range attempts {
		if err = os.RemoveAll(path); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // polls, a bounded number of times
	}
	return fmt.Errorf("pgserver: %w", err)
}

// errLocked says that another process holds a lock, or removed the file while we were locking it.
var errLocked = errors.New("locked by another process")

// removeAbandoned deletes the work directories of servers whose owner is gone. A postmaster that still runs in one ends by
// itself within a minute: it looks for its pid file that often, and without one it shuts down. Directories of other users
// are left to them, even by root.
func removeAbandoned(a *account, log *slog.Logger) {
	for _, base := range workDirBases() {
		found, err := filepath.Glob(filepath.Join(base, workDirPrefix+"*"))
		if err != nil {
			continue
		}
		for _, path := range found {
			if !a.ownsOrCaller(path) {
				continue
			}
			lock, err := lockFile(filepath.Join(path, lockName))
			if err != nil {
				continue // in use
			}
			log.Debug("removing what a killed process left behind", "path", path, "err", removeAll(path))
			_ = lock.Close() // the file is gone: there is nothing left to lock
		}
	}
}
