package check

import "regexp"

// definition begins a statement by which a script says which tables there are.
var definition = regexp.MustCompile(`(?im)^\s*(create\s+(unlogged\s+)?table|alter\s+table|create\s+schema|create\s+(or\s+replace\s+)?view)\b|\bfencing\.protect\s*\(`)

// defines says whether a script makes tables, or protects them.
func defines(text string) bool { return definition.MatchString(text) }

// sqlLayer is in the migrations that make the schema fencing itself, also where they were emitted into an application's.
var sqlLayer = regexp.MustCompile(`(?i)\bcreate\s+(or\s+replace\s+)?function\s+fencing\.[a-z_]+\s*\(`)

func isLayer(text string) bool { return sqlLayer.MatchString(text) }
