package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc/grpclog"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/torture/history"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/etcd"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

// A workerSettings is what a worker is told at its start.
type workerSettings struct {
	Name    string // unique, also among those that had the place before
	Dir     string // of the history
	DSN     string
	Etcd    []string
	Locks   []lock
	Seed    uint64
	Careful bool // watches its grant's context; the others only keep the token
}

// A worker is the process that competes for locks.
type worker struct {
	workerSettings
	pool     *pgxpool.Pool
	sources  map[string]tokensrc.Source
	recorder *history.Recorder
	random   *rand.Rand
	stdout   io.Writer
	ops      atomic.Int64
}

// work is a worker's process. It ends, in order, with its input.
func work(ctx context.Context, settings []byte, commands *bufio.Scanner, stdout io.Writer) (err error) {
	// Before anything else runs that asks for the time. Where it cannot be done nobody will ask for it.
	clock, clockErr := interceptWallClock()
	if clockErr == nil {
		defer clock.Close()
	}
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	w := &worker{stdout: stdout}
	if err := json.Unmarshal(settings, &w.workerSettings); err != nil {
		return err
	}
	w.random = rand.New(rand.NewPCG(w.Seed, 0))
	if w.recorder, err = history.NewRecorder(w.Dir, w.Name); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.recorder.Close()) }()

	config, err := pgxpool.ParseConfig(w.DSN)
	if err != nil {
		return err
	}
	config.MaxConns = 4
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepared statements are a session's, and a pooler's clients have none
	config.ConnConfig.ConnectTimeout = 2 * time.Second
	config.ConnConfig.RuntimeParams["application_name"] = w.Name
	if w.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer w.pool.Close()
	client, err := newEtcdClient(w.Etcd)
	if err != nil {
		return err
	}
	defer client.Close()
	w.sources = map[string]tokensrc.Source{
		sourcePostgres: postgres.NewLease(w.pool, &postgres.LeaseOptions{TTL: leaseTTL, PollEvery: 100 * time.Millisecond}),
		sourceEtcd:     etcd.NewMutex(client, &etcd.Options{TTL: leaseTTL, Epochs: postgres.NewEpochs(w.pool)}),
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		for commands.Scan() {
			by, ok := strings.CutPrefix(commands.Text(), saysClock)
			if !ok {
				continue
			}
			answer := clockErr
			if d, err := time.ParseDuration(by); err != nil {
				answer = err
			} else if clockErr == nil {
				answer = clock.Step(d)
			}
			w.say(saysClock + message(answer))
		}
	}()
	for ctx.Err() == nil {
		if err := w.tenure(ctx); err != nil {
			return err
		}
	}
	return nil
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// say tells the process that started this one. When that has ended there is nobody to tell, and the input ends as well.
func (w *worker) say(line string) { _, _ = io.WriteString(w.stdout, line+"\n") }

// record runs an operation between the two lines that tell of it. f sets what came of it. The error is about the recording alone.
func (w *worker) record(op *history.Op, f func()) error {
	op.ID = fmt.Sprintf("%s#%d", w.Name, w.ops.Add(1))
	op.Worker, op.Invoked = w.Name, now()
	if err := w.recorder.Invoked(op); err != nil {
		return err
	}
	f()
	op.Returned = now()
	return w.recorder.Returned(op)
}

// judge sorts an error by what the caller may conclude from it.
func judge(op *history.Op, err error) {
	var stale *fenced.StaleError
	var unclaimed *fenced.UnclaimedError
	switch {
	case err == nil:
		op.Outcome = history.OK
		return
	case errors.Is(err, fenced.ErrOutcomeUnknown):
		op.Outcome = history.Unknown
	case fenced.Kind(err) != "":
		op.Outcome, op.Refusal = history.Refused, fenced.Kind(err)
	case errors.Is(err, fenced.ErrGrantEnded):
		op.Outcome, op.Refusal = history.Refused, "grant ended"
	default:
		op.Outcome = history.Failed
	}
	switch {
	case errors.As(err, &stale):
		op.Stored = int64(stale.Stored)
	case errors.As(err, &unclaimed):
		op.Stored = int64(unclaimed.Stored)
	}
	op.Note = shortened(err)
}

func shortened(err error) string {
	const most = 300
	text := message(err)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// patience bounds everything that a worker waits for, so that it comes to something else when a server is away.
const patience = 5 * time.Second

// tenure competes for a lock, and does what it came for while it believes to hold it.
func (w *worker) tenure(ctx context.Context) error {
	l := w.Locks[w.random.IntN(len(w.Locks))]
	var grant tokensrc.Grant
	op := &history.Op{Kind: history.Grant, Lock: l.Name, Source: l.Source}
	if err := w.record(op, func() { grant = w.acquire(ctx, l, op) }); err != nil || grant == nil {
		w.think(ctx, 200*time.Millisecond) // the service may be away
		return err
	}
	w.say(saysHolds)
	defer w.say(saysFree)
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = grant.Release(cleanup) // or it lapses
	}()
	// The careless keep the number alone, as a program in another language would, or one that was handed it in a message.
	t := &holder{worker: w, lock: l.Name, grant: fenced.NewGrant(l.Name, grant.Token()), known: map[history.Target]string{}}
	if w.Careful {
		t.grant = grant
	}
	return t.work(ctx)
}

func (w *worker) acquire(ctx context.Context, l lock, op *history.Op) tokensrc.Grant {
	grant, err := tokensrc.AcquireWithin(ctx, w.sources[l.Source], l.Name, patience)
	judge(op, err)
	switch {
	case err == nil:
		op.Token = int64(grant.Token())
	case errors.Is(err, tokensrc.ErrHeld):
		op.Outcome, op.Refusal = history.Refused, "held"
	case errors.Is(err, tokensrc.ErrIncarnation):
		op.Outcome, op.Refusal = history.Refused, "incarnation"
	}
	return grant
}

// think lets a random time pass, at most what is given.
func (w *worker) think(ctx context.Context, most time.Duration) {
	_ = wait(ctx, time.Duration(w.random.Int64N(int64(most)))) // the caller looks at the context next
}

// A holder is a worker under one grant.
type holder struct {
	*worker
	lock  string
	grant fenced.Grant
	// known is the last write of each row, as far as this holder knows: what it read after its claim, and what it wrote since.
	known map[history.Target]string
	over  bool // it lost the lock, or does not know where it stands
	wrote bool // the strict row, which takes one write of each holder
}

// work claims, reads, and then writes from what it has read: the order that fencing asks for.
func (h *holder) work(ctx context.Context) error {
	if err := h.claim(ctx); err != nil || h.over {
		return err
	}
	if err := h.read(ctx); err != nil || h.over {
		return err
	}
	for range 4 + h.random.IntN(12) {
		if h.think(ctx, 60*time.Millisecond); ctx.Err() != nil {
			return nil
		}
		if err := h.step(ctx); err != nil || h.over {
			return err
		}
	}
	return nil
}

func (h *holder) step(ctx context.Context) error {
	item := func() history.Target { return history.NewTarget(history.Named, h.lock, h.random.IntN(history.Items)) }
	own := func(table history.Table) []history.Target {
		return []history.Target{history.NewTarget(table, h.lock, 0)}
	}
	switch dice := h.random.IntN(100); {
	case dice < 45:
		return h.write(ctx, item())
	case dice < 60:
		first, second := item(), item()
		if first == second {
			return h.write(ctx, first)
		}
		// In one order, as every program should: a deadlock would be its own fault.
		return h.write(ctx, min(first, second), max(first, second))
	case dice < 80:
		return h.write(ctx, own(history.Reentrant)...)
	case dice < 88:
		if h.wrote && dice < 87 { // now and then a second one, which has to be refused
			return h.read(ctx)
		}
		h.wrote = true
		return h.write(ctx, own(history.Strict)...)
	case dice < 95:
		return h.read(ctx)
	default:
		return h.forget(ctx, item())
	}
}

func (h *holder) claim(ctx context.Context) error {
	op := &history.Op{Kind: history.Claim, Lock: h.lock, Token: int64(h.grant.Token())}
	return h.record(op, func() {
		ctx, cancel := context.WithTimeout(ctx, 2*patience)
		defer cancel()
		var options *fenced.ClaimOptions
		if h.random.IntN(4) > 0 {
			options = &fenced.ClaimOptions{EvictAfter: 300 * time.Millisecond}
		}
		err := fenced.ClaimWith(ctx, h.pool, []fenced.Grant{h.grant}, options)
		judge(op, err)
		if op.Outcome == history.Failed || op.Refusal == "grant ended" {
			op.Outcome = history.Unknown // a claim is one message: what breaks while it is answered may have come after it
		}
		h.over = err != nil
	})
}

// read reads all rows under the named fence, which is what a holder works from.
func (h *holder) read(ctx context.Context) error {
	op := &history.Op{Kind: history.Read, Lock: h.lock, Token: int64(h.grant.Token())}
	return h.record(op, func() {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		found := map[history.Target]history.Row{}
		var (
			n   int
			row history.Row
		)
		rows, _ := h.pool.Query(ctx, "SELECT n, version, op FROM torture.item WHERE lock = $1", h.lock) // the error comes with the rows
		_, err := pgx.ForEachRow(rows, []any{&n, &row.Version, &row.Op}, func() error {
			found[history.NewTarget(history.Named, h.lock, n)] = row
			return nil
		})
		judge(op, err)
		if h.over = err != nil; h.over {
			return
		}
		op.Rows = found
		if len(h.known) == 0 { // later reads change nothing of what a holder already believes: nobody else can have written
			for target, row := range found {
				h.known[target] = row.Op
			}
		}
	})
}

// write writes rows in one fenced transaction.
func (h *holder) write(ctx context.Context, targets ...history.Target) error {
	op := &history.Op{Kind: history.Write, Lock: h.lock, Token: int64(h.grant.Token()), Targets: targets, Basis: map[history.Target]string{}}
	for _, target := range targets {
		// A row with a fence of its own is claimed by the first write to it, which therefore relies on nothing.
		if known, has := h.known[target]; has && target.Table() != history.Strict {
			op.Basis[target] = known
		}
	}
	return h.record(op, func() {
		ctx, cancel := context.WithTimeout(ctx, 2*patience)
		defer cancel()
		written := map[history.Target]history.Row{}
		err := fenced.RunWith(ctx, h.pool, []fenced.Grant{h.grant}, nil, func(tx pgx.Tx) error {
			for _, target := range targets {
				version, err := h.put(ctx, tx, op, target)
				if err != nil {
					return err
				}
				written[target] = history.Row{Version: version, Op: op.ID}
				if h.random.IntN(3) == 0 {
					h.think(ctx, 40*time.Millisecond) // where a pause is worst
				}
			}
			return nil
		})
		judge(op, err)
		switch {
		case err == nil:
			op.Rows = written
			for _, target := range targets {
				h.known[target] = op.ID
			}
		case op.Refusal == history.Stale && op.Stored == op.Token: // the second write of a strict row: nothing is lost
		default:
			h.over = true
		}
	})
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// put writes a row and its effect.
func (h *holder) put(ctx context.Context, tx querier, op *history.Op, target history.Target) (version int64, err error) {
	err = tx.QueryRow(ctx, "UPDATE "+tableName(target.Table())+" SET version = version + 1, op = $3 WHERE lock = $1 AND n = $2 RETURNING version",
		h.lock, target.Item(), op.ID).Scan(&version)
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO torture.effect (op, target, version, token) VALUES ($1, $2, $3, $4)", op.ID, string(target), version, op.Token)
	return version, err
}

// forget is the query that somebody forgot: it presents no token.
func (h *holder) forget(ctx context.Context, target history.Target) error {
	op := &history.Op{Kind: history.Write, Lock: h.lock, Targets: []history.Target{target}}
	return h.record(op, func() {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		raw, err := h.pool.Begin(ctx)
		if err != nil {
			judge(op, err)
			h.over = true
			return
		}
		tx := fenced.WrapTx(raw)
		if _, err = h.put(ctx, tx, op, target); err != nil {
			judge(op, err)
			h.over = op.Refusal == ""
			_ = tx.Rollback(context.WithoutCancel(ctx)) // or the connection is gone, and the transaction with it
			return
		}
		err = tx.Commit(ctx)
		judge(op, err)
		if op.Outcome == history.Failed {
			op.Outcome = history.Unknown
		}
		h.over = err != nil
		h.known[target] = op.ID
	})
}
