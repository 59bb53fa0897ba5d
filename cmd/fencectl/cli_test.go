package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgtest"
)

// cli runs fencectl's commands as a shell would, but for the process.
type cli struct {
	t   *testing.T
	ctx context.Context
	env map[string]string
}

// newCLI is fencectl pointed at a database by FENCECTL_DSN.
func newCLI(t *testing.T, dsn string) *cli {
	t.Helper()
	return &cli{t: t, ctx: t.Context(), env: map[string]string{"FENCECTL_DSN": dsn}}
}

// outcome is what one command did.
type outcome struct {
	status int
	stdout string
	stderr string
}

func (c *cli) run(args ...string) outcome {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	status := run(c.ctx, args, strings.NewReader(""), &stdout, &stderr, func(name string) string { return c.env[name] })
	return outcome{status, stdout.String(), stderr.String()}
}

// ok runs a command that must succeed and returns its standard output.
func (c *cli) ok(args ...string) string {
	c.t.Helper()
	o := c.run(args...)
	if o.status != 0 {
		c.t.Fatalf("fencectl %s: exit status %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), o.status, o.stdout, o.stderr)
	}
	return o.stdout
}

// fails runs a command that must fail with the status and with one line of error that has all the parts, and returns it.
func (c *cli) fails(status int, parts []string, args ...string) string {
	c.t.Helper()
	o := c.run(args...)
	name := "fencectl " + strings.Join(args, " ")
	if o.status != status {
		c.t.Errorf("%s: exit status %d, want %d\nstdout: %s\nstderr: %s", name, o.status, status, o.stdout, o.stderr)
	}
	line, rest, _ := strings.Cut(o.stderr, "\n")
	if rest != "" || !strings.HasPrefix(line, "fencectl: ") {
		c.t.Errorf("%s: want exactly one line of error, got:\n%s", name, o.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(line, part) {
			c.t.Errorf("%s: the error does not name %q: %s", name, part, line)
		}
	}
	return line
}

// decode runs a command with --format json and reads its output into document.
func (c *cli) decode(document any, args ...string) {
	c.t.Helper()
	out := c.ok(append(args, "--format", "json")...)
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(document); err != nil {
		c.t.Fatalf("fencectl %s: %v in %s", strings.Join(args, " "), err, out)
	}
}

// shop is a database with the fencing schema and a few tables, and fencectl pointed at it.
func shop(t *testing.T) (*pgxpool.Pool, *cli) {
	t.Helper()
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, tables)
	return pool, newCLI(t, pgtest.DSN(t, pool))
}

const tables = `
	CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text NOT NULL);
	INSERT INTO public.jobs VALUES (1, 'waiting'), (2, 'waiting');
	CREATE TABLE public.orders (id bigint PRIMARY KEY, total bigint NOT NULL);
	CREATE TABLE public."Order Items" (id bigint PRIMARY KEY, note text);
	CREATE SCHEMA billing;
	CREATE TABLE billing.accounts (account_id bigint PRIMARY KEY, balance bigint NOT NULL);
	CREATE TABLE billing.events (id bigint, at date NOT NULL) PARTITION BY RANGE (at);
	CREATE TABLE billing.events_2026 PARTITION OF billing.events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
	CREATE VIEW billing.rich AS SELECT * FROM billing.accounts WHERE balance > 1000;`
