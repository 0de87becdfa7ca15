package report

import (
	"fmt"
	"html"
	"image/color"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"nvmecr/bench/result"
)

const fonts = "Liberation Sans, Arial, Helvetica, sans-serif"

// A code is a placeholder for a colour, in a form that the drawing library accepts. The
// name of the colour replaces it in the document.
type code uint8

// RGBA implements color.Color.
func (c code) RGBA() (r, g, b, a uint32) { return color.RGBA{1, 1, uint8(c), 255}.RGBA() }

func (c code) code() string { return fmt.Sprintf("#%02X%02X%02X", 1, 1, uint8(c)) }

// The colours of a plot; series follow from firstSeries on.
const (
	ink         code = 1 // text
	soft        code = 2 // ticks
	rule        code = 3 // the grid
	mark        code = 4 // a goal
	paper       code = 5 // the paper's numbers
	firstSeries code = 16
	seriesCount      = 8
)

var inks = func() map[string]code {
	m := map[string]code{"ink": ink, "soft": soft, "rule": rule, "mark": mark, "paper": paper}
	for i := range seriesCount {
		m[fmt.Sprintf("s%d", i+1)] = firstSeries + code(i)
	}
	return m
}()

// light and dark are two sets of colours. People with colour blindness can distinguish
// the series, and lines also have different markers.
var (
	light = map[string]string{
		"ink": "#1c2430", "soft": "#566070", "rule": "#e3e7ed", "mark": "#b3261e", "paper": "#7a828e",
		"s1": "#0b62c4", "s2": "#d9730d", "s3": "#0f8a6b", "s4": "#a33ea1",
		"s5": "#8a6d00", "s6": "#c2334d", "s7": "#3f7f93", "s8": "#5b5fc7",
	}
	dark = map[string]string{
		"ink": "#e6eaf0", "soft": "#a4aebc", "rule": "#2f3743", "mark": "#ff8a80", "paper": "#98a2b0",
		"s1": "#5aa9ff", "s2": "#ff9e4a", "s3": "#45c9a5", "s4": "#d98ad7",
		"s5": "#d9bb45", "s6": "#ff7d92", "s7": "#7cc3d8", "s8": "#9ea2ff",
	}
)

// variables returns a set of colours as CSS.
func variables(set map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(set)) {
		fmt.Fprintf(&b, "--%s:%s;", name, set[name])
	}
	return b.String()
}

var variable = regexp.MustCompile(`var\(--([a-z0-9]+)\)`)

// alone converts a plot to a separate document with a white background: not every image
// viewer knows the colours of its background.
func alone(svg string) string {
	svg = variable.ReplaceAllStringFunc(svg, func(v string) string {
		return light[variable.FindStringSubmatch(v)[1]]
	})
	open := strings.IndexByte(svg, '>') + 1
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>%s%s<rect width="100%%" height="100%%" fill="#ffffff"/>%s`,
		"\n", strings.Replace(svg[:open], "<svg ", fmt.Sprintf(`<svg width="%d" height="%d" `, plotWidth, plotHeight), 1), svg[open:])
}

// A look is the appearance of a series.
type look struct {
	line  draw.LineStyle
	glyph draw.GlyphStyle
}

var shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, diamond{}}

// lookOf returns the look of series number i. Series of the paper have their own
// colour, and do not count for the other series.
func lookOf(series []result.Series, i int) look {
	l := look{draw.LineStyle{Color: paper, Width: 1.4, Dashes: []vg.Length{4, 3}}, draw.GlyphStyle{Color: paper, Radius: 2.6, Shape: draw.RingGlyph{}}}
	if series[i].Paper {
		return l
	}
	number := 0
	for _, s := range series[:i] {
		if !s.Paper {
			number++
		}
	}
	c := firstSeries + code(number%seriesCount)
	l.line.Color, l.line.Width, l.line.Dashes = c, 1.8, nil
	l.glyph = draw.GlyphStyle{Color: c, Radius: 3, Shape: shapes[number%len(shapes)]}
	return l
}

// diamond draws a square that stands on its corner.
type diamond struct{}

// DrawGlyph implements draw.GlyphDrawer.
func (diamond) DrawGlyph(c *draw.Canvas, s draw.GlyphStyle, at vg.Point) {
	r := s.Radius * 1.2
	c.SetColor(s.Color)
	var p vg.Path
	p.Move(vg.Point{X: at.X - r, Y: at.Y})
	p.Line(vg.Point{X: at.X, Y: at.Y + r})
	p.Line(vg.Point{X: at.X + r, Y: at.Y})
	p.Line(vg.Point{X: at.X, Y: at.Y - r})
	p.Close()
	c.Fill(p)
}

func escape(s string) string { return html.EscapeString(s) }
