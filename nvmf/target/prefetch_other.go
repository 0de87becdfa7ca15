//go:build !amd64

package target

// prefetch does nothing: reads are as correct without.
func prefetch(*byte, uintptr) {}
