package tree

import (
	"errors"

	"nvmecr/internal/vfs"
	"nvmecr/tree/wire"
)

var (
	_ vfs.Locker = (*node)(nil)
	_ vfs.Locker = (*file)(nil)
)

func lockKind(whole bool) wire.LockKind {
	if whole {
		return wire.FileLock
	}
	return wire.RecordLock
}

// Lock replaces the locks that this process has in a range, at the index.
func (n *node) Lock(whole bool, start, end int64, hold []vfs.Held) error {
	request := wire.Lock{Ino: n.ino, Kind: lockKind(whole), Start: start, End: end}
	for _, h := range hold {
		request.Hold = append(request.Hold, wire.Locked(h))
	}
	return n.fs.client.Call(wire.OpLock, &request, new(wire.Conflict))
}

// Conflict returns a lock that conflicts with the given one.
func (n *node) Conflict(whole bool, want vfs.Held) (vfs.Held, int, error) {
	request := wire.Lock{Ino: n.ino, Kind: lockKind(whole), Start: want.Start, End: want.End, Hold: []wire.Locked{wire.Locked(want)}, Test: true}
	var answer wire.Conflict
	err := n.fs.client.Call(wire.OpLock, &request, &answer)
	if err != nil || !answer.There {
		return vfs.Held{}, 0, err
	}
	return vfs.Held(answer.Locked), int(answer.PID), nil
}

// Lock publishes data written under a lock before the lock is given up, and requests the layout again after a lock is
// obtained, so that data written under earlier locks is visible. An error of publishing does not keep the lock; the
// data stays to be published.
func (f *file) Lock(whole bool, start, end int64, hold []vfs.Held) error {
	in := f.in
	in.lock()
	defer in.mu.Unlock()
	published := in.publish()
	if len(hold) == 0 {
		return errors.Join(published, f.node.Lock(whole, start, end, nil))
	}
	err := errors.Join(published, f.use())
	if err == nil {
		err = f.node.Lock(whole, start, end, hold)
	}
	if err == nil {
		err = in.refresh()
	}
	if err != nil {
		return err
	}
	return in.closeOldShard()
}
