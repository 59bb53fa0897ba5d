package torture

import (
	"bytes"
	"strings"
	"sync"
)

// lastLines keeps the end of what a process says, for the message when it fails.
type lastLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const linesKept = 4 << 10

func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(p)
	if extra := l.buf.Len() - linesKept; extra > 0 {
		l.buf.Next(extra)
	}
	return len(p), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.buf.String())
}
