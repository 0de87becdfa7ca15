package microfs

import "sync"

// lock is a mutex with Yield, by which its owner lets waiting goroutines go first. A sync.Mutex
// that a goroutine unlocks and locks again mostly stays with that goroutine, since waiting ones
// have to wake up first.
type lock struct {
	mu sync.Mutex
	// next is held by the first goroutine that waits for mu; the others wait for next.
	next sync.Mutex
}

// Lock takes the lock.
func (l *lock) Lock() {
	if !l.mu.TryLock() {
		l.queue()
	}
}

// Unlock gives the lock up.
func (l *lock) Unlock() { l.mu.Unlock() }

// Yield gives the lock up and takes it again after the first goroutine that waits for it.
func (l *lock) Yield() {
	l.mu.Unlock()
	l.queue()
}

func (l *lock) queue() {
	l.next.Lock()
	l.mu.Lock()
	l.next.Unlock()
}
