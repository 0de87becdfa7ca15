package target

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ownUsers reports whether the other end of a connection that came to local over
// the loopback is a process of this user or of root, as TCP itself does not say. Where
// the system does not say either the error is errNoUsers.
func ownUsers(peer, local netip.AddrPort) (bool, error) {
	uid, err := userOf(peer, local)
	if err != nil {
		uid, err = userInTable(peer, local)
	}
	return err == nil && (uid == 0 || uid == uint32(os.Geteuid())), err
}

var ne, be = binary.NativeEndian, binary.BigEndian

var errNoUsers = errors.New("the system does not tell whose sockets there are")

// Messages of NETLINK_SOCK_DIAG: a header of netlink's, then struct
// inet_diag_req_v2, or struct inet_diag_msg in the answer.
const (
	diagByFamily = 20
	diagRequest  = unix.NLMSG_HDRLEN + 56
	diagSocket   = unix.NLMSG_HDRLEN + 8 // ports and addresses, in the request
	diagUser     = unix.NLMSG_HDRLEN + 64
)

// userOf asks the kernel for the one socket that is bound to own and connected
// to other.
func userOf(own, other netip.AddrPort) (uint32, error) {
	if !own.Addr().Unmap().Is4() || !other.Addr().Unmap().Is4() {
		return 0, errNoUsers
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var b [4096]byte
	m := b[:diagRequest]
	ne.PutUint32(m, diagRequest)
	ne.PutUint16(m[4:], diagByFamily)
	ne.PutUint16(m[6:], unix.NLM_F_REQUEST)
	m[unix.NLMSG_HDRLEN], m[unix.NLMSG_HDRLEN+1] = unix.AF_INET, unix.IPPROTO_TCP
	ne.PutUint32(m[unix.NLMSG_HDRLEN+4:], ^uint32(0)) // in any state
	id := m[diagSocket:]
	be.PutUint16(id, own.Port())
	be.PutUint16(id[2:], other.Port())
	from, to := own.Addr().Unmap().As4(), other.Addr().Unmap().As4()
	copy(id[4:], from[:])
	copy(id[20:], to[:])
	ne.PutUint64(id[40:], ^uint64(0)) // whichever it is
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	n, _, err := unix.Recvfrom(fd, b[:], 0)
	if err != nil {
		return 0, err
	}
	if n < diagUser+4 || ne.Uint16(b[4:]) != diagByFamily {
		return 0, errNoUsers
	}
	return ne.Uint32(b[diagUser:]), nil
}

// userInTable looks the socket up among all that there are, for kernels that do
// not have sockets' diagnosis.
func userInTable(own, other netip.AddrPort) (uint32, error) {
	known := errNoUsers
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		table, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		known = nil
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			var uid uint32
			if len(f) > 7 && f[1] == inTable(own, name) && f[2] == inTable(other, name) {
				_, err := fmt.Sscan(f[7], &uid)
				return uid, err
			}
		}
	}
	if known == nil {
		known = fmt.Errorf("no socket at %s", own)
	}
	return 0, known
}

// inTable is an address as the kernel's table of sockets has it: words as the
// processor has them.
func inTable(a netip.AddrPort, table string) string {
	text := ""
	b := a.Addr().Unmap().AsSlice()
	if strings.HasSuffix(table, "6") {
		wide := a.Addr().As16()
		b = wide[:]
	}
	for ; len(b) >= 4; b = b[4:] {
		text += fmt.Sprintf("%08X", ne.Uint32(b))
	}
	return fmt.Sprintf("%s:%04X", text, a.Port())
}
