package posixshim

import (
	"context"
	"encoding/binary"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/hostile"
	"nvmecr/microfs"
	"nvmecr/nvmf/memdev"
)

// callScript is the number of bytes that encode a call.
const callScript = 12

// FuzzCalls makes calls with arbitrary numbers: invalid handles, offsets and sizes at the ends of their ranges,
// unknown flags, empty vectors. Each call must return an errno or a plausible result, and must not access memory
// beyond its buffers.
func FuzzCalls(f *testing.F) {
	for op := range uint8(calls) {
		f.Add([]byte{0, 1, 2, 0, 0x42, 0, 0, 0, 0, 0, 0, 0, op, 0, 2, 4, 0x42, 2, 3, 4, 5, 6, 7, 8, op, 1, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9})
	}
	const size = 8 << 20
	dev, err := memdev.New(size, 4096, memdev.Options{})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, dev.Close()) })
	p := &partition{dev: dev, seg: microfs.Segment{Length: size}}
	f.Fuzz(func(t *testing.T, script []byte) {
		require.NoError(t, microfs.Format(context.Background(), dev, p.seg, microfs.FormatOptions{Generation: 1, Size: 1, LogPages: 16}))
		hostile.Bounded(t, 256<<20, 30*time.Second, func() {
			proc := New(p.open, func(string, ...any) {})
			caller := &caller{t: t, p: proc, memory: make([]byte, 9000), handles: []Handle{0, -1, lost, 1<<62 | 1, 1 << 32}}
			for n := 0; len(script) >= callScript && n < 100; n++ {
				caller.call(script[:callScript])
				script = script[callScript:]
			}
			require.NoError(t, proc.Finish())
		})
	})
}

// caller is an application that passes arbitrary arguments.
type caller struct {
	t       *testing.T
	p       *Process
	memory  []byte
	handles []Handle
}

var (
	offsets = []int64{0, 1, 4095, 1 << 20, 1<<31 - 1, 1 << 32, 1 << 44, 1<<62 - 1, 1<<63 - 1, -1, -2, -1 << 63}
	paths   = []string{"f", "g", "d", "d/f", "", "/", "..", "d/../f/", "s", "a\x00b", string(make([]byte, 5000))}
)

const calls = 28

// call makes the call that 12 bytes encode: which call, handle, path, offset, and other parameters.
func (c *caller) call(b []byte) {
	h := c.handles[int(b[1])%len(c.handles)]
	where := PathAt{Path: paths[int(b[2])%len(paths)]}
	to := PathAt{Path: paths[int(b[3])%len(paths)]}
	if b[2] >= 128 {
		where.Dir = c.handles[int(b[2])%len(c.handles)]
	}
	off := offsets[int(b[3])%len(offsets)] + int64(int8(b[4]))
	number := int(int32(binary.LittleEndian.Uint32(b[4:])))
	buf := c.memory[:int(binary.LittleEndian.Uint16(b[6:]))%len(c.memory)]
	var n int
	var err error
	switch p := c.p; b[0] % calls {
	case 0:
		n, err = p.Open(where, number, uint32(b[8]))
		if err == nil {
			c.handles = append(c.handles, Handle(n))
		}
	case 1:
		n, err = p.Write(h, buf, NoLimit)
		c.within(n, len(buf))
	case 2:
		n, err = p.Read(h, buf)
		c.within(n, len(buf))
	case 3:
		n, err = p.Pwrite(h, buf, off, NoLimit)
		c.within(n, len(buf))
	case 4:
		n, err = p.Pread(h, buf, off)
		c.within(n, len(buf))
	case 5:
		_, err = p.Readv(h, c.vectors(b), off)
	case 6:
		_, err = p.Writev(h, c.vectors(b), off, NoLimit)
	case 7:
		_, err = p.Seek(h, off, int(int8(b[5])))
	case 8:
		_, err = p.Getfl(h)
	case 9:
		err = p.Setfl(h, number)
	case 10:
		n, err = p.Getdents(h, buf)
		c.within(n, len(buf))
	case 11:
		err = p.Fsync(h)
	case 12:
		err = p.Ftruncate(h, off, NoLimit)
	case 13:
		err = p.Fstat(h, buf)
	case 14:
		err = errors.Join(p.Fchmod(h, uint32(b[6])<<8), p.Futimes(h, buf, number))
	case 15:
		err = p.Statx(where, number, uint32(b[8]), buf)
	case 16:
		err = errors.Join(p.Chown(where, uint32(b[7]), uint32(b[8]), number), p.Utimes(where, buf, int(off), number))
	case 17:
		err = p.Access(where, number, int(b[8]))
	case 18:
		err = p.Truncate(where, off, NoLimit)
	case 19:
		err = p.Mkdir(where, uint32(number))
	case 20:
		err = p.Rmdir(where)
	case 21:
		err = p.Unlink(where)
	case 22:
		err = p.Rename(where, to, uint32(number))
	case 23:
		err = p.Link(where, to, number)
	case 24:
		err = p.Symlink(to.Path, where)
	case 25:
		n, err = p.Readlink(where, buf)
		c.within(n, len(buf))
	case 26:
		n, err = p.Realpath(where, buf)
		c.within(n, len(buf))
	case 27:
		err = errors.Join(p.Retain(h), p.Release(h))
	}
	if err != nil && !errors.Is(err, errLost) {
		require.NotZero(c.t, Errno(err), "%v", err)
		require.NotEqual(c.t, syscall.EIO, Errno(err), "call %d: %v", b[0]%calls, err)
	}
}

func (c *caller) within(n, limit int) {
	if n < 0 || n > limit {
		c.t.Fatalf("%d of %d bytes", n, limit)
	}
}

// vectors returns valid memory, NULL with a length, or lengths whose sum overflows.
func (c *caller) vectors(b []byte) []syscall.Iovec {
	iov := make([]syscall.Iovec, 0, 1024)
	for i := range int(b[5]) * 4 {
		v := syscall.Iovec{Base: &c.memory[i%100], Len: uint64(b[6] % 64)}
		switch b[7] + uint8(i) {
		case 1:
			v = syscall.Iovec{Len: uint64(b[8])}
		case 2:
			v.Len = 1<<64 - 1
		case 3:
			v.Len = 1 << 31
		case 4:
			v.Base = nil
		}
		iov = append(iov, v)
	}
	return iov
}
