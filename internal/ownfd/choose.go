package ownfd

import (
	"sync"
	"time"
)

// A descriptor has the lowest free number until Hold has moved it. An application that has closed a standard descriptor, or
// calls dup2, is about to give a number of its choice to a file: the kernel's dup2 would be EBUSY, or replace the
// descriptor of the runtime. So threads that run beside those of the application wait until the application has done that.

// chooseTime is for how long they wait: an application that has closed a descriptor may want its number never again.
const chooseTime = 100 * time.Millisecond

var choosing struct {
	mu    sync.RWMutex // held for reading while a descriptor is opened
	until time.Time    // the application is about to choose; zero: it is not
}

// Choose is told that the application is about to give a number of its choice to a descriptor, or with false that it has. It returns
// when no thread has a descriptor that Open has not held yet.
func Choose(begins bool) {
	choosing.mu.Lock()
	defer choosing.mu.Unlock()
	if choosing.until = (time.Time{}); begins {
		choosing.until = time.Now().Add(chooseTime)
	}
}

// Open runs open, which opens one descriptor and does not block, and holds that. It is for threads that run beside those of the
// application.
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
