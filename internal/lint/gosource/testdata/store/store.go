// Package store is a program as the linter meets it.
package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint/gosource/testdata/store/db"
)

const table = "jobs"

const mark = "UPDATE " + table + // in two parts
	" SET state = 'done ä' WHERE id = $1"

var unmark = `
	UPDATE jobs
	   SET state = 'open'`

var rewritten = "UPDATE jobs SET state = 'first'"

type Store struct {
	pool *pgxpool.Pool
	sql  *sql.DB
}

func (s *Store) Unfenced(ctx context.Context, id int64) error {
	rewritten = "UPDATE jobs SET state = 'second'"
	if _, err := s.pool.Exec(ctx, mark, id); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, rewritten); err != nil { // not guessed at
		return err
	}
	if _, err := s.pool.Exec(ctx, fmt.Sprintf("UPDATE %s SET state = 'x'", table)); err != nil { // nor this
		return err
	}
	if _, err := s.sql.ExecContext(ctx, unmark); err != nil {
		return err
	}
	statement, err := s.sql.PrepareContext(ctx, "DELETE FROM jobs WHERE note = '\t\u00e4' AND id = $1")
	if err != nil {
		return err
	}
	defer statement.Close()
	query := "UPDATE jobs SET state = 'local'"
	if _, err := s.run(ctx, query); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	batch.Queue("DELETE FROM jobs")
	//fencectl:ignore unfenced-write nobody holds the lock at the start
	batch.Queue("DELETE FROM jobs WHERE state = 'new'") // fencectl:ignore token-source this line alone
	_, err = s.pool.CopyFrom(ctx, pgx.Identifier{"public", table}, []string{"id"}, nil)
	return err
}

// run is in the image of pgx's.
func (s *Store) run(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	return s.pool.Exec(ctx, query, args...)
}

func (s *Store) named(ctx context.Context, name string) pgx.Row {
	return s.pool.QueryRow(ctx, "SELECT $1", name)
}

func (s *Store) Fenced(ctx context.Context, grant fenced.Grant, id int64) error {
	_ = s.named(ctx, "not a statement")
	err := fenced.Run(ctx, s.pool, grant, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE jobs SET state = 'in Run'"); err != nil {
			return err
		}
		if err := s.step(ctx, tx); err != nil {
			return err
		}
		return db.New(tx).Mark(ctx, id)
	})
	if err != nil {
		return err
	}
	return s.inTransaction(ctx, grant, s.handed)
}

// step is only called in fenced.Run.
func (s *Store) step(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "UPDATE jobs SET state = 'in step'")
	return err
}

// inTransaction is the program's own fenced.Run.
func (s *Store) inTransaction(ctx context.Context, grant fenced.Grant, fn func(pgx.Tx) error) error {
	return fenced.Run(ctx, s.pool, grant, func(tx pgx.Tx) error { return fn(tx) })
}

func (s *Store) handed(tx pgx.Tx) error {
	_, err := tx.Exec(context.Background(), "UPDATE jobs SET state = 'handed over'")
	return err
}

func (s *Store) Presents(ctx context.Context, tx pgx.Tx, grant fenced.Grant) error {
	if _, err := tx.Exec(ctx, "UPDATE jobs SET state = 'too early'"); err != nil {
		return err
	}
	if err := fenced.Present(ctx, tx, grant); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "UPDATE jobs SET state = 'after'")
	return err
}

func (s *Store) Both(ctx context.Context, id int64) error { return db.New(s.pool).Twice(ctx, id) }

func (s *Store) BothFenced(ctx context.Context, grant fenced.Grant, id int64) error {
	return fenced.Run(ctx, s.pool, grant, func(tx pgx.Tx) error { return db.New(tx).Twice(ctx, id) })
}
