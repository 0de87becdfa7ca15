//go:build race

package microfs

import "testing"

const raceEnabled = true

// skipRace skips a test in which nothing runs beside another: the detector
// would find nothing, at five times the cost. The other run has it whole.
func skipRace(t *testing.T) {
	t.Helper()
	t.Skip("one operation at a time: nothing for the race detector")
}
