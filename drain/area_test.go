package drain

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// An areaDevice is the device of an area.
type areaDevice struct {
	dev nvmf.Device
	seg microfs.Segment
}

func newAreaDevice(t *testing.T, size nvmf.Bytes) *areaDevice {
	dev, err := memdev.New(size, 4096, memdev.Options{})
	require.NoError(t, err)
	a := &areaDevice{dev, microfs.Segment{Length: size}}
	require.NoError(t, microfs.Format(t.Context(), dev, a.seg, microfs.FormatOptions{Generation: 1, Size: 1, LogPages: 64}))
	return a
}

// mount mounts the area, as after the death of the process that had mounted it before.
func (a *areaDevice) mount(t *testing.T, readOnly bool) *Level {
	files, err := microfs.Mount(t.Context(), a.dev, a.seg, microfs.Options{Generation: 1, ReadOnly: readOnly})
	require.NoError(t, err)
	return OpenArea(files, "area")
}

// spoil inverts a bit of some text, wherever the medium has it.
func (a *areaDevice) spoil(t *testing.T, text string) {
	b := a.dev.(*memdev.Device).Bytes()
	require.True(t, bytes.Contains(b, []byte(text)))
	for at := bytes.Index(b, []byte(text)); at >= 0; at = bytes.Index(b, []byte(text)) {
		b[at] ^= 1
	}
}

// requireIn checks that a level has a set and nothing else, and that its files are data.
func requireIn(t *testing.T, l *Level, s *Set, data map[string][]byte) {
	t.Helper()
	sets, err := l.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	require.True(t, s.Same(&sets[0]))
	require.NoError(t, l.Verify(t.Context(), &sets[0], Options{}))
	for i, f := range sets[0].Files {
		got := make(buffer, f.Size)
		require.NoError(t, l.Get(t.Context(), &sets[0], i, got, Options{}))
		require.True(t, bytes.Equal(data[f.Path], got), f.Path)
	}
}

func TestArea(t *testing.T) {
	data := someFiles(t)
	s, m := checkpointOf("400", data)
	a := newAreaDevice(t, 256<<20)
	l := a.mount(t, false)
	put, err := l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	requireIn(t, l, s, data)
	requireIn(t, a.mount(t, true), s, data)

	files := a.mount(t, true).root.(areaDir).fs
	hole, err := files.Stat(microfs.RootIno, "/melt.400/melt.400.3", false)
	require.NoError(t, err)
	assert.Zero(t, hole.Blocks, "holes stay holes")
	large, err := files.Stat(microfs.RootIno, "/melt.400/melt.400.0", false)
	require.NoError(t, err)
	assert.Equal(t, uint32(0o640), large.Mode&0o777)
	assert.True(t, large.Mtime.Equal(noon))

	require.NoError(t, l.Remove(put))
	sets, err := a.mount(t, true).Sets()
	require.NoError(t, err)
	require.Empty(t, sets)
}

// TestAreaCutShort kills a Put before each change. The set must not count then, and the next process must complete
// it.
func TestAreaCutShort(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 2*blockSize+7), "/d/melt.400.1": random(t, 100), "/melt.400.2": nil}
	for at := 0; ; at++ {
		s, m := checkpointOf("400", data)
		a := newAreaDevice(t, 16<<20)
		n := 0
		_, err := a.mount(t, false).Put(t.Context(), s, m, Options{Workers: 1, step: dieAfter(at, &n)})
		if n <= at {
			require.NoError(t, err)
			require.Greater(t, at, 15)
			return
		}
		require.ErrorIs(t, err, errDead)
		l := a.mount(t, false)
		sets, err := l.Sets()
		require.NoError(t, err)
		require.Empty(t, sets)
		_, err = l.Put(t.Context(), s, m, Options{Workers: 1})
		require.NoError(t, err, "after %d changes", at)
		requireIn(t, l, s, data)
	}
}
