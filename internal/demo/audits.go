package demo

import (
	"context"
	"fmt"

	"github.com/fencectl/fencectl/internal/audit"
)

// protectAll is what the shop's next migration says, with a reason for each line.
var protectAll = []struct{ why, sql string }{
	{"one writer at a time for each job", "SELECT fencing.protect('shop.jobs')"},
	{"each order is written once per grant; the column was there", "SELECT fencing.protect('shop.orders')"},
	{"items are written several times under one grant", "SELECT fencing.protect('shop.order_items', mode => 'reentrant')"},
	{"what is read decides what is written: claimed before", "SELECT fencing.protect('shop.accounts', fence => 'account/{account_id}')"},
	{"bulk work, one lock for the whole table", "SELECT fencing.protect('shop.events', fence => 'events/archive')"},
}

func (t *telling) firstAudit(ctx context.Context) (*audit.Report, error) {
	t.Chapter("An audit", "Which tables can anybody write without a token? It asks the catalog: a constant number of queries, nothing is changed.")
	return t.audit(ctx)
}

func (t *telling) lastAudit(ctx context.Context) (*audit.Report, error) {
	t.Chapter("Every table, and the audit again", `What is not protected yet is protected now, each table as its use demands. A migration of the application's own would contain just these
lines. Then the same audit again.`)
	for _, step := range protectAll {
		t.Line("-- " + step.why)
		t.Line(step.sql + ";")
		if err := t.script(ctx, step.sql); err != nil {
			return nil, err
		}
	}
	return t.audit(ctx)
}

func (t *telling) audit(ctx context.Context) (*audit.Report, error) {
	// The demo is one role for all, which owns the tables: no fault of theirs.
	report, err := audit.Run(ctx, t.place.pool, &audit.Options{Severities: map[string]audit.Severity{"owner-can-bypass": audit.Off}})
	if err != nil {
		return nil, fmt.Errorf("auditing: %w", err)
	}
	for _, f := range report.Findings {
		t.Line(fmt.Sprintf("%s: %s: %s %s", f.Severity, f.Rule, f.Object, f.Message))
	}
	t.Line(fmt.Sprintf("%d tables, %d of them fenced; %d findings", report.Summary.Tables, report.Summary.Fenced, report.Summary.Findings))
	return report, nil
}
