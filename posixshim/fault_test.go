package posixshim

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// protected maps three pages: one that can be written, one that can only be read, one that cannot be accessed.
func protected(t *testing.T) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Munmap(m)) })
	require.NoError(t, unix.Mprotect(m[page:2*page], unix.PROT_READ))
	require.NoError(t, unix.Mprotect(m[2*page:], unix.PROT_NONE))
	return m
}

// TestTouched checks how many bytes of buffers can be read or written, if some of their memory is protected.
func TestTouched(t *testing.T) {
	m := protected(t)
	const all = 1 << 62
	for _, c := range []struct {
		bufs     [][]byte
		limit    int64
		readable int // expected number of bytes; -1: EFAULT
		writable int
	}{
		{[][]byte{}, all, 0, 0},
		{[][]byte{m[:page]}, all, page, page},
		{[][]byte{m}, all, 2 * page, page},
		{[][]byte{m[10:]}, all, 2*page - 10, page - 10},
		{[][]byte{m[10:]}, 2 * page, 2*page - 10, page - 10},
		{[][]byte{m}, page, 2 * page, 3 * page}, // only the first page of the buffer would be written
		{[][]byte{m}, -5, 2 * page, 3 * page},   // an offset behind the end of a file: nothing would be written
		{[][]byte{m[page:]}, all, page, -1},     // no byte can be written
		{[][]byte{m[2*page:]}, all, -1, -1},     // no byte can be read or written
		{[][]byte{m[:5], m[page:]}, all, page + 5, 5},
		{[][]byte{m[:5], m[2*page:], m[:7]}, all, 5, 5},
		{[][]byte{m[:5], m[:7], m[page-1 : page+1]}, all, 14, 13},
	} {
		for what, want := range map[string]int{"readable": c.readable, "writable": c.writable} {
			bufs := append([][]byte(nil), c.bufs...)
			var err error
			if what == "readable" {
				bufs, err = readable(bufs)
			} else {
				bufs, err = writable(bufs, c.limit)
			}
			if want == -1 {
				assert.ErrorIs(t, err, syscall.EFAULT)
				continue
			}
			require.NoError(t, err)
			n := 0
			for _, b := range bufs {
				n += len(b)
			}
			assert.Equal(t, want, n, "%s of %d buffers", what, len(c.bufs))
		}
	}
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = readable([][]byte{m[:2*page]}) }))
}

// BenchmarkTouched measures the check of a buffer.
func BenchmarkTouched(b *testing.B) {
	for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 8 << 20} {
		buf := [][]byte{make([]byte, n)}
		b.Run(fmt.Sprintf("read/%d", n), func(b *testing.B) {
			for b.Loop() {
				_, _ = readable(buf)
			}
		})
		b.Run(fmt.Sprintf("write/%d", n), func(b *testing.B) {
			for b.Loop() {
				_, _ = writable(buf, 1<<62)
			}
		})
	}
}
