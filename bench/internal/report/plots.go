package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/fencectl/fencectl/bench/internal/results"
	"github.com/fencectl/fencectl/bench/internal/runner"
	"github.com/fencectl/fencectl/bench/internal/stats"
)

// A plot is one SVG. It has no background, and colours for light and for dark ones.
type plot struct {
	name, group, alt, svg string
}

const figuresPlot = "figures"

// plotsOf are the plots of results, in the order of the page.
func plotsOf(r *results.Results) []plot {
	var all []plot
	if svg := plotFigures(r.Figures); svg != "" {
		all = append(all, plot{name: figuresPlot, svg: svg})
	}
	for _, g := range r.Measured {
		for _, cells := range byUnit(g.Cells) {
			name := g.Name
			if cells[0].Unit == runner.Milliseconds {
				name += "-time"
			}
			switch {
			case base(cells[0]) != nil && numbered(cells) && len(cells) > 2:
				all = append(all, plot{name, g.Name, g.Title + ": time as a multiple of the plain statement's, by size", curve(cells)})
			case base(cells[0]) != nil:
				all = append(all, plot{name, g.Name, g.Title + ": each variant as a multiple of the first", multiples(cells)})
			case len(variants(cells)) > 1:
				all = append(all, plot{name, g.Name, g.Title + ": each variant", absolute(cells)})
			}
		}
	}
	return all
}

// numbered tells whether the cells differ by a number alone.
func numbered(cells []results.Cell) bool {
	for _, c := range cells {
		if _, err := strconv.Atoi(c.Name[strings.LastIndexByte(c.Name, '/')+1:]); err != nil {
			return false
		}
	}
	return true
}

// canvas collects an SVG's elements.
type canvas struct {
	b             strings.Builder
	width, height float64
}

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(&c.b, format+"\n", args...) }

func (c *canvas) text(x, y float64, anchor, class, text string) {
	c.add(`<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class, html.EscapeString(text))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	c.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// Colours of series that people with any kind of colour vision can tell apart (Okabe and Ito), a little darker on light ground.
var (
	light = []string{"#0072b2", "#d55e00", "#00805c", "#a8477f", "#8a6d00", "#3287b8", "#555555", "#7a4fd0"}
	dark  = []string{"#56b4e9", "#ff8a3d", "#2ec49a", "#e58fc0", "#e6c229", "#9ad0f5", "#bbbbbb", "#b79cff"}
)

func (c *canvas) String() string {
	var style strings.Builder
	style.WriteString("text{font:12px system-ui,sans-serif;fill:#24292f}.small{font-size:11px}.faint{fill:#57606a}.grid{stroke:#d0d7de}.axis{stroke:#57606a}.target{stroke:#cf222e;stroke-width:2}.band{fill:#afb8c1;fill-opacity:.35}")
	for i, colour := range light {
		fmt.Fprintf(&style, ".f%d{fill:%s}.s%d{stroke:%s;stroke-width:2;fill:none}", i, colour, i, colour)
	}
	style.WriteString("@media(prefers-color-scheme:dark){text{fill:#e6edf3}.faint{fill:#9198a1}.grid{stroke:#3d444d}.axis{stroke:#9198a1}.target{stroke:#ff7b72}.band{fill:#656c76}")
	for i, colour := range dark {
		fmt.Fprintf(&style, ".f%d{fill:%s}.s%d{stroke:%s}", i, colour, i, colour)
	}
	style.WriteString("}")
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img">`+"\n<style>%s</style>\n%s</svg>\n",
		c.width, c.height, c.width, c.height, style.String(), c.b.String())
}

// scale is a logarithmic axis.
type scale struct{ low, high, from, to float64 }

func (s scale) at(v float64) float64 {
	v = min(max(v, s.low), s.high)
	return s.from + (s.to-s.from)*(math.Log(v)-math.Log(s.low))/(math.Log(s.high)-math.Log(s.low))
}

// fit is an axis that holds the values and 1, 2 or 5 times a power of ten at the ends.
func fit(values []float64, from, to float64) scale {
	low, high := values[0], values[0]
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	marks := steps(low/10, high*10)
	s := scale{marks[0], marks[len(marks)-1], from, to}
	for _, m := range marks {
		if m <= low*1.001 {
			s.low = m
		}
	}
	for i := len(marks) - 1; i >= 0; i-- {
		if marks[i] >= high*0.999 {
			s.high = marks[i]
		}
	}
	if s.low == s.high {
		s.high *= 2
	}
	return s
}

// steps are 1, 2 and 5 times the powers of ten between two values.
func steps(low, high float64) []float64 {
	var marks []float64
	for exponent := math.Floor(math.Log10(low)); exponent <= math.Ceil(math.Log10(high)); exponent++ {
		for _, digit := range []float64{1, 2, 5} {
			// As text, so that 0.1 is 0.1.
			m, err := strconv.ParseFloat(fmt.Sprintf("%ge%g", digit, exponent), 64)
			if err == nil && m >= low*0.999 && m <= high*1.001 {
				marks = append(marks, m)
			}
		}
	}
	return marks
}

// marks are where the axis is labelled: fewer where many would crowd.
func (s scale) marks() []float64 {
	all := steps(s.low, s.high)
	if len(all) <= 10 {
		return all
	}
	var tens []float64
	for _, m := range all {
		if l := math.Log10(m); math.Abs(l-math.Round(l)) < 1e-6 {
			tens = append(tens, m)
		}
	}
	return tens
}

func mark(v float64) string {
	if v >= 1000 {
		return number(v)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

const (
	plotWidth = 860.0
	labels    = 250.0 // room for the names on the left
	rowHeight = 26.0
)

// plotFigures shows the ratios with their intervals, and where their targets are.
func plotFigures(figures []results.Figure) string {
	var shown []results.Figure
	values := []float64{1}
	for _, f := range figures {
		if isRatio(f) {
			shown = append(shown, f)
			values = append(values, f.Low, f.High)
			if f.Target != 0 {
				values = append(values, f.Target)
			}
		}
	}
	if len(shown) == 0 {
		return ""
	}
	c := &canvas{width: plotWidth, height: float64(len(shown))*rowHeight + 50}
	x := fit(values, labels, plotWidth-150)
	bottom := c.height - 40
	c.axis(x, bottom, "times the base; red: the target, and the side on which it is met")
	c.line(x.at(1), 6, x.at(1), bottom, "axis")
	for i, f := range shown {
		y := 18 + float64(i)*rowHeight
		c.text(labels-12, y+4, "end", "", f.Name)
		if f.Target != 0 {
			t, side := x.at(f.Target), 8.0
			if f.AtMost {
				side = -8
			}
			c.line(t, y-8, t, y+8, "target")
			c.line(t, y, t+side, y, "target")
		}
		c.line(x.at(f.Low), y, x.at(f.High), y, "s0")
		c.add(`<circle cx="%.1f" cy="%.1f" r="4.5" class="f0"/>`, x.at(f.Value), y)
		said := ratio(f.Value)
		if f.Target != 0 {
			said += map[bool]string{true: "  met", false: "  missed"}[f.Met]
		}
		c.text(plotWidth-140, y+4, "start", "small", said)
	}
	return c.String()
}

func (c *canvas) axis(x scale, bottom float64, title string) {
	for _, m := range x.marks() {
		c.line(x.at(m), 6, x.at(m), bottom, "grid")
		c.text(x.at(m), bottom+15, "middle", "small faint", mark(m))
	}
	c.text((x.from+x.to)/2, bottom+33, "middle", "small faint", title)
}

// legend names the series below the axis, in as many lines as they need, and makes room for those.
func (c *canvas) legend(cells []results.Cell, left float64) {
	x, y := left, c.height-8
	for i, cell := range cells {
		name := label(cell.Name)
		width := 26 + 6.5*float64(len(name))
		if x+width > plotWidth && x > left {
			x, y = left, y+18
		}
		c.add(`<circle cx="%.1f" cy="%.1f" r="4" class="f%d"/>`, x, y, i%len(light))
		c.text(x+8, y+4, "start", "small", name)
		x += width
	}
	c.height = y + 10
}

// multiples shows every variant but the base as a multiple of it, a dot for each cell.
func multiples(cells []results.Cell) string {
	type dot struct {
		row, series int
		stats.Estimate
	}
	rows := variants(cells)[2:]
	var dots []dot
	values, worst := []float64{1}, 1.0
	for i, c := range cells {
		worst = max(worst, noise(c))
		for row, variant := range rows {
			if s := find(c, variant); s != nil {
				e := stats.Ratio([2][]float64{s.Values, base(c).Values})
				dots = append(dots, dot{row, i, e})
				values = append(values, e.Low, e.High)
			}
		}
	}
	values = append(values, worst, 1/worst)
	height := max(rowHeight, float64(len(cells))*9+10)
	c := &canvas{width: plotWidth, height: float64(len(rows))*height + 70}
	x := fit(values, labels, plotWidth-30)
	bottom := c.height - 60
	c.add(`<rect x="%.1f" y="6" width="%.1f" height="%.1f" class="band"/>`, x.at(1/worst), x.at(worst)-x.at(1/worst), bottom-6)
	title := "times the rate of " + variants(cells)[0] + "; grey: noise"
	if cells[0].Unit == runner.Milliseconds {
		title = "times as long as " + variants(cells)[0] + "; grey: noise"
	}
	c.axis(x, bottom, title)
	c.line(x.at(1), 6, x.at(1), bottom, "axis")
	for row, variant := range rows {
		c.text(labels-12, 6+(float64(row)+.5)*height+4, "end", "", variant)
	}
	for _, d := range dots {
		y := 6 + (float64(d.row)+.5)*height + (float64(d.series)-float64(len(cells)-1)/2)*9
		c.line(x.at(d.Low), y, x.at(d.High), y, "s"+strconv.Itoa(d.series%len(light)))
		c.add(`<circle cx="%.1f" cy="%.1f" r="3.5" class="f%d"/>`, x.at(d.Value), y, d.series%len(light))
	}
	c.legend(cells, labels)
	return c.String()
}

// absolute shows every variant's median with its quartiles, a dot for each cell, beside the number.
func absolute(cells []results.Cell) string {
	rows := variants(cells)
	var values []float64
	for _, c := range cells {
		for _, s := range c.Variants {
			values = append(values, s.Q1, s.Q3, s.Median)
		}
	}
	height := max(rowHeight, float64(len(cells))*11+8)
	c := &canvas{width: plotWidth, height: float64(len(rows))*height + 70}
	x := fit(values, labels+30, plotWidth-40)
	bottom := c.height - 60
	c.axis(x, bottom, unitName(cells[0].Unit)+"; the line is from the first to the third quartile")
	for row, variant := range rows {
		c.text(labels+18, 6+(float64(row)+.5)*height+4, "end", "", variant)
		for i, cell := range cells {
			s := find(cell, variant)
			if s == nil {
				continue
			}
			y := 6 + (float64(row)+.5)*height + (float64(i)-float64(len(cells)-1)/2)*11
			c.line(x.at(s.Q1), y, x.at(s.Q3), y, "s"+strconv.Itoa(i%len(light)))
			c.add(`<circle cx="%.1f" cy="%.1f" r="4" class="f%d"/>`, x.at(s.Median), y, i%len(light))
		}
	}
	c.legend(cells, labels+30)
	return c.String()
}

// curve shows how the time of each variant, as a multiple of the base's, changes with the size.
func curve(cells []results.Cell) string {
	const right, bottomMargin = 230.0, 44.0
	names := variants(cells)[1:]
	type point struct{ size, value float64 }
	series := make([][]point, len(names))
	values, sizes := []float64{1}, []float64{}
	for _, cell := range cells {
		size, err := strconv.ParseFloat(cell.Name[strings.LastIndexByte(cell.Name, '/')+1:], 64)
		if err != nil {
			continue // numbered has seen to it
		}
		sizes = append(sizes, size)
		for i, name := range names {
			if s := find(cell, name); s != nil {
				v := stats.Ratio([2][]float64{s.Values, base(cell).Values}).Value
				series[i] = append(series[i], point{size, v})
				values = append(values, v)
			}
		}
	}
	c := &canvas{width: plotWidth, height: 380}
	x := fit(sizes, 60, plotWidth-right)
	y := fit(values, c.height-bottomMargin, 12)
	c.axis(x, c.height-bottomMargin, "rows or fences; upwards: times as long as "+variants(cells)[0])
	for _, m := range y.marks() {
		c.line(60, y.at(m), plotWidth-right, y.at(m), "grid")
		c.text(52, y.at(m)+4, "end", "small faint", mark(m))
	}
	c.line(60, y.at(1), plotWidth-right, y.at(1), "axis")
	// Names beside their curves' ends, moved apart.
	type end struct {
		y float64
		i int
	}
	var ends []end
	for i, points := range series {
		var path strings.Builder
		for j, p := range points {
			fmt.Fprintf(&path, "%s%.1f %.1f", map[bool]string{true: "M", false: " L"}[j == 0], x.at(p.size), y.at(p.value))
			c.add(`<circle cx="%.1f" cy="%.1f" r="3" class="f%d"/>`, x.at(p.size), y.at(p.value), i%len(light))
		}
		dash := ""
		if i >= len(light) || names[i] == variants(cells)[0]+results.Again {
			dash = ` stroke-dasharray="4 3"`
		}
		c.add(`<path d="%s" class="s%d"%s/>`, path.String(), i%len(light), dash)
		ends = append(ends, end{y.at(points[len(points)-1].value), i})
	}
	for sorted := false; !sorted; {
		sorted = true
		for j := 1; j < len(ends); j++ {
			if ends[j].y < ends[j-1].y {
				ends[j], ends[j-1], sorted = ends[j-1], ends[j], false
			}
		}
	}
	next := 16.0
	for j, e := range ends {
		next = max(next, min(e.y+4, c.height-bottomMargin-15*float64(len(ends)-1-j)))
		dash := ""
		if e.i >= len(light) || names[e.i] == variants(cells)[0]+results.Again {
			dash = ` stroke-dasharray="4 3"`
		}
		c.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="s%d"%s/>`, plotWidth-right+12, next-4, plotWidth-right+32, next-4, e.i%len(light), dash)
		c.text(plotWidth-right+38, next, "start", "small", names[e.i])
		next += 15
	}
	return c.String()
}
