package pgserver

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
)

// watchdogScript reads process ids from its input, one a line, an empty line for "none", until the input ends. That is
// when the process that started it has ended, or stopped the server itself, in which case there is nothing left to do.
// Otherwise it ends the postmaster of the last line and removes the directory. A postmaster that shuts down removes its
// pid file as its last act; its process may stay a zombie where nobody reaps orphans, so the file is what to wait for.
const watchdogScript = `
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
	kill -QUIT "$pid"
	kill -CONT "$pid"
	tries=0
	while [ -e "$2/postmaster.pid" ] && [ "$tries" -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
	[ -e "$2/postmaster.pid" ] && kill -KILL "$pid"
fi
rm -rf "$1"
`

// watchdog is the process that cleans up when this one cannot.
type watchdog struct {
	cmd   *exec.Cmd
	input io.WriteCloser
}

// startWatchdog starts the watchdog for a work directory, which it may remove, and a data directory.
func startWatchdog(a *account, workDir, dataDir string) (*watchdog, error) {
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "fencectl-pg-watchdog", workDir, dataDir)
	cmd.Dir, cmd.Env = "/", environment(a)
	runAs(cmd, a)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("pgserver: watchdog: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("pgserver: watchdog: %w", err), input.Close())
	}
	return &watchdog{cmd: cmd, input: input}, nil
}

// guard tells the watchdog which postmaster to end; 0 for none. A watchdog that somebody killed hears nothing, and then
// the next Start on this machine cleans up instead.
func (w *watchdog) guard(pid int) {
	line := ""
	if pid != 0 {
		line = strconv.Itoa(pid)
	}
	_, _ = io.WriteString(w.input, line+"\n")
}

// stop ends the watchdog after the server and its directory are gone. A nil watchdog was never started.
func (w *watchdog) stop() error {
	if w == nil {
		return nil
	}
	err := w.input.Close()
	if waitErr := w.cmd.Wait(); waitErr != nil {
		err = errors.Join(err, waitErr)
	}
	if err != nil {
		return fmt.Errorf("pgserver: watchdog: %w", err)
	}
	return nil
}
