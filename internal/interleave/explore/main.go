// Command explore runs the catalogue of internal/interleave on a throwaway PostgreSQL: every order of two sessions, a
// sample of the orders of three, and each of the known wrong designs, which has to be caught. It is for this project's
// developers; `make explore` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/interleave"
	"github.com/fencectl/fencectl/internal/pgserver"
	"github.com/fencectl/fencectl/migrations"
)

const usage = `Usage: explore [flags]

Runs transactions of lock holders in every order of their steps and checks what came of it. FENCECTL_PG_BIN selects the
PostgreSQL binaries.

Exit status: 0 when no promise was broken and every wrong design was caught; 1 otherwise, and for a replayed script
that breaks one; 2 when something could not be done.

`

var errFound = errors.New("a promise was broken, or a wrong design was not caught")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, errFound) && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "explore:", err)
	}
	os.Exit(exitStatus(err)) //nolint:forbidigo // this is main
}

func exitStatus(err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errFound):
		return 1
	default:
		return 2
	}
}

// options are the flags.
type options struct {
	seed    uint64
	sample  int
	workers int
	small   bool
	filter  string
	replay  string
	verbose bool
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("explore", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.Uint64Var(&o.seed, "seed", 0, "decides the sample of three sessions; 0 for a new one")
	flags.IntVar(&o.sample, "sample", 100, "how many orders of each scenario with three sessions")
	flags.IntVar(&o.workers, "workers", 2*runtime.NumCPU(), "how many runs at a time, each in a database of its own")
	flags.BoolVar(&o.small, "small", false, "the small catalogue that the tests run")
	flags.StringVar(&o.filter, "run", "", "only scenarios whose name matches this regular expression, and no wrong designs")
	flags.StringVar(&o.replay, "replay", "", "run the script in this file instead (- for standard input)")
	flags.BoolVar(&o.verbose, "v", false, "say what each scenario came to, and show the script that caught each wrong design")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is too much; see explore -h", flags.Arg(0))
	}

	// What the user got wrong is said before a server starts.
	var scenarios []*interleave.Scenario
	var script *interleave.Script
	if o.replay != "" {
		script, err = readScript(o.replay)
	} else {
		scenarios, err = o.scenarios()
	}
	if err != nil {
		return err
	}

	server, err := pgserver.Start(ctx, &pgserver.Options{Settings: map[string]string{
		"autovacuum": "off", "jit": "off", "max_connections": "200", "synchronous_commit": "off",
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	if script != nil {
		return replay(ctx, server, script, stdout)
	}
	return explore(ctx, server, scenarios, o, stdout)
}

// scenarios are those that the flags ask for.
func (o options) scenarios() ([]*interleave.Scenario, error) {
	extent := interleave.Full
	if o.small {
		extent = interleave.Small
	}
	wanted, err := regexp.Compile(o.filter)
	if err != nil {
		return nil, err
	}
	scenarios := slices.DeleteFunc(interleave.Scenarios(extent), func(s *interleave.Scenario) bool { return !wanted.MatchString(s.Name) })
	if len(scenarios) == 0 {
		return nil, fmt.Errorf("no scenario matches %q", o.filter)
	}
	return scenarios, nil
}

func readScript(file string) (*interleave.Script, error) {
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(os.Stdin)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	script, err := interleave.ParseScript(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return script, nil
}

// databases makes n databases with the schema fencing.
func databases(ctx context.Context, server *pgserver.Server, n int) ([]string, error) {
	const template = "explore_template"
	admin, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		return nil, err
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+template); err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, server.DSN(template))
	if err != nil {
		return nil, err
	}
	_, err = migrations.Up(ctx, pool, nil)
	pool.Close()
	if err != nil {
		return nil, err
	}
	all := make([]string, n)
	for i := range all {
		name := fmt.Sprintf("explore_%d", i)
		if _, err := admin.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, template)); err != nil {
			return nil, err
		}
		all[i] = server.DSN(name)
	}
	return all, nil
}

func replay(ctx context.Context, server *pgserver.Server, script *interleave.Script, stdout io.Writer) error {
	dsns, err := databases(ctx, server, 1)
	if err != nil {
		return err
	}
	h, err := interleave.Replay(ctx, dsns[0], script)
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, h.Script())
	if len(h.Violations) > 0 {
		return errFound
	}
	return nil
}

func explore(ctx context.Context, server *pgserver.Server, scenarios []*interleave.Scenario, o options, stdout io.Writer) error {
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	dsns, err := databases(ctx, server, o.workers)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "PostgreSQL %d, seed %d, %d scenarios\n", server.Version(), o.seed, len(scenarios))

	began := time.Now()
	var progress func(interleave.ScenarioResult)
	if o.verbose {
		progress = func(s interleave.ScenarioResult) {
			fmt.Fprintf(stdout, "%6d orders  %s\n", s.Orders, s.Scenario.Name)
		}
	}
	result, err := interleave.Explore(ctx, interleave.Options{
		Databases: dsns, Scenarios: scenarios, Sample: o.sample, Seed: o.seed, Progress: progress,
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	summarize(stdout, result)
	for _, h := range result.Violations {
		fmt.Fprintf(stdout, "\n%s", h.Script())
	}
	fmt.Fprintf(stdout, "%.0f s, %.0f interleavings a second\n", took.Seconds(), float64(result.Interleavings)/took.Seconds())

	caught, designs := 0, interleave.Designs()
	if o.filter != "" {
		designs = nil
	}
	for _, d := range designs {
		h, err := interleave.Catch(ctx, dsns[0], d)
		if err != nil {
			return fmt.Errorf("wrong design %s: %w", d.Name, err)
		}
		if h == nil {
			fmt.Fprintf(stdout, "NOT caught: %s, though %s\n", d.Name, d.Hole)
			continue
		}
		caught++
		fmt.Fprintf(stdout, "caught %s, which breaks %s: %s\n", d.Name, d.Breaks, d.Hole)
		if o.verbose {
			fmt.Fprintf(stdout, "%s\n", h.Script())
		}
	}
	fmt.Fprintf(stdout, "explored %d interleavings, %d violations, %d of %d wrong designs caught\n",
		result.Interleavings, len(result.Violations), caught, len(designs))
	if len(result.Violations) > 0 || caught < len(designs) {
		return errFound
	}
	return nil
}

// summarize prints a line for each family of scenarios, which differ in the fixture and the isolation levels alone.
func summarize(stdout io.Writer, result *interleave.Result) {
	type line struct {
		family                                              string
		scenarios, orders, waited, refused, failed, violate int
	}
	var lines []*line
	for _, s := range result.Scenarios {
		family, _, _ := strings.Cut(s.Scenario.Name, "/")
		i := slices.IndexFunc(lines, func(l *line) bool { return l.family == family })
		if i < 0 {
			i = len(lines)
			lines = append(lines, &line{family: family})
		}
		l := lines[i]
		l.scenarios++
		l.orders += s.Orders
		l.waited += s.Waited
		l.refused += s.Refused
		l.failed += s.Failed
		l.violate += len(s.Violated)
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenarios\torders\twith a wait\twith a refusal\tretry or deadlock\tviolations\t  ")
	for _, l := range lines {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t  %s\n", l.scenarios, l.orders, l.waited, l.refused, l.failed, l.violate, l.family)
	}
	_ = w.Flush() // of the writer that everything else here is printed to
}
