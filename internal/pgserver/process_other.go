//go:build !linux && !darwin && !freebsd

package pgserver

import (
	"errors"
	"os/exec"
	"runtime"
)

// Elsewhere there is no server: a Windows service account, a job object and PostgreSQL's own refusal of administrators
// are another design. The package compiles, so that everything above it does, and Start says what to do instead.

const dynamicSharedMemory = "posix"

var errUnsupported = errors.New("pgserver: a throwaway PostgreSQL server is not possible on " + runtime.GOOS + ": give the address of a running one instead")

func supported() error { return errUnsupported }

type account struct{ name string }

func serverAccount() (*account, error)         { return nil, errUnsupported }
func (*account) own(string) error              { return errUnsupported }
func (*account) blockedAt(string) string       { return "" }
func (*account) ownsOrCaller(string) bool      { return false }
func runAs(*exec.Cmd, *account)                {}
func startProcess(*exec.Cmd) (*process, error) { return nil, errUnsupported }

type process struct {
	pid    int
	exited chan struct{}
	status string
}

type shutdown string

const (
	fastShutdown      shutdown = "fast"
	immediateShutdown shutdown = "immediate"
)

func (*process) shutdown(shutdown) error { return errUnsupported }
func (*process) stopTree() error         { return errUnsupported }
func (*process) continueTree() error     { return errUnsupported }
func (*process) killTree() error         { return errUnsupported }

func lockFile(string) (*lockedFile, error) { return nil, errUnsupported }

type lockedFile struct{}

func (*lockedFile) Close() error { return nil }
