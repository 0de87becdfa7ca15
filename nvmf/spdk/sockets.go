//go:build spdk

package spdk

import (
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// claimSocket finds the connection to a target that SPDK has just opened, -1 if
// there is none, and keeps it from the application and from programs that it
// executes: SPDK would leave it open for those, and the target would take the
// process for alive as long as they run. It gets the congestion control that was
// asked for, of which SPDK knows nothing.
func claimSocket(id nvmf.TransportID, congestion string) (int, error) {
	if id.Transport != nvmf.TCP {
		return -1, nil
	}
	entries, _ := os.ReadDir("/proc/self/fd") // without /proc it stays as it is
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 && leadsTo(fd, id) {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags|unix.FD_CLOEXEC) // closed meanwhile, if not
			return ownfd.Hold(fd), initiator.SetCongestion(fd, congestion)         // not moved: it was opened in ownfd.Aside
		}
	}
	return -1, nil
}

// leadsTo reports whether fd is a socket connected to the target.
func leadsTo(fd int, id nvmf.TransportID) bool {
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return false
	}
	var ip net.IP
	var port int
	switch a := peer.(type) {
	case *unix.SockaddrInet4:
		ip, port = a.Addr[:], a.Port
	case *unix.SockaddrInet6:
		ip, port = a.Addr[:], a.Port
	}
	return ip.Equal(net.ParseIP(id.Address)) && strconv.Itoa(port) == id.Service
}
