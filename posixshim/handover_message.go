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

// The packets of a handover. They are sent over a SOCK_SEQPACKET socket of this host, each with at most one descriptor. Numbers are
// little-endian. Columns are offset, bytes, field:
//
//	every     0  4  magic      "NVHO"
//	          4  2  version    2
//	          6  2  kind
//	1 begin   8  4  rank       -1: the singleton partition
//	         12  4  size       of the job
//	         16  8  number     by which other processes address this one
//	         24  4  pid        for messages
//	                           descriptor: the socket on which the process listens
//	2 file    8  8  handle
//	         16  8  inode
//	         24  8  directory  inode at which the path begins
//	         32  8  offset
//	         40  4  flags      of open(2)
//	         44  4  errno      of a write that has failed; 0: none has
//	         48  4  what       bits: 1 directory, 2 without a name and not kept (fileNameless)
//	         52  4  length     of the path, which follows
//	3 watch   8  8  handle     of a file packet before this one
//	         16  4  what       1: data is relayed (relay.go)
//	                           descriptor: the owner's end of a sharing socket
//	4 caller  8  4  process    whose record locks end with the connection; 0: none
//	         12  4  count      of the mappings of the connection, 16 bytes each:
//	          -  8  handle
//	          -  8  times      how often it is mapped
//	                           descriptor: the connection
//	5 lock    8  8  inode
//	         16  8  owner      a handle, or a negative process ID
//	         24  8  by         the handle of the call that took the lock
//	         32  8  start
//	         40  8  end        2^63-1: without end
//	         48  4  what       bits: 1 for writing, 2 flock
//	6 memory  8  8  inode
//	         16  8  size       in bytes
//	         24  8  writer     the handle by which changes are written; 0: none
//	                           descriptor: the memory of the file's mappings
//	7 clean   8  8  inode      of a memory packet with a writer
//	                           descriptor: the copy of that memory (mapping.clean)
//	8 end     8  4  count      of the packets before
//	9 answer  8  4  errno      0: the successor has taken over
//
// testdata/handover.hex has one of each.
const (
	handOverMagic   = "NVHO"
	handOverVersion = 2
	handOverMax     = 1 << 14 // the most bytes of a packet
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

// The bits of what in a packet of kindFile.
const (
	fileIsDir    = 1
	fileNameless = 2 // the file has no name, and is kept only if the successor opens the mount for writing
)

// handOverSizes has the bytes of each kind, without the path or the mappings that follow.
var handOverSizes = [...]int{kindBegin: 28, kindFile: 56, kindWatch: 20, kindCaller: 16, kindLock: 52, kindMemory: 32, kindClean: 16, kindEnd: 12, kindAnswer: 12}

// withDescriptor says whether packets of a kind have a descriptor.
func (k handOverKind) withDescriptor() bool {
	return k == kindBegin || k == kindWatch || k == kindCaller || k == kindMemory || k == kindClean
}

var errHandOver = fmt.Errorf("not what a process of this version hands over: %w", syscall.EPROTO)

// packet is a packet. b has the bytes, fd is the descriptor; -1: none.
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

// parsePacket checks that b is a packet with all the fields of its kind.
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

// sendPacket sends a packet over a blocking socket.
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

// receivePacket receives a packet. The caller owns its descriptor. If the bytes are no packet, receivePacket closes the descriptor.
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
