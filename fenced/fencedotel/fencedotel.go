// Package fencedotel records what fenced and tokensrc do as OpenTelemetry metrics. It is apart from them so that a program which
// does not use it compiles nothing of OpenTelemetry.
//
//	metrics, err := fencedotel.New(otel.GetMeterProvider())
//	source = tokensrc.Observe(source, metrics)
//	err = fenced.RunWith(ctx, pool, grants, &fenced.RunOptions{Observer: metrics}, fn)
//
// The instruments are
//
//	fencing.acquisitions          attempts to get a lock, by outcome: granted, held, cancelled, incarnation, error
//	fencing.acquisition.duration  seconds, with the wait, by outcome
//	fencing.grants.active         locks held now
//	fencing.grant.duration        seconds a lock was held, by end: released, lost, cancelled
//	fencing.claims                claims of a fence, by outcome: ok, a kind of refusal (fenced.Kind), source_behind, error
//	fencing.claim.duration        seconds, with the wait for older writers
//	fencing.evictions             sessions of older holders that were ended
//	fencing.transactions          attempts to run a fenced transaction, by outcome: ok, a kind of refusal, grant_ended, unknown, error
//	fencing.transaction.duration  seconds
//
// Names of locks are not attributes unless [WithLockNames] says so: there may be one for every account.
package fencedotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/tokensrc"
)

// Metrics implements [fenced.Observer] and [tokensrc.Observer].
type Metrics struct {
	lockNames bool

	acquisitions        metric.Int64Counter
	acquisitionDuration metric.Float64Histogram
	grants              metric.Int64UpDownCounter
	grantDuration       metric.Float64Histogram
	claims              metric.Int64Counter
	claimDuration       metric.Float64Histogram
	evictions           metric.Int64Counter
	transactions        metric.Int64Counter
	transactionDuration metric.Float64Histogram
}

var (
	_ fenced.Observer   = (*Metrics)(nil)
	_ tokensrc.Observer = (*Metrics)(nil)
)

// An Option changes what is recorded.
type Option func(*Metrics)

// WithLockNames adds the attribute fencing.lock. Use it where the names are few.
func WithLockNames() Option { return func(m *Metrics) { m.lockNames = true } }

// New makes the instruments.
func New(provider metric.MeterProvider, options ...Option) (*Metrics, error) {
	meter := provider.Meter("github.com/fencectl/fencectl/fenced")
	m := new(Metrics)
	for _, option := range options {
		option(m)
	}
	var errs []error
	counter := func(name, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	duration := func(name, description string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithDescription(description), metric.WithUnit("s"))
		errs = append(errs, err)
		return h
	}
	m.acquisitions = counter("fencing.acquisitions", "Attempts to get a lock.")
	m.acquisitionDuration = duration("fencing.acquisition.duration", "How long getting a lock took, with the wait.")
	m.grantDuration = duration("fencing.grant.duration", "How long locks were held.")
	m.claims = counter("fencing.claims", "Claims of a fence.")
	m.claimDuration = duration("fencing.claim.duration", "How long claims took, with the wait for older writers.")
	m.evictions = counter("fencing.evictions", "Sessions of older holders that were ended.")
	m.transactions = counter("fencing.transactions", "Attempts to run a fenced transaction.")
	m.transactionDuration = duration("fencing.transaction.duration", "How long fenced transactions took.")
	var err error
	m.grants, err = meter.Int64UpDownCounter("fencing.grants.active", metric.WithDescription("Locks held now."))
	return m, errors.Join(append(errs, err)...)
}

func (m *Metrics) attributes(lock, key, value string) metric.MeasurementOption {
	attributes := make([]attribute.KeyValue, 0, 2)
	if key != "" {
		attributes = append(attributes, attribute.String(key, value))
	}
	if m.lockNames {
		attributes = append(attributes, attribute.String("fencing.lock", lock))
	}
	return metric.WithAttributeSet(attribute.NewSet(attributes...))
}

// Acquired implements [tokensrc.Observer].
func (m *Metrics) Acquired(ctx context.Context, event tokensrc.AcquireEvent) {
	outcome := "granted"
	switch {
	case event.Err == nil:
		m.grants.Add(ctx, 1, m.attributes(event.Name, "", ""))
	case errors.Is(event.Err, tokensrc.ErrHeld):
		outcome = "held"
	case errors.Is(event.Err, tokensrc.ErrIncarnation):
		outcome = "incarnation"
	case ctx.Err() != nil:
		outcome = "cancelled"
	default:
		outcome = "error"
	}
	attributes := m.attributes(event.Name, "outcome", outcome)
	m.acquisitions.Add(ctx, 1, attributes)
	m.acquisitionDuration.Record(ctx, event.Took.Seconds(), attributes)
}

// Ended implements [tokensrc.Observer].
func (m *Metrics) Ended(ctx context.Context, event tokensrc.EndEvent) {
	end := "cancelled"
	switch {
	case event.Lost():
		end = "lost"
	case errors.Is(event.Cause, tokensrc.ErrReleased):
		end = "released"
	}
	m.grants.Add(ctx, -1, m.attributes(event.Name, "", ""))
	m.grantDuration.Record(ctx, event.Held.Seconds(), m.attributes(event.Name, "end", end))
}

// Claimed implements [fenced.Observer].
func (m *Metrics) Claimed(ctx context.Context, event fenced.ClaimEvent) {
	outcome := outcomeOf(event.Err)
	if errors.Is(event.Err, fenced.ErrSourceBehind) {
		outcome = "source_behind"
	}
	attributes := m.attributes(event.Fence, "outcome", outcome)
	m.claims.Add(ctx, 1, attributes)
	m.claimDuration.Record(ctx, event.Took.Seconds(), attributes)
	if event.Evicted > 0 {
		m.evictions.Add(ctx, int64(event.Evicted), m.attributes(event.Fence, "", ""))
	}
}

// Ran implements [fenced.Observer].
func (m *Metrics) Ran(ctx context.Context, event fenced.RunEvent) {
	attributes := m.attributes(event.Fence, "outcome", outcomeOf(event.Err))
	m.transactions.Add(ctx, 1, attributes)
	m.transactionDuration.Record(ctx, event.Took.Seconds(), attributes)
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case fenced.Kind(err) != "":
		return fenced.Kind(err)
	case errors.Is(err, fenced.ErrOutcomeUnknown):
		return "unknown"
	case errors.Is(err, fenced.ErrGrantEnded):
		return "grant_ended"
	}
	return "error"
}
