package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"nvmecr/bench/result"
)

// Markdown writes the report as Markdown. Save writes its pictures to the directory
// plots.
func Markdown(w io.Writer, r *result.Report, plots string) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# nvmecr bench\n\n%s, %s. %s\n", md(r.Program), r.Began.UTC().Format("2 January 2006, 15:04 UTC"), md(legend))
	if goals := allGoals(r); len(goals) > 0 {
		fmt.Fprintf(b, "\n## Goals\n\n%s.\n\n", md(tally(goals)))
		mdGoals(b, goals)
	}
	if len(r.Machine) > 0 {
		fmt.Fprint(b, "\n## Machine\n\n")
		mdFacts(b, r.Machine)
	}
	for _, res := range r.Results {
		mdResult(b, res, plots)
	}
	if r.Command != "" {
		fmt.Fprintf(b, "\n---\n\nMade with `%s`.\n", strings.ReplaceAll(r.Command, "`", "'"))
	}
	return b.Flush()
}

func mdResult(b io.Writer, r *result.Result, plots string) {
	fmt.Fprintf(b, "\n## %s\n", md(title(r)))
	if r.Finding != "" {
		fmt.Fprintf(b, "\n%s\n", md(r.Finding))
	}
	if len(r.Goals) > 0 {
		fmt.Fprintln(b)
		mdGoals(b, r.Goals)
	}
	if len(r.Comparisons) > 0 {
		fmt.Fprintln(b)
		mdComparisons(b, r.Comparisons)
	}
	for i, p := range r.Plots {
		fmt.Fprintf(b, "\n![%s](%s)\n", md(p.Title), plotPath(plots, r, i))
		if p.Note != "" {
			fmt.Fprintf(b, "\n%s\n", md(p.Note))
		}
	}
	for _, t := range r.Tables {
		fmt.Fprintf(b, "\n**%s**\n\n", md(t.Title))
		heads, align := []string{t.Rows}, "l"
		for _, c := range t.Columns {
			heads, align = append(heads, head(c)), align+"r"
		}
		mdHead(b, heads, align)
		for _, row := range t.Lines {
			mdRow(b, append([]string{rowName(row)}, cellTexts(row, t.Columns)...))
		}
		if t.Note != "" {
			fmt.Fprintf(b, "\n%s\n", md(t.Note))
		}
	}
	if len(r.Claims) > 0 {
		fmt.Fprint(b, "\n**The paper beside**\n\n")
		mdHead(b, []string{"", "paper", "here", "where"}, "llll")
		for _, c := range r.Claims {
			mdRow(b, []string{c.What, c.Paper, here(c), c.Source})
		}
	}
	if len(r.Parameters) > 0 {
		fmt.Fprint(b, "\n**How it was measured**\n\n")
		mdFacts(b, r.Parameters)
	}
	for i, n := range r.Notes {
		if i == 0 {
			fmt.Fprintln(b)
		}
		fmt.Fprintf(b, "- %s\n", md(n))
	}
	for i, m := range r.Missing {
		if i == 0 {
			fmt.Fprintln(b)
		}
		fmt.Fprintf(b, "- Not measured: %s: %s.\n", md(m.What), md(strings.TrimSuffix(m.Why, ".")))
	}
}

func mdGoals(b io.Writer, goals []result.Goal) {
	mdHead(b, []string{"what", "goal", "measured", "", "remarks"}, "llrll")
	for _, g := range goals {
		mdRow(b, []string{g.What, limit(g), measured(g), string(g.Verdict()), goalRemark(g)})
	}
}

func mdComparisons(b io.Writer, comparisons []result.Comparison) {
	mdHead(b, []string{"what", "", "", "beside", "", ""}, "llrlrl")
	for _, c := range comparisons {
		mdRow(b, []string{c.What, c.Ourselves(), c.Unit.Full(c.Ours.Value), c.Peer, c.Unit.Full(c.Theirs.Value), outcome(c)})
	}
	for i, r := range reasons(comparisons) {
		if i == 0 {
			fmt.Fprintln(b)
		}
		fmt.Fprintf(b, "- %s: %s.\n", md(r.Peer), md(r.Why))
	}
}

func mdFacts(b io.Writer, facts []result.Fact) {
	mdHead(b, []string{"", ""}, "ll")
	for _, f := range facts {
		mdRow(b, []string{f.Name, f.Value})
	}
}

func mdHead(b io.Writer, heads []string, align string) {
	mdRow(b, heads)
	for _, a := range align {
		fmt.Fprint(b, map[rune]string{'l': "|:--", 'r': "|--:"}[a])
	}
	fmt.Fprintln(b, "|")
}

func mdRow(b io.Writer, cells []string) {
	for _, c := range cells {
		fmt.Fprintf(b, "| %s ", md(c))
	}
	fmt.Fprintln(b, "|")
}

var markdownSpecial = strings.NewReplacer("\\", `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`, "\n", " ")

// md escapes text for Markdown.
func md(s string) string { return markdownSpecial.Replace(s) }
