//go:build race

package microfs

import "testing"

const raceEnabled = true

// sweepStep is how many moments of a sweep go by from one to the next: the detector sees which code runs beside which, and that
// is the same at each of them. The other run has them all.
const sweepStep = 12

// skipRace skips a test in which nothing runs beside another: the detector
// would find nothing, at five times the cost. The other run has it whole.
func skipRace(t *testing.T) {
	t.Helper()
	t.Skip("one operation at a time: nothing for the race detector")
}
