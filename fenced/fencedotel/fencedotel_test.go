package fencedotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/fenced/fencedotel"
	"github.com/fencectl/fencectl/internal/pgtest"
	"github.com/fencectl/fencectl/tokensrc"
	"github.com/fencectl/fencectl/tokensrc/postgres"
)

func TestGrantsClaimsAndRefusalsAreCounted(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	metrics, err := fencedotel.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), fencedotel.WithLockNames())
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text)`)
	pgtest.Exec(t, pool, `INSERT INTO public.jobs VALUES (1, 'new')`)
	pgtest.Exec(t, pool, `SELECT fencing.protect('public.jobs', fence => 'jobs')`)
	ctx := t.Context()

	ended := make(chan struct{}, 2)
	source := tokensrc.Observe(postgres.NewLease(pool, nil), endings{metrics, ended})
	claim := func(grant fenced.Grant) error {
		return fenced.ClaimWith(ctx, pool, []fenced.Grant{grant}, &fenced.ClaimOptions{Observer: metrics})
	}
	write := func(grant fenced.Grant) error {
		return fenced.RunWith(ctx, pool, []fenced.Grant{grant}, &fenced.RunOptions{Observer: metrics}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE public.jobs SET state = 'x'`)
			return err
		})
	}

	first, err := source.Acquire(ctx, "jobs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.TryAcquire(ctx, "jobs"); !errors.Is(err, tokensrc.ErrHeld) {
		t.Fatal(err)
	}
	old := fenced.NewGrant("jobs", first.Token())
	if err := errors.Join(claim(first), write(first), first.Release(ctx)); err != nil {
		t.Fatal(err)
	}
	<-ended
	second, err := source.Acquire(ctx, "jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Release(context.WithoutCancel(ctx))
	if err := claim(second); err != nil {
		t.Fatal(err)
	}
	if err := claim(old); !errors.Is(err, fenced.ErrStale) {
		t.Fatal(err)
	}
	if err := write(old); !errors.Is(err, fenced.ErrStale) {
		t.Fatal(err)
	}

	want := []string{
		"fencing.acquisitions granted jobs 2",
		"fencing.acquisitions held jobs 1",
		"fencing.claims ok jobs 2",
		"fencing.claims stale jobs 1",
		"fencing.grants.active  jobs 1",
		"fencing.transactions ok jobs 1",
		"fencing.transactions stale jobs 1",
	}
	if diff := cmp.Diff(want, sums(t, reader)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// endings tells when a grant's end has been recorded.
type endings struct {
	*fencedotel.Metrics
	ended chan<- struct{}
}

func (e endings) Ended(ctx context.Context, event tokensrc.EndEvent) {
	e.Metrics.Ended(ctx, event)
	e.ended <- struct{}{}
}

func sums(t *testing.T, reader sdkmetric.Reader) []string {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok {
				continue
			}
			for _, point := range sum.DataPoints {
				outcome, _ := point.Attributes.Value("outcome")
				lock, _ := point.Attributes.Value("fencing.lock")
				lines = append(lines, fmt.Sprintf("%s %s %s %d", m.Name, outcome.AsString(), lock.AsString(), point.Value))
			}
		}
	}
	slices.Sort(lines)
	return lines
}
