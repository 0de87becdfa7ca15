//go:build spdk

package spdk

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// arrivals runs a step of SPDK that opens descriptors, with numbers that the application
// does not use. It returns the new descriptors that executed programs would inherit, with
// the names of their files. It claims at once the socket for device events, which SPDK
// opens with its first connection and keeps.
func arrivals(open func()) (fresh map[int]string) {
	ownfd.Aside(func() {
		before := inheritable()
		open()
		fresh = inheritable()
		maps.DeleteFunc(fresh, func(fd int, what string) bool { return before[fd] == what })
	})
	for fd := range fresh {
		if forDevices(fd) {
			claim(fd)
		}
	}
	return fresh
}

// claimSocket finds the socket to a target among the descriptors that SPDK has opened for
// it, or returns -1. It keeps the socket from the application and from executed programs:
// if a program inherited the socket, the connection would outlive this process. It also
// sets the congestion control, which SPDK cannot set. Other sockets to the same address do
// not change.
func claimSocket(fresh map[int]string, id nvmf.TransportID, congestion string) (int, error) {
	fd := socketTo(fresh, id)
	if fd < 0 {
		return -1, nil
	}
	claim(fd)
	return fd, initiator.SetCongestion(fd, congestion)
}

// cut shuts down the socket to a target among the descriptors that SPDK has opened for it,
// so that SPDK gives the connection up. It returns false if there is no such socket.
func cut(fresh map[int]string, id nvmf.TransportID) bool {
	fd := socketTo(fresh, id)
	return fd >= 0 && unix.Shutdown(fd, unix.SHUT_RDWR) == nil
}

// socketTo returns the socket to a target among descriptors, or -1.
func socketTo(fresh map[int]string, id nvmf.TransportID) int {
	if id.Transport != nvmf.TCP {
		return -1
	}
	for fd, what := range fresh {
		if now, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); now == what && leadsTo(fd, id) { // empty if fd is closed
			return fd
		}
	}
	return -1
}

// leadsTo reports whether fd is a socket connected to the target.
func leadsTo(fd int, id nvmf.TransportID) bool {
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return false
	}
	var ip netip.Addr
	var port int
	switch a := peer.(type) {
	case *unix.SockaddrInet4:
		ip, port = netip.AddrFrom4(a.Addr), a.Port
	case *unix.SockaddrInet6:
		ip, port = netip.AddrFrom16(a.Addr), a.Port
	}
	want, err := netip.ParseAddr(id.Address)
	service, _ := strconv.Atoi(id.Service) // ParseTransportID has checked it
	return err == nil && ip.Unmap() == want.WithZone("").Unmap() && port == service
}

// claim hides a descriptor from the application, and from programs that it executes.
func claim(fd int) {
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags|unix.FD_CLOEXEC) // fails if fd is closed meanwhile
		ownfd.HoldInPlace(fd)
	}
}

// inheritable returns the descriptors that executed programs would inherit, with the
// names of their files. It returns none without /proc.
func inheritable() map[int]string { return descriptors(true) }

// descriptors returns all open descriptors, or the inheritable ones.
func descriptors(inheritable bool) map[int]string {
	all := make(map[int]string)
	entries, _ := os.ReadDir("/proc/self/fd") // on failure nothing is claimed
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if inheritable {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC != 0 {
				continue
			}
		}
		if what, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // otherwise fd is closed meanwhile
			all[fd] = what
		}
	}
	return all
}

// claimEnvironment claims the descriptors that DPDK has opened since before: its
// memory, a timer, an epoll descriptor for a pipe, and device files. It recognizes them
// by their properties, since other threads may have opened descriptors meanwhile.
func claimEnvironment(before map[int]string) {
	fresh := inheritable()
	for fd := range before {
		delete(fresh, fd)
	}
	for fd, what := range fresh {
		switch info, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd)); { // info is empty if fd is closed
		case strings.HasPrefix(what, "/memfd:nohuge"),
			ofDevice(what), ofHugePages(fd),
			what == "anon_inode:[timerfd]" && bytes.Contains(info, []byte("it_value: (0, 0)")): // an unarmed timer
			claim(fd)
		case what == "anon_inode:[eventpoll]":
			claimEpoll(fd, info, fresh)
		}
	}
}

// ofHugePages reports whether fd is a file on hugetlbfs.
func ofHugePages(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.HUGETLBFS_MAGIC
}

// watched matches the lines of an epoll descriptor's fdinfo with the descriptors that it waits for.
var watched = regexp.MustCompile(`(?m)^tfd:\s*(\d+)`)

// claimEpoll claims an epoll descriptor that waits only for a pipe, and the pipe.
func claimEpoll(fd int, info []byte, fresh map[int]string) {
	for _, m := range watched.FindAllSubmatch(info, -1) {
		other, _ := strconv.Atoi(string(m[1]))
		pipe := fresh[other]
		if !strings.HasPrefix(pipe, "pipe:") {
			return
		}
		claim(fd)
		for end, what := range fresh {
			if what == pipe {
				claim(end)
			}
		}
	}
}

// forDevices reports whether fd is a socket for device events, which SPDK opens with its
// first connection.
func forDevices(fd int) bool {
	address, _ := unix.Getsockname(fd)
	protocol, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	_, netlink := address.(*unix.SockaddrNetlink)
	return netlink && protocol == unix.NETLINK_KOBJECT_UEVENT
}
