// Package exampledb is the database that the runnable examples of the documentation run against: examples have no
// testing.TB, and should not begin with twenty lines of set-up.
package exampledb

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/migrations"
)

// One server for the process; it ends with the process (see internal/pgserver).
var server = sync.OnceValue(func() *pgserver.Server {
	server, err := pgserver.Start(context.Background(), nil)
	check(err)
	return server
})

// New returns a pool on a database of its own with the schema fencing and two tables, each with the rows 1 and 2: jobs (id, state), under the
// fence "jobs/nightly", and account (id, balance), under the fences "account/1" and "account/2". The example closes the pool.
func New() *pgxpool.Pool {
	pool, err := pgxpool.New(context.Background(), DSN())
	check(err)
	return pool
}

// DSN is New for those who connect themselves.
func DSN() string {
	ctx := context.Background()
	admin, err := pgxpool.New(ctx, server().DSN("postgres"))
	check(err)
	defer admin.Close()
	name := "example_" + strings.ToLower(rand.Text())
	_, err = admin.Exec(ctx, "CREATE DATABASE "+name)
	check(err)
	dsn := server().DSN(name)
	pool, err := pgxpool.New(ctx, dsn)
	check(err)
	defer pool.Close()
	_, err = migrations.Up(ctx, pool, nil)
	check(err)
	_, err = pool.Exec(ctx, `
		CREATE TABLE public.jobs (id bigint PRIMARY KEY, state text NOT NULL);
		INSERT INTO public.jobs VALUES (1, 'new'), (2, 'new');
		SELECT fencing.protect('public.jobs', fence => 'jobs/nightly');
		CREATE TABLE public.account (id bigint PRIMARY KEY, balance bigint NOT NULL);
		INSERT INTO public.account VALUES (1, 100), (2, 100);
		SELECT fencing.protect('public.account', fence => 'account/{id}')`)
	check(err)
	return dsn
}

func check(err error) {
	if err != nil {
		panic("exampledb: " + err.Error())
	}
}
