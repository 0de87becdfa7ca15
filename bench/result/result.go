// Package result has the results of an experiment, independent of their presentation:
// tables, plots, goals, comparisons with peers, the paper's numbers, and what could not
// be measured. Experiments fill a Result. Package report converts any number of Results
// to text and pages. As JSON they can be kept and compared (see Report for the
// version).
//
// A Result is not safe for concurrent use.
package result

import (
	"fmt"
	"math"
	"time"

	"nvmecr/bench/stats"
)

// A Result is the result of one experiment.
type Result struct {
	Name  string `json:"name"`  // the name of the command: "checkpoint"
	Title string `json:"title"` // for people: "Checkpoint bandwidth"
	Shows string `json:"shows"` // figures or tables of the paper: "Figure 9(c)"; may be empty

	// Finding is the outcome in one or two sentences. It is the first text that a
	// reader sees, and for most readers the only one.
	Finding string `json:"finding,omitempty"`

	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took_ns"`

	Parameters  []Fact       `json:"parameters,omitempty"`
	Goals       []Goal       `json:"goals,omitempty"`
	Comparisons []Comparison `json:"comparisons,omitempty"`
	Plots       []Plot       `json:"plots,omitempty"`
	Tables      []Table      `json:"tables,omitempty"`
	Claims      []Claim      `json:"claims,omitempty"`
	Notes       []string     `json:"notes,omitempty"`
	Missing     []Missing    `json:"missing,omitempty"`
}

// A Fact is a property of a whole experiment, or of the machine.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// A Measure is a number with its uncertainty. In tables and plots Low and High are the
// quartiles of the repetitions. In goals and comparisons they enclose the median with
// 95% confidence. N is the number of measurements. If N is below 2, Low and High have
// no meaning.
type Measure struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low,omitempty"`
	High  float64 `json:"high,omitempty"`
	N     int     `json:"n,omitempty"`
}

// Spread reports whether Low and High have a meaning.
func (m Measure) Spread() bool { return m.N > 1 && (m.Low != m.Value || m.High != m.Value) }

// Exactly returns a number that was counted or computed, not measured.
func Exactly(v float64) Measure { return Measure{Value: v, Low: v, High: v} }

// Middle returns the median of a sample with its quartiles. The sample must not be
// empty.
func Middle(s stats.Sample) Measure {
	low, high := s.Quartiles()
	return Measure{Value: s.Median(), Low: low, High: high, N: len(s)}
}

// Interval returns the median of a sample with its 95% interval. The sample must not be
// empty.
func Interval(s stats.Sample) Measure {
	i := s.MedianInterval()
	return Measure{Value: s.Median(), Low: i.Low, High: i.High, N: len(s)}
}

// Per converts the seconds for an amount to rates, and returns the median rate.
func Per(amount float64, seconds stats.Sample) Measure {
	rates := make(stats.Sample, len(seconds))
	for i, s := range seconds {
		rates[i] = amount / s
	}
	return Middle(rates)
}

// A Goal is a goal of this project, with the measured value.
type Goal struct {
	What   string  `json:"what"`
	Limit  float64 `json:"goal"`
	AtMost bool    `json:"at_most,omitempty"` // Limit is a maximum; otherwise it is a minimum
	// Aside says that this is not a goal, but a value for comparison with one. Limit
	// then has no meaning.
	Aside bool `json:"aside,omitempty"`
	// Ceiling says that Measured is a share of an upper limit.
	Ceiling  bool    `json:"ceiling,omitempty"`
	Unit     Unit    `json:"unit"`
	Measured Measure `json:"measured"`
	// Why is the reason why nothing was measured; Measured then has no meaning. With a
	// measurement it is the reason for the value, if known.
	Why    string `json:"why,omitempty"`
	Absent bool   `json:"absent,omitempty"`
	Beside string `json:"beside,omitempty"` // absolute figures: "1512 of 1644 MiB/s"
}

// A Verdict says whether a goal was reached.
type Verdict string

// A goal whose interval contains the limit is met or missed within the noise.
const (
	Met         Verdict = "met"
	BarelyMet   Verdict = "met, within the noise"
	BarelyShort Verdict = "missed, within the noise"
	Missed      Verdict = "missed"
	NotMeasured Verdict = "not measured"
	NoGoal      Verdict = "no goal, for comparison"
	// Void means a share of a ceiling above 1: the ceiling was disturbed, and the share
	// has no meaning.
	Void Verdict = "void: above its ceiling"
)

// Verdict returns whether the goal was met.
func (g Goal) Verdict() Verdict {
	if g.Absent {
		return NotMeasured
	}
	if g.Ceiling && g.Measured.above(1) {
		return Void
	}
	if g.Aside {
		return NoGoal
	}
	worst, best, value := g.Measured.Low-g.Limit, g.Measured.High-g.Limit, g.Measured.Value-g.Limit
	if g.AtMost {
		worst, best, value = -best, -worst, -value
	}
	if g.Measured.N < 2 {
		worst, best = value, value
	}
	switch {
	case worst >= 0:
		return Met
	case value >= 0:
		return BarelyMet
	case best >= 0:
		return BarelyShort
	}
	return Missed
}

// A Comparison compares this project with a peer that did the same work in the same run.
type Comparison struct {
	What string `json:"what"`          // "write, 4 ranks, 1 MiB pieces"
	Who  string `json:"who,omitempty"` // name of the side of Ours; empty means nvmecr
	Peer string `json:"peer"`          // "XFS on a loop device"
	// Ceiling says that the peer is an upper limit, not an alternative. Then it is
	// irrelevant which of the two is faster.
	Ceiling bool `json:"ceiling,omitempty"`
	// Ratio is how many times better this project is than the peer. Below 1 the peer is
	// better.
	Ratio Measure `json:"ratio"`
	// Ours and Theirs are the absolute figures, in Unit.
	Ours   Measure `json:"ours"`
	Theirs Measure `json:"theirs"`
	Unit   Unit    `json:"unit"`
	// Why is the reason for the result. A report names no winner without a reason.
	Why string `json:"why"`
}

// Ourselves returns the name of the side of Ours.
func (c Comparison) Ourselves() string {
	if c.Who == "" {
		return "nvmecr"
	}
	return c.Who
}

// Void reports whether the peer is a ceiling and this project's value is above it. Then
// the ceiling was disturbed, and the ratio has no meaning.
func (c Comparison) Void() bool { return c.Ceiling && c.Ratio.above(1) }

// above reports whether the whole measure is above a limit.
func (m Measure) above(limit float64) bool {
	if m.N < 2 {
		return m.Value > limit
	}
	return m.Low > limit
}

// Winner returns 1 if this project is better, and -1 if the peer is. It returns 0 if
// the interval of the ratio contains 1, so that this run cannot tell.
func (c Comparison) Winner() int {
	low, high := c.Ratio.Low, c.Ratio.High
	if c.Ratio.N < 2 {
		low, high = c.Ratio.Value, c.Ratio.Value
	}
	switch {
	case low > 1:
		return 1
	case high < 1:
		return -1
	}
	return 0
}

// A Claim is a number of the paper with the result of this project.
type Claim struct {
	What   string `json:"what"`
	Paper  string `json:"paper"`  // with its unit
	Source string `json:"source"` // "section IV.C, Figure 7(b)"
	Here   string `json:"here"`   // empty: see the tables; or why it cannot be compared
}

// Missing is a measurement that was not made.
type Missing struct {
	What string `json:"what"`
	Why  string `json:"why"` // with the remedy
}

// Note adds a remark.
func (r *Result) Note(format string, a ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, a...)) }

// Parameter adds a property of the whole experiment.
func (r *Result) Parameter(name, format string, a ...any) {
	r.Parameters = append(r.Parameters, Fact{name, fmt.Sprintf(format, a...)})
}

// NotMeasured adds a measurement that was not made, and the reason.
func (r *Result) NotMeasured(what, format string, a ...any) {
	r.Missing = append(r.Missing, Missing{what, fmt.Sprintf(format, a...)})
}

// Check returns an error if the result cannot be shown or stored: a row does not fit
// its columns, or a number is NaN or infinite. The error names the place.
// Experiment.Measure calls Check, so that the error names the experiment.
func (r *Result) Check() error {
	for _, t := range r.Tables {
		if err := t.check(); err != nil {
			return fmt.Errorf("%s: table %q: %w", r.Name, t.Title, err)
		}
	}
	for _, p := range r.Plots {
		if err := p.check(); err != nil {
			return fmt.Errorf("%s: plot %q: %w", r.Name, p.Title, err)
		}
	}
	for _, g := range r.Goals {
		if err := g.Measured.check(); err != nil {
			return fmt.Errorf("%s: goal %q: %w", r.Name, g.What, err)
		}
	}
	for _, c := range r.Comparisons {
		if !(c.Ratio.Value > 0) {
			return fmt.Errorf("%s: comparison %q: %v is no ratio", r.Name, c.What, c.Ratio.Value)
		}
		for _, m := range []Measure{c.Ratio, c.Ours, c.Theirs} {
			if err := m.check(); err != nil {
				return fmt.Errorf("%s: comparison %q: %w", r.Name, c.What, err)
			}
		}
	}
	return nil
}

func (m Measure) check() error {
	for _, v := range []float64{m.Value, m.Low, m.High} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%v is not a number", v)
		}
	}
	return nil
}
