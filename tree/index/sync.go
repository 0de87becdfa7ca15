package index

import "runtime"

// A call whose work is to be durable before it is answered says so (Index.owing), and is answered after a sync, which may take
// longer than ten calls. So calls that have had their turn before a sync begins share it.

// owe returns the number of the call that has run if it is to be durable, else 0. The caller holds mu.
func (x *Index) owe() uint64 {
	if !x.owing {
		return 0
	}
	x.owed++
	return x.owed
}

// pay makes the call of that number durable. The caller does not hold mu.
func (x *Index) pay(number uint64) error {
	if number <= x.paid.Load() {
		return nil
	}
	x.paying.Lock()
	defer x.paying.Unlock()
	if number <= x.paid.Load() {
		return nil
	}
	runtime.Gosched() // who waits for mu has its turn first
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sync()
}

// sync makes everything durable. The caller holds mu.
func (x *Index) sync() error {
	err := x.fs.Flush()
	if err == nil {
		x.synced()
	}
	return err
}

// synced notes that everything is durable. The caller holds mu.
func (x *Index) synced() {
	x.unsynced, x.owing = false, false
	x.paid.Store(x.owed)
}
