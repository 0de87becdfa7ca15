package tree

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf/memdev"
)

// copied identifies the version of a file that a copy has.
type copied struct {
	text     string
	modified time.Time
}

// copyOf is index.Options.Copy of the tests.
func (r *rig) copyOf(path string, size int64, modified time.Time, b []byte, off int64) error {
	c, ok := r.copies[path]
	if !ok || int64(len(c.text)) != size || !c.modified.Equal(modified) {
		return syscall.ENOENT
	}
	copy(b, c.text[off:])
	return nil
}

// copy makes a copy of a file with the content text.
func (p *rank) copy(path, text string) {
	a, err := p.Stat(root, path, true)
	require.NoError(p.r.t, err)
	p.r.copies[path] = copied{text, a.Mtime}
}

// TestReadCopies checks that a reader reads lost data from a copy of the same version of the file.
func TestReadCopies(t *testing.T) {
	r := newRig(t, 2)
	r.copies = map[string]copied{}
	a, b := r.join(0), r.join(1)
	for _, name := range []string{"/copied", "/changed", "/none"} {
		b.write(name, "hello world")
		if name != "/none" {
			b.copy(name, "HELLO WORLD")
		}
	}
	b.write("/changed", "hello again")
	r.gone = map[uint32]bool{1: true}

	read := func(name string, flags int, off int64, parts ...int) (string, error) {
		f := a.open(name, flags)
		defer f.Close()
		var text string
		for range 2 { // the second read knows about the loss
			var bufs [][]byte
			for _, n := range parts {
				bufs = append(bufs, make([]byte, n))
			}
			n, err := f.ReadAt(bufs, off)
			if err != nil {
				return "", err
			}
			text = ""
			for _, b := range bufs {
				text += string(b)
			}
			text = text[:n]
		}
		return text, nil
	}
	text, err := read("/copied", unix.O_RDONLY, 0, 20)
	require.NoError(t, err)
	assert.Equal(t, "HELLO WORLD", text)
	text, err = read("/copied", unix.O_RDONLY, 6, 1, 2)
	require.NoError(t, err)
	assert.Equal(t, "WOR", text)
	text, err = read("/copied", unix.O_RDONLY, 20, 5)
	require.NoError(t, err)
	assert.Empty(t, text, "behind the end")
	for name, flags := range map[string]int{"/changed": unix.O_RDONLY, "/none": unix.O_RDONLY, "/copied": unix.O_RDWR} {
		_, err := read(name, flags, 0, 5)
		assert.ErrorIs(t, err, syscall.EIO, name)
		assert.ErrorContains(t, err, "cannot be reached", name)
	}
}

// TestReadDamaged checks that a damaged sector is read from the copy, and the rest of the file from its shards.
func TestReadDamaged(t *testing.T) {
	const unit = 4096
	r := newRig(t, 1)
	r.copies = map[string]copied{}
	a := r.join(0)
	data := make([]byte, 3*unit)
	for i := range data {
		data[i] = byte('a' + i/unit)
	}
	a.write("/f", string(data))
	a.copy("/f", string(append(append(data[:unit:unit], make([]byte, unit)...), data[:unit]...)))
	media := r.disks[0].dev.(*memdev.Device).Bytes()
	at := bytes.Index(media, data[unit:2*unit])
	require.Positive(t, at)
	media[at]++
	f := a.open("/f", unix.O_RDONLY)
	defer f.Close()
	for i, want := range []byte{'a', 0, 'c'} {
		buf := make([]byte, unit)
		n, err := f.ReadAt([][]byte{buf}, int64(i)*unit)
		require.NoError(t, err)
		require.Equal(t, unit, n)
		assert.Equal(t, want, buf[5], "unit %d", i)
	}
}
