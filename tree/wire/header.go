package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"syscall"
)

// Version is the version of the messages, which both ends must have.
const Version = 1

const (
	magic      = "NVTX"
	headerSize = 28

	offVersion = 4
	offKind    = 5
	offOp      = 6
	offLength  = 8
	offErrno   = 12
	offNumber  = 16
	offCRC     = 24

	kindRequest = 0
	kindAnswer  = 1
)

// Limits of a message.
const (
	MaxData     = 1 << 20 // bytes of a Write or a Read
	MaxRanges   = 1 << 16 // of a publication
	MaxSegments = 1 << 14 // of an answer to Map
	FirstMap    = 1 << 10 // segments of an answer to Open
	MaxEntries  = 1 << 11 // of an answer to ReadDir
	MaxShards   = 1 << 15 // of a Shards
	MaxReleases = 1 << 10 // of an answer
	MaxLocks    = 1 << 12 // ranges of a Lock

	maxBody = MaxData + 64<<10
)

// bufferSize is enough for most messages, which are then received by one read.
const bufferSize = 1 << 10

// errProtocol is the error of an invalid message.
var errProtocol = errors.New("not a message of the tree's protocol")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A header is the header of a message.
type header struct {
	kind   uint8
	op     Op
	errno  syscall.Errno
	number uint64
	length int // length of the body
}

// seal writes the header to the beginning of b, in front of the body.
func (h *header) seal(b []byte) {
	le := binary.LittleEndian
	copy(b, magic)
	b[offVersion], b[offKind] = Version, h.kind
	le.PutUint16(b[offOp:], uint16(h.op))
	le.PutUint32(b[offLength:], uint32(len(b)-headerSize))
	le.PutUint32(b[offErrno:], uint32(h.errno))
	le.PutUint64(b[offNumber:], h.number)
	le.PutUint32(b[offCRC:], sum(b))
}

func sum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:offCRC], castagnoli), castagnoli, b[headerSize:])
}

// receive reads a message into buf, which it enlarges if necessary. It returns the header and the whole message;
// io.EOF if there is none.
func receive(r io.Reader, buf []byte, kind uint8) (h header, b []byte, err error) {
	b = resize(buf, headerSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, b, err
	}
	le := binary.LittleEndian
	h = header{
		kind: b[offKind], op: Op(le.Uint16(b[offOp:])), errno: syscall.Errno(le.Uint32(b[offErrno:])),
		number: le.Uint64(b[offNumber:]), length: int(le.Uint32(b[offLength:])),
	}
	switch {
	case string(b[:offVersion]) != magic:
		return h, b, fmt.Errorf("it begins with %q: %w", b[:offVersion], errProtocol)
	case b[offVersion] != Version:
		return h, b, fmt.Errorf("version %d of the tree's protocol, and this program has %d; use one build of nvmecr in the whole job", b[offVersion], Version)
	case h.kind != kind || h.length > maxBody:
		return h, b, fmt.Errorf("kind %d, %d bytes: %w", h.kind, h.length, errProtocol)
	}
	b = resize(b, headerSize+h.length)
	if _, err := io.ReadFull(r, b[headerSize:]); err != nil {
		return h, b, unexpected(err)
	}
	if le.Uint32(b[offCRC:]) != sum(b) {
		return h, b, fmt.Errorf("checksum mismatch: %w", errProtocol)
	}
	return h, b, nil
}

// resize returns b with a length of n, with its previous content.
func resize(b []byte, n int) []byte {
	if n <= cap(b) {
		return b[:n]
	}
	return append(make([]byte, 0, n), b...)[:n]
}

// unexpected makes an end in the middle of a message an error.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
