package check_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencectl/fencectl/internal/lint/check"
)

// manyFiles is a project of n files of queries, of five statements each.
func manyFiles(t testing.TB, n int) (dir string, options *check.Options) {
	t.Helper()
	dir = t.TempDir()
	migration := filepath.Join(dir, "1_tables.sql")
	write(t, migration, "CREATE TABLE jobs (id bigint PRIMARY KEY, state text); CREATE TABLE runs (id bigint); SELECT fencing.protect('jobs');")
	for i := range n {
		write(t, filepath.Join(dir, fmt.Sprintf("queries/%02d/q%d.sql", i%50, i)), fmt.Sprintf(`
-- name: Get%[1]d :one
SELECT j.*, r.id FROM jobs j LEFT JOIN runs r ON r.id = j.id WHERE j.id = $1 AND j.state IN ('open', 'waiting') ORDER BY j.id LIMIT 1;
-- name: Count%[1]d :one
SELECT state, count(*) FILTER (WHERE id > @since) FROM jobs GROUP BY state HAVING count(*) > 1;
-- name: Mark%[1]d :execrows
UPDATE jobs SET state = sqlc.arg(state), last_fencing_token = fencing.present(sqlc.arg(token)) WHERE id = @id AND last_fencing_token < sqlc.arg(token);
-- name: Move%[1]d :execrows
WITH moved AS (DELETE FROM jobs WHERE id = $1 AND last_fencing_token < fencing.present($2) RETURNING id) INSERT INTO runs SELECT id FROM moved;
-- name: Unfenced%[1]d :exec
UPDATE jobs SET state = 'open' WHERE id = $1;
`, i))
	}
	return dir, &check.Options{Dir: dir, Migrations: []string{migration}}
}

// BenchmarkLint measures a project of 2,000 files of queries, 10,000 statements.
func BenchmarkLint(b *testing.B) {
	dir, options := manyFiles(b, 2000)
	for b.Loop() {
		report, err := check.Run(b.Context(), []string{dir}, options)
		if err != nil {
			b.Fatal(err)
		}
		if report.Summary.Findings != 2000 || report.Summary.Statements != 10003 {
			b.Fatalf("%+v", report.Summary)
		}
	}
}

func TestProgressCountsEveryFile(t *testing.T) {
	t.Parallel()
	dir, options := manyFiles(t, 20)
	var calls, last atomic.Int64
	options.Progress = func(done, total int) {
		calls.Add(1)
		if done == total {
			last.Store(int64(total))
		}
	}
	if _, err := check.Run(t.Context(), []string{dir}, options); err != nil {
		t.Fatal(err)
	}
	if calls.Load() != 21 || last.Load() != 21 {
		t.Errorf("%d calls, of %d files at the end", calls.Load(), last.Load())
	}
}

var errStopped = errors.New("stopped")

func TestAnInterruptionEndsIt(t *testing.T) {
	t.Parallel()
	dir, options := manyFiles(t, 200)
	ctx, cancel := context.WithCancelCause(t.Context())
	options.Progress = func(done, _ int) {
		if done == 10 {
			cancel(errStopped)
		}
		if done > 20 {
			t.Error("it goes on")
		}
	}
	begun := time.Now()
	if _, err := check.Run(ctx, []string{dir}, options); !errors.Is(err, errStopped) {
		t.Errorf("after %s the error is %v", time.Since(begun), err)
	}
}
