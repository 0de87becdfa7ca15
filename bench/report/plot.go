package report

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"nvmecr/bench/result"
)

// wider is the factor by which text may be wider than measured, since the page may use
// another font.
const wider = 1.2

// The size of a plot, in points. Pages scale it to their width.
const (
	plotWidth  = 500
	plotHeight = 290
)

// drawSVG draws a plot. It contains the colour names of colours.go; the caller replaces them by
// colours.
func drawSVG(p result.Plot) (string, error) {
	d := &drawing{Plot: p, plot: plot.New()}
	d.setUp()
	canvas := vgsvg.New(plotWidth, plotHeight)
	whole := draw.New(canvas)
	whole = draw.Crop(whole, 2, -8, 2, -2)
	rest := d.legend(whole)
	d.plot.Draw(rest)
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", fmt.Errorf("plot %q: %w", p.Title, err)
	}
	return tidy(b.String(), p.Title), nil
}

var (
	prelude = regexp.MustCompile(`(?s)^.*?<svg[^>]*>`)
	family  = regexp.MustCompile(`font-family:[^;"]*;(font-(variant|weight|style):[^;"]*;?)*`)
)

// tidy converts the canvas's document to one that can be part of a page: it uses the
// available width and the page's font. Text is measured with Liberation Sans, whose
// metrics are those of Arial and Helvetica.
func tidy(svg, title string) string {
	svg = prelude.ReplaceAllString(svg, "")
	svg = family.ReplaceAllString(svg, "")
	for name, c := range inks {
		svg = strings.ReplaceAll(svg, c.code(), "var(--"+name+")")
	}
	return fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img" aria-label=%q xmlns="http://www.w3.org/2000/svg" font-family="%s">`,
		plotWidth, plotHeight, escape(title), fonts) + svg
}

// drawing is a plot that is being drawn.
type drawing struct {
	result.Plot
	plot *plot.Plot
}

func (d *drawing) setUp() {
	p := d.plot
	p.BackgroundColor = nil
	d.axis(&p.X, d.X)
	d.axis(&p.Y, d.Y)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = d.ranges()
	p.X.Tick.Marker = ticker{d.X, d.xs()}
	p.Y.Tick.Marker = ticker{d.Y, nil}
	p.Y.LineStyle.Width = 0 // the grid is enough
	p.Y.Tick.Length = 0
	p.Y.Padding, p.X.Padding = 6, 0
	p.Add(grid{}, painter(d.marks))
	for i := range d.Series {
		if d.Bars {
			p.Add(painter(func(c draw.Canvas, p *plot.Plot) { d.bars(c, p, i) }))
		} else {
			p.Add(painter(func(c draw.Canvas, p *plot.Plot) { d.line(c, p, i) }))
		}
	}
}

func (d *drawing) axis(a *plot.Axis, of result.Axis) {
	a.LineStyle.Color, a.Tick.LineStyle.Color, a.Tick.Label.Color = soft, soft, soft
	a.LineStyle.Width, a.Tick.LineStyle.Width, a.Tick.Length = 0.7, 0.7, 4
	a.Tick.Label.Font.Size = 11
	a.Label.TextStyle.Font.Size = 11.5
	a.Label.TextStyle.Color = ink
	a.Label.Padding = 4
	a.Label.Text = axisName(of)
	if of.Log {
		a.Scale = plot.LogScale{}
	}
}

func axisName(a result.Axis) string {
	if label := a.Unit.Label(); label != "" {
		return a.Name + " (" + label + ")"
	}
	return a.Name
}

// ranges returns the ranges of the axes. A linear vertical axis starts at 0, so that twice the
// height is twice the value.
func (d *drawing) ranges() (xmin, xmax, ymin, ymax float64) {
	xmin, ymin = math.Inf(1), math.Inf(1)
	xmax, ymax = math.Inf(-1), math.Inf(-1)
	for _, s := range d.Series {
		for _, at := range s.Points {
			low, high := at.Value, at.Value
			if at.Spread() {
				low, high = min(at.Low, low), max(at.High, high)
			}
			if d.Y.Log && low <= 0 {
				low = at.Value
			}
			xmin, xmax = min(xmin, at.X), max(xmax, at.X)
			ymin, ymax = min(ymin, low), max(ymax, high)
		}
	}
	for _, m := range d.Marks {
		ymin, ymax = min(ymin, m.Y), max(ymax, m.Y)
	}
	if math.IsInf(xmin, 0) {
		return 0, 1, 0, 1
	}
	switch {
	case d.X.Names != nil:
		xmin, xmax = -0.6, float64(len(d.X.Names))-0.4
	case xmin == xmax && d.X.Log:
		xmin, xmax = xmin/2, xmax*2
	case xmin == xmax:
		xmin, xmax = xmin-1, xmax+1
	}
	switch {
	case d.Y.Log:
		ymin, ymax = logFloor(ymin, d.Y.Unit), logCeil(ymax, d.Y.Unit)
		if ymin >= ymax {
			ymin, ymax = ymin/10, ymax*10
		}
	default:
		ticks := niceTicks(min(ymin, 0), ymax+0.04*(ymax-min(ymin, 0)), d.Y.Unit)
		ymin, ymax = ticks[0], ticks[len(ticks)-1]
	}
	return
}

// xs returns the X values of the points, if they are few enough to be ticks. Sizes and
// numbers of ranks, for example, are powers of two, and other values have no meaning.
func (d *drawing) xs() []float64 {
	if d.X.Names != nil {
		return nil
	}
	var all []float64
	for _, s := range d.Series {
		for _, at := range s.Points {
			all = append(all, at.X)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > 12 || !d.X.Log && len(all) > 6 {
		return nil
	}
	return all
}

// line draws a series as a line through points with whiskers.
func (d *drawing) line(c draw.Canvas, p *plot.Plot, i int) {
	s, look := d.Series[i], lookOf(d.Series, i)
	x, y := p.Transforms(&c)
	var line []vg.Point
	for _, at := range s.Points {
		line = append(line, vg.Point{X: x(at.X), Y: y(at.Value)})
	}
	c.StrokeLines(look.line, line)
	for k, at := range s.Points {
		d.whisker(c, p, look, at, line[k].X)
		c.DrawGlyph(look.glyph, line[k])
	}
}

// whisker draws the spread of a point.
func (d *drawing) whisker(c draw.Canvas, p *plot.Plot, look look, at result.Point, x vg.Length) {
	if !at.Spread() {
		return
	}
	_, y := p.Transforms(&c)
	low, high := y(max(at.Low, p.Y.Min)), y(min(at.High, p.Y.Max))
	style := draw.LineStyle{Color: look.line.Color, Width: 1}
	c.StrokeLine2(style, x, low, x, high)
	c.StrokeLine2(style, x-3, low, x+3, low)
	c.StrokeLine2(style, x-3, high, x+3, high)
}

// bars draws a series as one bar in each group.
func (d *drawing) bars(c draw.Canvas, p *plot.Plot, i int) {
	look := lookOf(d.Series, i)
	x, y := p.Transforms(&c)
	group := 0.78
	step := group / float64(len(d.Series))
	for _, at := range d.Series[i].Points {
		left := at.X - group/2 + float64(i)*step
		x0, x1 := x(left+step*0.05), x(left+step*0.95)
		if wide := vg.Length(64); x1-x0 > wide {
			middle := (x0 + x1) / 2
			x0, x1 = middle-wide/2, middle+wide/2
		}
		bottom, top := y(max(p.Y.Min, 0)), y(at.Value)
		if d.Y.Log {
			bottom = y(p.Y.Min)
		}
		c.SetColor(look.line.Color)
		c.Fill(vg.Rectangle{Min: vg.Point{X: x0, Y: bottom}, Max: vg.Point{X: x1, Y: top}}.Path())
		over := top
		if at.Spread() {
			over = max(over, y(min(at.High, p.Y.Max)))
			d.barWhisker(c, p, at, (x0+x1)/2)
		}
		style := textStyle(10, ink)
		style.XAlign, style.YAlign = text.XCenter, text.YBottom
		if d.widest(style) <= x(step)-x(0) {
			c.FillText(style, vg.Point{X: (x0 + x1) / 2, Y: over + 2}, d.Y.Unit.Format(at.Value))
		}
	}
}

// widest returns the width of the widest value of any bar.
func (d *drawing) widest(style text.Style) (w vg.Length) {
	for _, s := range d.Series {
		for _, at := range s.Points {
			w = max(w, style.Width(d.Y.Unit.Format(at.Value)))
		}
	}
	return w
}

// barWhisker draws a whisker that is visible on the bar below it.
func (d *drawing) barWhisker(c draw.Canvas, p *plot.Plot, at result.Point, x vg.Length) {
	d.whisker(c, p, look{line: draw.LineStyle{Color: ink}}, at, x)
}

// marks draws the horizontal lines with their names above their right ends.
func (d *drawing) marks(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	for _, m := range d.Marks {
		at := y(m.Y)
		c.StrokeLine2(draw.LineStyle{Color: mark, Width: 1, Dashes: []vg.Length{5, 3}}, c.Min.X, at, c.Max.X, at)
		style := textStyle(10, mark)
		c.FillText(style, vg.Point{X: c.Max.X - wider*style.Width(m.Name), Y: at + 1}, m.Name)
	}
}

// A painter is a function that draws in the data area.
type painter func(c draw.Canvas, p *plot.Plot)

// Plot implements plot.Plotter.
func (f painter) Plot(c draw.Canvas, p *plot.Plot) { f(c, p) }

// grid draws the horizontal lines at the ticks.
type grid struct{}

func (grid) Plot(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		if t.Label != "" {
			c.StrokeLine2(draw.LineStyle{Color: rule, Width: 0.7}, c.Min.X, y(t.Value), c.Max.X, y(t.Value))
		}
	}
}

// legend draws the names of the series above the plot, side by side, and returns the rest of the
// canvas. A single series needs no legend: the title and the axis name it.
func (d *drawing) legend(c draw.Canvas) draw.Canvas {
	if len(d.Series) < 2 {
		return draw.Crop(c, 0, 0, 0, -4)
	}
	const swatch, gap, height = 22, 12, 16
	style := textStyle(11, ink)
	style.YAlign = text.YCenter
	x, y := c.Min.X, c.Max.Y-height/2
	for i, s := range d.Series {
		width := swatch + 5 + wider*style.Width(s.Name)
		if x > c.Min.X && x+width > c.Max.X {
			x, y = c.Min.X, y-height
		}
		d.swatch(c, i, vg.Rectangle{Min: vg.Point{X: x, Y: y - 5}, Max: vg.Point{X: x + swatch, Y: y + 5}})
		c.FillText(style, vg.Point{X: x + swatch + 5, Y: y}, s.Name)
		x += width + gap
	}
	c.Max.Y = y - height
	return c
}

// swatch draws a sample of a series.
func (d *drawing) swatch(c draw.Canvas, i int, in vg.Rectangle) {
	look := lookOf(d.Series, i)
	middle := vg.Point{X: (in.Min.X + in.Max.X) / 2, Y: (in.Min.Y + in.Max.Y) / 2}
	if d.Bars {
		c.SetColor(look.line.Color)
		in.Min.X = in.Max.X - 12
		c.Fill(in.Path())
		return
	}
	c.StrokeLine2(look.line, in.Min.X, middle.Y, in.Max.X, middle.Y)
	c.DrawGlyph(look.glyph, middle)
}

func textStyle(size vg.Length, c code) text.Style {
	p := plot.New()
	s := p.Title.TextStyle
	s.Font.Size, s.Color = size, c
	s.XAlign, s.YAlign = text.XLeft, text.YBottom
	return s
}
