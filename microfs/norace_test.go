//go:build !race

package microfs

const raceEnabled = false
