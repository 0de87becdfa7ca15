package posixshim

import (
	"encoding/binary"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// A file that another process maps is mapped by this one for it: that one gets the
// memory (mapping.go), and asks for what is changed in it to be written. What a
// connection has not unmapped when it ends is written then.

// mapped and how are what a request to map asks for: its first numbers.
func (m *message) mapped() Handle {
	return m.predecessor.handle(Handle(binary.NativeEndian.Uint64(m.head[16:])))
}
func (m *message) how() int { return int(binary.NativeEndian.Uint64(m.head[24:])) }

// mapForPeer makes the call to map a file for another process. The result is the handle to unmap,
// and the descriptor goes to that process.
func (p *Process) mapForPeer(m *message) (result, descriptor int, err error) {
	h, how := m.mapped(), m.how()
	fd, err := p.dispatch(m)
	if err != nil {
		return fd, 0, err
	}
	if how&MapShared == 0 && fd&MapKept == 0 {
		return 0, ownfd.Hold(fd), nil // there is nothing to unmap
	}
	fd &^= MapKept
	p.server.peerMappings.Add(1)
	if m.maps == nil {
		m.maps = make(map[Handle]int)
	}
	m.maps[h]++
	if descriptor, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return 0, 0, errors.Join(err, p.unmapForPeer(m, h))
	}
	return int(h), ownfd.Hold(descriptor), nil
}

// unmapForPeer unmaps a file that was mapped for the other end of a connection.
func (p *Process) unmapForPeer(m *message, h Handle) error {
	if m.maps[h] == 0 {
		return syscall.EINVAL
	}
	if m.maps[h]--; m.maps[h] == 0 {
		delete(m.maps, h)
	}
	p.server.peerMappings.Add(-1)
	return p.Unmap(h)
}

// unmapAllForPeer is called when a connection has ended.
func (p *Process) unmapAllForPeer(m *message) error {
	var errs []error
	for h, n := range m.maps {
		errs = append(errs, p.saveMapping(h))
		for ; n > 0; n-- {
			errs = append(errs, p.unmapForPeer(m, h))
		}
	}
	return errors.Join(errs...)
}
