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
