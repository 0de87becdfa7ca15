package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"nvmecr/bench/result"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"tally": tally, "limit": limit, "measured": measured, "remark": goalRemark,
	"victor": victor, "factor": factor, "factorSpread": factorSpread, "reasons": reasons, "head": head, "spread": spread, "here": here,
	"unit":    cellUnit,
	"verdict": func(g result.Goal) string { return verdictClasses[g.Verdict()] },
	"winner":  winner,
	"found":   found,
	"trim":    func(s string) string { return strings.TrimSuffix(s, ".") },
	"svg": func(p result.Plot) (template.HTML, error) {
		svg, err := drawSVG(p)
		return template.HTML(svg), err // its texts are escaped
	},
}).Parse(pageText))

var (
	verdictClasses = map[result.Verdict]string{result.Met: "good", result.BarelyMet: "good", result.BarelyShort: "near", result.Missed: "bad", result.Void: "none", result.NotMeasured: "none", result.NoGoal: "none"}
	winnerClasses  = map[int]string{1: "good", 0: "near", -1: "bad"}
)

func winner(c result.Comparison) string {
	if c.Ceiling {
		return "none"
	}
	return winnerClasses[c.Winner()]
}

// HTML writes the report as one page without other files. It follows the reader's
// preference for light or dark colours.
func HTML(w io.Writer, r *result.Report) error {
	style := fmt.Sprintf(":root{%s}\n@media (prefers-color-scheme: dark){:root{%s}}\n%s", variables(light), variables(dark), pageStyle)
	data := struct {
		*result.Report
		Style       template.CSS
		Legend      string
		Date        string
		Goals       []result.Goal
		Comparisons []result.Comparison
	}{Report: r, Style: template.CSS(style), Legend: legend, Date: r.Began.UTC().Format("2 January 2006, 15:04 UTC"), Goals: allGoals(r)}
	for _, res := range r.Results {
		for _, c := range res.Comparisons {
			if !c.Ceiling {
				data.Comparisons = append(data.Comparisons, c)
			}
		}
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}
