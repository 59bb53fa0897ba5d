package torture

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// now is the machine's monotonic clock, in nanoseconds: the same for all processes, and not moved by anybody's wall clock.
func now() int64 {
	var t unix.Timespec
	// It cannot fail for a clock that every Linux has and a pointer that is valid.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// A spawner starts the processes of a run, all from one thread: the kernel ends them with SIGKILL when that thread ends, which
// it does with this process, however it ends. So nothing is left running, not even what is stopped and could not hear of it.
type spawner struct {
	self     []string // this program, and how it becomes a part
	requests chan func()
	done     chan struct{}
}

func newSpawner(self []string) *spawner {
	s := &spawner{self: self, requests: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		for {
			select {
			case f := <-s.requests:
				f()
			case <-s.done:
				return
			}
		}
	}()
	return s
}

// close ends whatever still runs.
func (s *spawner) close() { close(s.done) }

// start starts a command in a process group of its own, so that a terminal's Ctrl-C reaches this process alone.
func (s *spawner) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	result := make(chan error, 1)
	s.requests <- func() { result <- cmd.Start() }
	return <-result
}

// A part is another process of this program.
type part struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Scanner
	stderr *lastLines
	exited chan struct{} // closed when it has ended
}

// part starts this program again in a role, with its settings as the first line of its input.
func (s *spawner) part(role string, settings any) (*part, error) {
	line, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(s.self[0], append(append([]string{}, s.self[1:]...), role)...)
	cmd.Args[0] = os.Args[0] // the name that this program was called by
	p := &part{cmd: cmd, stderr: &lastLines{}, exited: make(chan struct{})}
	cmd.Stderr = p.stderr
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// Not StdoutPipe, which Wait would close while it is being read.
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = write
	err = s.start(cmd)
	err = errors.Join(err, write.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting a %s: %w", role, err), read.Close())
	}
	p.stdout = bufio.NewScanner(read)
	go func() {
		_ = cmd.Wait() // how it ended does not matter; that it has ended does
		close(p.exited)
	}()
	if err := p.say(string(line)); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a %s: %w", role, err), p.kill())
	}
	return p, nil
}

// say writes a line to the part.
func (p *part) say(line string) error {
	_, err := io.WriteString(p.stdin, line+"\n")
	return err
}

func (p *part) signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// kill ends the part with SIGKILL, and returns when it is gone. One that has ended already is no error.
func (p *part) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return nil
}

// leave lets the part end by itself: at the end of its input.
func (p *part) leave(within time.Duration) error {
	_ = p.signal(syscall.SIGCONT) // it may be stopped, or gone
	_ = p.stdin.Close()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		return p.kill()
	}
}
