package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/fencectl/fencectl/bench/internal/runner"
)

// auditEvery is which share of an audited database's tables is protected: every tenth.
const auditEvery = 10

func auditCell(tables int) string { return fmt.Sprintf("audit/%d", tables) }

const audited = "fencectl audit"

var auditWorkload = Workload{
	Name: "audit", Title: "Audit",
	About: "`fencectl audit --format json` of a database with so many tables, every tenth of them protected, from the start of the process to its end.",
	build: func(ctx context.Context, b *bench) ([]runner.Cell, error) {
		program, err := b.program(ctx)
		if err != nil {
			return nil, err
		}
		var cells []runner.Cell
		made := 0
		for _, tables := range b.scale.Tables {
			if !b.selection.wantsCell(auditCell(tables)) {
				continue
			}
			cells = append(cells, runner.Cell{
				Name: auditCell(tables), Unit: runner.Milliseconds, Repetitions: 5,
				// The sizes grow: what the smaller one had is part of the larger.
				BeforeRepetition: func(ctx context.Context) error {
					err := b.auditedTables(ctx, made, tables)
					made = max(made, tables)
					return err
				},
				Variants: []runner.Variant{{
					Name: audited,
					Run: runner.Elapsed(1, func(ctx context.Context) error {
						return output(program(ctx, "audit", "--format", "json", "--fail-on", "never"))
					}),
				}},
			})
		}
		return cells, nil
	},
}

// auditedTables makes tables from one number to another, in transactions of a size that the server's lock table holds.
func (b *bench) auditedTables(ctx context.Context, from, to int) error {
	const atOnce = 500
	for first := from + 1; first <= to; first += atOnce {
		if err := b.exec(ctx, fmt.Sprintf(`DO $$
			BEGIN
			    FOR i IN %d..%d LOOP
			        EXECUTE format('CREATE TABLE public.audited_%%s (id bigint PRIMARY KEY, state text, changed_at timestamptz)', i);
			        IF i %% %d = 0 THEN
			            PERFORM fencing.protect(format('public.audited_%%s', i)::regclass);
			        END IF;
			    END LOOP;
			END $$`, first, min(to, first+atOnce-1), auditEvery)); err != nil {
			return err
		}
	}
	if from < to {
		return b.exec(ctx, "VACUUM (ANALYZE)")
	}
	return nil
}

// program builds fencectl, and returns what makes commands of it that use the benchmark's database.
func (b *bench) program(ctx context.Context) (func(ctx context.Context, args ...string) *exec.Cmd, error) {
	dir, err := os.MkdirTemp("", "bench-fencectl-")
	if err != nil {
		return nil, err
	}
	b.later(func(context.Context) error { return os.RemoveAll(dir) })
	path := filepath.Join(dir, "fencectl")
	build := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/fencectl")
	build.Dir = b.selection.Root
	if err := output(build); err != nil {
		return nil, err
	}
	return func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Dir = dir // no fencectl.yaml here, and none above
		cmd.Env = append(os.Environ(), "FENCECTL_DSN="+b.server.DSN(database))
		return cmd
	}, nil
}

// output runs a command, and puts what it said into the error when it fails.
func output(cmd *exec.Cmd) error {
	if _, err := cmd.Output(); err != nil {
		err = fmt.Errorf("%s: %w", cmd.Args[0], err)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return err
	}
	return nil
}
