package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The lock cannot be renewed any more, and nobody would end the command when it passes on.
func TestTheCommandEndsWithAFencectlThatIsKilled(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	r := l.start("jobs/nightly", "--", "sh", "-c", "echo $$; while :; do sleep 0.1; done")
	group := r.number()
	r.signal(syscall.SIGKILL)
	gone(t, group)
}

// The locks within a lock that is lost end with it, although each command has a process group of its own.
func TestALostLockEndsTheLocksWithinIt(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	r := l.start("outer", "--ttl", "3s", "--grace", "500ms", "--", "fencectl", "lock", "inner", "--", "sh", "-c", `trap "echo term" TERM; echo $$; while :; do sleep 0.1; done`)
	group := r.number()
	lose(t, l.pool, "outer")
	r.expect("term")
	r.ends(76, "lock outer is lost")
	gone(t, group)
}

// A terminal is a pseudo-terminal, and what was printed on it.
type terminal struct {
	t       *testing.T
	master  *os.File
	printed chan string // line by line
	cmd     *exec.Cmd
	ended   chan struct{}
}

// onTerminal runs a program in a session of its own, on a terminal of its own.
func (l *locker) onTerminal(program string, args ...string) *terminal {
	l.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		l.t.Skipf("no pseudo-terminals here: %v", err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	c := &terminal{t: l.t, master: master, printed: make(chan string, 1000), ended: make(chan struct{})}
	c.cmd = exec.Command(program, args...)
	c.cmd.Dir, c.cmd.Env = l.dir, l.env
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	slave.Close()
	go func() {
		defer close(c.printed)
		for scanner := bufio.NewScanner(master); scanner.Scan(); {
			c.printed <- strings.TrimRight(scanner.Text(), "\r")
		}
	}()
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait() // its status is what is looked at
	}()
	l.t.Cleanup(func() {
		c.cmd.Process.Kill()
		<-c.ended
		master.Close()
	})
	return c
}

func (c *terminal) typed(text string) {
	c.t.Helper()
	if _, err := c.master.WriteString(text); err != nil {
		c.t.Fatal(err)
	}
}

// until reads up to a line that ends with want: what was typed stands before it.
func (c *terminal) until(want string) {
	c.t.Helper()
	var before []string
	limit := time.After(patience)
	for {
		select {
		case line, ok := <-c.printed:
			if !ok {
				c.t.Fatalf("%q was never printed, but:\n%s", want, strings.Join(before, "\n"))
			}
			if strings.HasSuffix(line, want) {
				return
			}
			before = append(before, line)
		case <-limit:
			c.t.Fatalf("%q is not printed, but:\n%s", want, strings.Join(before, "\n"))
		}
	}
}

func (c *terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(c.master.Fd()), unix.TIOCGPGRP)
	if err != nil {
		c.t.Fatal(err)
	}
	return group
}

// given waits until another process group than this one has the terminal.
func (c *terminal) given(before int) {
	c.t.Helper()
	eventually(c.t, "the command has the terminal", func() bool { return c.foreground() != before })
}

func (c *terminal) ends(status int) {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Fatal("does not end")
	}
	if got := c.cmd.ProcessState.ExitCode(); got != status {
		c.t.Errorf("exit status %d, want %d", got, status)
	}
}

func TestACommandThatReadsFromTheTerminalGetsIt(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	c := l.onTerminal(l.bin+"/fencectl", "lock", "jobs/nightly", "--", "sh", "-c", `read -r line; echo "read $line"`)
	c.given(c.cmd.Process.Pid)
	c.typed("hello\n")
	c.until("read hello")
	c.ends(0)
}

func TestAnInteractiveShellUnderALockHasItsTerminal(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	c := l.onTerminal("bash", "-mc", `fencectl lock jobs/nightly -- bash --norc --noediting -i; echo "status $?"; read -r line; echo "read $line"`)
	c.typed("echo \"under $FENCING_LOCK\"\n")
	c.until("under jobs/nightly")
	c.typed("exit 3\n")
	c.until("status 3")
	c.typed("back\n") // the shell around it has it back
	c.until("read back")
	c.ends(0)
}

func TestCtrlCReachesTheCommandBeforeAndAfterItHasTheTerminal(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	c := l.onTerminal(l.bin+"/fencectl", "lock", "jobs/nightly", "--", "sh", "-c", `trap "echo caught" INT; echo ready
		until [ -e one ]; do sleep 0.1; done; read -r line; echo "read $line"; until [ -e two ]; do sleep 0.1; done; exit 5`)
	c.until("ready")
	c.typed("\x03")
	c.until("caught")
	l.file("one", "", 0o600)
	c.given(c.cmd.Process.Pid)
	c.typed("more\n")
	c.until("read more")
	c.typed("\x03")
	c.until("caught")
	l.file("two", "", 0o600)
	c.ends(5)
}

// In a container, fencectl may have a terminal and no shell around it: nothing could undo the stop.
func TestCtrlZWithoutAShellSuspendsNothing(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	c := l.onTerminal(l.bin+"/fencectl", "lock", "jobs/nightly", "--", "sh", "-c", `read -r line; echo "read $line"; read -r line; echo "read $line"`)
	c.typed("one\n")
	c.until("read one")
	c.typed("\x1a")
	c.typed("two\n")
	c.until("read two")
	c.ends(0)
}

// As with every program that a shell runs: Ctrl-Z, and fg.
func TestCtrlZSuspendsTheCommandUntilItIsContinued(t *testing.T) {
	t.Parallel()
	l := newLocker(t)
	fifo(t, l, "go")
	// It waits without starting anything: a child that is stopped between vfork and exec keeps its parent from stopping.
	c := l.onTerminal("bash", "-mc", `fencectl lock jobs/nightly -- sh -c 'echo ready; read -r line < go; echo asks; read -r line; echo "read $line"; exit 6'
		echo "first $?"; fg; echo "second $?"; fg; echo "third $?"`)
	c.until("ready")
	fencectl := c.foreground()
	c.typed("\x1a") // while the terminal is fencectl's
	c.until("first 147")
	l.open("go")
	c.until("asks")
	eventually(t, "the command has the terminal", func() bool { return c.foreground() != fencectl && c.foreground() != c.cmd.Process.Pid })
	c.typed("\x1a") // while it is the command's
	c.until("second 147")
	eventually(t, "the command has the terminal again", func() bool { return c.foreground() != fencectl && c.foreground() != c.cmd.Process.Pid })
	c.typed("hello\n")
	c.until("read hello")
	c.until("third 6")
	c.ends(0)
}
