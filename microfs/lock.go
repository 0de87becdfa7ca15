package microfs

import "sync"

// lock is a mutex with Yield: its owner can let waiting goroutines go first. A
// sync.Mutex that a goroutine unlocks and locks again mostly stays with that
// goroutine, since the waiting ones have to wake up first.
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

// Unlock gives it back.
func (l *lock) Unlock() { l.mu.Unlock() }

// Yield gives the lock back and takes it again, after the first of those who
// waited for it.
func (l *lock) Yield() {
	l.mu.Unlock()
	l.queue()
}

func (l *lock) queue() {
	l.next.Lock()
	l.mu.Lock()
	l.next.Unlock()
}
