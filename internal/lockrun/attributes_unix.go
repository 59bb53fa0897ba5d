//go:build unix && !linux

package lockrun

import "syscall"

// attributes put the command into a group of its own, so that all of it, and nothing else, can be ended. Only Linux can make
// it end with this process when that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
