//go:build !amd64

package target

// prefetch does nothing: it only makes reads faster.
func prefetch(*byte, uintptr) {}
