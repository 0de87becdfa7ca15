package index

import (
	"fmt"
	"syscall"
	"time"

	"nvmecr/tree/wire"
)

// maxLocks is the maximum number of locked ranges of a client, since each takes memory of the index.
const maxLocks = 1 << 16

// lockPatience is how long a publication waits for a write lock of another client on bytes that it publishes (lockWait).
const lockPatience = time.Second

// A lockWait is the wait of a publication for a write lock of another client (fcntl) on the same bytes. MPI libraries that write a
// piece with gaps take such a lock, read the piece, change it and write all of it. They do not find bytes there that another
// client has written without a lock, and has not published. If these were published before the lock ends, the old bytes would replace
// them. A lock that is held for longer than lockPatience is used for something else, and no publication waits for it again.
type lockWait struct {
	holder *session
	until  time.Time
	ended  chan struct{} // closed when the holder's locks change
}

func (w *lockWait) Error() string { return fmt.Sprintf("process %d has a lock", w.holder.client.pid) }

func (w *lockWait) over() <-chan struct{} { return w.ended }

// limit does not depend on how long the call has waited for other locks: this one may be new.
func (w *lockWait) limit(x *Index, begun time.Time) (time.Duration, bool) {
	d := time.Until(w.until)
	if rest, limited := x.rest(begun); limited {
		d = min(d, rest)
	}
	return d, true
}

func (w *lockWait) expired(x *Index) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.holder.lockWait == w {
		w.holder.lockHeld = true
	}
	return nil
}

// lockedByOther returns the wait for a write lock of another client on bytes of a publication; nil: there is none. The caller holds x.mu.
func (s *session) lockedByOther(p *wire.Publication) error {
	if s.file.locked == 0 {
		return nil
	}
	for o := range s.file.sessions {
		if o == s || o.lockHeld {
			continue
		}
		for _, r := range p.Ranges {
			if o.locks[wire.RecordLock].Conflict(&wire.Locked{Start: r.Off, End: r.Off + r.Len}) == nil {
				continue
			}
			if o.lockWait == nil {
				o.lockWait = &lockWait{holder: o, until: time.Now().Add(lockPatience), ended: make(chan struct{})}
			}
			return o.lockWait
		}
	}
	return nil
}

// setLocks replaces the session's locks of a kind. Publications that wait for them are tried again.
func (s *session) setLocks(kind wire.LockKind, now wire.Locks) {
	more := len(now) - len(s.locks[kind])
	s.locks[kind] = now
	s.client.locks += more
	s.file.locked += more
	s.lockHeld = false
	if s.lockWait != nil {
		close(s.lockWait.ended)
		s.lockWait = nil
	}
}

// valid reports whether a request is valid.
func valid(r *wire.Lock) bool {
	at := r.Start
	for i := range r.Hold {
		h := &r.Hold[i]
		if h.Start < at || h.End <= h.Start {
			return false
		}
		at = h.End
	}
	return r.Kind <= wire.FileLock && r.Start >= 0 && at <= r.End
}

// lock executes a lock request of the session's client.
func (s *session) lock(r *wire.Lock) (wire.Body, error) {
	if !valid(r) {
		return nil, syscall.EINVAL
	}
	found := s.conflict(r)
	switch {
	case r.Test:
		return &found, nil
	case found.There:
		return nil, syscall.EAGAIN
	}
	now := s.locks[r.Kind].Replaced(r.Start, r.End, r.Hold)
	if more := len(now) - len(s.locks[r.Kind]); more > 0 && s.client.locks+more > maxLocks {
		return nil, syscall.ENOLCK
	}
	s.setLocks(r.Kind, now)
	return &found, nil
}

// conflict returns a lock of another client that conflicts with a request, if any.
func (s *session) conflict(r *wire.Lock) wire.Conflict {
	for o := range s.file.sessions {
		if o == s {
			continue
		}
		for i := range r.Hold {
			if l := o.locks[r.Kind].Conflict(&r.Hold[i]); l != nil {
				return wire.Conflict{There: true, Locked: *l, PID: o.client.pid}
			}
		}
	}
	return wire.Conflict{}
}

// unlock releases all locks that the session's client has on the file.
func (s *session) unlock() {
	for kind := range s.locks {
		s.setLocks(wire.LockKind(kind), nil)
	}
}
