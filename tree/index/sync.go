package index

import "runtime"

// A call whose result must be durable before its answer sets Index.needsSync, and is answered after a sync. A sync may take
// longer than ten calls, so all calls that have run before a sync begins share it.

// deferSync returns the number of the call that has run if it must be durable, otherwise 0. The caller holds mu.
func (x *Index) deferSync() uint64 {
	if !x.needsSync {
		return 0
	}
	x.syncsRequested++
	return x.syncsRequested
}

// awaitSync makes the call of that number durable. The caller does not hold mu.
func (x *Index) awaitSync(number uint64) error {
	if number <= x.syncsDone.Load() {
		return nil
	}
	x.syncing.Lock()
	defer x.syncing.Unlock()
	if number <= x.syncsDone.Load() {
		return nil
	}
	runtime.Gosched() // let calls that wait for mu run first, and share this sync
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

// synced records that everything is durable.
func (x *Index) synced() {
	x.unsynced, x.needsSync = false, false
	x.syncsDone.Store(x.syncsRequested)
}
