package lockrun

import "syscall"

// attributes put the command into a group of its own, so that all of it, and nothing else, can be ended. When this process is
// killed nobody is left to do that, nor to renew the lock: the command goes with it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
