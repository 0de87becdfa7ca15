package result

import (
	"fmt"
	"math"
)

// A Plot has one or more series over the same axes.
type Plot struct {
	Title string `json:"title"`
	X     Axis   `json:"x"`
	Y     Axis   `json:"y"`
	// Bars draws a group of bars for each of X.Names instead of lines.
	Bars   bool     `json:"bars,omitempty"`
	Series []Series `json:"series"`
	// Marks are horizontal lines: a goal, a ceiling.
	Marks []Mark `json:"marks,omitempty"`
	Note  string `json:"note,omitempty"` // one line below the plot
}

// An Axis is one of the two axes of a plot.
type Axis struct {
	Name string `json:"name"`
	Unit Unit   `json:"unit,omitempty"`
	// Log spaces powers evenly; all values must be above 0.
	Log bool `json:"log,omitempty"`
	// Names are the labels of the points 0, 1, 2 ... on an axis without numbers. For X
	// only.
	Names []string `json:"names,omitempty"`
}

// A Series is a line with a name.
type Series struct {
	Name   string  `json:"name"`
	Paper  bool    `json:"paper,omitempty"` // the paper's own numbers
	Points []Point `json:"points"`
}

// A Point is the value measured at X.
type Point struct {
	X float64 `json:"x"`
	Measure
}

// A Mark is a horizontal line at Y.
type Mark struct {
	Name string  `json:"name"`
	Y    float64 `json:"y"`
}

// Add adds a point to the series of the given name, and creates the series if
// necessary.
func (p *Plot) Add(name string, x float64, m Measure) {
	for i := range p.Series {
		if p.Series[i].Name == name {
			p.Series[i].Points = append(p.Series[i].Points, Point{x, m})
			return
		}
	}
	p.Series = append(p.Series, Series{Name: name, Points: []Point{{x, m}}})
}

func (p Plot) check() error {
	if len(p.Series) == 0 {
		return fmt.Errorf("it has no series")
	}
	for _, s := range p.Series {
		for _, at := range s.Points {
			switch {
			case math.IsNaN(at.X) || math.IsInf(at.X, 0) || at.Measure.check() != nil:
				return fmt.Errorf("series %q has a point that is not a number", s.Name)
			case p.X.Log && at.X <= 0 || p.Y.Log && at.Value <= 0:
				return fmt.Errorf("series %q has a point at (%v, %v) on a logarithmic axis", s.Name, at.X, at.Value)
			case p.X.Names != nil && (at.X < 0 || int(at.X) >= len(p.X.Names) || at.X != math.Trunc(at.X)):
				return fmt.Errorf("series %q has a point at %v of %d names", s.Name, at.X, len(p.X.Names))
			}
		}
	}
	return nil
}
