package wire

import (
	"encoding/binary"
	"fmt"
	"time"

	"nvmecr/microfs"
)

// A Body has the fields of a request or an answer.
type Body interface {
	// fields passes each field to c in turn. The same method encodes and decodes, so that both agree.
	fields(c *codec)
}

// A codec appends fields to b, or reads them from its beginning. After an error all fields are zero.
type codec struct {
	b       []byte
	reading bool
	err     error
	window  []byte // shared memory with the data; nil: data is in the message
}

// read starts to decode b.
func (c *codec) read(b []byte) { *c = codec{b: b, reading: true, window: c.window} }

// encode encodes a message in buf: header, the releases if list is not nil, and body. It returns the message.
func (c *codec) encode(buf []byte, h *header, list *[]Shard, body Body) ([]byte, error) {
	*c = codec{b: resize(buf, headerSize), window: c.window}
	if list != nil {
		c.releases(list)
	}
	if body != nil {
		body.fields(c)
	}
	if len(c.b) > headerSize+maxBody {
		c.fail(fmt.Sprintf("a body of %d bytes", len(c.b)-headerSize))
	}
	if c.err == nil {
		h.seal(c.b)
	}
	return c.b, c.err
}

// end returns an error if the message was invalid.
func (c *codec) end() error {
	if c.err == nil && len(c.b) > 0 {
		c.err = fmt.Errorf("%d bytes more than there are fields: %w", len(c.b), errProtocol)
	}
	return c.err
}

func (c *codec) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%s: %w", what, errProtocol)
	}
}

var zeros [8]byte

// take returns the next n bytes of the input.
func (c *codec) take(n int) []byte {
	if n > len(c.b) {
		c.fail("it ends in the middle of a field")
	}
	if c.err != nil {
		return zeros[:min(n, len(zeros))]
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func u8[T ~uint8](c *codec, v *T) {
	if c.reading {
		*v = T(c.take(1)[0])
	} else {
		c.b = append(c.b, byte(*v))
	}
}

func u16[T ~uint16](c *codec, v *T) {
	if c.reading {
		*v = T(binary.LittleEndian.Uint16(c.take(2)))
	} else {
		c.b = binary.LittleEndian.AppendUint16(c.b, uint16(*v))
	}
}

func u32[T ~uint32](c *codec, v *T) {
	if c.reading {
		*v = T(binary.LittleEndian.Uint32(c.take(4)))
	} else {
		c.b = binary.LittleEndian.AppendUint32(c.b, uint32(*v))
	}
}

func u64[T ~uint64 | ~int64](c *codec, v *T) {
	if c.reading {
		*v = T(binary.LittleEndian.Uint64(c.take(8)))
	} else {
		c.b = binary.LittleEndian.AppendUint64(c.b, uint64(*v))
	}
}

// count is a count, of type int in memory.
func count(c *codec, v *int) {
	n := uint32(*v)
	u32(c, &n)
	*v = int(n)
}

func (c *codec) truth(v *bool) {
	var b uint8
	if *v {
		b = 1
	}
	u8(c, &b)
	if b > 1 {
		c.fail("a truth that is neither")
	}
	*v = b == 1
}

func (c *codec) time(v *time.Time) {
	if !c.reading {
		ns := v.UnixNano()
		u64(c, &ns)
		return
	}
	var ns int64
	u64(c, &ns)
	*v = time.Unix(0, ns)
}

// text is a string of less than 64 KiB. A longer one cannot be sent.
func (c *codec) text(v *string) {
	n := uint16(len(*v))
	if int(n) != len(*v) {
		c.fail(fmt.Sprintf("a string of %d bytes", len(*v)))
	}
	u16(c, &n)
	if c.reading {
		if b := c.take(int(n)); c.err == nil {
			*v = string(b)
		}
	} else {
		c.b = append(c.b, *v...)
	}
}

// data is bytes, which are decoded into the memory of v. With a window the message has only their length, and a
// decoder without memory of its own gets them in place.
func (c *codec) data(v *[]byte) {
	n := len(*v)
	count(c, &n)
	switch {
	case n > MaxData:
		c.fail(fmt.Sprintf("%d bytes of data", n))
	case c.err != nil:
	case c.window != nil && !c.reading:
		if n > 0 && &(*v)[0] != &c.window[0] {
			copy(c.window, *v)
		}
	case c.window != nil && *v == nil:
		*v = c.window[:n:n]
	case c.window != nil:
		*v = append((*v)[:0], c.window[:n]...)
	case c.reading:
		if b := c.take(n); c.err == nil {
			*v = append((*v)[:0], b...)
		}
	default:
		c.b = append(c.b, *v...)
	}
}

// array is a fixed number of bytes.
func (c *codec) array(v []byte) {
	if !c.reading {
		c.b = append(c.b, v...)
	} else if b := c.take(len(v)); c.err == nil {
		copy(v, b)
	}
}

// list is at most limit elements, of at least size bytes each, which are decoded into the memory of v.
func list[T any](c *codec, v *[]T, limit, size int, element func(*codec, *T)) {
	n := len(*v)
	count(c, &n)
	if n > limit || c.reading && n > len(c.b)/size {
		c.fail(fmt.Sprintf("a list of %d", n))
	}
	if c.err != nil {
		return
	}
	if c.reading {
		*v = append((*v)[:0], make([]T, n)...)
	}
	for i := range *v {
		element(c, &(*v)[i])
	}
}

// optional is a value that may be missing: a boolean, and the value if that is true.
func optional[T any](c *codec, v **T, element func(*codec, *T)) {
	there := *v != nil
	c.truth(&there)
	switch {
	case !there:
		*v = nil
	case c.reading:
		*v = new(T)
		fallthrough
	default:
		element(c, *v)
	}
}

func (c *codec) cred(v *microfs.Cred) {
	u32(c, &v.UID)
	u32(c, &v.GID)
	list(c, &v.Groups, 1<<16, 4, u32[uint32])
}

func (c *codec) releases(v *[]Shard) {
	list(c, v, MaxReleases, shardSize, func(c *codec, s *Shard) { s.fields(c) })
}

func (c *codec) name(v *Name) {
	u64(c, &v.Dir)
	c.text(&v.Path)
}
