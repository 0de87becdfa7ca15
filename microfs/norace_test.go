//go:build !race

package microfs

import "testing"

const raceEnabled = false

const sweepStep = 1

func skipRace(*testing.T) {}
