package owner

import (
	"cmp"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// The index and a process of its host share memory for file data. The index creates the memory and sends it first on
// the connection: one byte, and with hasWindow a descriptor of the memory.
const (
	noWindow  byte = 0
	hasWindow byte = 1
)

// ShareWindow creates memory of size bytes and shares it with the process at the other end of a connection of
// ListenForIndex. CloseWindow frees it. If there is no memory, the other end is notified and window is nil.
func ShareWindow(conn *net.UnixConn, size int) (window []byte, err error) {
	fd, window, failed := makeWindow(size)
	first, rights := []byte{noWindow}, []byte(nil)
	if failed == nil {
		first[0], rights = hasWindow, unix.UnixRights(fd)
		defer unix.Close(fd)
	}
	if _, _, err := conn.WriteMsgUnix(first, rights, nil); err != nil {
		return nil, errors.Join(err, CloseWindow(window))
	}
	return window, nil
}

// makeWindow creates a memfd whose size is sealed: a process that maps it need not fear SIGBUS.
func makeWindow(size int) (fd int, window []byte, err error) {
	if fd, err = unix.MemfdCreate("nvmecr-window", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return -1, nil, err
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		window, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, window, err
}

// CloseWindow unmaps the memory. It may be nil.
func CloseWindow(window []byte) error {
	if window == nil {
		return nil
	}
	return unix.Munmap(window)
}

// receiveWindow receives the memory that ShareWindow sends, of that size, over a blocking connection.
func receiveWindow(conn, size int) (window []byte, err error) {
	first, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(conn, first, oob, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, oobn, _, _, err = unix.Recvmsg(conn, first, oob, unix.MSG_CMSG_CLOEXEC)
	}
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, fmt.Errorf("the index has closed the connection: %w", unix.ECONNRESET)
	case first[0] == noWindow:
		return nil, nil
	}
	fd, err := descriptorIn(oob[:oobn])
	if err != nil {
		return nil, err
	}
	defer ownfd.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Size != int64(size) {
		return nil, fmt.Errorf("the index shares %d bytes of memory, and not %d; use one build of nvmecr in the whole job: %w", st.Size, size, unix.EPROTO)
	}
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// descriptorIn returns the one descriptor that came with a message, with a number of the runtime's.
func descriptorIn(oob []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("the index has sent no descriptor of the memory that it shares: %w", cmp.Or(err, error(unix.EPROTO)))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return ownfd.Hold(fds[0]), nil
}
