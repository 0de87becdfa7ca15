package posixshim

import (
	"encoding/binary"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// Mappings of processes that this process serves. The other process is sent the descriptor of the memory (mapping.go), and sends
// requests to write changes of the memory to the file. When its connection ends, the changes of the mappings that it still
// has are written, and the mappings are dropped.

// mapHandle and mapFlags return the first numbers of a request to map: the open file, and NV_MAP_*.
func (m *message) mapHandle() Handle {
	return m.predecessor.handle(Handle(binary.NativeEndian.Uint64(m.head[16:])))
}
func (m *message) mapFlags() int { return int(binary.NativeEndian.Uint64(m.head[24:])) }

// mapForPeer maps a file for another process. result is the handle to unmap, descriptor is sent to that process.
func (p *Process) mapForPeer(m *message) (result, descriptor int, err error) {
	h, how := m.mapHandle(), m.mapFlags()
	fd, err := p.dispatch(m)
	if err != nil {
		return fd, 0, err
	}
	if how&MapShared == 0 && fd&MapKept == 0 {
		return 0, ownfd.Hold(fd), nil // a private mapping is not unmapped
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
		errs = append(errs, p.writeBackMapping(h))
		for ; n > 0; n-- {
			errs = append(errs, p.unmapForPeer(m, h))
		}
	}
	return errors.Join(errs...)
}
