// Package results is what a run of the benchmarks leaves behind: bench/results/latest.json. All that is published is made from it.
package results

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/fencectl/fencectl/bench/internal/runner"
	"github.com/fencectl/fencectl/bench/internal/stats"
)

// Version is the version of the file's shape.
const Version = 1

// Results are one run's.
type Results struct {
	Version int `json:"version"`
	// Ratios are the values of Figures by name, for programs.
	Ratios   map[string]float64 `json:"ratios"`
	Figures  []Figure           `json:"figures"`
	Run      Circumstances      `json:"run"`
	Measured []Group            `json:"workloads"`
}

// Circumstances are under what a run was made.
type Circumstances struct {
	Date     string  `json:"date"`     // of its beginning, RFC 3339, UTC
	Revision string  `json:"revision"` // of the work tree, with "-dirty" when that had changes
	Quick    bool    `json:"quick"`
	Seconds  float64 `json:"seconds"`
	Machine  []Fact  `json:"machine"`
	Versions []Fact  `json:"versions"`
	Settings []Fact  `json:"settings"` // of the server, where they are not its defaults
	// Load is the machine's load average (1 minute) before the run: what else was going on.
	Load float64 `json:"load_before"`
}

// A Fact is a name and a value.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// A Group is a workload's cells.
type Group struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	About string `json:"about"`
	// Missing is what could not be measured, because it is not installed.
	Missing []string `json:"missing,omitempty"`
	Cells   []Cell   `json:"cells"`
}

// A Cell is a runner.Cell's samples.
type Cell struct {
	Name     string           `json:"name"`
	Unit     runner.Unit      `json:"unit"`
	Variants []runner.Samples `json:"variants"`
}

// Again is put behind the name of a variant for the second one of the same: what differs between the two is noise.
const Again = ", again"

// A Ratio is a figure that is kept, and may have a target: how many times as much as the base the variant does, or takes.
type Ratio struct {
	Name    string   `json:"name"`
	Meaning string   `json:"meaning"`
	Cells   []string `json:"cells"` // more than one: the geometric mean over them
	Variant string   `json:"variant"`
	Base    string   `json:"base"` // empty: the figure is the variant's own median, not a ratio
	Same    string   `json:"same"` // the variant that was measured twice, for the noise; empty for none
	Target  float64  `json:"target"`
	AtMost  bool     `json:"at_most"` // the target is an upper bound: less is better
}

// A Figure is a Ratio as it came out.
type Figure struct {
	Ratio
	stats.Estimate
	// Noise is what the same, measured against itself in the same cells, differed by, as a factor; 0 where that was not measured.
	Noise float64 `json:"noise"`
	// Met tells whether the target holds for the value; Sure, whether it does, or does not, for the whole interval.
	Met  bool `json:"met"`
	Sure bool `json:"sure"`
}

// Find returns a variant's samples in a cell, nil when it was not measured.
func Find(groups []Group, cell, variant string) *runner.Samples {
	for _, g := range groups {
		for _, c := range g.Cells {
			if c.Name != cell {
				continue
			}
			if at := slices.IndexFunc(c.Variants, func(s runner.Samples) bool { return s.Variant == variant }); at >= 0 {
				return &c.Variants[at]
			}
		}
	}
	return nil
}

// Evaluate makes the figures of the ratios whose samples are all there.
func Evaluate(ratios []Ratio, groups []Group) []Figure {
	var figures []Figure
	for _, r := range ratios {
		f := Figure{Ratio: r}
		of, noise := pairs(r.Cells, r.Variant, r.Base, groups), pairs(r.Cells, r.Same, r.Same+Again, groups)
		switch {
		case of == nil:
			continue
		case r.Base == "": // the value itself; its interval is that of the median
			f.Estimate = stats.Ratio(of...)
		default:
			f.Estimate = stats.Ratio(of...)
			if noise != nil {
				f.Noise = stats.Ratio(noise...).Noise()
			}
		}
		if r.Target != 0 {
			reaches := func(v float64) bool { return v >= r.Target != r.AtMost || v == r.Target }
			f.Met = reaches(f.Value)
			f.Sure = reaches(f.Low) == reaches(f.High)
		}
		figures = append(figures, f)
	}
	return figures
}

// pairs are the samples of two variants in each of the cells; nil when one is missing. Without a second variant it is as if that were
// always 1.
func pairs(cells []string, one, other string, groups []Group) [][2][]float64 {
	var all [][2][]float64
	for _, cell := range cells {
		a := Find(groups, cell, one)
		if a == nil {
			return nil
		}
		if other == "" {
			all = append(all, [2][]float64{a.Values, slices.Repeat([]float64{1}, len(a.Values))})
			continue
		}
		b := Find(groups, cell, other)
		if b == nil {
			return nil
		}
		all = append(all, [2][]float64{a.Values, b.Values})
	}
	return all
}

// Read reads a file of results.
func Read(path string) (*Results, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Results)
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if r.Version != Version {
		return nil, fmt.Errorf("%s: version %d, not %d", path, r.Version, Version)
	}
	return r, nil
}

// Encode is the file's content.
func (r *Results) Encode() ([]byte, error) {
	content, err := json.MarshalIndent(r, "", "  ")
	return append(content, '\n'), err
}

// Replace puts content in the place of a file, whole or not at all.
func Replace(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // gone already, if all went well
	_, err = temporary.Write(content)
	if err == nil {
		err = temporary.Chmod(0o644)
	}
	if closeErr := temporary.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
