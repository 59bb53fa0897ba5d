// Command render makes docs/benchmarks.md, its plots and the README's figures anew from bench/results/latest.json.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fencectl/fencectl/bench/internal/report"
	"github.com/fencectl/fencectl/bench/internal/results"
)

func main() {
	root := ".."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	r, err := results.Read(filepath.Join(root, report.LatestPath))
	if err == nil {
		err = report.Write(root, r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(2)
	}
}
