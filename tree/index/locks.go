package index

import (
	"syscall"

	"nvmecr/tree/wire"
)

// maxLocks is the maximum number of locked ranges of a client, since each takes memory of the index.
const maxLocks = 1 << 16

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
	more := len(now) - len(s.locks[r.Kind])
	if more > 0 && s.client.locks+more > maxLocks {
		return nil, syscall.ENOLCK
	}
	s.locks[r.Kind] = now
	s.client.locks += more
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
		s.client.locks -= len(s.locks[kind])
		s.locks[kind] = nil
	}
}
