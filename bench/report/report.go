// Package report shows the results of experiments as text on a terminal, as Markdown,
// and as one HTML page that contains its plots.
//
// All three have the same content in the same order. A result begins with its finding.
// The goals, the comparisons with reasons, the plots, the tables, the paper's numbers,
// notes, and missing measurements with reasons follow. A peer that wins is named as
// clearly as a goal that was missed.
//
// All functions are safe for concurrent use.
package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"nvmecr/bench/result"
)

// Names of the files that Save creates.
const (
	pageName     = "report.html"
	markdownName = "report.md"
	jsonName     = "report.json"
	plotsName    = "plots"  // a directory, of the Markdown's pictures
	tablesName   = "tables" // a directory, of the tables as CSV
)

// Save creates the directory dir and writes the report to it: report.html, report.md
// with its pictures in plots, the tables as CSV in tables, and report.json.
func Save(dir string, r *result.Report) error {
	var page, text, data bytes.Buffer
	if err := r.Write(&data); err != nil {
		return err
	}
	if err := HTML(&page, r); err != nil {
		return err
	}
	if err := Markdown(&text, r, plotsName); err != nil {
		return err
	}
	files := map[string][]byte{pageName: page.Bytes(), markdownName: text.Bytes(), jsonName: data.Bytes()}
	for _, res := range r.Results {
		for i, p := range res.Plots {
			svg, err := SVG(p)
			if err != nil {
				return err
			}
			files[plotPath(plotsName, res, i)] = []byte(svg)
		}
		for i, t := range res.Tables {
			content, err := tableCSV(t)
			if err != nil {
				return err
			}
			files[tablePath(res, i)] = content
		}
	}
	for _, sub := range []string{plotsName, tablesName} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o666); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

// SVG returns a plot as a separate document with a white background.
func SVG(p result.Plot) (string, error) {
	svg, err := drawSVG(p)
	if err != nil {
		return "", err
	}
	return alone(svg), nil
}

func plotPath(dir string, r *result.Result, i int) string {
	return fmt.Sprintf("%s/%s-%d.svg", dir, r.Name, i+1)
}

// spread returns the uncertainty of a measure, as "480 to 530", or an empty string if
// it has none.
func spread(m result.Measure, u result.Unit) string {
	if !m.Spread() {
		return ""
	}
	low, high := u.Format(m.Low), u.Format(m.High)
	if low == high {
		return ""
	}
	return low + " to " + high
}

// withSpread returns a measure with its unit, and its spread in brackets.
func withSpread(m result.Measure, u result.Unit) string {
	if s := spread(m, u); s != "" {
		return u.Full(m.Value) + " (" + s + ")"
	}
	return u.Full(m.Value)
}

// limit returns the limit of a goal, as "at least 0.900".
func limit(g result.Goal) string {
	if g.Aside {
		return ""
	}
	if g.AtMost {
		return "at most " + g.Unit.Full(g.Limit)
	}
	return "at least " + g.Unit.Full(g.Limit)
}

func measured(g result.Goal) string {
	if g.Absent {
		return "-"
	}
	return withSpread(g.Measured, g.Unit)
}

// inverse returns the inverse of a ratio, so that a reader need not divide.
func inverse(m result.Measure) result.Measure {
	r := result.Measure{Value: 1 / m.Value, N: m.N}
	if m.Low > 0 && m.High > 0 {
		r.Low, r.High = 1/m.High, 1/m.Low
	}
	return r
}

// advantage returns how many times better the winner is. For a ceiling it returns the
// share of the ceiling.
func advantage(c result.Comparison) (result.Measure, result.Unit) {
	switch {
	case c.Ceiling:
		return c.Ratio, result.Ratio
	case c.Winner() < 0:
		return inverse(c.Ratio), result.Times
	}
	return c.Ratio, result.Times
}

// victor returns a text that names the winner.
func victor(c result.Comparison) string {
	switch c.Winner() {
	case 1:
		return c.Ourselves() + " wins"
	case -1:
		return c.Peer + " wins"
	}
	return "equal within the noise"
}

// void is printed for a share above 1 of a ceiling.
const void = "void, the ceiling was disturbed"

// outcome returns a text that says who wins a comparison, and by how much.
func outcome(c result.Comparison) string {
	m, unit := advantage(c)
	if c.Void() {
		return void + ": " + withSpread(m, unit) + " of it"
	}
	if c.Ceiling {
		return withSpread(m, unit) + " of it"
	}
	return victor(c) + ", " + withSpread(m, unit)
}

func factor(c result.Comparison) string {
	m, unit := advantage(c)
	switch {
	case c.Void():
		return void
	case c.Ceiling:
		return unit.Format(m.Value) + " of it"
	}
	return unit.Format(m.Value)
}

func factorSpread(c result.Comparison) string { return spread(advantage(c)) }

// A reason explains the comparisons with a peer.
type reason struct{ Peer, Why string }

// reasons returns each reason once. If a peer wins without a reason, the text says that
// the reason is unknown.
func reasons(comparisons []result.Comparison) []reason {
	var all []reason
	for _, c := range comparisons {
		r := reason{c.Peer, sentence(c.Why)}
		if c.Why == "" {
			if c.Ceiling || c.Winner() >= 0 {
				continue
			}
			r.Why = "Why it wins is not known"
		}
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// sentence returns s with a capital letter at its beginning. The caller adds the full
// stop.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	first, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(s[n:], ".")
}

// cellText returns the text of a cell, with its spread in brackets.
func cellText(c result.Cell, column result.Column) string {
	s := c.Format(column)
	if c.Text == "" {
		if more := spread(c.Measure, cellUnit(c, column)); more != "" {
			s += " (" + more + ")"
		}
	}
	return s
}

func cellUnit(c result.Cell, column result.Column) result.Unit {
	if c.Unit != "" {
		return c.Unit
	}
	return column.Unit
}

// head returns the text at the top of a column.
func head(c result.Column) string {
	if label := c.Unit.Label(); label != "" {
		return c.Name + ", " + label
	}
	return c.Name
}

// rowName returns the name of a row. It marks rows of the paper, since plain text has
// no other way to show them.
func rowName(r result.Row) string {
	if r.Paper {
		return "paper: " + r.Name
	}
	return r.Name
}

// here returns the right-hand side of a claim.
func here(c result.Claim) string {
	if c.Here == "" {
		return "see above"
	}
	return c.Here
}

// promised returns the number of goals, without the values that are only for
// comparison.
func promised(goals []result.Goal) int {
	n := 0
	for _, g := range goals {
		if !g.Aside {
			n++
		}
	}
	return n
}

// tally counts goals by verdict: "8 met; 2 missed".
func tally(goals []result.Goal) string {
	counts := map[result.Verdict]int{}
	for _, g := range goals {
		if !g.Aside {
			counts[g.Verdict()]++
		}
	}
	var parts []string
	for _, v := range []result.Verdict{result.Met, result.BarelyMet, result.BarelyShort, result.Missed, result.Void, result.NotMeasured} {
		if counts[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[v], v))
		}
	}
	return strings.Join(parts, "; ")
}

// allGoals returns the goals of all results.
func allGoals(r *result.Report) []result.Goal {
	var goals []result.Goal
	for _, res := range r.Results {
		goals = append(goals, res.Goals...)
	}
	return goals
}

// found returns a result in a sentence or two: the finding of the experiment or, if it
// has none, a summary of the goals and comparisons.
func found(r *result.Result) string {
	switch {
	case r.Finding != "":
		return r.Finding
	case len(r.Goals) > 0:
		return fmt.Sprintf("Of %d goals: %s.", promised(r.Goals), tally(r.Goals))
	case len(r.Comparisons) > 0:
		c := r.Comparisons[0]
		return fmt.Sprintf("%s beside %s: %s.", sentence(c.What), c.Peer, outcome(c))
	case len(r.Tables) == 0 && len(r.Missing) > 0:
		return fmt.Sprintf("Not measured: %s.", strings.TrimSuffix(r.Missing[0].Why, "."))
	}
	return "See the tables."
}

// title returns the title of a result, with its figures or tables of the paper.
func title(r *result.Result) string {
	if r.Shows == "" {
		return r.Title
	}
	return r.Title + " (the paper's " + r.Shows + ")"
}

// legend explains brackets. Every page has it once.
const legend = "Figures are medians. Brackets hold the quartiles of the repetitions; of a ratio with a goal or a peer, the 95% interval of its median. " +
	"\"Within the noise\" says that the interval contains the goal."
