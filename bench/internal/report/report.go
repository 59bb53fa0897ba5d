// Package report makes what is published of a run from its results, and from nothing else: docs/benchmarks.md, its plots, and the
// figures in the README. The same results give the same bytes.
package report

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/runner"
	"github.com/fencectl/fencectl/bench/internal/stats"
)

// Paths in the repository.
const (
	LatestPath = "bench/results/latest.json"
	pagePath   = "docs/benchmarks.md"
	plotsPath  = "docs/benchmarks"
	readmePath = "README.md"
)

// Files are what is published, by path: all but the README, of which only a part is ours.
func Files(r *results.Results) map[string][]byte {
	plots := plotsOf(r)
	files := map[string][]byte{pagePath: []byte(page(r, plots))}
	for _, p := range plots {
		files[plotsPath+"/"+p.name+".svg"] = []byte(p.svg)
	}
	return files
}

// Write publishes results in the repository at root: everything is made before the first file is replaced, and each file is
// replaced whole.
func Write(root string, r *results.Results) error {
	files := Files(r)
	readme, err := os.ReadFile(filepath.Join(root, readmePath))
	if err != nil {
		return err
	}
	changed, err := insert(string(readme), headlines(r))
	if err != nil {
		return fmt.Errorf("%s: %w", readmePath, err)
	}
	files[readmePath] = []byte(changed)
	for path, content := range files {
		if err := results.Replace(filepath.Join(root, path), content); err != nil {
			return err
		}
	}
	// Plots of workloads that are measured no longer.
	old, err := filepath.Glob(filepath.Join(root, plotsPath, "*.svg"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if _, ok := files[plotsPath+"/"+filepath.Base(path)]; !ok {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// The README's figures are between these lines.
const (
	beginMark = "<!-- figures: made by make bench -->"
	endMark   = "<!-- end of figures -->"
)

func insert(readme, figures string) (string, error) {
	before, rest, ok := strings.Cut(readme, beginMark+"\n")
	_, after, ok2 := strings.Cut(rest, endMark+"\n")
	if !ok || !ok2 {
		return "", errors.New("the lines " + beginMark + " and " + endMark + " are not there")
	}
	return before + beginMark + "\n" + figures + endMark + "\n" + after, nil
}

// headlines are the README's.
func headlines(r *results.Results) string {
	if r.Run.Quick {
		return "- not measured in full yet: `make bench`\n"
	}
	var b strings.Builder
	line := func(name, format string) {
		if at := slices.IndexFunc(r.Figures, func(f results.Figure) bool { return f.Name == name }); at >= 0 {
			text := fmt.Sprintf(format, ratio(r.Figures[at].Value))
			if w := whether(r.Figures[at]); w != "" {
				text += " (no difference measured)"
			}
			fmt.Fprintf(&b, "- %s\n", text)
		}
	}
	line("row_single", "single-row transactions whose statement sets the token: **%s** times the rate of those with the hand-written predicate")
	line("row_single_presented", "single-row transactions that are unchanged and present their token with `BEGIN`: **%s** times that rate")
	line("row_bulk_set", "a bulk UPDATE whose statement sets the token: **%s** times as long as with the predicate")
	line("named_bulk", "a bulk UPDATE under a named fence: **%s** times as long as a plain one, however many rows")
	line("lease_vs_pglock", "acquiring and releasing a PostgreSQL lease with its token: **%s** times the rate of `cirello.io/pglock`")
	return b.String()
}

func ratio(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// number has three significant digits or all before the point, in groups of three.
func number(v float64) string {
	decimals := 0
	if v > 0 && v < 100 {
		decimals = max(0, 2-int(math.Floor(math.Log10(v))))
	}
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	digits, fraction, _ := strings.Cut(text, ".")
	if fraction != "" {
		return whole(digits) + "." + fraction
	}
	return whole(digits)
}

// whole groups the digits of a whole number.
func whole(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func page(r *results.Results, plots []plot) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("<!-- Made from %s by make bench, or make generate. Do not edit. -->", LatestPath)
	p("")
	p("# Benchmarks")
	p("")
	p("What fencectl costs, compared in one run on one server with what people write instead.")
	p("")
	p("```text")
	p("make bench          # all of it, in about ten minutes; replaces this page")
	p("make bench-quick    # everything small, in about a minute; only prints")
	p("```")
	p("")
	p("Both start servers of their own and remove them again. `go -C bench run . -only NAME,…` measures only some workloads or figures, `-list` names them.")
	p("")
	if r.Run.Quick {
		p("**This page is of a quick run, with few and short samples. Look at the noise before anything else; `make bench` replaces it.**")
		p("")
	}
	p("## Figures")
	p("")
	p("| figure | value | 95 %% interval | target | | noise |")
	p("| --- | ---: | --- | --- | --- | --- |")
	for _, f := range r.Figures {
		noise := ""
		if f.Noise > 0 {
			noise = fmt.Sprintf("±%s %%", percent(f.Noise))
		}
		p("| `%s` | %s | %s to %s | %s | %s | %s |", f.Name, value(f, f.Value), value(f, f.Low), value(f, f.High), target(f), verdict(f), noise)
	}
	p("")
	for _, f := range r.Figures {
		p("- `%s`: %s.%s", f.Name, f.Meaning, whether(f))
	}
	p("")
	if slices.ContainsFunc(plots, func(p plot) bool { return p.name == figuresPlot }) {
		p("![The figures with their intervals and targets](%s/%s.svg)", filepath.Base(plotsPath), figuresPlot)
		p("")
	}
	p("## How to read them")
	p("")
	p("Every repetition of a workload runs all its variants once, in a random order, after a run of each that does not count. A ratio compares")
	p("the two variants within each repetition, and is the median of those; where a figure is over several cells, their geometric mean. The interval holds it in 95 of")
	p("100 cases (percentile bootstrap over the repetitions).")
	p("")
	p("*Noise* is what the same thing, measured twice in the same repetitions, differed from itself by (the farther end of that interval). What")
	p("is no more than that, or whose interval holds 1, is given as *no difference measured*; in the tables it is marked `=`.")
	p("")
	p("Variants of one workload have tables of the same shape, each its own, and use the same driver (pgx), the same prepared statements and the")
	p("same form of transaction; each checks that it wrote the rows it should have.")
	p("")
	p("## Circumstances")
	p("")
	p("| | |")
	p("| --- | --- |")
	p("| date | %s |", r.Run.Date)
	p("| revision | `%s` |", r.Run.Revision)
	p("| duration | %.0f s |", r.Run.Seconds)
	p("| load before | %s |", strconv.FormatFloat(r.Run.Load, 'f', 2, 64))
	for _, facts := range [][]results.Fact{r.Run.Machine, r.Run.Versions} {
		for _, f := range facts {
			p("| %s | %s |", f.Name, f.Value)
		}
	}
	var set []string
	for _, f := range r.Run.Settings {
		set = append(set, "`"+f.Name+" = "+f.Value+"`")
	}
	p("| PostgreSQL settings | %s; else as shipped |", strings.Join(set, ", "))
	for _, g := range r.Measured {
		p("")
		p("## %s", g.Title)
		p("")
		p("%s", g.About)
		for _, what := range g.Missing {
			p("")
			p("Not measured in this run: %s.", what)
		}
		for _, plot := range plots {
			if plot.group == g.Name {
				p("")
				p("![%s](%s/%s.svg)", plot.alt, filepath.Base(plotsPath), plot.name)
			}
		}
		for _, cells := range byUnit(g.Cells) {
			p("")
			table(p, cells)
		}
	}
	return b.String()
}

func isRatio(f results.Figure) bool { return f.Base != "" }

func value(f results.Figure, v float64) string {
	if isRatio(f) {
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return number(v)
}

func percent(noise float64) string { return strconv.FormatFloat(100*(noise-1), 'f', 1, 64) }

func target(f results.Figure) string {
	switch {
	case f.Target == 0:
		return ""
	case f.AtMost:
		return "at most " + strconv.FormatFloat(f.Target, 'f', -1, 64)
	}
	return "at least " + strconv.FormatFloat(f.Target, 'f', -1, 64)
}

func verdict(f results.Figure) string {
	switch {
	case f.Target == 0:
		return ""
	case f.Met && f.Sure:
		return "met"
	case f.Met:
		return "met, not surely"
	case f.Sure:
		return "**missed**"
	}
	return "**missed**, not surely"
}

// whether says of a ratio whether there is a difference at all.
func whether(f results.Figure) string {
	if isRatio(f) && f.Noise > 0 && !f.Differs(f.Noise) {
		return " No difference measured."
	}
	return ""
}

// byUnit splits a workload's cells into those that fit into one table.
func byUnit(cells []results.Cell) [][]results.Cell {
	var units []runner.Unit
	for _, c := range cells {
		if !slices.Contains(units, c.Unit) {
			units = append(units, c.Unit)
		}
	}
	var all [][]results.Cell
	for _, unit := range units {
		all = append(all, slices.DeleteFunc(slices.Clone(cells), func(c results.Cell) bool { return c.Unit != unit }))
	}
	return all
}

// variants are those of the cells, in order.
func variants(cells []results.Cell) []string {
	var names []string
	for _, c := range cells {
		for _, s := range c.Variants {
			if !slices.Contains(names, s.Variant) {
				names = append(names, s.Variant)
			}
		}
	}
	return names
}

func find(c results.Cell, variant string) *runner.Samples {
	if at := slices.IndexFunc(c.Variants, func(s runner.Samples) bool { return s.Variant == variant }); at >= 0 {
		return &c.Variants[at]
	}
	return nil
}

// base is the variant of a cell that the others are compared with: its first, where it is measured twice; nil else.
func base(c results.Cell) *runner.Samples {
	if len(c.Variants) > 1 && c.Variants[1].Variant == c.Variants[0].Variant+results.Again {
		return &c.Variants[0]
	}
	return nil
}

// noise is what the base differs from itself by, as a factor.
func noise(c results.Cell) float64 {
	if base(c) == nil {
		return 1
	}
	return stats.Ratio([2][]float64{c.Variants[1].Values, c.Variants[0].Values}).Noise()
}

func table(p func(string, ...any), cells []results.Cell) {
	head, rule := "| "+unitName(cells[0].Unit), "| ---"
	for _, c := range cells {
		head += " | " + label(c.Name)
		rule += " | ---:"
	}
	p("%s |", head)
	p("%s |", rule)
	for _, variant := range variants(cells) {
		row := "| " + variant
		for _, c := range cells {
			s := find(c, variant)
			if s == nil {
				row += " | "
				continue
			}
			row += " | " + number(s.Median)
			if b := base(c); b != nil && b != s && s != &c.Variants[1] {
				r := stats.Ratio([2][]float64{s.Values, b.Values})
				if r.Differs(noise(c)) {
					row += " (×" + ratio(r.Value) + ")"
				} else {
					row += " (=)"
				}
			}
		}
		p("%s |", row)
	}
	var spread []string
	for _, c := range cells {
		if base(c) != nil {
			spread = append(spread, fmt.Sprintf("%s ±%s %%", label(c.Name), percent(noise(c))))
		}
	}
	p("")
	text := "Medians of " + repetitions(cells) + " repetitions."
	if len(spread) > 0 {
		text += " In brackets: times the first line. Noise: " + strings.Join(spread, ", ") + "."
	}
	p("%s", text)
}

func repetitions(cells []results.Cell) string {
	low, high := math.MaxInt, 0
	for _, c := range cells {
		for _, s := range c.Variants {
			low, high = min(low, len(s.Values)), max(high, len(s.Values))
		}
	}
	if low == high {
		return strconv.Itoa(low)
	}
	return fmt.Sprintf("%d to %d", low, high)
}

func unitName(u runner.Unit) string {
	if u == runner.PerSecond {
		return "per second"
	}
	return "milliseconds"
}

// label is a cell's name for people: what comes after the workload's, with words for numbers of clients and commit modes.
func label(cell string) string {
	parts := strings.Split(cell, "/")[1:]
	var words []string
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		switch {
		case err == nil && i+1 < len(parts) && n == 1:
			words = append(words, "1 client")
		case err == nil && i+1 < len(parts):
			words = append(words, part+" clients")
		case err == nil:
			words = append(words, whole(strconv.Itoa(n)))
		case part == "on":
			words = append(words, "synchronous")
		case part == "off":
			words = append(words, "asynchronous")
		default:
			words = append(words, part)
		}
	}
	return strings.Join(words, ", ")
}
