//go:build race

package posixshim

const raceEnabled = true
