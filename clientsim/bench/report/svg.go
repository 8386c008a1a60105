package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// drawing is an SVG under construction. Colours are classes: the page's style gives them theirs,
// light or dark.
type drawing struct {
	width, height float64
	body          strings.Builder
}

// plotWidth is that of every plot, in the pixels of a page at its full width.
const plotWidth = 1000

func draw(height float64) *drawing { return &drawing{width: plotWidth, height: height} }

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&d.body, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

// rect has a tooltip, unless it is empty.
func (d *drawing) rect(class string, x, y, width, height float64, tooltip string) {
	fmt.Fprintf(&d.body, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f">%s</rect>`, class, x, y, width, height, title(tooltip))
}

func (d *drawing) dot(class string, x, y, radius float64, tooltip string) {
	fmt.Fprintf(&d.body, `<circle class="%s" cx="%.1f" cy="%.1f" r="%.1f">%s</circle>`, class, x, y, radius, title(tooltip))
}

// text is anchored at its start, middle or end.
func (d *drawing) text(class, anchor string, x, y float64, text string) {
	fmt.Fprintf(&d.body, `<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`, class, anchor, x, y, template.HTMLEscapeString(text))
}

// upright is text that reads upwards, centred at a point: the name of a vertical axis.
func (d *drawing) upright(class string, x, y float64, text string) {
	fmt.Fprintf(&d.body, `<text class="%s" text-anchor="middle" transform="translate(%.1f %.1f) rotate(-90)">%s</text>`,
		class, x, y, template.HTMLEscapeString(text))
}

type point struct{ x, y float64 }

// path joins points; a single one becomes a short dash.
func (d *drawing) path(class string, points []point, tooltip string) {
	if len(points) == 0 {
		return
	}
	if len(points) == 1 {
		points = []point{{points[0].x - 3, points[0].y}, {points[0].x + 3, points[0].y}}
	}
	var path strings.Builder
	for i, p := range points {
		fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], p.x, p.y)
	}
	fmt.Fprintf(&d.body, `<path class="%s" d="%s">%s</path>`, class, path.String(), title(tooltip))
}

func title(tooltip string) string {
	if tooltip == "" {
		return ""
	}
	return "<title>" + template.HTMLEscapeString(tooltip) + "</title>"
}

// place puts another drawing at a point of this one, at its own size.
func (d *drawing) place(other *drawing, x, y float64) {
	fmt.Fprintf(&d.body, `<g transform="translate(%.1f %.1f)">%s</g>`, x, y, other.body.String())
}

// done returns the SVG. All text in it is escaped above.
func (d *drawing) done(label string) template.HTML { return d.doneWith("", label) }

// doneWith returns the SVG with a style of its own, for a picture without a page.
func (d *drawing) doneWith(style, label string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">%s%s</svg>`,
		d.width, d.height, template.HTMLEscapeString(label), style, d.body.String()))
}

// scale maps values from least..greatest to pixels from low..high.
type scale struct {
	least, greatest, low, high float64
	log                        bool
}

func (s scale) at(v float64) float64 {
	least, greatest := s.least, s.greatest
	if s.log {
		v, least, greatest = math.Log10(max(v, s.least)), math.Log10(least), math.Log10(greatest)
	}
	return s.low + (v-least)/(greatest-least)*(s.high-s.low)
}

// tick is a line across a plot; one without a label is fainter.
type tick struct {
	at    float64
	label string
}

// fromZero is a scale from 0 to at least v, with four to eight ticks at round numbers.
func fromZero(v, low, high float64, label func(float64) string) (scale, []tick) {
	if !(v > 0) || math.IsInf(v, 0) {
		v = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(v/4)))
	for _, factor := range []float64{5, 2} {
		if v/(step*factor) >= 4 {
			step *= factor
			break
		}
	}
	n := math.Ceil(v/step - 1e-9)
	var ticks []tick
	for i := range int(n) + 1 {
		ticks = append(ticks, tick{float64(i) * step, label(float64(i) * step)})
	}
	return scale{greatest: n * step, low: low, high: high}, ticks
}

// logarithmic is a scale that contains least and greatest, with labels at 1, 2 and 5 of each
// decade, or fewer or more as there is room.
func logarithmic(least, greatest, low, high float64, label func(float64) string) (scale, []tick) {
	if !(least > 0) || !(greatest >= least) || math.IsInf(greatest, 0) {
		least, greatest = 1, 10
	}
	steps := []float64{1, 2, 5, 10}
	from := math.Pow(10, math.Floor(math.Log10(least)+1e-9))
	to := math.Pow(10, math.Floor(math.Log10(greatest)+1e-9))
	first, last := from, to
	for _, s := range steps {
		if from*s <= least*(1+1e-9) {
			first = from * s
		}
		if last < greatest*(1-1e-9) {
			last = to * s
		}
	}
	if last <= first {
		last = first * 2
	}
	labelled := "125"
	switch decades := math.Log10(last / first); {
	case decades > 3:
		labelled = "1"
	case decades < 1.1:
		labelled = "1234568"
	}
	var ticks []tick
	for decade := from; decade <= last*(1+1e-9); decade *= 10 {
		for n := 1; n < 10; n++ {
			v := decade * float64(n)
			if v < first*(1-1e-9) || v > last*(1+1e-9) {
				continue
			}
			if strings.ContainsRune(labelled, '0'+rune(n)) {
				ticks = append(ticks, tick{v, label(v)})
			} else {
				ticks = append(ticks, tick{at: v})
			}
		}
	}
	return scale{least: first, greatest: last, low: low, high: high, log: true}, ticks
}

// frame is where a plot's values are; axes are drawn around it.
type frame struct{ left, right, top, bottom float64 }

// horizontal draws the ticks of a vertical axis: lines across, labels to the left.
func (d *drawing) horizontal(f frame, s scale, ticks []tick, name string) {
	for _, t := range ticks {
		y := s.at(t.at)
		if t.label == "" {
			d.line("faint", f.left, y, f.right, y)
			continue
		}
		d.line("grid", f.left, y, f.right, y)
		d.text("tick", "end", f.left-8, y+4, t.label)
	}
	d.upright("name", 14, (f.top+f.bottom)/2, name)
}

// vertical draws the ticks of a horizontal axis: lines upwards, labels and the axis' name below.
func (d *drawing) vertical(f frame, s scale, ticks []tick, name string) {
	for _, t := range ticks {
		x := s.at(t.at)
		if t.label == "" {
			d.line("faint", x, f.top, x, f.bottom)
			continue
		}
		d.line("grid", x, f.top, x, f.bottom)
		d.text("tick", "middle", x, f.bottom+18, t.label)
	}
	d.text("name", "middle", (f.left+f.right)/2, f.bottom+38, name)
}
