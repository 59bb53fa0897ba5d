package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// choice is a flag with a fixed set of values.
type choice struct {
	value   string
	allowed []string
}

var _ pflag.Value = (*choice)(nil)

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.allowed, "|") }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.allowed, value) {
		return fmt.Errorf("use %s", strings.Join(c.allowed, " or "))
	}
	c.value = value
	return nil
}

func choiceFlag(cmd *cobra.Command, c *choice, name, usage string) {
	cmd.Flags().Var(c, name, usage)
	// The error is about a flag that does not exist, and this one was defined a line ago.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.allowed, cobra.ShellCompDirectiveNoFileComp))
}

// The values of --format.
const (
	formatTable = "table"
	formatJSON  = "json"
)

func formatFlag(cmd *cobra.Command) *choice {
	c := &choice{value: formatTable, allowed: []string{formatTable, formatJSON}}
	choiceFlag(cmd, c, "format", "how to print")
	return c
}

func (c *choice) json() bool { return c.value == formatJSON }

// printJSON writes one indented document.
func printJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(document)
}

// listing is a table for people: a header, and columns of which some may be wrapped to fit the width.
type listing struct {
	header []string
	wrap   []int // the columns, from 0, that give way when the line is too long
	right  []int // the columns of numbers
	rows   [][]string
}

const columnGap = 2

func (a *app) printListing(l listing) {
	width := a.width()
	widths := make([]int, len(l.header))
	for _, row := range append([][]string{l.header}, l.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(cell))
		}
	}
	shrink(widths, l.wrap, width-columnGap*(len(widths)-1))

	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", strings.Repeat(" ", columnGap)
	style.Format.Header = text.FormatDefault
	if a.colour() {
		style.Color.Header = text.Colors{text.Bold}
	}
	t.SetStyle(style)
	header := make(table.Row, len(l.header))
	configs := make([]table.ColumnConfig, len(l.header))
	for i, title := range l.header {
		header[i] = title
		configs[i] = table.ColumnConfig{Number: i + 1, WidthMax: widths[i], WidthMaxEnforcer: func(cell string, width int) string {
			return strings.Join(wrapText(cell, width), "\n")
		}}
		if slices.Contains(l.right, i) {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(header)
	for _, row := range l.rows {
		cells := make(table.Row, len(row))
		for i, cell := range row {
			cells[i] = cell
		}
		t.AppendRow(cells)
	}
	for line := range strings.Lines(t.Render()) {
		fmt.Fprintln(a.stdout, strings.TrimRight(line, " \n"))
	}
}

// shrink takes width from the widest of the columns that may give way until all fit, but leaves each readable.
func shrink(widths, flexible []int, available int) {
	const narrowest = 10
	for {
		total := 0
		for _, w := range widths {
			total += w
		}
		widest := -1
		for _, i := range flexible {
			if widths[i] > narrowest && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if total <= available || widest < 0 {
			return
		}
		widths[widest]--
	}
}

// width is the terminal's, else what COLUMNS says, else 80.
func (a *app) width() int {
	if f, ok := a.outputFile(); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	if width, err := strconv.Atoi(a.getenv("COLUMNS")); err == nil && width >= 40 {
		return width
	}
	return 80
}

// colour: only on a terminal, and not where NO_COLOR asks for none (no-color.org).
func (a *app) colour() bool {
	f, ok := a.outputFile()
	return ok && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

func (a *app) outputFile() (*os.File, bool) {
	if checked, ok := a.stdout.(*checkedWriter); ok {
		f, ok := checked.w.(*os.File)
		return f, ok
	}
	return nil, false
}

// terminal says whether somebody is watching stderr.
func (a *app) terminal() bool {
	f, ok := a.stderr.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// at prints a time for people: local to whoever reads it, to the second.
func at(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// counted is "1 table" or "3 tables".
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// wrapText breaks a text into lines of at most width, at spaces where it can and in the middle of a long word where it must.
func wrapText(s string, width int) []string {
	if text.StringWidthWithoutEscSequences(s) <= width {
		return []string{s} // exactly: a name may have two spaces in a row
	}
	var lines []string
	line, used := "", 0
	for _, word := range strings.Fields(s) {
		length := text.StringWidthWithoutEscSequences(word)
		if used > 0 && used+1+length <= width {
			line, used = line+" "+word, used+1+length
			continue
		}
		if used > 0 {
			lines = append(lines, line)
		}
		line, used = "", 0
		for _, r := range word {
			w := text.RuneWidth(r)
			if used+w > width {
				lines = append(lines, line)
				line, used = "", 0
			}
			line, used = line+string(r), used+w
		}
	}
	return append(lines, line)
}
