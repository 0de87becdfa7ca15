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

// A Keeper is told of descriptors.
type Keeper struct {
	// Hold takes note of a descriptor and may move it: it returns its number.
	Hold func(fd int) int
	// Stay notes a descriptor whose number other code has to know. May be nil.
	Stay func(fd int)
	// Drop forgets one that is about to be closed. One that was never held
	// is ignored.
	Drop func(fd int)
	// Aside runs open while all numbers that applications use are taken. It
	// is called by one goroutine at a time. May be nil.
	Aside func(open func())
}

var keeper atomic.Pointer[Keeper]

// Keep makes k the one that is told from now on.
func Keep(k Keeper) { keeper.Store(&k) }

// Hold takes over fd, which has just been opened, and returns the number that
// it is to be used by.
func Hold(fd int) int {
	if k := keeper.Load(); k != nil {
		return k.Hold(fd)
	}
	return fd
}

// HoldInPlace takes over fd, which has to keep its number.
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
		_ = raw.Control(func(fd uintptr) { drop(int(fd)) }) // closed already: Close says so
	}
	return f.Close()
}

var aside sync.Mutex

// Aside runs open, which opens descriptors whose numbers it does not choose: they
// are out of the application's way. What other threads open meanwhile is so, too.
func Aside(open func()) {
	aside.Lock()
	defer aside.Unlock()
	if k := keeper.Load(); k != nil && k.Aside != nil {
		k.Aside(open)
	} else {
		open()
	}
}

// Drop forgets a descriptor that Hold has returned, or HoldInPlace was given, which other code closes;
// less than 0 is none.
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
