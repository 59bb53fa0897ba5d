// Package history is the record of a run with faults, and the judge of it.
//
// Each worker appends what it does to a file of its own: a line before it sends something, a line after it has the answer. A
// worker that is killed leaves a line without its answer, which is the truth about it. All times are of the machine's monotonic
// clock, the same for every process. What the database says in the end (the log of effects, the rows, the fences) comes from the
// database. [Check] compares the two, and knows nothing of how either came about.
package history

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A Kind is what an operation asks for.
type Kind string

// The kinds of operations.
const (
	Grant Kind = "grant" // a lock and its token
	Claim Kind = "claim" // the named fence of a lock
	Read  Kind = "read"  // all rows under a named fence, in one statement
	Write Kind = "write" // a transaction that writes one row or several, and their effects
)

// An Outcome is what the caller knows when the operation has returned.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused" // by a guard, a claim or the token source: Refusal says which
	Failed  Outcome = "failed"  // it had no effect, for reasons that have nothing to do with fencing: a broken connection, a deadlock
	Unknown Outcome = "unknown" // it may have had its effect: the answer was lost, or the caller was killed
)

// The refusals that the checker understands, as fenced.Kind names them. There are others, which it only counts.
const (
	Stale     = "stale"
	Unclaimed = "unclaimed"
)

// A Table is one of the three that the workers write, each with a fence of another kind. The names are the tables' own.
type Table string

// The tables.
const (
	Named     Table = "item"      // several rows for each lock, all under the named fence of the lock
	Reentrant Table = "reentrant" // a row for each lock, with a reentrant row fence
	Strict    Table = "strict"    // a row for each lock, with a strict row fence
)

// Items is the number of rows in Named for each lock.
const Items = 4

// A Target is a row: "TABLE/LOCK/NUMBER".
type Target string

// NewTarget names a row.
func NewTarget(table Table, lock string, n int) Target {
	return Target(fmt.Sprintf("%s/%s/%d", table, lock, n))
}

// Table is the table that the row is in.
func (t Target) Table() Table {
	table, _, _ := strings.Cut(string(t), "/")
	return Table(table)
}

// Item is the row's number among those of its lock, 0 for a name that has none.
func (t Target) Item() (n int) {
	// What does not parse is 0.
	_, _ = fmt.Sscanf(string(t[strings.LastIndexByte(string(t), '/')+1:]), "%d", &n)
	return n
}

// A Row is what one row looked like.
type Row struct {
	Version int64  `json:"version"` // counts the writes
	Op      string `json:"op"`      // the last of them; empty before the first
}

// An Op is one operation of one worker.
type Op struct {
	ID     string `json:"id"` // unique in the run
	Worker string `json:"worker,omitempty"`
	Kind   Kind   `json:"kind,omitempty"`
	Lock   string `json:"lock,omitempty"`
	Source string `json:"source,omitempty"` // grants: which source issued the token
	Token  int64  `json:"token,omitempty"`  // presented, or granted; 0 for a write that presents none
	// Targets are the rows of a write.
	Targets []Target `json:"targets,omitempty"`
	// Basis says, for a row whose new content was made from what the worker remembers of it, which write it remembers as the last.
	Basis map[Target]string `json:"basis,omitempty"`

	Invoked  int64 `json:"invoked,omitempty"`  // nanoseconds; taken before anything was sent
	Returned int64 `json:"returned,omitempty"` // nanoseconds; taken after the answer had arrived; 0 when it never did

	Outcome Outcome `json:"outcome,omitempty"`
	Refusal string  `json:"refusal,omitempty"`
	Stored  int64   `json:"stored,omitempty"` // of a refusal: the fence
	// Rows are what was read, and of an accepted write what came of each of its targets.
	Rows map[Target]Row `json:"rows,omitempty"`
	Note string         `json:"note,omitempty"` // the error, for people
}

// until is when the operation had returned at the latest.
func (o *Op) until() int64 {
	if o.Returned == 0 {
		return never
	}
	return o.Returned
}

// An Effect is a row of the log that every write appends to in its own transaction.
type Effect struct {
	Op      string
	Target  Target
	Version int64 // the row's, after the write
	Token   int64 // 0 when none was presented
}

// A Loss is the promotion of a standby that had not received everything. What was acknowledged before From had been replayed there;
// from To on the old primary acknowledged nothing. What was under way between the two may be gone.
type Loss struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// A History is all that is known of a run.
type History struct {
	Ops     []*Op // in the order in which they were invoked
	Effects []Effect
	Rows    map[Target]Row   // in the end
	Fences  map[string]int64 // the named fences in the end
	Losses  []Loss
}

// A Recorder writes one worker's part of a history. It may be used by several goroutines.
type Recorder struct {
	mu   sync.Mutex
	file *os.File
}

// extension of the files of a history.
const extension = ".jsonl"

// NewRecorder creates the file of a worker in a directory. The caller closes it.
func NewRecorder(dir, worker string) (*Recorder, error) {
	file, err := os.OpenFile(filepath.Join(dir, worker+extension), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Recorder{file: file}, nil
}

// Invoked records an operation before it is sent. A worker that cannot record must not go on.
func (r *Recorder) Invoked(op *Op) error { return r.append(op) }

// Returned records the answer: of the operation's fields, those that the answer decides.
func (r *Recorder) Returned(op *Op) error {
	return r.append(&Op{
		ID: op.ID, Token: op.Token, Returned: op.Returned, Outcome: op.Outcome, Refusal: op.Refusal, Stored: op.Stored, Rows: op.Rows, Note: op.Note,
	})
}

func (r *Recorder) append(op *Op) error {
	line, err := json.Marshal(op)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// One write: whoever is killed has written the whole line or nothing, and what is written survives the process.
	_, err = r.file.Write(append(line, '\n'))
	return err
}

// Close closes the file.
func (r *Recorder) Close() error { return r.file.Close() }

// Load reads the files of all workers in a directory, in the order of invocation.
func Load(dir string) ([]*Op, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	if err != nil {
		return nil, err
	}
	var all []*Op
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		ops, err := read(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
		all = append(all, ops...)
	}
	slices.SortStableFunc(all, func(a, b *Op) int { return cmp.Compare(a.Invoked, b.Invoked) })
	return all, nil
}

func read(from io.Reader) ([]*Op, error) {
	byID := map[string]*Op{}
	var ops []*Op
	lines := bufio.NewReader(from)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return ops, nil // a half line is of a worker that was killed while it wrote
		}
		if err != nil {
			return nil, err
		}
		var op Op
		if err := json.Unmarshal(line, &op); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		known := byID[op.ID]
		switch {
		case known == nil && op.Invoked > 0:
			op.Outcome = Unknown // until its answer is read
			byID[op.ID] = &op
			ops = append(ops, &op)
		case known != nil && known.Returned == 0 && op.Returned > 0:
			known.Token, known.Returned, known.Outcome, known.Refusal = op.Token, op.Returned, op.Outcome, op.Refusal
			known.Stored, known.Rows, known.Note = op.Stored, op.Rows, op.Note
		default:
			return nil, fmt.Errorf("line %d: operation %s is out of order", number, op.ID)
		}
	}
}
