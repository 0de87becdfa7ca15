//go:build !race

package posixshim

const raceEnabled = false
