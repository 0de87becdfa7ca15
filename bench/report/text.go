package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"nvmecr/bench/result"
)

// Text writes the report for a terminal or a log file, without colours.
func Text(w io.Writer, r *result.Report) error {
	b := bufio.NewWriter(w)
	for i, res := range r.Results {
		if i > 0 {
			fmt.Fprintln(b)
		}
		textResult(b, res)
	}
	if len(r.Machine) > 0 {
		fmt.Fprint(b, "\nMachine\n")
		textFacts(b, r.Machine)
	}
	return b.Flush()
}

// Summary writes the goals and findings, without the tables.
func Summary(w io.Writer, r *result.Report) error {
	b := bufio.NewWriter(w)
	for i, res := range r.Results {
		if i > 0 {
			fmt.Fprintln(b)
		}
		fmt.Fprintln(b, title(res))
		if res.Finding != "" || len(res.Goals)+len(res.Comparisons)+len(res.Missing) == 0 {
			wrap(b, "  ", found(res))
		}
		textComparisons(b, res.Comparisons)
		if len(res.Goals) > 0 {
			TextGoals(b, res.Goals)
		}
		textMissing(b, res.Missing)
	}
	return b.Flush()
}

func textComparisons(b io.Writer, comparisons []result.Comparison) {
	if len(comparisons) == 0 {
		return
	}
	grid := [][]string{{"", "", "", "beside", "", ""}}
	for _, c := range comparisons {
		grid = append(grid, []string{c.What, c.Ourselves(), c.Unit.Full(c.Ours.Value), c.Peer, c.Unit.Full(c.Theirs.Value), outcome(c)})
	}
	textGrid(b, grid, false)
	for _, r := range reasons(comparisons) {
		wrap(b, "  ", r.Peer+": "+r.Why+".")
	}
}

func textMissing(b io.Writer, missing []result.Missing) {
	for _, m := range missing {
		wrap(b, "  ", fmt.Sprintf("Not measured: %s: %s.", m.What, strings.TrimSuffix(m.Why, ".")))
	}
}

func textResult(b io.Writer, r *result.Result) {
	t := title(r)
	fmt.Fprintf(b, "%s\n%s\n", t, strings.Repeat("=", utf8.RuneCountInString(t)))
	if r.Finding != "" {
		wrap(b, "", r.Finding)
	}
	if len(r.Goals) > 0 {
		fmt.Fprintln(b)
		TextGoals(b, r.Goals)
	}
	if len(r.Comparisons) > 0 {
		fmt.Fprintln(b)
		textComparisons(b, r.Comparisons)
	}
	for _, t := range r.Tables {
		fmt.Fprintf(b, "\n%s\n", t.Title)
		grid := [][]string{{t.Rows}}
		for _, c := range t.Columns {
			grid[0] = append(grid[0], head(c))
		}
		for _, row := range t.Lines {
			grid = append(grid, append([]string{rowName(row)}, cellTexts(row, t.Columns)...))
		}
		textGrid(b, grid, true)
		if t.Note != "" {
			wrap(b, "  ", t.Note)
		}
	}
	if len(r.Claims) > 0 {
		fmt.Fprintf(b, "\nThe paper beside\n")
		grid := [][]string{{"", "paper", "here"}}
		for _, c := range r.Claims {
			grid = append(grid, []string{c.What, c.Paper, here(c)})
		}
		textGrid(b, grid, false)
	}
	if len(r.Parameters) > 0 {
		fmt.Fprint(b, "\nHow it was measured\n")
		textFacts(b, r.Parameters)
	}
	for i, n := range r.Notes {
		if i == 0 {
			fmt.Fprintln(b)
		}
		wrap(b, "  ", n)
	}
	if len(r.Missing) > 0 {
		fmt.Fprintln(b)
		textMissing(b, r.Missing)
	}
}

// TextGoals writes goals as a table, and the number of goals that were met.
func TextGoals(b io.Writer, goals []result.Goal) {
	grid := [][]string{{"goal", "", "measured", ""}}
	for _, g := range goals {
		grid = append(grid, []string{g.What, limit(g), measured(g), string(g.Verdict())})
	}
	textGrid(b, grid, false)
	for _, g := range goals {
		if about := goalRemark(g); about != "" {
			wrap(b, "  ", g.What+": "+about+".")
		}
	}
	if n := promised(goals); n > 0 {
		fmt.Fprintf(b, "  Of %d goals: %s.\n", n, tally(goals))
	}
}

// goalRemark returns the remark on a goal.
func goalRemark(g result.Goal) string {
	var parts []string
	for _, s := range []string{g.Beside, g.Why} {
		if s != "" {
			parts = append(parts, strings.TrimSuffix(s, "."))
		}
	}
	return strings.Join(parts, "; ")
}

func cellTexts(row result.Row, columns []result.Column) []string {
	var cells []string
	for i, c := range row.Cells {
		cells = append(cells, cellText(c, columns[i]))
	}
	return cells
}

func textFacts(b io.Writer, facts []result.Fact) {
	grid := make([][]string, len(facts))
	for i, f := range facts {
		grid[i] = []string{f.Name, f.Value}
	}
	textGrid(b, grid, false)
}

// textGrid writes columns of the necessary width. If numbers is set, all but the first
// column are aligned to the right.
func textGrid(b io.Writer, grid [][]string, numbers bool) {
	widths := make([]int, len(grid[0]))
	for _, row := range grid {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range grid {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			line.WriteString("  ")
			if numbers && i > 0 {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		fmt.Fprintln(b, strings.TrimRight(line.String(), " "))
	}
}

// wrap writes text in lines of 100 columns.
func wrap(b io.Writer, indent, text string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line) > len(indent) && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > 100 {
			fmt.Fprintln(b, line)
			line = indent
		}
		if len(line) > len(indent) {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(b, line)
}
