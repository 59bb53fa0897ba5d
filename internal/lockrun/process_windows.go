package lockrun

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Passed are the signals that this process must survive while the command runs. Nothing is passed on: Ctrl-C and Ctrl-Break reach
// every program in the console, the command among them.
func Passed() []os.Signal { return Interrupts() }

// Interrupts are those that end a program, and so the waiting for a lock.
func Interrupts() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

// A process is the command. What the command starts is out of reach.
type process struct {
	child   *os.Process
	changes chan change
}

type change struct {
	ended  bool
	status int
	err    error
}

func start(command Command) (*process, error) {
	child, err := os.StartProcess(command.Path, command.Args, &os.ProcAttr{Env: command.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return nil, err
	}
	p := &process{child: child, changes: make(chan change)}
	go func() {
		state, err := child.Wait()
		if err != nil {
			p.changes <- change{err: fmt.Errorf("waiting for the command: %w", err)}
			return
		}
		p.changes <- change{ended: true, status: state.ExitCode()}
	}()
	return p, nil
}

func (p *process) pass(os.Signal)         {}
func (p *process) suspended(change)       {}
func (p *process) drain(<-chan time.Time) {}
func (p *process) close()                 {}

// terminate ends the command at once, without asking: there is no other way.
func (p *process) terminate() error { return p.kill() }

func (p *process) kill() error {
	if err := p.child.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot end the command: %w", err)
	}
	return nil
}
