// Package ownfd keeps descriptors of the runtime out of the way of the
// application that it lives in: of those that close every number they can
// think of, and those that put a file of theirs on a number of their choice.
//
// What stays open is given to Hold as soon as it is open and closed with
// Close. What opens descriptors itself, as C libraries do, whose numbers cannot
// be changed any more, runs in Aside, and they are given to HoldInPlace. In the preloaded library the shim is told (Keep): it moves such a
// descriptor behind the numbers that applications use, and refuses it to them.
// Elsewhere nothing happens.
//
// All functions may be called from any goroutine.
package ownfd

import (
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A Keeper protects descriptors of the runtime from the application.
type Keeper struct {
	// Hold registers a descriptor and may move it: it returns the descriptor's number.
	Hold func(fd int) int
	// Stay registers a descriptor that cannot be moved, since other code uses its number. It may be nil.
	Stay func(fd int)
	// Drop unregisters a descriptor that is about to be closed. It ignores unknown ones.
	Drop func(fd int)
	// Aside runs open while all numbers that applications use are occupied. It is called by one goroutine at a time. It may be nil.
	Aside func(open func())
}

var keeper atomic.Pointer[Keeper]

// Keep sets the Keeper.
func Keep(k Keeper) { keeper.Store(&k) }

// Hold registers fd, which has just been opened, and returns the number to use for it.
func Hold(fd int) int {
	if k := keeper.Load(); k != nil {
		return k.Hold(fd)
	}
	return fd
}

// HoldInPlace registers fd without moving it.
func HoldInPlace(fd int) {
	if k := keeper.Load(); k != nil && k.Stay != nil {
		k.Stay(fd)
	}
}

// Close closes a descriptor that Hold has returned, or any other.
func Close(fd int) error {
	drop(fd)
	return unix.Close(fd)
}

// CloseFile closes f, made of a descriptor that Hold has returned.
func CloseFile(f *os.File) error {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { drop(int(fd)) }) // fails if already closed; Close then returns an error
	}
	return f.Close()
}

var aside sync.Mutex

// Aside runs open, which opens descriptors whose numbers it cannot choose, so that they get numbers which applications do not use. The
// same applies to descriptors that other threads open meanwhile.
func Aside(open func()) {
	aside.Lock()
	defer aside.Unlock()
	if k := keeper.Load(); k != nil && k.Aside != nil {
		k.Aside(open)
	} else {
		open()
	}
}

// Drop unregisters a descriptor of Hold or HoldInPlace, which other code closes. A negative one is ignored.
func Drop(fd int) {
	if fd >= 0 {
		drop(fd)
	}
}

func drop(fd int) {
	if k := keeper.Load(); k != nil {
		k.Drop(fd)
	}
}
