package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	const events = `
{"Action":"run","Package":"a","Test":"TestGood"}
{"Action":"pass","Package":"a","Test":"TestGood","Elapsed":0}
{"Action":"output","Package":"a","Test":"TestAway","Output":"=== RUN   TestAway\n"}
{"Action":"output","Package":"a","Test":"TestAway","Output":"    a_test.go:7: no MPI here: install openmpi-bin\n"}
{"Action":"output","Package":"a","Test":"TestAway","Output":"--- SKIP: TestAway (0.00s)\n"}
{"Action":"skip","Package":"a","Test":"TestAway","Elapsed":0}
{"Action":"fail","Package":"a","Test":"TestBad","Elapsed":0}
{"Action":"fail","Package":"a","Elapsed":0}
{"Action":"fail","Package":"b","Elapsed":0}
{"Action":"skip","Package":"c","Elapsed":0}
`
	var r report
	require.NoError(t, r.read(strings.NewReader(events)))
	assert.Equal(t, 1, r.passed)
	assert.Equal(t, 1, r.failed)
	assert.Equal(t, 1, r.broken, "package b failed without a test of its own")

	var out bytes.Buffer
	r.summary(&out, 3*time.Second)
	assert.Equal(t, "skipped: a TestAway: no MPI here: install openmpi-bin\n"+
		"1 packages or runs failed outside of a test\n"+
		"1 passed, 1 failed, 1 skipped in 3s\n", out.String())
}

func TestLine(t *testing.T) {
	for name, want := range map[string]string{
		"TestA": "pass TestA  1.5s\n", "TestA/b": "pass TestA/b  1.5s\n", "TestA/b/c": "",
	} {
		assert.Equal(t, want, (&report{levels: 2}).line(event{Action: "pass", Test: name, Elapsed: 1.5}))
	}
	assert.Equal(t, "run  TestA\n", (&report{levels: 1}).line(event{Action: "run", Test: "TestA"}))
	assert.Empty(t, (&report{}).line(event{Action: "pass", Test: "TestA"}))

	var r report
	tests := []string{"-timeout 20m ./...", "-run x ./a"}
	assert.Equal(t, tests, r.options(tests))
	assert.Zero(t, r.levels)
	assert.Equal(t, tests, r.options(append([]string{"-levels", "3"}, tests...)))
	assert.Equal(t, 3, r.levels)
}

func TestGoTest(t *testing.T) {
	for args, want := range map[string]string{
		"-timeout 20m ./...":          "test -json -timeout 20m ./...",
		"-C bench -timeout 20m ./...": "test -C bench -json -timeout 20m ./...",
	} {
		assert.Equal(t, strings.Fields(want), goTest(strings.Fields(args)))
	}
}

// TestTimeUp checks that the end of a fuzz test's time is not a failure, and that a failing input is.
func TestTimeUp(t *testing.T) {
	const start = `
{"Action":"run","Package":"a","Test":"FuzzA"}
{"Action":"output","Package":"a","Test":"FuzzA","Output":"fuzz: elapsed: 3s, execs: 40304 (0/sec), new interesting: 104 (total: 108)\n"}
{"Action":"output","Package":"a","Test":"FuzzA","Output":"--- FAIL: FuzzA (3.20s)\n"}
`
	const end = `
{"Action":"fail","Package":"a","Test":"FuzzA","Elapsed":3.2}
{"Action":"fail","Package":"a","Elapsed":3.2}
`
	for _, c := range []struct {
		name, between  string
		passed, failed int
	}{
		{"time is up", `{"Action":"output","Package":"a","Test":"FuzzA","Output":"    context deadline exceeded\n"}`, 1, 0},
		{"an input", `{"Action":"output","Package":"a","Test":"FuzzA","Output":"    --- FAIL: FuzzA (0.00s)\n        x.go:1: context deadline exceeded\n"}`, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r report
			require.NoError(t, r.read(strings.NewReader(start+c.between+end)))
			assert.Equal(t, [3]int{c.passed, c.failed, 0}, [3]int{r.passed, r.failed, r.broken})
			assert.Equal(t, c.passed == 1, r.timeUp)
		})
	}
}
