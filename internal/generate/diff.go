package generate

import (
	"fmt"
	"strings"
)

// contextLines is the number of unchanged lines around a change.
const contextLines = 3

// An edit is a line that is kept (' '), removed ('-') or added ('+').
type edit struct {
	kind byte
	line string
}

// unified is a unified diff, as diff -u and git apply know it; "" when nothing differs.
func unified(oldName, newName string, a, b []string) string {
	edits := compare(a, b)
	var out strings.Builder
	oldLine, newLine, from := 1, 1, 0
	advance := func(to int) {
		for ; from < to; from++ {
			if edits[from].kind != '+' {
				oldLine++
			}
			if edits[from].kind != '-' {
				newLine++
			}
		}
	}
	for _, h := range hunks(edits) {
		if out.Len() == 0 {
			fmt.Fprintf(&out, "--- %s\n+++ %s\n", oldName, newName)
		}
		advance(h.begin)
		hunk(&out, edits[h.begin:h.end], oldLine, newLine)
	}
	return out.String()
}

type stretch struct{ begin, end int }

// hunks are the stretches of edits that are shown: each change with its context, those whose contexts meet in one.
func hunks(edits []edit) []stretch {
	var found []stretch
	for i, e := range edits {
		if e.kind == ' ' {
			continue
		}
		h := stretch{max(0, i-contextLines), min(len(edits), i+1+contextLines)}
		if last := len(found) - 1; last >= 0 && h.begin <= found[last].end {
			found[last].end = h.end
			continue
		}
		found = append(found, h)
	}
	return found
}

func hunk(out *strings.Builder, edits []edit, oldLine, newLine int) {
	oldCount, newCount := 0, 0
	for _, e := range edits {
		if e.kind != '+' {
			oldCount++
		}
		if e.kind != '-' {
			newCount++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(oldLine, oldCount), span(newLine, newCount))
	for _, e := range edits {
		fmt.Fprintf(out, "%c%s", e.kind, e.line)
		if !strings.HasSuffix(e.line, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// span is a range of lines; an empty one is named by the line before it.
func span(line, count int) string {
	switch count {
	case 0:
		return fmt.Sprintf("%d,0", line-1)
	case 1:
		return fmt.Sprint(line)
	}
	return fmt.Sprintf("%d,%d", line, count)
}

// compare finds a shortest series of edits between two texts (Myers, An O(ND) Difference Algorithm, 1986).
func compare(a, b []string) []edit {
	offset := len(a) + len(b) + 1
	furthest := make([]int, 2*offset+1)
	var history [][]int
	for d := 0; ; d++ {
		history = append(history, append([]int(nil), furthest[offset-d-1:offset+d+2]...))
		for k := -d; k <= d; k += 2 {
			var x int
			if k == -d || k != d && furthest[offset+k-1] < furthest[offset+k+1] {
				x = furthest[offset+k+1]
			} else {
				x = furthest[offset+k-1] + 1
			}
			y := x - k
			for x < len(a) && y < len(b) && a[x] == b[y] {
				x, y = x+1, y+1
			}
			furthest[offset+k] = x
			if x >= len(a) && y >= len(b) {
				return backtrack(a, b, history, d)
			}
		}
	}
}

func backtrack(a, b []string, history [][]int, d int) []edit {
	var reversed []edit
	x, y := len(a), len(b)
	for ; d >= 0; d-- {
		at := func(k int) int { return history[d][k+d+1] }
		k := x - y
		previous := k - 1
		if k == -d || k != d && at(k-1) < at(k+1) {
			previous = k + 1
		}
		fromX := at(previous)
		fromY := fromX - previous
		if d == 0 {
			fromX, fromY = 0, 0
		}
		for x > fromX && y > fromY {
			x, y = x-1, y-1
			reversed = append(reversed, edit{' ', a[x]})
		}
		if d == 0 {
			break
		}
		if x == fromX {
			y--
			reversed = append(reversed, edit{'+', b[y]})
		} else {
			x--
			reversed = append(reversed, edit{'-', a[x]})
		}
	}
	for i, j := 0, len(reversed)-1; i < j; i, j = i+1, j-1 {
		reversed[i], reversed[j] = reversed[j], reversed[i]
	}
	return reversed
}
