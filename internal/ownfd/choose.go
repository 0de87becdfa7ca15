package ownfd

import (
	"sync"
	"time"
)

// A descriptor has the lowest free number until Hold has moved it. An application that has closed a standard descriptor, or
// calls dup2, is about to give a number of its choice to a file: the kernel's dup2 would be EBUSY, or replace the
// descriptor of the runtime. So other threads of the runtime wait until the application has done that.

// chooseTime is the maximum waiting time: an application that has closed a descriptor may never want its number again.
const chooseTime = 100 * time.Millisecond

var choosing struct {
	mu    sync.RWMutex // held for reading while a descriptor is opened
	until time.Time    // end of the waiting time; zero: the application is not choosing
}

// Choose announces that the application is about to give a number of its choice to a descriptor, or, with false, that it has. It
// returns when no other thread has a descriptor between Open's open and Hold.
func Choose(begins bool) {
	choosing.mu.Lock()
	defer choosing.mu.Unlock()
	if choosing.until = (time.Time{}); begins {
		choosing.until = time.Now().Add(chooseTime)
	}
}

// Open runs open, which opens one descriptor and does not block, and holds the descriptor. It is for threads that run concurrently with
// those of the application.
func Open(open func() (int, error)) (int, error) {
	choosing.mu.RLock()
	for choosing.until.After(time.Now()) {
		choosing.mu.RUnlock()
		time.Sleep(chooseTime / 1000)
		choosing.mu.RLock()
	}
	defer choosing.mu.RUnlock()
	fd, err := open()
	if err != nil {
		return fd, err
	}
	return Hold(fd), nil
}
