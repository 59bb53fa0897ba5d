package lint

import (
	"fmt"
	"path"
	"strings"
)

// CheckPattern says what is wrong with a pattern of paths; nil when nothing is.
func CheckPattern(pattern string) error {
	for segment := range strings.SplitSeq(pattern, "/") {
		if _, err := path.Match(segment, ""); err != nil {
			return fmt.Errorf("%s is no pattern of paths: a [ in it is not closed", pattern)
		}
	}
	if path.IsAbs(pattern) {
		return fmt.Errorf("%s is absolute; patterns are relative to the directory of fencectl.yaml", pattern)
	}
	return nil
}

// MatchPath says whether a pattern means a path, both with slashes. In a pattern, * and ? stand for letters within a name and ** for any
// number of directories; a pattern means everything below the directories that it means.
func MatchPath(pattern, name string) bool {
	return matchSegments(strings.Split(path.Clean(pattern), "/"), strings.Split(path.Clean(name), "/"))
}

func matchSegments(pattern, name []string) bool {
	if len(pattern) == 0 || (len(pattern) == 1 && pattern[0] == ".") {
		return true // and whatever is below
	}
	if pattern[0] == "**" {
		for i := range len(name) + 1 {
			if matchSegments(pattern[1:], name[i:]) {
				return true
			}
		}
		return false
	}
	if len(name) == 0 {
		return false
	}
	matches, err := path.Match(pattern[0], name[0])
	return err == nil && matches && matchSegments(pattern[1:], name[1:])
}
