package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// A stage is what a run happens on: the place, the recording, and the workers, each with connections of its own.
type stage struct {
	*timeline
	place   *place
	fence   string // see form
	workers []*worker
	holders map[string]string // lock → the worker that it was granted to last, if it has not been given back since
}

// A worker is one holder of locks: a session of the database, and the grant that it believes to have.
type worker struct {
	stage *stage
	name  string
	still *stillness
	conn  *pgx.Conn
	redis *goredis.Client  // opened when it is first used
	etcd  *clientv3.Client // the same
	lock  string
	token fenced.Token
	grant tokensrc.Grant // where the lock comes from a token source
	gate  *gate          // not nil while the worker waits for another one; see waitsWhile
	close []func(context.Context) error
}

// worker opens a session. The stage closes it at the end of the run.
func (s *stage) worker(ctx context.Context, name string) (*worker, error) {
	w := &worker{stage: s, name: name, still: newStillness()}
	config := s.place.pool.Config().ConnConfig
	config.RuntimeParams["application_name"] = "fencectl demo, " + name
	config.DialFunc = w.still.over(config.DialFunc)
	var err error
	if w.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, err
	}
	w.later(w.conn.Close)
	s.workers = append(s.workers, w)
	return w, nil
}

// twoWorkers is the cast of most stories: the one that loses its lock, and its successor.
func (s *stage) twoWorkers(ctx context.Context) (a, b *worker, err error) {
	if a, err = s.worker(ctx, "worker A"); err != nil {
		return nil, nil, err
	}
	b, err = s.worker(ctx, "worker B")
	return a, b, err
}

func (w *worker) later(f func(context.Context) error) { w.close = append(w.close, f) }

// leave ends the workers' pauses, gives back what they hold and closes their connections.
func (s *stage) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	for _, w := range s.workers {
		w.still.end()
	}
	var errs []error
	for _, w := range s.workers {
		for i := len(w.close) - 1; i >= 0; i-- {
			errs = append(errs, w.close[i](ctx))
		}
	}
	return errors.Join(errs...)
}

func (w *worker) record(e Event) {
	if w.gate != nil {
		w.gate.pass()
	}
	w.say(e)
}

func (w *worker) say(e Event) {
	e.Actor, e.Token = w.name, w.token
	w.stage.record(e)
}

// Leases are real, and so is the wait for one to expire; their limits differ because only the first holder's is waited for.
const (
	firstLease  = 500 * time.Millisecond
	secondLease = 30 * time.Second
)

// acquire takes the lock from the database, waiting for the present holder's time limit where there is one, as every client of
// such a lock does.
func (w *worker) acquire(ctx context.Context, lock string, limit time.Duration) error {
	return w.asks(ctx, lock, limit, func(ctx context.Context) (got bool, left time.Duration, err error) {
		var token *fenced.Token
		err = w.conn.QueryRow(ctx, "SELECT token, expires_in FROM fencing.acquire_lease($1, gen_random_uuid(), $2)", lock, limit).Scan(&token, &left)
		if err != nil || token == nil {
			return false, left, err
		}
		w.token = *token
		return true, 0, nil
	})
}

// asks repeats its question for the lock until it gets it. Each time the service says how long the lock is held at most, and that is waited for.
func (w *worker) asks(ctx context.Context, lock string, limit time.Duration, try func(context.Context) (got bool, left time.Duration, err error)) error {
	for waited := false; ; waited = true {
		got, left, err := try(ctx)
		if err != nil {
			return fmt.Errorf("%s: acquiring %s: %w", w.name, lock, err)
		}
		if got {
			w.granted(lock, limit, gotLock(lock, limit))
			return nil
		}
		if !waited {
			w.waits(lock, left)
		}
		if err := pause(ctx, left); err != nil {
			return err
		}
	}
}

func gotLock(lock string, limit time.Duration) string {
	return fmt.Sprintf("gets lock %s for %s", lock, limit)
}

func (w *worker) waits(lock string, left time.Duration) {
	text := fmt.Sprintf("asks for lock %s, which is held", lock)
	if left > 0 {
		text += fmt.Sprintf(" for another %.2f s at most", left.Seconds())
	}
	w.record(Event{Kind: Waits, On: lock, Toward: Locks, Text: text})
}

// granted records that the worker has the lock, and before it what became of the one that had it.
func (w *worker) granted(lock string, limit time.Duration, text string) {
	if w.gate != nil {
		w.gate.pass()
	}
	// On a slow machine the limit may have passed before anybody asked.
	if former := w.stage.holders[lock]; former != "" {
		w.stage.record(Event{
			Actor: Locks, Kind: Expired, On: lock, Concerns: former,
			Text: fmt.Sprintf("the time limit of %s has passed, and nobody could tell it so", former),
		})
	}
	w.lock = lock
	w.stage.holders[lock] = w.name
	w.record(Event{Kind: Granted, On: lock, Toward: Locks, Lasts: limit, Text: text})
}

// pause waits for a time that has to pass, such as a lease's.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sleeps and wakes are the worker's pause.
func (w *worker) sleeps() { w.stops("is paused: a long garbage collection, a frozen VM, a laptop lid") }
func (w *worker) wakes()  { w.goesOn("wakes up, and believes that it holds the lock") }

func (w *worker) stops(text string) {
	w.record(Event{Kind: Paused, Text: text})
	w.still.begin()
}

func (w *worker) goesOn(text string) {
	w.still.end()
	w.record(Event{Kind: Resumed, Text: text})
}

// judged records a claim or a write, with what the database says that the fence stands at then.
func (w *worker) judged(ctx context.Context, e Event) error {
	if w.gate != nil {
		w.gate.pass() // so that the other one's part is over
	}
	if w.stage.fence != "" {
		err := w.stage.place.pool.QueryRow(ctx, w.stage.fence).Scan(&e.Stored)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("reading the fence: %w", err)
		}
	}
	e.Toward = Data
	w.say(e)
	return nil
}

// claim raises the fence of the worker's lock to its token, in a transaction of its own.
func (w *worker) claim(ctx context.Context) error {
	var previous fenced.Token
	err := w.conn.QueryRow(ctx, "SELECT fencing.claim($1, $2)", w.lock, w.token).Scan(&previous)
	if err != nil {
		return fmt.Errorf("%s: claiming %s: %w", w.name, w.lock, err)
	}
	stood := "is new"
	if previous > 0 {
		stood = fmt.Sprintf("stood at %s", previous)
	}
	return w.judged(ctx, Event{
		Kind: Claimed, On: w.lock, Outcome: Accepted, Text: fmt.Sprintf("claims fence %s, which %s", w.lock, stood),
		SQL: fmt.Sprintf("SELECT fencing.claim('%s', %d)", w.lock, w.token),
	})
}

// read reads one number, and tells it as show writes it.
func (w *worker) read(ctx context.Context, on, what, sql string, show func(int64) string) (int64, error) {
	var value int64
	if err := w.conn.QueryRow(ctx, sql).Scan(&value); err != nil {
		return 0, fmt.Errorf("%s: %s: %w", w.name, sql, err)
	}
	w.record(Event{Kind: Read, On: on, Toward: Data, Text: fmt.Sprintf("reads %s: %s", what, show(value)), SQL: sql})
	return value, nil
}

// A write is one statement that changes data.
type write struct {
	on   string // the row, for the timeline
	text string // what the worker is about, as a clause
	sql  string
	// silent writes present no token: code that knows nothing of fencing.
	silent bool
}

// write runs the statement in a transaction that presents the worker's token first, and says whether its change was
// committed. A refusal is an outcome; any other failure is an error.
func (w *worker) write(ctx context.Context, job write) (committed bool, err error) {
	open, err := w.begin(ctx, job)
	if open == nil {
		return false, err
	}
	return w.commit(ctx, open)
}

// An openWrite is a write whose transaction has not ended yet.
type openWrite struct {
	write
	tx   pgx.Tx
	rows int64
}

// begin opens the transaction and runs the statement in it. When a guard refuses that, it is recorded, the transaction is
// over, and both results are nil.
func (w *worker) begin(ctx context.Context, job write) (open *openWrite, err error) {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	var tag pgconn.CommandTag
	if !job.silent {
		_, err = tx.Exec(ctx, "SELECT fencing.present($1)", w.token)
	}
	if err == nil {
		tag, err = tx.Exec(ctx, job.sql)
	}
	if err == nil {
		return &openWrite{write: job, tx: tx, rows: tag.RowsAffected()}, nil
	}
	if rollback := tx.Rollback(context.WithoutCancel(ctx)); rollback != nil {
		return nil, fmt.Errorf("%s: %w", w.name, errors.Join(err, rollback))
	}
	return nil, w.refused(ctx, job, err)
}

// commit ends the transaction of a write, records how it went, and says whether anything was changed.
func (w *worker) commit(ctx context.Context, open *openWrite) (committed bool, err error) {
	if err := open.tx.Commit(ctx); err != nil {
		return false, w.refused(ctx, open.write, err)
	}
	e := Event{Kind: Wrote, On: open.on, Text: open.text, SQL: open.sql, Outcome: Accepted}
	if open.rows == 0 {
		e.Outcome = NoRows
	}
	return open.rows > 0, w.judged(ctx, e)
}

// refused records a guard's refusal, which is part of the story. What else goes wrong is an error.
func (w *worker) refused(ctx context.Context, job write, err error) error {
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || fenced.Kind(fenced.AsError(err)) == "" {
		return fmt.Errorf("%s: %s: %w", w.name, job.sql, err)
	}
	return w.judged(ctx, Event{
		Kind: Wrote, On: job.on, Text: job.text, SQL: job.sql,
		Outcome: Refused, SQLState: refusal.Code, Message: refusal.Message, Hint: refusal.Hint,
	})
}

// ending records what the data looks like when all is over.
func (s *stage) ending(on, format string, args ...any) {
	s.record(Event{Actor: Data, Kind: Finished, On: on, Text: fmt.Sprintf(format, args...)})
}

// A gate holds back what a waiting worker has to tell until the one that it waited for has told its own part: the server
// answers both at the same moment, and the effect must not be told before the cause.
type gate struct{ reached, open chan struct{} }

func (g *gate) pass() {
	select {
	case <-g.reached: // it reached the gate earlier
	default:
		close(g.reached)
	}
	<-g.open
}

// waitsWhile runs work of the worker's that has to wait for a lock of another session's, lets meanwhile happen once it does
// wait, and returns when both are over. That it waits is the server's word (blocked asks it): no clock is asked. It fails when the
// work did not have to wait.
func (w *worker) waitsWhile(ctx context.Context, waits Event, blocked func(context.Context) (bool, error), work, meanwhile func(context.Context) error) error {
	// What fails first ends the other: neither may go on waiting for one that has given up.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.gate = &gate{reached: make(chan struct{}), open: make(chan struct{})}
	var result error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if result = work(ctx); result != nil {
			cancel(result)
		}
	}()
	err := w.untilBlocked(ctx, blocked, done)
	if err == nil {
		waits.Kind = Waits
		w.say(waits)
		err = meanwhile(ctx)
	}
	if err != nil {
		cancel(err)
	}
	close(w.gate.open)
	<-done
	w.gate = nil
	return errors.Join(err, result)
}

// untilBlocked returns when the worker waits.
func (w *worker) untilBlocked(ctx context.Context, blocked func(context.Context) (bool, error), done <-chan struct{}) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if waits, err := blocked(ctx); err != nil || waits {
			return err
		}
		select {
		case <-w.gate.reached:
			return fmt.Errorf("%s did not have to wait, though it should have", w.name)
		case <-done:
			return fmt.Errorf("%s ended before it had to wait", w.name)
		case <-tick.C:
		}
	}
}

// inDatabase says whether the worker's session waits for a lock of another session's.
func (w *worker) inDatabase(ctx context.Context) (waits bool, err error) {
	pid := int32(w.conn.PgConn().PID())
	err = w.stage.place.pool.QueryRow(ctx, "SELECT cardinality(pg_blocking_pids($1)) > 0", pid).Scan(&waits)
	return waits, err
}
