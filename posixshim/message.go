package posixshim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// The request and the reply of a call that a server makes. Both processes are on this machine and of the same build; otherwise the
// protocol numbers differ. Numbers are in the byte order of the machine. Columns are offset, bytes, field:
//
//	request: 0  4  protocol     a checksum of this layout and of calls.txt (internal/gen/remote.go)
//	         4  4  call         its line in calls.txt
//	         8  4  length       of the strings and data
//	        12  4  -
//	        16 48  six numbers: handles, flags, offsets, sizes of the caller's buffers
//	        64  -  strings and data, each with 4 bytes of length before it
//	reply:   0  8  result       of the function of the runtime
//	         8  4  length       of the bytes from 16 on
//	        12  4  flags        1: with a descriptor, 2: the server closes the connection
//	        16  -  the bytes read, the attributes, or the path or server of NV_OUTSIDE and NV_REDIRECT
//
// shim/remote/remote.c is the client. testdata/messages.hex has examples.
const (
	requestHead = 64
	replyHead   = 16

	callHello = 0 // NV_HELLO: no server makes the call in line 0

	replyDescriptor = 1
	replyLast       = 2
)

// maxMessage is the most bytes of data in one message: NV_MAX_MESSAGE_DATA of remote.h. The client splits larger transfers.
const maxMessage = 8 << 20

var errMessage = fmt.Errorf("a process sends requests of another version of libnvmecr.so: %w", syscall.EPROTO)

// A message is a request and its reply. A connection has one, and uses its buffers again for the next request.
type message struct {
	call    uint32
	head    [requestHead]byte
	numbers []byte // of head, those that the call has not taken yet
	payload []byte // the strings and data
	rest    []byte // of payload, what the call has not taken yet
	bad     bool   // the request has less than the call has tried to take
	process int    // the process for which the connection has asked for record locks; 0: none
	byPath  bool   // the call begins at a path, so the client can repeat it in another process

	maps        map[Handle]int // by file, the mappings that the connection has
	predecessor *predecessor   // whose handles the connection uses; nil: those of this process

	buf   []byte          // the buffer that a call fills
	reply []byte          // the data of the reply; nil: the first bytes of buf, as many as the result says
	first [replyHead]byte // the head of the reply
	parts [][]byte        // the bytes of the reply that have not been sent yet
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

// sized returns a slice of n bytes: b, or a new one if b is too small, or is much too large and would waste memory.
func sized(b []byte, n int) []byte {
	if cap(b) < n || cap(b) > 1<<20 && n < 1<<16 {
		return make([]byte, n)
	}
	return b[:n]
}

// complete says whether the call has taken all strings and data of the request, and the request had all that it has taken.
func (m *message) complete() bool { return !m.bad && len(m.rest) == 0 }

// number takes the next number of the request.
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

// data takes the next string or data of the request. The slice is valid until the next request.
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

// lockOwner takes the ID of the process that has sent the request.
func (m *message) lockOwner() int {
	m.process = m.int()
	return m.process
}

// exchange takes data that the call changes and the reply returns.
func (m *message) exchange() []byte {
	data := m.data()
	if m.number() != int64(len(data)) {
		m.bad = true
	}
	m.reply = data
	return data
}

// replyBuffer takes the size of the caller's buffer, and returns a buffer of that size for the reply.
func (m *message) replyBuffer() []byte {
	n := m.number()
	if n < 0 {
		m.bad = true
		return nil
	}
	m.buf = sized(m.buf, int(min(n, maxMessage)))
	return m.buf
}

// vector returns an iovec of one element.
func vector(b []byte) []syscall.Iovec {
	if len(b) == 0 {
		return nil
	}
	return []syscall.Iovec{{Base: &b[0], Len: uint64(len(b))}}
}

// structure returns the reply buffer for a structure, of which all bytes are returned.
func (m *message) structure() []byte {
	m.reply = m.replyBuffer()
	return m.reply
}

// answer returns the head and the data of the reply.
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

// send sends the reply, with a descriptor if that is not 0.
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
