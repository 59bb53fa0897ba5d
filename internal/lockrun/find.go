package lockrun

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A StartError says that there is no command to run, or that it is not one.
type StartError struct {
	Name string
	Err  error
}

func (e *StartError) Error() string {
	reason := e.Err
	var path *fs.PathError
	if errors.As(e.Err, &path) { // which names the path again, or the system call
		reason = path.Err
	}
	if errors.Is(e.Err, exec.ErrNotFound) {
		reason = errors.New("command not found")
	}
	return fmt.Sprintf("cannot run %s: %v", e.Name, reason)
}

func (e *StartError) Unwrap() error { return e.Err }

// Status is the exit status that shells have for it: 127 for a command that is not there, 126 for one that cannot be executed.
func (e *StartError) Status() int {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return 127
	}
	return 126
}

// Find is the path of a command's executable, searched for as shells do. The error is a *StartError.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot): // PATH names the current directory: the user's own choice
		return path, nil
	case errors.Is(err, exec.ErrNotFound) && !strings.ContainsRune(name, filepath.Separator):
		// A file that is there but may not be executed is another mistake than one that is missing.
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			if info, statErr := os.Stat(filepath.Join(dir, name)); statErr == nil && info.Mode().IsRegular() {
				err = fs.ErrPermission
			}
		}
	}
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		err = lookup.Err
	}
	return "", &StartError{Name: name, Err: err}
}
