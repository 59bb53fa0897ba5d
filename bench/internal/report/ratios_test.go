package report_test

import "github.com/fencectl/fencectl/bench/internal/results"

// ratios are of the samples in testdata/results.json.
var ratios = []results.Ratio{
	{Name: "row_single", Meaning: "rate presented over predicate", Cells: []string{"row/8/on"}, Variant: "presented", Base: "predicate", Same: "plain", Target: 0.97},
	{Name: "row_same", Meaning: "rate predicate over plain", Cells: []string{"row/8/on"}, Variant: "predicate", Base: "plain", Same: "plain", Target: 0.9},
	{Name: "bulk", Meaning: "time named over plain", Cells: []string{"bulk/100"}, Variant: "named", Base: "plain", Same: "plain", Target: 1.25, AtMost: true},
	{Name: "audit_ms", Meaning: "milliseconds", Cells: []string{"audit/10"}, Variant: "audit", Target: 100, AtMost: true},
}
