//go:build unix

package service

import (
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// ownGroup puts the server into a process group of its own: an interrupt typed at the terminal must reach the caller, who then decides
// what happens to the server.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// A watchdog is a process that ends the server (0: there is none) and removes its directory when this process has ended, however it ended: that is
// when the kernel closes our end of its standard input.
type watchdog struct {
	cmd   *exec.Cmd
	input io.WriteCloser
}

func watch(pid int, dir string) (*watchdog, error) {
	cmd := exec.Command("/bin/sh", "-c", `cat >/dev/null; [ "$1" = 0 ] || kill -KILL "$1"; rm -rf "$2"`, "fencectl-watchdog", strconv.Itoa(pid), dir)
	cmd.Dir = "/"
	ownGroup(cmd)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &watchdog{cmd, input}, nil
}

// stop ends the watchdog without its doing anything. A nil watchdog was never started.
func (w *watchdog) stop() {
	if w == nil {
		return
	}
	_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL) // the shell, and the cat in its group
	_ = w.cmd.Wait()
	_ = w.input.Close()
}
