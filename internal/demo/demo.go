// Package demo shows, on a real PostgreSQL with real sessions, how data is lost under a lock with a time limit, and that a
// fence keeps it.
//
// It owns the scenarios, the little application that they happen to, and the recording of what happened: who did what, when,
// under which token, with what result. It leaves showing that to the caller, as text or as a picture. The statements of the
// scenarios are in Go, beside the story that they tell: they are what an application would send.
//
// Each scenario is run twice and judged by what is in the tables afterwards. [Report.Problems] lists what did not go as it
// should: a run without protection in which the damage did not show, or a protected one in which it did.
package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/internal/audit"
	"github.com/fencectl/fencectl/migrations"
)

//go:embed shop.sql
var shopSQL string

// Options say what to run and where. Nil means the defaults.
type Options struct {
	// DSN is a server to use; the demo creates a database of its own there and drops it afterwards. Default: a throwaway
	// server, started from the PostgreSQL binaries of this machine and stopped afterwards.
	DSN string
	// RedisURL is a Redis to use, for the scenarios that need one: redis://host:port/db. The demo writes under a prefix of its own there and
	// deletes that afterwards. Default: a redis-server of its own, or, where that is not installed, a Redis in this process.
	RedisURL string
	// EtcdEndpoints are those of an etcd to use, in the same way. Default: one in this process.
	EtcdEndpoints []string
	// Scenarios are run alone, without the audits and the chapters around them. Default: the whole story, with all of them.
	Scenarios []Scenario
	// Narrator is told everything as it happens. Default: nobody.
	Narrator Narrator
	// Hold is called when all is over, before anything is taken down, with where the database is: for whoever wants to look
	// around in it. Default: nothing is waited for.
	Hold func(ctx context.Context, where string)
}

// A Narrator shows a demo while it runs. Its methods are called one at a time.
type Narrator interface {
	// Chapter begins a new part of the story.
	Chapter(title, paragraph string)
	// Round begins one of a scenario's two runs: what is in place.
	Round(protected bool, label string)
	// Event is one thing that happened in the run.
	Event(Event)
	// Ended ends the run.
	Ended(Round)
	// Line is a line of output of its own: a statement, a finding.
	Line(text string)
	// Paragraph explains.
	Paragraph(text string)
	// Concluded is called once, when all has been shown and nothing has been taken down yet.
	Concluded(*Report)
}

// A Report is what a demo has shown.
type Report struct {
	// ServerVersion is PostgreSQL's, such as "15.18".
	ServerVersion string
	// Redis and Etcd say what those were, in a few words; empty where no scenario needed them.
	Redis, Etcd string
	Results     []Result
	// Before and After are the audits before the first and after the last scenario; nil when only some scenarios were run.
	Before, After *audit.Report
}

// A Result is a scenario's two runs.
type Result struct {
	Scenario      Scenario
	Without, With Round
}

// A Round is one run of a scenario.
type Round struct {
	// Label says what was in place.
	Label  string
	Events []Event
	// Verdict says what became of the data, and Damaged whether that is a loss.
	Verdict string
	Damaged bool
}

// Problems lists why the demo has not proven what it should; nil when it has.
func (r *Report) Problems() []string {
	var problems []string
	for _, result := range r.Results {
		if !result.Without.Damaged {
			problems = append(problems, fmt.Sprintf("%s: without protection the damage did not happen (%s), so the protected run proves nothing",
				result.Scenario.Name, result.Without.Verdict))
		}
		if result.With.Damaged {
			problems = append(problems, fmt.Sprintf("%s: the damage happened in spite of the fence: %s", result.Scenario.Name, result.With.Verdict))
		}
	}
	if r.Before != nil && len(r.Before.Findings) == 0 {
		problems = append(problems, "audit: it found nothing in an unprotected database")
	}
	if r.After != nil && len(r.After.Findings) > 0 {
		problems = append(problems, fmt.Sprintf("audit: %d findings are left after every table was protected", len(r.After.Findings)))
	}
	return problems
}

// Run runs the demo. When the context ends it stops where it is; in every case it takes down what it has made before it
// returns. A demo that ran and proved nothing is no error: see [Report.Problems].
func Run(ctx context.Context, opts *Options) (report *Report, err error) {
	if opts == nil {
		opts = &Options{}
	}
	t := &telling{Narrator: opts.Narrator}
	if t.Narrator == nil {
		t.Narrator = silence{}
	}
	scenarios, whole := opts.Scenarios, len(opts.Scenarios) == 0
	if whole {
		scenarios = Scenarios()
	}

	t.place, err = open(ctx, opts, scenarios)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // whatever the interruption looked like from within
		}
		if left := t.place.leave(ctx); left != nil {
			report, err = nil, errors.Join(err, left)
		}
	}()

	report = &Report{ServerVersion: t.place.version}
	if t.place.redis != nil {
		report.Redis = t.place.redis.what
	}
	if t.place.etcd != nil {
		report.Etcd = t.place.etcd.what
	}
	if err := t.opening(ctx); err != nil {
		return nil, err
	}
	if whole {
		if report.Before, err = t.firstAudit(ctx); err != nil {
			return nil, err
		}
	}
	for _, scenario := range scenarios {
		result, err := t.scenario(ctx, scenario)
		if err != nil {
			return nil, fmt.Errorf("scenario %s: %w", scenario.Name, err)
		}
		report.Results = append(report.Results, result)
	}
	if whole {
		if report.After, err = t.lastAudit(ctx); err != nil {
			return nil, err
		}
	}
	t.Concluded(report)
	if opts.Hold != nil {
		opts.Hold(ctx, t.place.dsn)
	}
	return report, nil
}

// A telling is one demo under way.
type telling struct {
	Narrator
	place *place
}

func (t *telling) opening(ctx context.Context) error {
	where := "a server that was started for this, and is gone afterwards"
	if !t.place.own {
		where = "the given server, in a database of its own that is dropped afterwards"
	}
	story := fmt.Sprintf(`PostgreSQL %s, %s. On it is a small shop: accounts, orders with their items, jobs, and events by month; 1200 orders in all.
The schema fencing is installed beside it. Nothing is protected yet, and the shop notices nothing.`, t.place.version, where)
	if t.place.redis != nil {
		story += fmt.Sprintf(" Some locks are in %s.", t.place.redis.what)
	}
	if t.place.etcd != nil {
		story += fmt.Sprintf(" Leaders are elected in %s.", t.place.etcd.what)
	}
	t.Chapter("An application", story)
	if err := t.place.load(ctx, shopSQL); err != nil {
		return fmt.Errorf("creating the demo's application: %w", err)
	}
	_, err := migrations.Up(ctx, t.place.pool, nil)
	return err
}

// scenario runs both forms.
func (t *telling) scenario(ctx context.Context, s Scenario) (Result, error) {
	t.Chapter(s.Title, s.Story)
	result := Result{Scenario: s}
	var err error
	if result.Without, err = t.round(ctx, s.without, false); err != nil {
		return Result{}, err
	}
	if result.With, err = t.round(ctx, s.with, true); err != nil {
		return Result{}, err
	}
	t.Paragraph(s.Lesson)
	return result, nil
}

func (t *telling) round(ctx context.Context, f form, protected bool) (_ Round, err error) {
	t.Round(protected, f.label)
	if err := t.script(ctx, f.setup); err != nil {
		return Round{}, fmt.Errorf("setting up (%s): %w", f.label, err)
	}
	// A lock that the run before has left held would be waited for.
	if err := t.script(ctx, "SELECT fencing.release_lease(name, owner, token) FROM fencing.lease"); err != nil {
		return Round{}, err
	}
	s := &stage{timeline: newTimeline(t.Event), place: t.place, fence: f.fence, holders: map[string]string{}}
	defer func() { err = errors.Join(err, s.leave(ctx)) }()
	v, err := f.play(ctx, s)
	if err != nil {
		return Round{}, err
	}
	round := Round{Label: f.label, Events: s.events, Verdict: v.text, Damaged: v.damaged}
	t.Ended(round)
	return round, nil
}

// script runs several statements in one transaction.
func (t *telling) script(ctx context.Context, sql string) error {
	_, err := t.place.pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// silence is the narrator of a demo that nobody watches.
type silence struct{}

func (silence) Chapter(string, string) {}
func (silence) Round(bool, string)     {}
func (silence) Event(Event)            {}
func (silence) Ended(Round)            {}
func (silence) Line(string)            {}
func (silence) Paragraph(string)       {}
func (silence) Concluded(*Report)      {}
