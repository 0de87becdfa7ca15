//go:build race

package microfs

import "testing"

const raceEnabled = true

// sweepStep is the step of loops over all points of failure. Under the race detector the tests skip most
// points, because the same code runs concurrently at each of them. Without the detector they try all.
const sweepStep = 12

// skipRace skips a test without concurrency: the race detector would find nothing, and the test would
// take five times as long. Without the detector the test runs.
func skipRace(t *testing.T) {
	t.Helper()
	t.Skip("one operation at a time: nothing for the race detector")
}
