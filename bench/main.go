// Command bench measures fencectl against what people write instead, and writes what came out to results/latest.json,
// docs/benchmarks.md and the README. See docs/benchmarks.md for what is measured, and how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/fencectl/fencectl/bench/internal/machine"
	"github.com/fencectl/fencectl/bench/internal/report"
	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/runner"
	"github.com/fencectl/fencectl/bench/internal/servers"
	"github.com/fencectl/fencectl/bench/internal/workload"
	"github.com/fencectl/fencectl/internal/pgserver"
)

func main() {
	if isServer, err := servers.Main(os.Args); isServer {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
}

const usage = `bench [-quick] [-only NAME,…] [-repetitions N] [-seed N] [-root DIR]

Measures on a throwaway PostgreSQL of its own. Without -quick and -only it then replaces bench/results/latest.json,
docs/benchmarks.md with its plots, and the figures in the README; an interrupted or failed run changes nothing. With either
it only prints.

`

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	quick := flags.Bool("quick", false, "everything small, in about a minute")
	only := flags.String("only", "", "measure only these `workloads` or ratios, separated by commas")
	list := flags.Bool("list", false, "list workloads and ratios")
	repetitions := flags.Int("repetitions", 0, "measure everything so many times, instead of as often as planned; the fewer, the wider the intervals")
	seed := flags.Uint64("seed", 1, "of the order in which variants are run")
	root := flags.String("root", "..", "the repository's `directory`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	scale := workload.Full
	if *quick {
		scale = workload.Quick
	}
	if *repetitions > 0 {
		scale = scale.Repeated(*repetitions)
	}
	if *list {
		return listAll(stdout, scale)
	}
	var names []string
	if *only != "" {
		names = strings.Split(*only, ",")
	}
	selection, err := workload.Select(scale, *root, names)
	if err != nil {
		return err
	}

	begun := time.Now()
	r := &results.Results{Version: results.Version, Ratios: map[string]float64{}}
	r.Run = results.Circumstances{
		Date: begun.UTC().Format(time.RFC3339), Quick: *quick, Load: machine.Load(),
		Revision: machine.Revision(ctx, *root), Versions: machine.Versions(ctx),
	}
	if r.Run.Machine, err = machine.Facts(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		r.Run.Settings = append(r.Run.Settings, results.Fact{Name: name, Value: settings[name]})
	}
	if err := measure(ctx, selection, rand.New(rand.NewPCG(*seed, *seed)), r, stdout, stderr); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause // and not what a statement made of it
		}
		return err
	}
	r.Run.Seconds = time.Since(begun).Seconds()
	r.Figures = results.Evaluate(scale.Ratios(), r.Measured)
	for _, f := range r.Figures {
		r.Ratios[f.Name] = f.Value
	}
	printFigures(stdout, r.Figures)
	if *quick || *only != "" {
		return nil
	}
	for _, ratio := range scale.Ratios() {
		if _, ok := r.Ratios[ratio.Name]; !ok {
			return fmt.Errorf("%s could not be measured, so nothing is written", ratio.Name)
		}
	}
	content, err := r.Encode()
	if err != nil {
		return err
	}
	// As whoever makes the page anew will see it: read back.
	latest := filepath.Join(*root, report.LatestPath)
	if err := results.Replace(latest, content); err != nil {
		return err
	}
	if r, err = results.Read(latest); err != nil {
		return err
	}
	return report.Write(*root, r)
}

// measure runs the selection on a server of its own.
func measure(ctx context.Context, selection *workload.Selection, random *rand.Rand, r *results.Results, stdout, stderr io.Writer) (err error) {
	begun := time.Now()
	server, err := pgserver.Start(ctx, &pgserver.Options{Durable: true, Settings: settings})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	version, err := workload.ServerVersion(ctx, server)
	if err != nil {
		return err
	}
	r.Run.Versions = append([]results.Fact{{Name: "PostgreSQL", Value: version}}, r.Run.Versions...)
	fmt.Fprintf(stderr, "PostgreSQL %s is up\n", version)
	for _, w := range selection.Workloads() {
		group := results.Group{Name: w.Name, Title: w.Title, About: w.About}
		group.Missing, err = selection.Measure(ctx, server, w, func(cell runner.Cell) error {
			samples, err := runner.Run(ctx, cell, random)
			if err != nil {
				return err
			}
			group.Cells = append(group.Cells, results.Cell{Name: cell.Name, Unit: cell.Unit, Variants: samples})
			printCell(stdout, cell, samples)
			return nil
		})
		if err != nil {
			return err
		}
		r.Measured = append(r.Measured, group)
		fmt.Fprintf(stderr, "%s done after %.0f s\n", w.Name, time.Since(begun).Seconds())
	}
	return nil
}

// settings of the server; all else is as shipped. Durable: fsync and full_page_writes are on.
var settings = map[string]string{
	"shared_buffers":     "1GB",
	"max_wal_size":       "16GB", // no checkpoint but those that the workloads ask for
	"checkpoint_timeout": "1h",
	"autovacuum":         "off", // the workloads vacuum between two samples
	"jit":                "off",
}

func listAll(w io.Writer, scale workload.Scale) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, load := range workload.All() {
		fmt.Fprintf(out, "%s\t%s\n", load.Name, load.Title)
	}
	for _, r := range scale.Ratios() {
		fmt.Fprintf(out, "%s\t%s\n", r.Name, r.Meaning)
	}
	return out.Flush()
}

func printCell(w io.Writer, cell runner.Cell, samples []runner.Samples) {
	fmt.Fprintf(w, "\n%s\n", cell.Name)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, s := range samples {
		fmt.Fprintf(out, "%s\t%s\t%s\tto %s\t%.3f\t\n", s.Variant, number(s.Median)+" "+string(cell.Unit), number(s.Q1), number(s.Q3), s.Median/samples[0].Median)
	}
	_ = out.Flush()
}

// number has about three significant digits.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func printFigures(w io.Writer, figures []results.Figure) {
	fmt.Fprintln(w)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FIGURE\tVALUE\t95 % INTERVAL\tNOISE\tTARGET\t")
	for _, f := range figures {
		target := ""
		if f.Target != 0 {
			target = map[bool]string{false: ">= ", true: "<= "}[f.AtMost] + fmt.Sprint(f.Target) + map[bool]string{false: "  MISSED", true: "  met"}[f.Met]
			if !f.Sure {
				target += " (the interval holds both)"
			}
		}
		noise := ""
		if f.Noise > 0 {
			noise = fmt.Sprintf("± %.1f %%", 100*(f.Noise-1))
		}
		fmt.Fprintf(out, "%s\t%.3f\t%.3f to %.3f\t%s\t%s\n", f.Name, f.Value, f.Low, f.High, noise, target)
	}
	_ = out.Flush()
}
