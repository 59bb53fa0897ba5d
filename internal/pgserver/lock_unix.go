//go:build linux || darwin || freebsd

package pgserver

import (
	"errors"
	"os"
	"syscall"
)

// lockedFile is a file that this process has locked. Closing it, or the end of the process, unlocks it.
type lockedFile struct{ *os.File }

// lockFile creates the file if necessary and locks it without waiting: errLocked when another has it. A symbolic link is
// refused, because the caller may be root in a directory that everybody can write.
func lockFile(path string) (*lockedFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	// Between open and flock the previous holder may have deleted the file: then we hold a lock that nobody else will see.
	mine, err := f.Stat()
	if err == nil {
		var current os.FileInfo
		if current, err = os.Stat(path); err == nil && !os.SameFile(mine, current) {
			err = errLocked
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, errLocked
	}
	return &lockedFile{f}, nil
}
