//go:build linux && !amd64

package torture

import (
	"errors"
	"time"
)

// A wallClock would be this process's own; see the one for amd64.
type wallClock struct{}

func canStepClocks() bool { return false }

func interceptWallClock() (*wallClock, error) {
	return nil, errors.New("the clock of one process can be stepped on amd64 only")
}

func (*wallClock) Step(time.Duration) error { return errors.ErrUnsupported }

func (*wallClock) Close() error { return nil }
