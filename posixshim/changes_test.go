package posixshim

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestChangesOfSeveral lets several processes map a file and change different bytes of it. No process may overwrite
// bytes that another one has written.
func TestChangesOfSeveral(t *testing.T) {
	const n = 3 * page / 2
	for _, tc := range []struct {
		name  string
		unit  int // adjacent bytes that one process changes
		limit int // changes of each process
	}{
		{"bytes", n/9 + 1, 5},
		{"floats in turn", 8, n/8/3 + 1},
		{"rows", 1000, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			file, want := make([]byte, n), make([]byte, n)
			for i := range file {
				file[i] = byte(r.Uint32())
				want[i] = file[i] + 1 + byte(r.Uint32()%255)
			}
			read := bytes.Clone(file)
			for process := range 3 {
				now := bytes.Clone(read)
				for i := range now {
					if i/tc.unit%3 == process {
						now[i] = want[i]
					}
				}
				all := changes(read, now)
				assert.LessOrEqual(t, len(all), tc.limit)
				for _, c := range all {
					copy(file[c.start:c.end], now[c.start:c.end])
				}
			}
			assert.True(t, bytes.Equal(want, file))
		})
	}
}

// TestChangesOfNumbers checks that an array of small numbers, in which most bytes of each number stay zero, counts as
// one changed part.
func TestChangesOfNumbers(t *testing.T) {
	was, now := make([]byte, 4*page), make([]byte, 4*page)
	for i := 0; i < len(now); i += 8 {
		now[i] = byte(i/8)%255 + 1
	}
	assert.Equal(t, []part{{0, 4 * page}}, changes(was, now))
	assert.Empty(t, changes(now, now))
}

// TestMappingKeepsWhatOthersWrote checks that msync does not overwrite bytes which another process has written to the
// same page, also if it is called again.
func TestMappingKeepsWhatOthersWrote(t *testing.T) {
	const size = 2 * mapChunk
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	require.NoError(t, p.Ftruncate(h, size, NoLimit))
	memory := mapped(t, p, h, size)
	f, err := p.files.get(h)
	require.NoError(t, err)
	others := map[int64]string{0: "others", mapChunk + 10: "others", size - 6: "others"}
	for at, b := range others { // past p, which would update its memory
		_, err := f.current().WriteAt([][]byte{[]byte(b)}, at)
		require.NoError(t, err)
	}
	copy(memory[6:], "ours")
	copy(memory[mapChunk:], "ours")
	for range 2 {
		require.NoError(t, p.Msync(h, 0, size))
	}
	require.NoError(t, p.SyncMappings())
	others[6], others[mapChunk] = "ours", "ours"
	for at, want := range others {
		got := make([]byte, len(want))
		_, err := p.Pread(h, got, at)
		require.NoError(t, err)
		assert.Equal(t, want, string(got), at)
	}
	require.NoError(t, p.Unmap(h))
}

// TestMappingSavesOnce checks that msync writes a change once. A second msync must not overwrite bytes that another
// process has written since.
func TestMappingSavesOnce(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	require.NoError(t, p.Ftruncate(h, page, NoLimit))
	memory := mapped(t, p, h, page)
	f, err := p.files.get(h)
	require.NoError(t, err)
	copy(memory, "ours")
	require.NoError(t, p.Msync(h, 0, page))
	_, err = f.current().WriteAt([][]byte{[]byte("others")}, 0)
	require.NoError(t, err)
	require.NoError(t, p.Msync(h, 0, page))
	got := make([]byte, 6)
	_, err = p.Pread(h, got, 0)
	require.NoError(t, err)
	assert.Equal(t, "others", string(got))
	require.NoError(t, p.Unmap(h))
}
