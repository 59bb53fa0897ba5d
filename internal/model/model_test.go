package model

import (
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"
)

// kind is how a table is protected.
type kind struct {
	table     string
	protect   string // arguments of fencing.protect
	row       bool   // fences in the rows
	reentrant bool
	require   bool
	fence     string // constant, or a template over acct
}

// perRow tells whether each row has a named fence of its own.
func (k kind) perRow() bool { return strings.Contains(k.fence, "{") }

func (k kind) fenceOf(acct int) string {
	return strings.ReplaceAll(k.fence, "{acct}", fmt.Sprint(acct))
}

// kinds are the tables. A partitioned one is partitioned by acct.
var kinds = []kind{
	{table: "strict", protect: "mode => 'strict'", row: true},
	{table: "reentrant", protect: "mode => 'reentrant'", row: true, reentrant: true},
	{table: "required", protect: "mode => 'strict', inserts => 'require'", row: true, require: true},
	{table: "partitioned", protect: "mode => 'reentrant'", row: true, reentrant: true},
	{table: "named", protect: "fence => 'nightly'", fence: "nightly"},
	{table: "shared", protect: "fence => 'acct/1'", fence: "acct/1"}, // also one of the template's
	{table: "template", protect: "fence => 'acct/{acct}'", fence: "acct/{acct}"},
	{table: "spread", protect: "fence => 'acct/{acct}'", fence: "acct/{acct}"},
}

// partitioned are the tables that are.
var partitioned = []string{"partitioned", "spread"}

func kindOf(table string) kind {
	return kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.table == table })]
}

// rowID is a row of a table. Its acct may change.
type rowID struct {
	table string
	id    int
}

type row struct {
	acct   int
	stored int64 // 0 under named fences
	note   int   // the number of the operation that wrote it
}

// state is everything that a savepoint brings back.
type state struct {
	rows   map[rowID]row
	fences map[string]int64
	token  string           // the setting, as text
	tokens map[string]int64 // by fence
}

func (s state) clone() state {
	return state{maps.Clone(s.rows), maps.Clone(s.fences), s.token, maps.Clone(s.tokens)}
}

// session is one session of the model.
type session struct {
	state
	committed  state
	open       bool // a transaction block is
	failed     bool // and it has
	savepoints []savepoint
}

type savepoint struct {
	name string
	state
}

// initially is what every sequence begins with: rows 1 to 3 of each table, and two fences.
func initially() *session {
	s := &session{state: state{rows: map[rowID]row{}, fences: map[string]int64{"nightly": 3, "acct/1": 3}, tokens: map[string]int64{}}}
	for _, k := range kinds {
		for id := 1; id <= 3; id++ {
			r := row{acct: 1 + id/3}
			if k.row {
				r.stored = int64(id) - 1
			}
			s.rows[rowID{k.table, id}] = r
		}
	}
	s.committed = s.clone()
	return s
}

// SQLSTATEs.
const (
	ok          = ""
	stale       = "ZF001"
	unfenced    = "ZF002"
	invalid     = "ZF003"
	unclaimed   = "ZF004"
	unsupported = "ZF005"
	duplicate   = "23505"
	aborted     = "25P02"
	noBlock     = "25P01"
	noSavepoint = "3B001"
	noFence     = "42704"
	badArgument = "22023"
)

// apply runs an operation and returns how it may end: with one of these SQLSTATEs. There are several where it concerns several
// rows, of which the first decides, whichever that is.
func (s *session) apply(n int, o operation) []string {
	switch o.verb {
	case "BEGIN":
		if s.failed {
			return []string{aborted}
		}
		s.open = true // in a block it is a warning
		return []string{ok}
	case "COMMIT", "ROLLBACK":
		if s.open && (s.failed || o.verb == "ROLLBACK") {
			s.state = s.committed.clone()
		}
		s.end()
		return []string{ok}
	case "ROLLBACK TO":
		at := s.savepointNamed(o.name)
		switch {
		case !s.open:
			return []string{noBlock}
		case at < 0:
			s.failed = true
			return []string{noSavepoint}
		}
		s.state, s.failed = s.savepoints[at].clone(), false
		s.savepoints = s.savepoints[:at+1]
		return []string{ok}
	}
	if s.failed {
		return []string{aborted}
	}
	before := s.clone()
	ends := s.change(n, o)
	if !slices.Contains(ends, ok) {
		s.state, s.failed = before, s.open
	}
	if !s.open {
		s.end()
	}
	return ends
}

// end ends a transaction: its settings are gone with it.
func (s *session) end() {
	s.token, s.tokens = "", map[string]int64{}
	s.open, s.failed, s.savepoints = false, false, nil
	s.committed = s.clone()
}

func (s *session) savepointNamed(name string) int {
	for i := len(s.savepoints) - 1; i >= 0; i-- {
		if s.savepoints[i].name == name {
			return i
		}
	}
	return -1
}

// change is an operation in a transaction that has not failed.
func (s *session) change(n int, o operation) []string {
	switch o.verb {
	case "SAVEPOINT":
		if !s.open {
			return []string{noBlock}
		}
		s.savepoints = append(s.savepoints, savepoint{o.name, s.clone()})
	case "RELEASE":
		at := s.savepointNamed(o.name)
		switch {
		case !s.open:
			return []string{noBlock}
		case at < 0:
			return []string{noSavepoint}
		}
		s.savepoints = s.savepoints[:at]
	case "present":
		if o.token <= 0 {
			return []string{invalid}
		}
		s.token = fmt.Sprint(o.token)
	case "present for":
		if o.token <= 0 {
			return []string{invalid}
		}
		s.tokens = maps.Clone(s.tokens)
		s.tokens[o.name] = o.token
	case "set":
		s.token = o.name
	case "claim":
		switch {
		case o.token <= 0:
			return []string{invalid}
		case o.token < s.fences[o.name]:
			return []string{stale}
		}
		s.fences[o.name] = o.token
	case "hold":
		if o.token <= 0 {
			return []string{invalid}
		}
		if s.presented() == 0 {
			s.token = fmt.Sprint(o.token)
		}
		if p, its := s.tokens[o.name]; its && p != o.token || !its && s.presented() != o.token {
			s.tokens = maps.Clone(s.tokens)
			s.tokens[o.name] = o.token
		}
		return []string{s.named(o.name)}
	case "lower":
		at, known := s.fences[o.name]
		switch {
		case o.token < 0:
			return []string{badArgument}
		case !known:
			return []string{noFence}
		case o.token > at:
			return []string{badArgument}
		}
		s.fences[o.name] = o.token
	case "insert":
		return s.insert(n, o, false)
	case "upsert":
		return s.insert(n, o, true)
	case "update", "delete":
		return s.rewrite(n, o)
	case "truncate":
		return s.truncate(o)
	}
	return []string{ok}
}

// presented is a transaction's token, as the documentation reads it: 0 for nothing, negative for what is no token.
func (s *session) presented() int64 {
	if s.token == "" {
		return 0
	}
	if n, good := new(big.Int).SetString(strings.TrimPrefix(strings.TrimSpace(s.token), "+"), 10); good && wholeNumber.MatchString(s.token) &&
		n.IsInt64() && n.Int64() != 0 {
		return n.Int64()
	}
	return -1
}

// wholeNumber is how a token may be spelled.
var wholeNumber = regexp.MustCompile(`^\s*[-+]?[0-9]{1,19}\s*$`)

// named checks a write against a named fence.
func (s *session) named(fence string) string {
	p, its := s.tokens[fence]
	if !its {
		p = s.presented()
	}
	at, claimed := s.fences[fence]
	switch {
	case p == 0:
		return unfenced
	case p < 0:
		return invalid
	case !claimed || p > at:
		return unclaimed
	case p < at:
		return stale
	}
	return ok
}

// insert inserts, or on conflict updates.
func (s *session) insert(n int, o operation, upsert bool) []string {
	k, id := kindOf(o.table), rowID{o.table, o.id}
	// A named fence is checked before the row is tried, a row fence is a value of the row that is there.
	if k.fence != "" {
		if state := s.named(k.fenceOf(o.acct)); state != ok {
			return []string{state}
		}
	}
	switch old, exists := s.rows[id]; {
	case exists && !upsert:
		return []string{duplicate}
	case exists:
		state, stored := s.update(k, old, old.acct, nil)
		s.rows[id] = row{old.acct, stored, n}
		return []string{state}
	}
	made := row{acct: o.acct, note: n}
	if k.row {
		made.stored = s.presented()
		if o.column != nil {
			made.stored = *o.column
		}
	}
	switch {
	case made.stored < 0:
		return []string{invalid}
	case made.stored == 0 && k.require:
		return []string{unfenced}
	}
	s.rows[id] = made
	return []string{ok}
}

// update checks the update of a row that ends with an acct, and a value for the column where the statement sets one; it
// returns what is stored then.
func (s *session) update(k kind, old row, acct int, column *int64) (state string, stored int64) {
	if !k.row {
		for _, fence := range []string{k.fenceOf(old.acct), k.fenceOf(acct)} {
			if state := s.named(fence); state != ok {
				return state, 0
			}
		}
		return ok, 0
	}
	p := s.presented()
	if column != nil && *column != old.stored {
		p = *column
		if p == 0 { // it is older than whatever is stored
			return stale, 0
		}
	}
	switch {
	case p == 0:
		return unfenced, 0
	case p < 0:
		return invalid, 0
	case p < old.stored, p == old.stored && !k.reentrant:
		return stale, 0
	}
	return ok, p
}

// rewrite updates or deletes one row, or all rows (id 0).
func (s *session) rewrite(n int, o operation) []string {
	k := kindOf(o.table)
	var refused []string
	if k.fence != "" && !k.perRow() { // a statement is checked whether it finds rows or not
		if state := s.named(k.fence); state != ok {
			return []string{state}
		}
	}
	for id, old := range s.rows {
		if id.table != o.table || o.id != 0 && id.id != o.id {
			continue
		}
		acct := old.acct
		if o.acct != 0 {
			acct = o.acct
		}
		var state string
		stored := old.stored
		switch {
		case o.verb == "update":
			state, stored = s.update(k, old, acct, o.column)
		case k.row:
			state, _ = s.update(k, old, old.acct, nil) // the lower lines of the same table
		default:
			state = s.named(k.fenceOf(old.acct))
		}
		switch {
		case state != ok:
			refused = append(refused, state)
		case o.verb == "delete":
			delete(s.rows, id)
		default:
			s.rows[id] = row{acct, stored, n}
		}
	}
	if refused == nil {
		return []string{ok}
	}
	return refused
}

func (s *session) truncate(o operation) []string {
	k := kindOf(o.table)
	if k.row || k.perRow() {
		return []string{unsupported}
	}
	if state := s.named(k.fence); state != ok {
		return []string{state}
	}
	for id := range s.rows {
		if id.table == o.table {
			delete(s.rows, id)
		}
	}
	return []string{ok}
}
