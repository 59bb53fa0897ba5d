package interleave

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Verb is what one action of a session does.
type Verb string

// The verbs, with the words that follow them in a script. A table is item or ledger, a key is a row's id.
const (
	Begin      Verb = "begin"       // begin read committed | repeatable read | serializable
	Present    Verb = "present"     // present TOKEN [for FENCE]
	Claim      Verb = "claim"       // claim FENCE TOKEN
	Hold       Verb = "hold"        // hold FENCE TOKEN: presents the token and keeps claims of the fence waiting
	Read       Verb = "read"        // read TABLE KEY
	Write      Verb = "write"       // write TABLE KEY: an UPDATE that does not mention the token
	Set        Verb = "set"         // set TABLE KEY TOKEN: an UPDATE that sets the column to the token
	Regroup    Verb = "regroup"     // regroup TABLE KEY GROUP: an UPDATE that moves the row to another fence or partition
	Delete     Verb = "delete"      // delete TABLE KEY
	Insert     Verb = "insert"      // insert TABLE KEY GROUP
	Upsert     Verb = "upsert"      // upsert TABLE KEY GROUP: INSERT … ON CONFLICT DO UPDATE
	Savepoint  Verb = "savepoint"   // savepoint NAME
	RollbackTo Verb = "rollback to" // rollback to NAME
	Commit     Verb = "commit"
	Rollback   Verb = "rollback"
)

// writes tells whether the verb changes a row of a protected table.
func (v Verb) writes() bool {
	switch v {
	case Write, Set, Regroup, Delete, Insert, Upsert:
		return true
	default:
		return false
	}
}

// An Action is one statement of a session. Only the fields that its verb takes are set.
type Action struct {
	Verb  Verb
	Level string // of Begin, in SQL's words, in lower case
	Token int64  // of Present, Claim, Hold and Set
	Fence string // of Claim and Hold, and of Present for one fence alone
	Table string
	Key   int
	Group int    // of Regroup, Insert and Upsert
	Name  string // of a savepoint
}

// A Step is what a session sends at once: one action, or a begin with what it presents, as a fenced transaction begins.
type Step []Action

// String is the step as it stands in a script.
func (s Step) String() string {
	parts := make([]string, len(s))
	for i, a := range s {
		parts[i] = a.String()
	}
	return strings.Join(parts, "; ")
}

func (a Action) String() string {
	switch a.Verb {
	case Begin:
		return "begin " + a.Level
	case Present:
		if a.Fence != "" {
			return fmt.Sprintf("present %d for %s", a.Token, a.Fence)
		}
		return fmt.Sprintf("present %d", a.Token)
	case Claim, Hold:
		return fmt.Sprintf("%s %s %d", a.Verb, a.Fence, a.Token)
	case Set:
		return fmt.Sprintf("set %s %d %d", a.Table, a.Key, a.Token)
	case Read, Write, Delete:
		return fmt.Sprintf("%s %s %d", a.Verb, a.Table, a.Key)
	case Regroup, Insert, Upsert:
		return fmt.Sprintf("%s %s %d %d", a.Verb, a.Table, a.Key, a.Group)
	case Savepoint, RollbackTo:
		return string(a.Verb) + " " + a.Name
	default:
		return string(a.Verb)
	}
}

// Words that a script may use. They go into SQL as they are, so they are plain.
var (
	fenceWord = regexp.MustCompile(`^[a-z0-9/_-]+$`)
	nameWord  = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

// parseStep reads what [Step.String] writes.
func parseStep(text string) (Step, error) {
	var step Step
	for part := range strings.SplitSeq(text, ";") {
		a, err := parseAction(strings.Fields(part))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", strings.TrimSpace(part), err)
		}
		step = append(step, a)
	}
	for i, a := range step {
		if len(step) > 1 && (i == 0) != (a.Verb == Begin) || i > 0 && a.Verb != Present {
			return nil, fmt.Errorf("%q: only a begin and what it presents are sent at once", text)
		}
	}
	return step, nil
}

func parseAction(words []string) (a Action, err error) {
	if len(words) == 0 {
		return a, errors.New("an empty step")
	}
	if len(words) > 1 && words[0] == "rollback" && words[1] == "to" {
		words = append([]string{string(RollbackTo)}, words[2:]...)
	}
	a.Verb = Verb(words[0])
	rest := words[1:]
	defer func() {
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("%q is too much", strings.Join(rest, " "))
		}
	}()
	next := func(what string, form *regexp.Regexp) string {
		if len(rest) == 0 || !form.MatchString(rest[0]) {
			err = errors.Join(err, fmt.Errorf("%s is missing, or not one", what))
			return ""
		}
		word := rest[0]
		rest = rest[1:]
		return word
	}
	number := func(what string) int64 {
		word := next(what, regexp.MustCompile(`^[0-9]+$`))
		n, parseErr := strconv.ParseInt(word, 10, 64)
		if err == nil && parseErr != nil {
			err = parseErr
		}
		return n
	}
	row := func() {
		a.Table = next("a table", regexp.MustCompile(`^(item|ledger)$`))
		a.Key = int(number("a key"))
	}

	switch a.Verb {
	case Begin:
		a.Level = strings.Join(rest, " ")
		rest = nil
		if a.Level != readCommitted && a.Level != repeatableRead && a.Level != serializable {
			return a, fmt.Errorf("%q is no isolation level", a.Level)
		}
	case Present:
		a.Token = number("a token")
		if len(rest) > 0 && rest[0] == "for" {
			rest = rest[1:]
			a.Fence = next("a fence", fenceWord)
		}
	case Claim, Hold:
		a.Fence = next("a fence", fenceWord)
		a.Token = number("a token")
	case Read, Write, Delete:
		row()
	case Set:
		row()
		a.Token = number("a token")
	case Regroup, Insert, Upsert:
		row()
		a.Group = int(number("a group"))
	case Savepoint, RollbackTo:
		a.Name = next("a name", nameWord)
	case Commit, Rollback:
	default:
		return a, fmt.Errorf("no such step: %s", a.Verb)
	}
	return a, err
}

// Isolation levels.
const (
	readCommitted  = "read committed"
	repeatableRead = "repeatable read"
	serializable   = "serializable"
)

// statements are what the verbs send where a design has nothing else in mind. What stands in braces is filled in: marker is
// the note that tells which step wrote a row, token what the step names or its transaction has presented.
var statements = map[Verb]string{
	Begin:      `BEGIN ISOLATION LEVEL {level}`,
	Claim:      `SELECT fencing.claim('{fence}', {token})`,
	Hold:       `SELECT fencing.hold('{fence}', {token})`,
	Read:       `SELECT note FROM {table} WHERE id = {key}`,
	Write:      `UPDATE {table} SET note = '{marker}' WHERE id = {key}`,
	Set:        `UPDATE {table} SET note = '{marker}', last_fencing_token = {token} WHERE id = {key}`,
	Regroup:    `UPDATE {table} SET note = '{marker}', grp = {group} WHERE id = {key}`,
	Delete:     `DELETE FROM {table} WHERE id = {key}`,
	Insert:     `INSERT INTO {table} (id, grp, note) VALUES ({key}, {group}, '{marker}')`,
	Upsert:     `INSERT INTO {table} (id, grp, note) VALUES ({key}, {group}, '{marker}') ON CONFLICT (id, grp) DO UPDATE SET note = excluded.note`,
	Savepoint:  `SAVEPOINT {name}`,
	RollbackTo: `ROLLBACK TO SAVEPOINT {name}`,
	Commit:     `COMMIT`,
	Rollback:   `ROLLBACK`,
}

// sql is what the step sends. The token is what the transaction has presented before the step.
func (s Step) sql(d *Design, marker string, token int64) string {
	parts := make([]string, len(s))
	for i, a := range s {
		if a.Verb == Present {
			parts[i] = fmt.Sprintf("SELECT fencing.present(%d)", a.Token)
			if a.Fence != "" {
				parts[i] = fmt.Sprintf("SELECT fencing.present(%d, '%s')", a.Token, a.Fence)
			}
			continue
		}
		if a.Token != 0 {
			token = a.Token
		}
		text, ok := d.statements[a.Verb]
		if !ok {
			text = statements[a.Verb]
		}
		parts[i] = strings.NewReplacer(
			"{level}", strings.ToUpper(a.Level), "{fence}", a.Fence, "{token}", strconv.FormatInt(token, 10), "{table}", a.Table,
			"{key}", strconv.Itoa(a.Key), "{group}", strconv.Itoa(a.Group), "{name}", a.Name, "{marker}", marker,
		).Replace(text)
	}
	return strings.Join(parts, "; ")
}
