package result

import "fmt"

// A Table has a name for each row and a cell for each row and column.
type Table struct {
	Title   string   `json:"title"`
	Rows    string   `json:"rows_are"` // what the rows are, such as "ranks": the header of their names
	Columns []Column `json:"columns"`
	Lines   []Row    `json:"rows"`
	Note    string   `json:"note,omitempty"` // one line below the table
}

// A Column is the header of a column, with the unit of its cells.
type Column struct {
	Name string `json:"name"`
	Unit Unit   `json:"unit,omitempty"`
}

// A Row is a line of a table.
type Row struct {
	Name  string `json:"name"`
	Cells []Cell `json:"cells"`
	// Paper marks the paper's own numbers. They are shown next to this project's
	// numbers, but never mixed with them.
	Paper bool `json:"paper,omitempty"`
}

// A Cell is a number or, if Text is not empty, text.
type Cell struct {
	Measure
	Text string `json:"text,omitempty"`
	Unit Unit   `json:"unit,omitempty"` // instead of the column's
}

// Add adds a row with this project's numbers.
func (t *Table) Add(name string, cells ...Cell) {
	t.Lines = append(t.Lines, Row{Name: name, Cells: cells})
}

// AddPaper adds a row of the paper's numbers.
func (t *Table) AddPaper(name string, cells ...Cell) {
	t.Lines = append(t.Lines, Row{Name: name, Cells: cells, Paper: true})
}

// Number returns a cell with a measured number.
func Number(m Measure) Cell { return Cell{Measure: m} }

// Count returns a cell with a number that was counted or computed.
func Count(v float64) Cell { return Cell{Measure: Exactly(v)} }

// In returns a cell with a counted number in another unit than the column's.
func In(unit Unit, v float64) Cell { return Cell{Measure: Exactly(v), Unit: unit} }

// Text returns a cell with text.
func Text(format string, a ...any) Cell { return Cell{Text: fmt.Sprintf(format, a...)} }

// None returns an empty cell.
func None() Cell { return Cell{Text: "-"} }

// Format returns the cell as text, without its spread.
func (c Cell) Format(column Column) string {
	switch {
	case c.Text != "":
		return c.Text
	case c.Unit != "":
		return c.Unit.Full(c.Value)
	}
	return column.Unit.Format(c.Value)
}

func (t Table) check() error {
	for _, row := range t.Lines {
		if len(row.Cells) != len(t.Columns) {
			return fmt.Errorf("row %q has %d cells for %d columns", row.Name, len(row.Cells), len(t.Columns))
		}
		for i, c := range row.Cells {
			if err := c.check(); err != nil {
				return fmt.Errorf("row %q, column %q: %w", row.Name, t.Columns[i].Name, err)
			}
		}
	}
	return nil
}
