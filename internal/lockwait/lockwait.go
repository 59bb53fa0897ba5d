// Package lockwait answers one question: who keeps a backend waiting? It describes those sessions for people, and ends them
// when told to. Whoever waits, and what to do with the answer, is its callers' business.
package lockwait

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencectl/fencectl/internal/catalogdb"
)

// A Session is another backend that holds what somebody waits for.
type Session struct {
	PID             int32  `json:"pid"`              // 0: a prepared transaction, which belongs to no session
	ApplicationName string `json:"application_name"` // "" when unset
	Role            string `json:"role"`             // the role it logged in as
	State           string `json:"state"`            // as in pg_stat_activity; "" when not the role's to see
	TransactionMS   int64  `json:"transaction_ms"`   // how long its transaction has run, in milliseconds; -1 when not known
}

// String describes the session in one phrase: "pid 4711 (nightly, role app, idle in transaction for 12m3s)".
func (s Session) String() string {
	if s.PID == 0 {
		return "a prepared transaction (see pg_prepared_xacts)"
	}
	var about []string
	if s.ApplicationName != "" {
		about = append(about, s.ApplicationName)
	}
	if s.Role != "" {
		about = append(about, "role "+s.Role)
	}
	state := s.State
	if s.TransactionMS >= 0 {
		if state == "" {
			state = "in a transaction"
		}
		state += " for " + Age(time.Duration(s.TransactionMS)*time.Millisecond)
	}
	if state != "" {
		about = append(about, state)
	}
	if len(about) == 0 {
		return fmt.Sprintf("pid %d", s.PID)
	}
	return fmt.Sprintf("pid %d (%s)", s.PID, strings.Join(about, ", "))
}

// List describes several sessions in one phrase.
func List(sessions []Session) string {
	described := make([]string, len(sessions))
	for i, s := range sessions {
		described[i] = s.String()
	}
	return strings.Join(described, ", ")
}

// Identify names the sessions, and nothing about them that changes by itself: for noticing that others have come.
func Identify(sessions []Session) string {
	pids := make([]int32, len(sessions))
	for i, s := range sessions {
		pids[i] = s.PID
	}
	slices.Sort(pids)
	return fmt.Sprint(pids)
}

// Age rounds a duration to what a person wants to read.
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	text := d.Round(time.Second).String()
	if d >= time.Hour {
		text = d.Round(time.Minute).String()
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// Blocking returns the sessions that the backend waits for right now, the longest transaction first; none when it does not wait.
func Blocking(ctx context.Context, db catalogdb.DBTX, pid int32) ([]Session, error) {
	rows, err := catalogdb.New(db).BlockingSessions(ctx, pid)
	if err != nil {
		return nil, fmt.Errorf("looking for blocking sessions: %w", err)
	}
	sessions := make([]Session, len(rows))
	for i, r := range rows {
		sessions[i] = session(r.Pid, r.ApplicationName, r.RoleName, r.State, r.TransactionSeconds)
	}
	return sessions, nil
}

// EvictFenceHolders ends the sessions whose open transactions keep the backend's claim waiting for its fence, and returns
// those that it ended. Other claims in the queue are spared: they hold nothing. A role may end the sessions of roles that
// it is a member of; for others it needs pg_signal_backend.
func EvictFenceHolders(ctx context.Context, db catalogdb.DBTX, pid int32) ([]Session, error) {
	rows, err := catalogdb.New(db).EvictFenceHolders(ctx, pid)
	if err != nil {
		return nil, fmt.Errorf("ending the sessions that hold the fence: %w", err)
	}
	var ended []Session
	for _, r := range rows {
		if r.Terminated {
			ended = append(ended, session(r.Pid, r.ApplicationName, r.RoleName, r.State, r.TransactionSeconds))
		}
	}
	return ended, nil
}

func session(pid int32, application, role, state string, seconds float64) Session {
	s := Session{PID: pid, ApplicationName: application, Role: role, State: state, TransactionMS: -1}
	if seconds >= 0 {
		s.TransactionMS = int64(seconds * 1000)
	}
	return s
}
