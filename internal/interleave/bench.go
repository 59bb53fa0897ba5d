package interleave

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// maxSessions is how many sessions a scenario may have.
const maxSessions = 3

// stuckAfter bounds one run. No run takes a hundredth of it: reaching it is a defect of this package or of the server.
const stuckAfter = time.Minute

// firstLook is how long a step may take to answer before the lock table is looked at. It decides nothing: looking earlier
// would only cost a query that most steps do not need.
const firstLook = 300 * time.Microsecond

// longestPause is the longest time between two looks at the lock table, where steps take long without waiting for a lock.
const longestPause = 10 * time.Millisecond

// A bench is a database with the connections that run scenarios in it, one run at a time. Its creator closes it.
type bench struct {
	dsn      string
	monitor  *pgconn.PgConn // sees who waits, and resets; no trigger fires for it
	sessions []*backend
	answers  chan answer
	made     map[string]bool // schemas with a fixture in them
	current  string          // the schema that the connections work in; "" when there is none
	runs     int
	cancel   context.CancelFunc // ends what the sessions are in the middle of
	working  sync.WaitGroup     // the sessions' goroutines
}

// backend is the connection of one session. A goroutine of its own does what is put into its channel.
type backend struct {
	conn  *pgconn.PgConn
	steps chan string
}

// answer is what came of a statement, or of several sent at once.
type answer struct {
	session int
	results []*pgconn.Result
	err     error
}

// newBench connects to a database that has the schema fencing, and nothing else that anybody needs.
func newBench(ctx context.Context, dsn string) (*bench, error) {
	b := &bench{dsn: dsn, made: map[string]bool{}}
	if err := b.connect(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bench) connect(ctx context.Context) error {
	ctx, b.cancel = context.WithCancel(ctx)
	b.answers = make(chan answer, maxSessions)
	open := func(settings string) (*pgconn.PgConn, error) {
		conn, err := pgconn.Connect(ctx, b.dsn)
		if err != nil {
			return nil, err
		}
		if _, err = conn.Exec(ctx, settings).ReadAll(); err != nil {
			_ = conn.Close(ctx)
			return nil, err
		}
		return conn, nil
	}
	var err error
	if b.monitor, err = open("SET session_replication_role = replica; SET client_min_messages = warning"); err != nil {
		return err
	}
	_, err = b.monitor.Prepare(ctx, "waits", `SELECT a.pid, pg_catalog.pg_blocking_pids(a.pid)
		FROM pg_catalog.unnest($1::int[]) AS p (pid), pg_catalog.pg_stat_get_activity(p.pid) AS a WHERE a.wait_event_type = 'Lock'`, nil)
	if err != nil {
		return err
	}
	for i := range maxSessions {
		// A deadlock is found after this long, and costs the run as much.
		conn, err := open("SET deadlock_timeout = '5ms'; SET client_min_messages = warning")
		if err != nil {
			return err
		}
		s := &backend{conn: conn, steps: make(chan string)}
		b.sessions = append(b.sessions, s)
		b.working.Go(func() {
			for sql := range s.steps {
				results, err := conn.Exec(ctx, sql).ReadAll()
				b.answers <- answer{i, results, err}
			}
		})
	}
	return nil
}

// close ends the connections, and with them whatever they are in the middle of.
func (b *bench) close() {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	b.cancel()
	for _, s := range b.sessions {
		close(s.steps)
	}
	b.working.Wait()
	for _, s := range b.sessions {
		_ = s.conn.Close(ctx)
	}
	if b.monitor != nil {
		_ = b.monitor.Close(ctx)
	}
}

// use makes the fixture of a scenario current, with its rows as they are at first.
func (b *bench) use(ctx context.Context, sc *Scenario) error {
	schema := strings.ReplaceAll(sc.Fixture.Name+"_under_"+sc.Design.Name, "-", "_")
	if b.current == schema {
		return nil
	}
	path := fmt.Sprintf("SET search_path = %s, pg_catalog;", schema)
	if !b.made[schema] {
		sql := fmt.Sprintf("DROP SCHEMA IF EXISTS %[1]s CASCADE; CREATE SCHEMA %[1]s; %[2]s", schema, path) + sc.Fixture.createSQL(sc.Design)
		if _, err := b.monitor.Exec(ctx, sql).ReadAll(); err != nil {
			return fmt.Errorf("making fixture %s for %s: %w", sc.Fixture.Name, sc.Design.Name, err)
		}
		b.made[schema] = true
	}
	if _, err := b.monitor.Exec(ctx, path+sc.Fixture.resetSQL()).ReadAll(); err != nil {
		return fmt.Errorf("fixture %s: %w", sc.Fixture.Name, err)
	}
	for _, s := range b.sessions {
		if _, err := s.conn.Exec(ctx, path).ReadAll(); err != nil {
			return err
		}
	}
	b.current = schema
	return nil
}

// run plays a scenario once. Wherever a session has to be chosen, choose is given those that can go on, in ascending order and at
// least one, and returns one of them, or an error that ends the run.
func (b *bench) run(ctx context.Context, sc *Scenario, choose func(able []int) (int, error)) (_ *History, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stuckAfter, errors.New("a run did not come to its end"))
	defer cancel()
	if err := b.use(ctx, sc); err != nil {
		return nil, err
	}
	r := &run{
		bench: b, history: &History{Scenario: sc}, next: make([]int, len(sc.Sessions)), pending: make([]*Event, len(sc.Sessions)),
		failed: make([]bool, len(sc.Sessions)), savepoints: make([][]string, len(sc.Sessions)),
	}
	if err := r.play(ctx, choose); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, r.history.Script())
	}
	return r.history, b.finish(ctx, r.history)
}

// finish reads what a run has left, and resets it.
func (b *bench) finish(ctx context.Context, h *History) error {
	sql := h.Scenario.Fixture.finalSQL() + h.Scenario.Fixture.resetSQL()
	results, err := b.monitor.Exec(ctx, sql).ReadAll()
	if err != nil {
		return err
	}
	h.Final, h.Fences = map[rowID]finalRow{}, map[string]int64{}
	for _, row := range results[0].Rows {
		final := finalRow{group: number(row[2]), note: string(row[3]), token: -1}
		if row[4] != nil {
			final.token = int64(number(row[4]))
		}
		h.Final[rowID{string(row[0]), number(row[1])}] = final
	}
	for _, row := range results[1].Rows {
		h.Fences[string(row[0])] = int64(number(row[1]))
	}
	// Autovacuum may be off, and a thousand versions of three rows are no longer three rows to read.
	if b.runs++; b.runs%200 == 0 {
		if _, err := b.monitor.Exec(ctx, "VACUUM fencing.fence, item, ledger").ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

func number(text []byte) int {
	n, err := strconv.Atoi(string(text))
	if err != nil {
		panic(fmt.Sprintf("the server sent %q as an integer", text))
	}
	return n
}

// A run is one play of a scenario.
type run struct {
	*bench
	history *History
	next    []int    // of each session, the step it sends next
	pending []*Event // of each session, what it has sent and has no answer to
	failed  []bool   // of each session, whether its transaction has failed

	savepoints [][]string // of each session, those its transaction has
}

func (r *run) play(ctx context.Context, choose func([]int) (int, error)) error {
	for {
		able := r.able()
		if len(able) == 0 {
			if slices.ContainsFunc(r.pending, func(e *Event) bool { return e != nil }) {
				return errors.New("every session waits, and no deadlock was found")
			}
			return nil
		}
		session, err := choose(able)
		if err != nil {
			return err
		}
		if !slices.Contains(able, session) {
			return fmt.Errorf("session %d cannot go on", session)
		}
		if err := r.settle(ctx, r.send(session)); err != nil {
			return err
		}
	}
}

// able lists the sessions that can go on. A failed transaction has let its locks go, and that it is ended is no event to
// the others: it is ended at once, and no orders are told apart by it. Where it goes back to a savepoint, it holds locks.
func (r *run) able() []int {
	var able []int
	for i, session := range r.history.Scenario.Sessions {
		if r.pending[i] != nil {
			continue
		}
		if r.failed[i] {
			for !r.possibleAfterFailure(i, session.Steps[r.next[i]][0]) {
				r.next[i]++
			}
			if session.Steps[r.next[i]][0].Verb != RollbackTo {
				return []int{i}
			}
		}
		if r.next[i] < len(session.Steps) {
			able = append(able, i)
		}
	}
	return able
}

func (r *run) possibleAfterFailure(session int, a Action) bool {
	return a.Verb == Commit || a.Verb == Rollback || a.Verb == RollbackTo && slices.Contains(r.savepoints[session], a.Name)
}

// send sends a session's next step.
func (r *run) send(i int) *Event {
	session := r.history.Scenario.Sessions[i]
	step := r.next[i]
	r.next[i]++
	e := &Event{Session: i, Step: step, Sent: len(r.history.Events) + 1}
	r.history.Events = append(r.history.Events, e)
	r.pending[i] = e
	r.sessions[i].steps <- session.Steps[step].sql(r.history.Scenario.Design, session.marker(step), session.presented(step))
	return e
}

// settle waits until every step that was sent has answered, or waits for the lock of another session that will not let go by
// itself: that is, until nothing happens any more before another step is sent.
func (r *run) settle(ctx context.Context, sent *Event) error {
	var before string
	for pause := firstLook; ; pause = min(2*pause, longestPause) {
		answered, err := r.takeWithin(pause)
		switch {
		case err != nil:
			return err
		case answered:
			pause = firstLook / 2 // and doubled: the next one may be on its way
		}
		if !slices.ContainsFunc(r.pending, func(e *Event) bool { return e != nil }) {
			return nil
		}
		if sent.Done != 0 && !r.letsGo(sent) {
			return nil // whoever waited before it still does
		}
		waiting, err := r.waiting(ctx)
		if err != nil {
			return err
		}
		// One query does not see all sessions at one moment. Where several are in the middle of something, what one waits
		// for may be let go while the next is looked at; seen twice, it was not.
		seen := fmt.Sprint(waiting)
		if r.settled(waiting) && (len(waiting) < 2 || seen == before) {
			for i, blockers := range waiting {
				r.pending[i].WaitedFor = blockers
			}
			return nil
		}
		before = seen
	}
}

// takeWithin notes the answers that are there, and waits so long for the first of them.
func (r *run) takeWithin(pause time.Duration) (answered bool, err error) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case a := <-r.answers:
		if err := r.take(a); err != nil {
			return true, err
		}
	case <-timer.C:
		return false, nil
	}
	for {
		select {
		case a := <-r.answers:
			if err := r.take(a); err != nil {
				return true, err
			}
		default:
			return true, nil
		}
	}
}

// letsGo tells whether a step that has answered may have let a lock go: it ended a transaction, or failed in one. What a step
// takes within a transaction, it keeps.
func (r *run) letsGo(e *Event) bool {
	verb := r.history.step(e)[0].Verb
	return e.SQLState != "" || verb == Commit || verb == Rollback || verb == RollbackTo || !r.inTransaction(e)
}

// take notes an answer.
func (r *run) take(a answer) error {
	e := r.pending[a.session]
	r.pending[a.session] = nil
	e.Done = len(r.history.Events)

	var pgErr *pgconn.PgError
	switch {
	case errors.As(a.err, &pgErr):
		e.SQLState, e.Message = pgErr.Code, pgErr.Message
		if !expectedFailures[e.SQLState] {
			return fmt.Errorf("session %s, %s: %w", r.history.Scenario.Sessions[e.Session].Name, r.history.step(e), a.err)
		}
	case a.err != nil:
		return a.err
	}

	switch first := r.history.step(e)[0]; first.Verb {
	case Commit, Rollback:
		r.failed[e.Session], r.savepoints[e.Session] = false, nil
	case RollbackTo:
		r.failed[e.Session] = false
	case Savepoint:
		r.savepoints[e.Session] = append(r.savepoints[e.Session], first.Name)
	default:
		r.failed[e.Session] = e.SQLState != "" && r.inTransaction(e)
	}
	if e.SQLState != "" {
		return nil
	}

	result := a.results[len(a.results)-1]
	switch verb := r.history.step(e)[0].Verb; {
	case verb == Commit:
		e.RolledBack = result.CommandTag.String() == "ROLLBACK"
	case verb == Read:
		if e.Rows = len(result.Rows); e.Rows > 1 {
			return fmt.Errorf("%s found %d rows", r.history.step(e), e.Rows)
		}
		if e.Rows == 1 {
			e.Note = string(result.Rows[0][0])
		}
	case verb.writes() && len(result.FieldDescriptions) == 1:
		if e.Verdict = string(result.Rows[0][0]); e.Verdict == "written" {
			e.Rows = 1
		}
	case verb.writes():
		e.Rows = int(result.CommandTag.RowsAffected())
	}
	return nil
}

// inTransaction tells whether a step stands in a transaction block.
func (r *run) inTransaction(e *Event) bool {
	open := false
	for _, step := range r.history.Scenario.Sessions[e.Session].Steps[:e.Step+1] {
		switch step[0].Verb {
		case Begin:
			open = true
		case Commit, Rollback:
			open = false
		default:
		}
	}
	return open
}

// expectedFailures are the SQLSTATEs that a step may fail with. Anything else says that a scenario is wrong, or the server is.
var expectedFailures = map[string]bool{
	"ZF001": true, "ZF002": true, "ZF003": true, "ZF004": true,
	"40001": true, // could not serialize: the client tries again
	"40P01": true, // deadlock: the same
	"23505": true, // two inserted one key
}

// waiting looks up what the pending sessions wait for: for each that waits for a lock, which of our sessions hold it or
// are ahead in its queue. Whoever waits for nobody of ours, or for nothing, is not in it.
//
// Both conditions are needed: the wait event alone also shows for a moment while a free lock is taken, pg_blocking_pids
// alone also names whoever queues ahead of somebody who is about to be let in.
func (r *run) waiting(ctx context.Context) (map[int][]int, error) {
	var pids []string
	for i, e := range r.pending {
		if e != nil {
			pids = append(pids, strconv.Itoa(int(r.sessions[i].conn.PID())))
		}
	}
	if len(pids) == 0 {
		return nil, nil
	}
	result := r.monitor.ExecPrepared(ctx, "waits", [][]byte{[]byte("{" + strings.Join(pids, ",") + "}")}, nil, nil).Read()
	if result.Err != nil {
		return nil, result.Err
	}
	waiting := map[int][]int{}
	for _, row := range result.Rows {
		var blockers []int
		for pid := range strings.SplitSeq(strings.Trim(string(row[1]), "{}"), ",") {
			if i := r.sessionOf(pid); i >= 0 && !slices.Contains(blockers, i) {
				blockers = append(blockers, i)
			}
		}
		if i := r.sessionOf(string(row[0])); len(blockers) > 0 {
			slices.Sort(blockers)
			waiting[i] = blockers
		}
	}
	return waiting, nil
}

func (r *run) sessionOf(pid string) int {
	return slices.IndexFunc(r.sessions, func(s *backend) bool { return strconv.Itoa(int(s.conn.PID())) == pid })
}

// settled tells whether all pending sessions wait, and not in a circle: a circle is a deadlock, which the server breaks.
func (r *run) settled(waiting map[int][]int) bool {
	for i, e := range r.pending {
		if e != nil && waiting[i] == nil {
			return false
		}
	}
	var circle func(i int, path []int) bool
	circle = func(i int, path []int) bool {
		if slices.Contains(path, i) {
			return true
		}
		return slices.ContainsFunc(waiting[i], func(j int) bool { return circle(j, append(path, i)) })
	}
	for i := range waiting {
		if circle(i, nil) {
			return false
		}
	}
	return true
}
