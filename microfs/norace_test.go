//go:build !race

package microfs

import "testing"

const raceEnabled = false

func skipRace(*testing.T) {}
