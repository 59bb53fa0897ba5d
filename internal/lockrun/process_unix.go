//go:build unix

package lockrun

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// Passed are the signals that the command's process group gets when this process does, but for those that this process was
// started to ignore (nohup).
func Passed() []os.Signal { return heeded(append(passedLater(), Interrupts()...)) }

// Interrupts are those of them that end a program, and so the waiting for a lock.
func Interrupts() []os.Signal {
	return heeded([]os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT})
}

func passedLater() []os.Signal {
	return []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}
}

func heeded(signals []os.Signal) []os.Signal {
	var all []os.Signal
	for _, s := range signals {
		if !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	return all
}

// A process is the command, the leader of its process group.
type process struct {
	pid     int
	changes chan change // what becomes of it, until it has ended

	terminal *terminal // nil where there is none
	had      bool      // the group had the terminal when it was suspended
}

type change struct {
	ended   bool
	status  int            // when it has ended
	stopped syscall.Signal // when it has not
	err     error          // it can no longer be watched
}

func start(command Command) (*process, error) {
	p := &process{changes: make(chan change), terminal: openTerminal()}
	started := make(chan error)
	go func() {
		// "When the parent dies" (see attributes) is about the thread that forked, so it stays until the command has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		child, err := startProcess(command)
		if err != nil {
			started <- err
			return
		}
		p.pid = child.Pid
		_ = child.Release() // it is watched by number, which tells of stops as well
		started <- nil
		p.watch()
	}()
	if err := <-started; err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func startProcess(command Command) (*os.Process, error) {
	attributes := &os.ProcAttr{Env: command.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attributes()}
	child, err := os.StartProcess(command.Path, command.Args, attributes)
	if errors.Is(err, syscall.ENOEXEC) {
		// A script without a first line that says what runs it: execvp, and so flock and every shell, takes the shell.
		args := append([]string{"/bin/sh", command.Path}, command.Args[1:]...)
		child, err = os.StartProcess(args[0], args, attributes)
	}
	return child, err
}

func (p *process) watch() {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			p.changes <- change{err: fmt.Errorf("waiting for the command: %w", err)}
			return
		case status.Stopped():
			p.changes <- change{stopped: status.StopSignal()}
			continue
		case status.Signaled():
			p.changes <- change{ended: true, status: 128 + int(status.Signal())}
		default:
			p.changes <- change{ended: true, status: status.ExitStatus()}
		}
		return
	}
}

// signal reaches the whole group. That there is nobody any more is no error.
func (p *process) signal(s syscall.Signal) error {
	if err := syscall.Kill(-p.pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot send the command a signal (%v): %w", s, err)
	}
	return nil
}

func (p *process) pass(s os.Signal) {
	number, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	if number == syscall.SIGCONT {
		p.resume()
	}
	// Whoever sent it learns nothing of a failure, as from any program.
	_ = p.signal(number)
}

// terminate also wakes those that are stopped, or they would get the signal only when somebody else wakes them.
func (p *process) terminate() error {
	return errors.Join(p.signal(syscall.SIGTERM), p.signal(syscall.SIGCONT))
}

func (p *process) kill() error { return p.signal(syscall.SIGKILL) }

// drainEvery is how often drain looks; nothing tells when a process group has become empty.
const drainEvery = 20 * time.Millisecond

// drain waits, when the command itself has ended, until nobody is left in its group, and kills who is when patience ends.
// While somebody is left the group's number is not used again.
func (p *process) drain(patience <-chan time.Time) {
	ticker := time.NewTicker(drainEvery)
	defer ticker.Stop()
	for {
		// As the first process of a container, this one inherits what the command leaves behind, and has to bury it.
		for {
			if pid, err := syscall.Wait4(-p.pid, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
		if syscall.Kill(-p.pid, 0) != nil { // nobody left, or nobody that this process may end
			return
		}
		select {
		case <-ticker.C:
		case <-patience:
			_ = p.kill()
			return
		}
	}
}
