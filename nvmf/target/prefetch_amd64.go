package target

// prefetch asks for the n bytes at p to be brought into the second level of the
// cache.
//
//go:noescape
func prefetch(p *byte, n uintptr)
