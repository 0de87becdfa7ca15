package posixshim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/microfs"
)

// What a process sends when it hands over what others have of it, and what it gets. Each of these packets goes
// over a SOCK_SEQPACKET socket of this host by itself, with at most one descriptor. Little endian:
//
//	every     0  4  magic      "NVHO"
//	          4  2  version    2
//	          6  2  kind
//	1 begin   8  4  rank       -1 is the singleton partition's
//	         12  4  size       of the job
//	         16  8  number     that others know the process by
//	         24  4  pid        for messages
//	                           its listening socket comes along
//	2 file    8  8  handle
//	         16  8  inode
//	         24  8  directory  inode of the one that its path begins at
//	         32  8  offset
//	         40  4  flags      of open(2)
//	         44  4  errno      why what was written to it may not be there; 0
//	         48  4  what       1 a directory
//	         52  4  length     of the path, which follows
//	3 watch   8  8  handle     of a file before it
//	         16  4  what       1 what others write past the library comes here
//	                           the owner's end of a sharing socket comes along
//	4 caller  8  4  process    whose record locks end with the connection; 0
//	         12  4  count      of the mappings that it has, 16 bytes each:
//	          -  8  handle
//	          -  8  times
//	                           the connection comes along
//	5 lock    8  8  inode
//	         16  8  owner      the handle, or the negative number of the process
//	         24  8  by         the handle that it was asked for through
//	         32  8  start
//	         40  8  end        2^63-1 is that of every file
//	         48  4  what       1 to write, 2 of flock
//	6 memory  8  8  inode
//	         16  8  size       of it, in bytes
//	         24  8  writer     the handle that it is written through; 0
//	                           the memory of the file's mappings comes along
//	7 clean   8  8  inode      of memory that has a writer
//	                           what that memory was when it was saved comes along
//	8 end     8  4  count      of the packets before
//	9 answer  8  4  errno      0: taken
//
// testdata/handover.hex has one of each.
const (
	handOverMagic   = "NVHO"
	handOverVersion = 2
	handOverMax     = 1 << 14 // bytes of a packet
)

// A kind of packet.
type handOverKind uint16

const (
	kindBegin handOverKind = iota + 1
	kindFile
	kindWatch
	kindCaller
	kindLock
	kindMemory
	kindClean
	kindEnd
	kindAnswer
)

// What a file is, in a kindFile.
const (
	fileIsDir    = 1
	fileNameless = 2 // and nobody keeps it but who mounts its file system for writing
)

// handOverSizes are the bytes of each kind, without what follows in some.
var handOverSizes = [...]int{kindBegin: 28, kindFile: 56, kindWatch: 20, kindCaller: 16, kindLock: 52, kindMemory: 32, kindClean: 16, kindEnd: 12, kindAnswer: 12}

// withDescriptor are the kinds with which a descriptor comes.
func (k handOverKind) withDescriptor() bool {
	return k == kindBegin || k == kindWatch || k == kindCaller || k == kindMemory || k == kindClean
}

var errHandOver = fmt.Errorf("not what a process of this version hands over: %w", syscall.EPROTO)

// packet is one of them. b has the fields, fd the descriptor that comes along, or -1.
type packet struct {
	kind handOverKind
	b    []byte
	fd   int
}

func newPacket(kind handOverKind, fd int) *packet {
	p := &packet{kind: kind, b: make([]byte, handOverSizes[kind]), fd: fd}
	copy(p.b, handOverMagic)
	binary.LittleEndian.PutUint16(p.b[4:], handOverVersion)
	binary.LittleEndian.PutUint16(p.b[6:], uint16(kind))
	return p
}

func (p *packet) put32(at int, n uint32) *packet {
	binary.LittleEndian.PutUint32(p.b[at:], n)
	return p
}
func (p *packet) put64(at int, n int64) *packet {
	binary.LittleEndian.PutUint64(p.b[at:], uint64(n))
	return p
}
func (p *packet) get32(at int) uint32    { return binary.LittleEndian.Uint32(p.b[at:]) }
func (p *packet) get64(at int) int64     { return int64(binary.LittleEndian.Uint64(p.b[at:])) }
func (p *packet) handle(at int) Handle   { return Handle(p.get64(at)) }
func (p *packet) ino(at int) microfs.Ino { return microfs.Ino(p.get64(at)) }

// parsePacket says whether b is one of the packets, and its fields may be looked at.
func parsePacket(b []byte, fd int) (*packet, error) {
	if len(b) < 8 || string(b[:4]) != handOverMagic || binary.LittleEndian.Uint16(b[4:]) != handOverVersion {
		return nil, errHandOver
	}
	p := &packet{kind: handOverKind(binary.LittleEndian.Uint16(b[6:])), b: b, fd: fd}
	if p.kind < kindBegin || p.kind > kindAnswer || len(b) < handOverSizes[p.kind] || p.kind.withDescriptor() != (fd >= 0) {
		return nil, errHandOver
	}
	more := 0
	switch p.kind {
	case kindFile:
		more = int(min(p.get32(52), math.MaxInt32))
	case kindCaller:
		more = int(min(p.get32(12), math.MaxInt16)) * 16
	}
	if len(b) != handOverSizes[p.kind]+more {
		return nil, errHandOver
	}
	return p, nil
}

// sendPacket sends one over a socket that waits.
func sendPacket(socket int, p *packet) error {
	var rights []byte
	if p.fd >= 0 {
		rights = unix.UnixRights(p.fd)
	}
	for {
		err := unix.Sendmsg(socket, p.b, rights, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receivePacket receives one. Its descriptor is the caller's, also of what is no packet.
func receivePacket(socket int, buf []byte) (*packet, error) {
	oob := make([]byte, unix.CmsgSpace(4*16))
	n, oobn, flags, _, err := unix.Recvmsg(socket, buf, oob, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) {
		n, oobn, flags, _, err = unix.Recvmsg(socket, buf, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, err
	}
	var fds []int
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for i := range messages {
			some, _ := unix.ParseUnixRights(&messages[i])
			fds = append(fds, some...)
		}
	}
	fd := -1
	if len(fds) > 0 {
		fd = ownfd.Hold(fds[0])
	}
	for _, more := range fds[min(1, len(fds)):] {
		_ = unix.Close(more)
	}
	var p *packet
	if err = errHandOver; len(fds) <= 1 && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0 {
		p, err = parsePacket(append([]byte(nil), buf[:n]...), fd)
	}
	if err != nil && fd >= 0 {
		_ = ownfd.Close(fd)
	}
	return p, err
}
