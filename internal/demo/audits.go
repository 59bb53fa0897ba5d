package demo

import (
	"context"
	"fmt"

	"github.com/fencectl/fencectl/internal/protect"
	"github.com/fencectl/fencectl/internal/tableref"
)

// A Finding is what an audit found about one object.
type Finding struct {
	Rule, Object, Message string
}

// protectAll is what the shop's next migration says, with a reason for each line.
var protectAll = []struct{ why, sql string }{
	{"one writer at a time for each job", "SELECT fencing.protect('shop.jobs')"},
	{"each order is written once per grant; the column was there", "SELECT fencing.protect('shop.orders')"},
	{"items are written several times under one grant", "SELECT fencing.protect('shop.order_items', mode => 'reentrant')"},
	{"what is read decides what is written: claimed before", "SELECT fencing.protect('shop.accounts', fence => 'account/{account_id}')"},
	{"bulk work, one lock for the whole table", "SELECT fencing.protect('shop.events', fence => 'events/archive')"},
}

func (t *telling) firstAudit(ctx context.Context) ([]Finding, error) {
	t.Chapter("An audit", "Which tables can anybody write without a token? It asks the catalog: a constant number of queries, nothing is changed.")
	return t.audit(ctx)
}

func (t *telling) lastAudit(ctx context.Context) ([]Finding, error) {
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

func (t *telling) audit(ctx context.Context) ([]Finding, error) {
	catalog, err := tableref.Read(ctx, t.place.pool)
	if err != nil {
		return nil, err
	}
	current, err := protect.Current(ctx, t.place.pool)
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, table := range catalog.Tables() {
		if _, ok := current[table.OID]; !ok {
			findings = append(findings, Finding{"unfenced-table", table.Quoted, "no guard: anybody can write it without a token"})
		}
	}
	for _, f := range findings {
		t.Line(fmt.Sprintf("%s  %s: %s", f.Rule, f.Object, f.Message))
	}
	t.Line(fmt.Sprintf("%d tables, %d findings", len(catalog.Tables()), len(findings)))
	return findings, nil
}
