package posixshim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// What a process that is served sends for one call, and what it gets. Both are
// of this machine and of the same build, or the protocol number differs. All in
// the byte order of the machine:
//
//	request: 0  4  protocol     of this layout and of calls.txt (internal/gen/remote.go)
//	         4  4  call         its line in calls.txt
//	         8  4  length       of the strings and data
//	        12  4  -
//	        16 48  six numbers: handles, flags, offsets, space for bytes
//	        64  -  strings and data, each with 4 bytes of length before it
//	reply:   0  8  result       of the function of the runtime
//	         8  4  length       of what follows these 16 bytes
//	        12  4  flags        1 a descriptor comes along, 2 the connection ends
//	        16  -  the bytes read, the attributes, or the path to go on with
//
// shim/remote/remote.c is the other end. testdata/messages.hex has examples.
const (
	requestHead = 64
	replyHead   = 16

	replyDescriptor = 1
	replyLast       = 2
)

// maxMessage is the most that one message carries: a larger transfer is done
// in part. remote.c cuts what it sends (NV_MAX_MESSAGE_DATA).
const maxMessage = 8 << 20

var errMessage = fmt.Errorf("a process sends requests of another version of libnvmecr.so: %w", syscall.EPROTO)

// A message is a request that is being worked on. The buffers are the
// connection's and used again for the next.
type message struct {
	call    uint32
	head    [requestHead]byte
	numbers []byte // not yet taken
	payload []byte
	rest    []byte // of payload, not yet taken
	bad     bool
	process int  // whose record locks the connection has asked for, if any
	byPath  bool // the call begins at a path, and can be made by another process

	maps        map[Handle]int // how often the connection has mapped files
	predecessor *predecessor   // whose handles it uses, if that is not nil

	buf   []byte          // what a call may fill
	reply []byte          // the part of it that goes back; nil: as much as the result says
	first [replyHead]byte // of the answer
	parts [][]byte        // what is left of it to be sent
}

// receive reads the next request.
func (m *message) receive(r io.Reader) error {
	if _, err := io.ReadFull(r, m.head[:]); err != nil {
		return err
	}
	length := binary.NativeEndian.Uint32(m.head[8:])
	if binary.NativeEndian.Uint32(m.head[:]) != protocol || length > maxMessage+2*(4+maxPath) {
		return errMessage
	}
	m.call = binary.NativeEndian.Uint32(m.head[4:])
	m.payload = sized(m.payload, int(length))
	m.numbers, m.rest, m.bad, m.byPath = m.head[16:], m.payload, false, false
	m.buf, m.reply = m.buf[:0], nil
	_, err := io.ReadFull(r, m.payload)
	return err
}

// maxPath is NV_PATH of shim/wire.h.
const maxPath = 4096

// sized returns b, or a larger slice, with n bytes. One that was needed for a
// large transfer is not kept for small ones.
func sized(b []byte, n int) []byte {
	if cap(b) < n || cap(b) > 1<<20 && n < 1<<16 {
		return make([]byte, n)
	}
	return b[:n]
}

// whole says that the request had what was taken from it, and no more.
func (m *message) whole() bool { return !m.bad && len(m.rest) == 0 }

func (m *message) number() int64 {
	if len(m.numbers) < 8 {
		m.bad = true
		return 0
	}
	n := binary.NativeEndian.Uint64(m.numbers)
	m.numbers = m.numbers[8:]
	return int64(n)
}

func (m *message) handle() Handle { return m.predecessor.handle(Handle(m.number())) }
func (m *message) int() int       { return int(m.number()) }
func (m *message) uint() uint32   { return uint32(m.number()) }

// data takes the next string of bytes. It is the message's own.
func (m *message) data() []byte {
	if len(m.rest) < 4 {
		m.bad = true
		return nil
	}
	n := binary.NativeEndian.Uint32(m.rest)
	m.rest = m.rest[4:]
	if uint64(n) > uint64(len(m.rest)) {
		m.bad = true
		return nil
	}
	b := m.rest[:n:n]
	m.rest = m.rest[n:]
	return b
}

func (m *message) string() string { return string(m.data()) }

func (m *message) pathAt() PathAt {
	m.byPath = true
	return PathAt{Dir: m.handle(), Path: m.string()}
}

// locker is the number of the process that has sent the request.
func (m *message) locker() int {
	m.process = m.int()
	return m.process
}

// exchange is data that goes back changed.
func (m *message) exchange() []byte {
	data := m.data()
	if m.number() != int64(len(data)) {
		m.bad = true
	}
	m.reply = data
	return data
}

// replyBuffer is a buffer of as many bytes as the caller has space for.
func (m *message) replyBuffer() []byte {
	n := m.number()
	if n < 0 {
		m.bad = true
		return nil
	}
	m.buf = sized(m.buf, int(min(n, maxMessage)))
	return m.buf
}

func vector(b []byte) []syscall.Iovec {
	if len(b) == 0 {
		return nil
	}
	return []syscall.Iovec{{Base: &b[0], Len: uint64(len(b))}}
}

// structure returns the reply buffer of a call that fills a structure: the structure goes back as a whole.
func (m *message) structure() []byte {
	m.reply = m.replyBuffer()
	return m.reply
}

// answer is what goes back: a head and what follows it.
func (m *message) answer(result int64, flags uint32) (head, body []byte) {
	head, body = m.first[:], m.reply
	if body == nil && result > 0 {
		body = m.buf[:min(int(result), len(m.buf))]
	}
	if result < 0 && result != pathOutside && result != pathRedirect {
		body = nil
	}
	binary.NativeEndian.PutUint64(head, uint64(result))
	binary.NativeEndian.PutUint32(head[8:], uint32(len(body)))
	binary.NativeEndian.PutUint32(head[12:], flags)
	return head, body
}

// send sends an answer, and with it the descriptor, if that is not 0.
func (m *message) send(to syscall.RawConn, result int64, flags uint32, descriptor int) error {
	var rights []byte
	if descriptor != 0 {
		rights = unix.UnixRights(descriptor)
		flags |= replyDescriptor
	}
	head, body := m.answer(result, flags)
	m.parts = append(m.parts[:0], head, body)
	for len(m.parts[0])+len(m.parts[1]) > 0 {
		var n int
		var failed error
		err := to.Write(func(fd uintptr) bool {
			n, failed = unix.SendmsgBuffers(int(fd), m.parts, rights, nil, unix.MSG_NOSIGNAL)
			return failed != unix.EAGAIN
		})
		if err = errors.Join(err, failed); err != nil && failed != unix.EINTR {
			return err
		}
		ofHead := min(max(n, 0), len(m.parts[0]))
		m.parts[0], m.parts[1] = m.parts[0][ofHead:], m.parts[1][max(n, 0)-ofHead:]
		if n > 0 {
			rights = nil
		}
	}
	return nil
}
