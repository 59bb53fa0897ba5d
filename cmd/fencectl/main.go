// Command fencectl puts fencing tokens into PostgreSQL and looks after them: it installs the SQL layer, protects tables,
// and shows and repairs what the fences hold. Run fencectl --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(withSignals(func(ctx context.Context) int {
		return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	}))
}

// withSignals cancels the context at the first SIGINT or SIGTERM, so that what is under way ends cleanly; a second one ends
// the process at once, as if nobody had caught it.
func withSignals(f func(context.Context) int) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(interrupted{s})
		case <-ctx.Done():
		}
	}()
	return f(ctx)
}
