package result

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/stats"
)

// TestMeasures checks the measures of a sample.
func TestMeasures(t *testing.T) {
	s := stats.Sample{1, 2, 3, 4, 5, 6, 7, 8, 9}
	assert.Equal(t, Measure{5, 3, 7, 9}, Middle(s))
	assert.Equal(t, Measure{5, 2, 8, 9}, Interval(s))
	assert.Equal(t, Measure{50, 40, 75, 3}, Per(100, stats.Sample{2, 1, 100. / 30}))
	assert.True(t, Middle(s).Spread())
	assert.False(t, Exactly(3).Spread())
	assert.False(t, Middle(stats.Sample{3, 3, 3}).Spread())
}

// TestVerdict checks the verdict of goals.
func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		measured Measure
		atMost   bool
		want     Verdict
	}{
		{Measure{0.95, 0.92, 0.97, 9}, false, Met},
		{Measure{0.95, 0.88, 0.97, 9}, false, BarelyMet},
		{Measure{0.89, 0.85, 0.91, 9}, false, BarelyShort},
		{Measure{0.80, 0.75, 0.85, 9}, false, Missed},
		{Measure{0.80, 0.75, 0.85, 9}, true, Met},
		{Measure{0.89, 0.85, 0.91, 9}, true, BarelyMet},
		{Measure{0.95, 0.88, 0.97, 9}, true, BarelyShort},
		{Measure{0.95, 0.92, 0.97, 9}, true, Missed},
		{Exactly(0.9), false, Met},
		{Exactly(0.9), true, Met},
		{Measure{Value: 0.95}, false, Met}, // one measurement: no interval
		{Measure{Value: 0.85}, false, Missed},
	} {
		g := Goal{Limit: 0.9, AtMost: tt.atMost, Measured: tt.measured}
		assert.Equal(t, tt.want, g.Verdict(), "%+v", tt)
		g.Aside = true
		assert.Equal(t, NoGoal, g.Verdict())
		g.Absent = true
		assert.Equal(t, NotMeasured, g.Verdict())
	}
}

// TestWinner checks that a comparison has a winner only if the interval of the ratio does not
// contain 1.
func TestWinner(t *testing.T) {
	for want, m := range map[int]Measure{1: {1.5, 1.4, 1.6, 9}, 0: {1.05, 0.98, 1.1, 9}, -1: {0.8, 0.7, 0.9, 9}} {
		assert.Equal(t, want, Comparison{Ratio: m}.Winner())
	}
	assert.Equal(t, 1, Comparison{Ratio: Measure{Value: 1.1, N: 1}}.Winner())
}

// TestUnits checks how numbers with a unit are written.
func TestUnits(t *testing.T) {
	for _, tt := range []struct {
		unit Unit
		v    float64
		want string
	}{
		{Plain, 0, "0"}, {Plain, 1234.5, "1234"}, {Plain, 12345, "12,345"}, {Plain, 99.96, "100"}, {Plain, 12.345, "12.3"},
		{Plain, 9.996, "10.0"}, {Plain, 1.2345, "1.23"}, {Plain, 0.01234, "0.012"}, {Plain, 0.0001234, "0.000123"}, {Plain, -12.345, "-12.3"},
		{Whole, 1048576, "1,048,576"}, {Whole, 1000, "1000"}, {Whole, -12345, "-12,345"}, {Whole, 3, "3"},
		{Ratio, 0.9, "0.900"}, {Times, 1.618, "1.62x"}, {Percent, 0.0314, "3.14%"}, {Percent, 0, "0%"},
		{Duration, 0, "0 s"}, {Duration, 15.7e-6, "15.7 µs"}, {Duration, 0.0123, "12.3 ms"}, {Duration, 1.5, "1.50 s"}, {Duration, 90, "90.0 s"},
		{Duration, 300, "5.00 min"}, {Duration, 7200, "2.00 h"}, {Duration, 75e-9, "75.0 ns"}, {Duration, -0.002, "-2.00 ms"},
		{Size, 0, "0 B"}, {Size, 1536, "1.5 KiB"}, {Size, -1536, "-1.5 KiB"}, {Size, 512 << 20, "512 MiB"},
		{"MiB/s", 5463.2, "5463 MiB/s"},
	} {
		assert.Equal(t, tt.want, tt.unit.Full(tt.v), "%q %v", tt.unit, tt.v)
	}
	assert.Equal(t, "5463", Unit("MiB/s").Format(5463.2))
	assert.Equal(t, "MiB/s", Unit("MiB/s").Label())
	assert.Equal(t, "", Size.Label())
}

// TestCells checks the texts of cells.
func TestCells(t *testing.T) {
	column := Column{"bandwidth", "MiB/s"}
	assert.Equal(t, "512", Count(512).Format(column))
	assert.Equal(t, "1.0 MiB", In(Size, 1<<20).Format(column))
	assert.Equal(t, "2 of 3", Text("%d of %d", 2, 3).Format(column))
	assert.Equal(t, "-", None().Format(column))
}

// TestCheck checks the errors for results that cannot be shown or stored.
func TestCheck(t *testing.T) {
	nan := math.NaN()
	good := Series{Points: []Point{{1, Exactly(2)}}}
	for name, r := range map[string]Result{
		"cells":       {Tables: []Table{{Columns: []Column{{}}, Lines: []Row{{Name: "row"}}}}},
		"not a":       {Tables: []Table{{Columns: []Column{{Name: "col"}}, Lines: []Row{{Cells: []Cell{Count(nan)}}}}}},
		"no series":   {Plots: []Plot{{}}},
		"logarithmic": {Plots: []Plot{{X: Axis{Log: true}, Series: []Series{{Points: []Point{{0, Exactly(1)}}}}}}},
		"of 1 names":  {Plots: []Plot{{X: Axis{Names: []string{"a"}}, Series: []Series{good}}}},
		"point":       {Plots: []Plot{{Series: []Series{good, {Points: []Point{{nan, Exactly(1)}}}}}}},
		"goal":        {Goals: []Goal{{Measured: Exactly(math.Inf(1))}}},
		"comparison":  {Comparisons: []Comparison{{Ratio: Exactly(1), Theirs: Exactly(nan)}}},
		"no ratio":    {Comparisons: []Comparison{{}}},
	} {
		err := r.Check()
		require.Error(t, err, name)
		assert.Contains(t, err.Error(), name)
		assert.Error(t, (&Report{Results: []*Result{&r}}).Write(&bytes.Buffer{}))
	}
}

// TestPlotAdd checks that points are added to the series of their name.
func TestPlotAdd(t *testing.T) {
	var p Plot
	p.Add("ours", 1, Exactly(10))
	p.Add("theirs", 1, Exactly(5))
	p.Add("ours", 2, Exactly(20))
	require.Len(t, p.Series, 2)
	assert.Equal(t, []Point{{1, Exactly(10)}, {2, Exactly(20)}}, p.Series[0].Points)
}

// TestJSON checks that a report is unchanged after it was written and read.
func TestJSON(t *testing.T) {
	r := &Result{Name: "raw", Title: "Raw", Began: time.Unix(1, 0).UTC(), Took: time.Second,
		Goals: []Goal{{What: "a < b & c", Limit: 0.9, Unit: Ratio, Measured: Measure{1, 0.9, 1.1, 9}}}}
	table := Table{Title: "t", Columns: []Column{{"c", Size}}}
	table.Add("ours", Number(Measure{1, 0.9, 1.1, 9}))
	table.AddPaper("theirs", Count(3))
	r.Tables = append(r.Tables, table)
	r.Plots = append(r.Plots, Plot{Series: []Series{{Name: "s", Points: []Point{{1, Exactly(2)}}}}})
	r.Note("%d notes", 1)
	r.Parameter("ranks", "%d", 4)
	r.NotMeasured("NFS", "not mounted")
	report := &Report{Program: "nvmecr test", Results: []*Result{r}}

	var b bytes.Buffer
	require.NoError(t, report.Write(&b))
	assert.Contains(t, b.String(), `"version": 1`)
	assert.Contains(t, b.String(), "a < b & c")
	back, err := Read(&b)
	require.NoError(t, err)
	assert.Equal(t, report, back)
}

// TestRead checks the errors for invalid JSON, and for another version.
func TestRead(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "not JSON": "nonsense", "null": `{"version":1,"results":[null]}`,
		"bad row": `{"version":1,"results":[{"tables":[{"rows":[{"cells":[{"value":1}]}]}]}]}`,
	} {
		_, err := Read(strings.NewReader(text))
		assert.Error(t, err, name)
	}
	_, err := Read(strings.NewReader(`{"version":2}`))
	assert.ErrorIs(t, err, ErrVersion)
}
