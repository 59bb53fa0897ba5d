//go:build linux || darwin || freebsd

package pgserver

import "testing"

// OnlySearch makes FindBinDir look at this pattern alone, beside PATH and pg_config, for the rest of the test.
func OnlySearch(t *testing.T, pattern string) {
	t.Helper()
	saved := packagePlaces
	packagePlaces = []string{pattern}
	t.Cleanup(func() { packagePlaces = saved })
}

// OnlyAccount makes this the only account that may run root's servers, for the rest of the test.
func OnlyAccount(t *testing.T, name string) {
	t.Helper()
	saved := accountNames
	accountNames = []string{name}
	t.Cleanup(func() { accountNames = saved })
}

// OfferPort makes the next start try this port first.
func OfferPort(t *testing.T, port int) {
	t.Helper()
	saved := findPort
	findPort = func() (int, error) {
		findPort = saved
		return port, nil
	}
	t.Cleanup(func() { findPort = saved })
}

// WatchdogPID is the process id of the server's watchdog.
func (s *Server) WatchdogPID() int { return s.watchdog.cmd.Process.Pid }
