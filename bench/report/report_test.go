package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/result"
)

var update = flag.Bool("update", false, "write the golden files again")

// sample returns a report that has everything a report can have.
func sample() *result.Report {
	measure := func(v, low, high float64) result.Measure {
		return result.Measure{Value: v, Low: low, High: high, N: 9}
	}
	checkpoint := &result.Result{
		Name: "checkpoint", Title: "Checkpoint bandwidth", Shows: "Figure 9(c)",
		Finding: "Four ranks write 5% slower than raw NVMe/TCP does; tmpfs, which is memory, is faster.",
		Began:   time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Took: 95 * time.Second,
		Goals: []result.Goal{
			{What: "write, 4 ranks, of raw", Limit: 0.9, Unit: result.Ratio, Measured: measure(0.953, 0.931, 0.972), Beside: "5512 of 5784 MiB/s"},
			{What: "read, 4 ranks, of raw", Limit: 0.9, Unit: result.Ratio, Measured: measure(0.911, 0.883, 0.934)},
			{What: "raw of the sockets baseline", Limit: 0.9, Unit: result.Ratio, Measured: measure(0.894, 0.871, 0.918), Why: "the target copies once more"},
			{What: "recovery, of raw", Limit: 0.9, Unit: result.Ratio, Ceiling: true, Measured: measure(1.2, 1.1, 1.3)},
			{What: "4 KiB write, beside raw", Limit: 4e-6, AtMost: true, Unit: result.Duration, Measured: measure(5.2e-6, 5.0e-6, 5.5e-6)},
			{What: "against SPDK's perf", Limit: 1, Unit: result.Ratio, Absent: true, Why: "spdk_nvme_perf is not installed"},
			{What: "write, 1 rank, beside XFS", Aside: true, Unit: result.Times, Measured: measure(1.2, 1.1, 1.3)},
		},
		Comparisons: []result.Comparison{
			{What: "Write and fsync", Peer: "XFS on a loop device", Unit: "MiB/s", Ours: measure(5512, 5400, 5600), Theirs: measure(2310, 2200, 2400),
				Ratio: measure(2.386, 2.31, 2.44), Why: "it copies into the page cache and writes that back"},
			{What: "Write and fsync", Peer: "tmpfs", Unit: "MiB/s", Ours: measure(5512, 5400, 5600), Theirs: measure(7900, 7700, 8000),
				Ratio: measure(0.698, 0.68, 0.71), Why: "it is memory of the same machine: nothing crosses a socket and nothing survives it."},
			{What: "Write and fsync", Peer: "NFS <v4>", Unit: "MiB/s", Ours: measure(5512, 5400, 5600), Theirs: measure(5400, 5200, 5650),
				Ratio: measure(1.021, 0.98, 1.05)},
			{What: "Write and fsync", Peer: "raw NVMe/TCP", Ceiling: true, Unit: "MiB/s", Ours: measure(5512, 5400, 5600), Theirs: measure(5784, 5700, 5800),
				Ratio: measure(0.953, 0.931, 0.972), Why: "it has no names, no log and no checksums"},
			{What: "Write, void", Peer: "raw NVMe/TCP", Ceiling: true, Unit: "MiB/s", Ours: measure(5512, 5400, 5600), Theirs: measure(5000, 4900, 5100),
				Ratio: measure(1.1, 1.06, 1.14), Why: "it has no names, no log and no checksums"},
			{What: "Write", Who: "raw NVMe/TCP", Peer: "another", Unit: "MiB/s", Ours: measure(5784, 5700, 5800), Theirs: measure(8000, 7900, 8100),
				Ratio: measure(0.72, 0.71, 0.73)},
		},
		Notes:   []string{"Reads of tmpfs are reads of memory, as a page cache's are."},
		Missing: []result.Missing{{What: "GlusterFS", Why: "no directory was named; --peer dir:PATH names one."}},
	}
	checkpoint.Parameter("ranks", "%d", 4)
	checkpoint.Parameter("size", "%s", "128 MiB a rank | 1 MiB pieces")
	bandwidth := result.Plot{Title: "Bandwidth against ranks", X: result.Axis{Name: "ranks", Log: true, Unit: result.Whole}, Y: result.Axis{Name: "written and synced", Unit: "MiB/s"},
		Marks: []result.Mark{{Name: "sockets baseline", Y: 6100}}, Note: "The whiskers are quartiles."}
	table := result.Table{Title: "Bandwidth against ranks", Rows: "ranks", Columns: []result.Column{{Name: "nvmecr", Unit: "MiB/s"}, {Name: "XFS", Unit: "MiB/s"}, {Name: "of raw", Unit: result.Ratio}, {Name: "written", Unit: result.Size}},
		Note: "Medians of 9 rounds."}
	for i, n := range []float64{1, 2, 4, 8} {
		ours, theirs := 3000+800*float64(i), 2000+100*float64(i)
		bandwidth.Add("nvmecr", n, measure(ours, ours-150, ours+90))
		bandwidth.Add("XFS", n, measure(theirs, theirs-300, theirs+200))
		bandwidth.Add("raw", n, result.Exactly(ours*1.05))
		table.Add(result.Whole.Format(n), result.Number(measure(ours, ours-150, ours+90)), result.Number(measure(theirs, theirs-300, theirs+200)), result.Count(0.952), result.Count(n*float64(128<<20)))
	}
	bandwidth.Series = append(bandwidth.Series, result.Series{Name: "the paper", Paper: true, Points: []result.Point{{X: 1, Measure: result.Exactly(2100)}, {X: 8, Measure: result.Exactly(2200)}}})
	table.AddPaper("448 <processes>", result.Text("0.96 of hardware"), result.None(), result.None(), result.In(result.Size, 7e11))
	checkpoint.Plots = append(checkpoint.Plots, bandwidth)
	checkpoint.Tables = append(checkpoint.Tables, table)
	checkpoint.Claims = []result.Claim{
		{What: "efficiency at 448 processes", Paper: "0.96", Source: "section IV.H", Here: "0.953 at 4 ranks, of raw"},
		{What: "over OrangeFS", Paper: "2 times", Source: "abstract"},
	}

	metadata := &result.Result{Name: "metadata", Title: "Metadata on the media and in memory", Shows: "Table I", Began: checkpoint.Began, Took: 3 * time.Second}
	bars := result.Plot{Title: "Memory of a rank", Bars: true, X: result.Axis{Name: "files", Names: []string{"1", "100", "10,000"}}, Y: result.Axis{Name: "resident", Unit: result.Size}}
	for i, v := range []float64{20, 24, 61} {
		bars.Add("nvmecr", float64(i), measure(v*(1<<20), v*(1<<20)*0.97, v*(1<<20)*1.05))
		bars.Add("without", float64(i), result.Exactly(3*1<<20))
	}
	logs := result.Plot{Title: "Time to mount", X: result.Axis{Name: "records", Log: true, Unit: result.Whole}, Y: result.Axis{Name: "mount", Unit: result.Duration, Log: true}}
	for x := 1e3; x <= 1e6; x *= 10 {
		logs.Add("each", x, measure(x*1e-6, x*0.9e-6, x*1.2e-6))
		logs.Add("coalesced", x, measure(0.0004+x*1e-9, 0.0004, 0.0005+x*1e-9))
	}
	metadata.Plots = []result.Plot{bars, logs}
	return &result.Report{Program: "nvmecr 1.2.3", Command: "nvmecr bench report --out `here`", Began: checkpoint.Began,
		Machine: []result.Fact{{Name: "CPU", Value: "2 cores of an <Example> CPU"}, {Name: "kernel", Value: "Linux 6.1"}},
		Results: []*result.Result{checkpoint, metadata}}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "%s differs; see it, then: go test ./bench/report -update", path)
}

// TestGolden compares all forms of a report with golden files.
func TestGolden(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, Save(dir, sample()))
	var text bytes.Buffer
	require.NoError(t, Text(&text, sample()))
	golden(t, "report.txt", text.Bytes())
	text.Reset()
	require.NoError(t, Summary(&text, sample()))
	golden(t, "summary.txt", text.Bytes())
	for name, stored := range map[string]string{
		"report.md": "report.md", "report.html": "report.html", "report.json": "report.json",
		"plots/checkpoint-1.svg": "lines.svg", "plots/metadata-1.svg": "bars.svg", "plots/metadata-2.svg": "log.svg", "tables/checkpoint-1.csv": "table.csv",
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		golden(t, stored, got)
	}
}

// TestPageStandsAlone checks that the HTML page needs no other file, and some of its content.
func TestPageStandsAlone(t *testing.T) {
	var page bytes.Buffer
	require.NoError(t, HTML(&page, sample()))
	text := page.String()
	for _, outside := range []string{"src=", "href=\"http", "url(", "@import", "<script", "<link"} {
		assert.NotContains(t, text, outside)
	}
	assert.Contains(t, text, "&lt;Example&gt;")
	assert.Contains(t, text, `1.43x<small>1.41x to 1.47x</small></td><td><span class="tag bad">tmpfs wins</span>`)
	assert.Contains(t, text, "<b>tmpfs</b>: It is memory of the same machine")
	assert.Contains(t, text, "<b>another</b>: Why it wins is not known")
	assert.Contains(t, text, "0.953 of it<small>0.931 to 0.972</small>")
	for _, v := range regexp.MustCompile(`var\(--([a-z0-9]+)\)`).FindAllStringSubmatch(text, -1) {
		assert.Contains(t, text, "--"+v[1]+":", "a colour that is not defined")
	}
	for name := range light {
		assert.Contains(t, dark, name)
		assert.Contains(t, inks, name)
	}
	assert.NotContains(t, text, "#0101", "a colour without a name")
}

// TestOneResult checks that a report of one result has no summary, which would only repeat it.
func TestOneResult(t *testing.T) {
	r := sample()
	r.Results = r.Results[:1]
	var page bytes.Buffer
	require.NoError(t, HTML(&page, r))
	assert.NotContains(t, page.String(), "What was found")
	assert.Contains(t, page.String(), r.Results[0].Finding)
}

// TestPictures checks that a plot with any texts and values is well-formed SVG, and that no colour
// depends on a page.
func TestPictures(t *testing.T) {
	few := result.Plot{Title: `<"&'>`, X: result.Axis{Name: "<x>"}, Y: result.Axis{Name: "&"}, Series: []result.Series{{Name: "<s>"}}}
	one := few
	one.Series = []result.Series{{Name: "a", Points: []result.Point{{X: 4, Measure: result.Exactly(0)}}}, {Name: "b"}}
	below := one
	below.Series = []result.Series{{Points: []result.Point{{X: 1, Measure: result.Measure{Value: -3, Low: -5, High: 2, N: 4}}, {X: 1e9, Measure: result.Exactly(1e-9)}}}}
	logs := below
	logs.X.Log, logs.Y.Log = true, true
	logs.Series = []result.Series{{Points: []result.Point{{X: 7, Measure: result.Measure{Value: 3, Low: -5, High: 7, N: 4}}}}}
	plots := map[string]result.Plot{"empty": few, "one": one, "below": below, "logs": logs}
	for _, r := range sample().Results {
		for _, p := range r.Plots {
			plots[p.Title] = p
		}
	}
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			svg, err := SVG(p)
			require.NoError(t, err)
			assert.NotContains(t, svg, "var(")
			assert.NotContains(t, svg, "NaN")
			assert.NotContains(t, svg, "#0101")
			d := xml.NewDecoder(strings.NewReader(svg))
			for err = error(nil); err == nil; {
				_, err = d.Token()
			}
			assert.True(t, errors.Is(err, io.EOF), "%v in %s", err, svg)
		})
	}
}

// TestFound checks the finding of results with and without a text.
func TestFound(t *testing.T) {
	full := sample().Results[0]
	for want, r := range map[string]*result.Result{
		"Four ranks write":           full,
		"Of 6 goals: 1 met":          {Goals: full.Goals},
		"Write and fsync beside XFS": {Comparisons: full.Comparisons},
		"Not measured: no d":         {Missing: full.Missing},
		"See the tables.":            {Tables: full.Tables, Missing: full.Missing},
	} {
		assert.True(t, strings.HasPrefix(found(r), want), "%s: %s", want, found(r))
	}
}

// TestTicks checks the ticks of axes, and their labels.
func TestTicks(t *testing.T) {
	assert.Equal(t, []float64{0, 2000, 4000, 6000}, niceTicks(0, 5500, "MiB/s"))
	assert.Equal(t, []float64{0, 16, 32, 48, 64}, niceTicks(0, 61, result.Size))
	assert.Equal(t, []float64{0, 1, 2}, niceTicks(0, 2, result.Whole))
	assert.Equal(t, []float64{1, 10, 100, 1000}, logTicks(1, 1000, ""))
	assert.Equal(t, []float64{10, 20, 50, 100, 200, 500}, logTicks(10, 100, ""))
	assert.Equal(t, []float64{1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20}, logTicks(1<<20, 256<<20, result.Size))
	assert.Equal(t, 1024.0, logFloor(2047, result.Size))
	assert.Equal(t, 2048.0, logCeil(1025, result.Size))
	for v, want := range map[float64]float64{1: 1, 3: 2, 7: 5, 0.004: 0.002} {
		assert.InEpsilon(t, want, logFloor(v, ""), 1e-9)
	}
	for v, want := range map[float64]float64{1: 1, 3: 5, 7: 10, 0.004: 0.005} {
		assert.InEpsilon(t, want, logCeil(v, ""), 1e-9)
	}
	for in, want := range map[string]string{"1.50 ms": "1.5 ms", "2.00 s": "2 s", "100 s": "100 s", "0.20": "0.2", "1,000": "1,000"} {
		assert.Equal(t, want, trimZeros(in))
	}
}

// TestSaveSaysWhatIsWrong checks the errors of Save.
func TestSaveSaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.Error(t, Save(file, sample()))
	r := sample()
	r.Results[0].Tables[0].Lines[0].Cells = nil
	assert.ErrorContains(t, Save(t.TempDir(), r), "0 cells for 4 columns")
}
