package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strconv"

	"nvmecr/bench/result"
)

// tableCSV returns a table for other programs. Each number has its median and, if it
// has a spread, the ends of the spread. Numbers are in the base unit (seconds, bytes,
// fractions) or in the unit named in the header.
func tableCSV(t result.Table) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	heads := []string{t.Rows}
	for _, c := range t.Columns {
		heads = append(heads, head(c), "low", "high")
	}
	if err := w.Write(heads); err != nil {
		return nil, err
	}
	for _, row := range t.Lines {
		cells := []string{rowName(row)}
		for _, c := range row.Cells {
			cells = append(cells, csvCells(c)...)
		}
		if err := w.Write(cells); err != nil {
			return nil, err
		}
	}
	w.Flush()
	return b.Bytes(), w.Error()
}

func csvCells(c result.Cell) []string {
	switch {
	case c.Text == "-":
		return []string{"", "", ""}
	case c.Text != "":
		return []string{c.Text, "", ""}
	case !c.Spread():
		return []string{csvNumber(c.Value), "", ""}
	}
	return []string{csvNumber(c.Value), csvNumber(c.Low), csvNumber(c.High)}
}

func csvNumber(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func tablePath(r *result.Result, i int) string {
	return fmt.Sprintf("%s/%s-%d.csv", tablesName, r.Name, i+1)
}
