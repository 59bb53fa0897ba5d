//go:build unix

package lockrun

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// A terminal is the one that this process is controlled from. One process group has it, the foreground group: it may read,
// and gets Ctrl-C and Ctrl-Z.
//
// The command starts in the background, since programs beside this one ("fencectl lock … | less") may want the terminal. It
// gets it when it asks: its first read stops the group (SIGTTIN), this process hands the terminal over and wakes it. From then
// on this process does as shells do for a job.
type terminal struct {
	fd  int
	own int // this process's group
}

func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd, own: unix.Getpgrp()}
}

func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// give makes a group the foreground one.
func (t *terminal) give(group int) {
	// Or taking it back from the background would stop this process. Not before the command runs: it would inherit it.
	signal.Ignore(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) // a terminal that has gone away is nobody's
}

// suspended is called when the group was stopped.
func (p *process) suspended(c change) {
	t := p.terminal
	if t == nil {
		return
	}
	foreground := t.foreground()
	switch {
	case (c.stopped == syscall.SIGTTIN || c.stopped == syscall.SIGTTOU) && foreground == t.own:
		t.give(p.pid)
		_ = p.signal(syscall.SIGCONT)
		return
	case foreground != p.pid && c.stopped == syscall.SIGSTOP:
		return // somebody's doing, and nobody at the terminal waits for it
	case t.unattended():
		if foreground == p.pid || foreground == t.own {
			_ = p.signal(syscall.SIGCONT) // Ctrl-Z, and nobody to undo it; the kernel does not even stop such a group
		}
		return
	case foreground == p.pid:
		p.had = true
		t.give(t.own)
	}
	// The shell must see its job stopped, all of it, or its user gets no prompt. Not SIGTSTP, of which Go's runtime makes nothing
	// once somebody was notified of it. The lock is not renewed meanwhile.
	_ = syscall.Kill(0, syscall.SIGSTOP)
}

// unattended: no shell of this session looks after this process's group, so that nobody would wake it ("orphaned", POSIX says).
func (t *terminal) unattended() bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return true
	}
	parents, err := unix.Getsid(unix.Getppid())
	return session == t.own || err != nil || parents != session
}

// resume is called when this process was woken, and is about to wake the group.
func (p *process) resume() {
	t := p.terminal
	if t == nil {
		return
	}
	if p.had && t.foreground() == t.own { // "fg", not "bg"
		t.give(p.pid)
	}
	p.had = false
}

// close takes the terminal back.
func (p *process) close() {
	t := p.terminal
	if t == nil {
		return
	}
	if p.pid != 0 && t.foreground() == p.pid {
		t.give(t.own)
	}
	signal.Reset(syscall.SIGTTOU)
	_ = unix.Close(t.fd)
}
