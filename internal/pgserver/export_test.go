package pgserver

import "testing"

// OnlySearch makes FindBinDir look at this pattern alone, beside PATH and pg_config, for the rest of the test.
func OnlySearch(t *testing.T, pattern string) {
	saved := packagePlaces
	packagePlaces = []string{pattern}
	t.Cleanup(func() { packagePlaces = saved })
}
