package drain

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireCompressed checks that the level has the set, that Get returns its files, and that the program of the name undoes what was done.
func requireCompressed(t *testing.T, l *Level, s *Set, data map[string][]byte) {
	t.Helper()
	sets, err := l.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	have := &sets[0]
	assert.True(t, s.Same(have))
	assert.Equal(t, s.Compress, have.Compress)
	require.NoError(t, l.Verify(t.Context(), have, Options{}))
	for i := range have.Files {
		f := &have.Files[i]
		b := make(buffer, f.Size)
		require.NoError(t, l.Get(t.Context(), have, i, b, Options{}))
		require.True(t, bytes.Equal(data[f.Path], b), f.Path)
		name := filepath.Join(have.Dir, have.stored(f))
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o640), info.Mode())
		assert.True(t, info.ModTime().Equal(noon))
		if _, err := exec.LookPath(string(s.Compress)); err != nil {
			t.Logf("%s is not compared with what %s makes of it, which is not installed", f.Path, s.Compress)
			continue
		}
		text, err := exec.Command(string(s.Compress), "-d", "-c", name).Output()
		require.NoError(t, err)
		require.True(t, bytes.Equal(data[f.Path], text), f.Path)
	}
}

func compressions(t *testing.T, test func(t *testing.T, c Compression)) {
	for _, c := range []Compression{Zstd, LZ4} {
		t.Run(string(c), func(t *testing.T) { test(t, c) })
	}
}

func TestCompress(t *testing.T) {
	compressions(t, func(t *testing.T, c Compression) {
		data := someFiles(t)
		s, m := checkpointOf("400", data)
		s.Compress = c
		l := open(t, t.TempDir())
		_, err := l.Put(t.Context(), s, m, Options{})
		require.NoError(t, err)
		requireCompressed(t, l, s, data)
	})
}

// TestCompressCutShort is TestCutShort with compressed files, in the faster format.
func TestCompressCutShort(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 700), "/melt.400.1": make([]byte, 100), "/melt.400.2": nil}
	for at := 0; ; at++ {
		s, m := checkpointOf("400", data)
		s.Compress = LZ4
		l := open(t, t.TempDir())
		n := 0
		_, err := l.Put(t.Context(), s, m, Options{Workers: 1, step: dieAfter(at, &n)})
		if n <= at {
			require.NoError(t, err)
			require.Greater(t, at, 15)
			return
		}
		require.ErrorIs(t, err, errDead)
		sets, err := l.Sets()
		require.NoError(t, err)
		require.Empty(t, sets)
		_, err = l.Put(t.Context(), s, m, Options{Workers: 1})
		require.NoError(t, err, "after %d changes", at)
		requireSums(t, l, s)
	}
}

// requireSums checks that the level has the set.
func requireSums(t *testing.T, l *Level, s *Set) {
	t.Helper()
	sets, err := l.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	require.True(t, s.Same(&sets[0]))
	require.NoError(t, l.Verify(t.Context(), &sets[0], Options{}))
}

// TestCompressOtherwise checks that a partial copy with another compression is not used.
func TestCompressOtherwise(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 10), "/melt.400.1": random(t, 20)}
	s, m := checkpointOf("400", data)
	l := open(t, t.TempDir())
	m.files["melt.400.1"].broken = assert.AnError
	_, err := l.Put(t.Context(), s, m, Options{Workers: 1})
	require.ErrorIs(t, err, assert.AnError)
	m.files["melt.400.1"].broken = nil
	s.Compress = Zstd
	put, err := l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	requireCompressed(t, l, s, data)
	assert.NoFileExists(t, filepath.Join(put.Dir, "melt.400.0"))
}

func TestCompressTwoAtOnce(t *testing.T) {
	compressions(t, func(t *testing.T, c Compression) {
		data := map[string][]byte{"/melt.400.0": random(t, 3*blockSize), "/a/melt.400.1": make([]byte, blockSize)}
		s, m := checkpointOf("400", data)
		s.Compress = c
		dir := t.TempDir()
		putAtOnce(t, dir, s, m)
		requireSums(t, open(t, dir), s)
	})
}

func TestCompressDamage(t *testing.T) {
	compressions(t, func(t *testing.T, c Compression) {
		for _, d := range []struct {
			name string
			do   func(text []byte) []byte
		}{
			{"a bit", func(text []byte) []byte { text[len(text)/2] ^= 1; return text }},
			{"the head", func(text []byte) []byte { text[0] ^= 1; return text }},
			{"cut short", func(text []byte) []byte { return text[:len(text)-1] }},
			{"empty", func([]byte) []byte { return nil }},
			{"more of the same", func(text []byte) []byte { return append(text, text...) }},
			{"another file", func([]byte) []byte { return storedOf(t, c, make([]byte, 2*blockSize)) }},
		} {
			t.Run(d.name, func(t *testing.T) {
				s, m := checkpointOf("400", map[string][]byte{"/melt.400.0": random(t, 2*blockSize)})
				s.Compress = c
				l := open(t, t.TempDir())
				put, err := l.Put(t.Context(), s, m, Options{})
				require.NoError(t, err)
				name := filepath.Join(put.Dir, put.stored(&put.Files[0]))
				text, err := os.ReadFile(name)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(name, d.do(text), 0o600))
				require.ErrorIs(t, l.Verify(t.Context(), put, Options{}), ErrDamaged)
				require.ErrorIs(t, l.Get(t.Context(), put, 0, make(buffer, put.Files[0].Size), Options{}), ErrDamaged)
			})
		}
	})
}

// storedOf returns the stored form of a file of these bytes.
func storedOf(t *testing.T, c Compression, data []byte) []byte {
	var b bytes.Buffer
	z, err := c.writer(&b)
	require.NoError(t, err)
	_, err = z.Write(data)
	require.NoError(t, errors.Join(err, z.Close()))
	return b.Bytes()
}

// TestCompressRefused checks that a set with an unknown compression, as of a later version, is refused.
func TestCompressRefused(t *testing.T) {
	s, _ := checkpointOf("400", nil)
	s.Compress = Zstd
	text, err := encode(s)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"incompatible": [
    "compress"
  ]`)
	_, err = decode(text)
	require.NoError(t, err)
	s.Compress = "brotli"
	text, err = encode(s)
	require.NoError(t, err)
	_, err = decode(text)
	require.ErrorIs(t, err, ErrManifest)
}
