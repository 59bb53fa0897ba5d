package pgtest_test

import (
	"testing"

	"github.com/fencectl/fencectl/internal/pgtest"
)

func TestNewHasTheSchemaAndNewEmptyDoesNot(t *testing.T) {
	t.Parallel()
	const query = "SELECT pg_catalog.to_regnamespace('fencing') IS NOT NULL"
	if !pgtest.Value[bool](t, pgtest.New(t), query) {
		t.Error("New made a database without the schema fencing")
	}
	if pgtest.Value[bool](t, pgtest.NewEmpty(t), query) {
		t.Error("NewEmpty made a database with the schema fencing")
	}
}

func TestAClonedDatabaseIsIndependentOfTheTemplate(t *testing.T) {
	t.Parallel()
	first := pgtest.New(t)
	one := pgtest.Value[int64](t, first, "SELECT fencing.next_token()")
	pgtest.Exec(t, first, "SELECT fencing.next_token()")
	if got := pgtest.Value[int64](t, pgtest.New(t), "SELECT fencing.next_token()"); got != one {
		t.Errorf("the second database's first token is %d, want %d: the databases share state", got, one)
	}
}
