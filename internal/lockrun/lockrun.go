// Package lockrun runs a command for as long as a lock is held: in a process group of its own, with the signals and the
// terminal that are its due, under an environment that presents the lock's token, and ended in time when the lock is lost.
//
// Where the grant comes from, and giving it back, is the caller's business; so is the fence, which alone makes sure that a
// command that could not be ended in time writes nothing.
package lockrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// A Command is what to run. Its standard streams are this process's own, not copies: a terminal stays one.
type Command struct {
	Path string   // of the executable, see [Find]
	Args []string // with the command's name first
	Env  []string // see [Environ]
}

// Options say how a command is looked after. Nil means the defaults.
type Options struct {
	// Grace is how long the command has between SIGTERM and SIGKILL when the lock is lost. If the lock cannot be renewed,
	// SIGTERM comes this much before the grant ends, so that the command is gone before the lock can be somebody else's.
	// Windows knows neither signal: there the command is ended at once. Default 0: SIGKILL follows at once.
	Grace time.Duration
	// Signals are passed on to the command's process group. The caller has them delivered here (signal.Notify with
	// [Passed]) and stops that afterwards. Default: none are passed on.
	Signals <-chan os.Signal
	// Stopping is called when the lock is lost and the command is about to be ended, with the reason. Default: nobody is told.
	Stopping func(why error)
	// Warn is called with what went wrong in ending the command. Default: nobody is told.
	Warn func(err error)
}

// A Result is how a command ended.
type Result struct {
	Status int   // its exit status; 128 and the signal's number when a signal ended it
	Lost   error // why it was ended, or what became of the lock before it had ended by itself; nil when the lock was held throughout
}

// ErrNotRenewed: the lock is still held, but its renewal has failed for so long that the command was ended.
var ErrNotRenewed = errors.New("it could not be renewed, and would soon be free for somebody else")

// Run runs the command until it has ended. An error means that it could not be started (a [*StartError]) or watched.
//
// It takes SIGTTOU for the whole process while the command has the terminal, and is not for two commands at once.
func Run(grant tokensrc.Grant, command Command, options *Options) (Result, error) {
	s := supervisor{grant: grant}
	if options != nil {
		s.Options = *options
	}
	process, err := start(command)
	if err != nil {
		return Result{}, &StartError{Name: command.Args[0], Err: err}
	}
	defer process.close()
	s.process = process
	return s.run()
}

type supervisor struct {
	Options
	grant   tokensrc.Grant
	process *process

	lost   error
	kill   <-chan time.Time // when patience ends, once the command was told to end
	killed bool
}

func (s *supervisor) run() (Result, error) {
	look := time.NewTimer(0) // when the grant may have too little time left
	defer look.Stop()
	var longest time.Duration // that the grant had left at any look
	over := s.grant.Context().Done()
	for {
		select {
		case change := <-s.process.changes:
			switch {
			case change.err != nil:
				return Result{}, change.err
			case !change.ended:
				s.process.suspended(change)
				continue
			}
			// The end and the loss may be seen in either order, above all after a pause of the whole process.
			if s.lost == nil && !s.holds() {
				s.lose(s.why(), s.Grace)
			}
			if s.lost != nil && !s.killed {
				s.process.drain(s.kill)
			}
			return Result{Status: change.status, Lost: s.lost}, nil
		case signal := <-s.Signals:
			s.process.pass(signal)
		case <-look.C:
			left, limited := timeLeft(s.grant)
			// A service may keep locks for less time than it was asked to. The grace period must not begin before a renewal was due.
			longest = max(longest, left)
			early := min(s.Grace, longest/2)
			switch {
			case !limited || s.lost != nil:
			case left > early:
				look.Reset(left - early)
			case left > 0:
				s.lose(ErrNotRenewed, left)
			default:
				s.lose(s.why(), s.Grace)
			}
		case <-over:
			over = nil
			s.lose(s.why(), s.Grace)
		case <-s.kill:
			s.kill, s.killed = nil, true
			s.warn(s.process.kill())
		}
	}
}

// lose tells the command to end, and counts down to the end of patience.
func (s *supervisor) lose(why error, patience time.Duration) {
	if s.lost != nil {
		return
	}
	s.lost = why
	if s.Stopping != nil {
		s.Stopping(why)
	}
	s.warn(s.process.terminate())
	s.kill = time.After(patience)
}

func (s *supervisor) warn(err error) {
	if err != nil && s.Warn != nil {
		s.Warn(err)
	}
}

// holds looks at the clock as well as at the context: after a pause the timer that ends the context may not have run yet.
func (s *supervisor) holds() bool {
	left, limited := timeLeft(s.grant)
	return s.grant.Context().Err() == nil && (!limited || left > 0)
}

func (s *supervisor) why() error {
	if cause := context.Cause(s.grant.Context()); cause != nil {
		return cause
	}
	return fmt.Errorf("%w: not renewed in time", tokensrc.ErrLost)
}

func timeLeft(grant tokensrc.Grant) (time.Duration, bool) {
	bounded, ok := grant.(fenced.Bounded)
	if !ok {
		return 0, false
	}
	return bounded.TimeLeft()
}
