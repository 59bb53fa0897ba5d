// Package spelling finds what somebody probably meant: the known name that is closest to a mistyped one. It knows nothing
// of tables or flags; callers hand it the names.
package spelling

import (
	"strings"
	"unicode/utf8"
)

// Closest returns the candidate with the smallest edit distance to name, ignoring case, and whether one is close enough
// to be worth suggesting: at most a third of the name's letters differ, and at least one edit is always allowed. Of equally
// close candidates the first wins, so that a caller who sorts them gets a stable answer.
func Closest(name string, candidates []string) (string, bool) {
	limit := max(1, utf8.RuneCountInString(name)/3)
	best, bestDistance := "", limit+1
	lower := []rune(strings.ToLower(name))
	for _, candidate := range candidates {
		if d := distance(lower, []rune(strings.ToLower(candidate)), bestDistance); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best, bestDistance <= limit
}

// distance is the optimal string alignment distance of a and b: insertions, deletions, substitutions and swaps of
// neighbours count one each. It may return any number >= limit once the distance is known to reach limit.
func distance(a, b []rune, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		current[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
		before, previous, current = previous, current, before
	}
	return previous[len(b)]
}
