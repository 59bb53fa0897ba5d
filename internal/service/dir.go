package service

import "os"

// A Dir is a temporary directory for a server inside this process, removed also when the process is killed.
type Dir struct {
	path     string
	watchdog *watchdog
}

// NewDir makes a directory, which the caller removes.
func NewDir(name string) (*Dir, error) {
	path, err := os.MkdirTemp("", "fencectl-"+name+"-")
	if err != nil {
		return nil, err
	}
	d := &Dir{path: path}
	if d.watchdog, err = watch(0, path); err != nil {
		_ = os.RemoveAll(path) // it is empty
		return nil, err
	}
	return d, nil
}

// Path is where it is.
func (d *Dir) Path() string { return d.path }

// Remove removes it with all that is in it.
func (d *Dir) Remove() error {
	err := os.RemoveAll(d.path)
	d.watchdog.stop()
	return err
}
