package drain

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden file")

// TestGolden compares a manifest of version 1, byte for byte.
func TestGolden(t *testing.T) {
	s := &Set{
		Store: "melt", Pattern: "melt.{step}.*", Name: "400", Ranks: 2, Tree: false, Ended: noon, Drained: noon.Add(1e9),
		Files: []File{
			{Rank: 0, Path: "/melt.400.0", Size: SegmentSize + 1, Mode: 0o640, Modified: noon, Sums: []Sum{0xAE8B14860A799888, 1}},
			{Rank: 1, Path: "/d/melt.400.1", Mode: 0o600, Modified: noon, Sums: []Sum{}},
		},
	}
	text, err := encode(s)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("testdata/manifest-v1.json", text, 0o600))
	}
	want, err := os.ReadFile("testdata/manifest-v1.json")
	require.NoError(t, err)
	assert.Equal(t, string(want), string(text))

	got, err := decode(want)
	require.NoError(t, err)
	s.Files[1].Sums = nil // as decoded from JSON
	assert.Equal(t, s, got)
}

// TestGoldenCall compares the manifest of a set that peers help to copy, byte for byte.
func TestGoldenCall(t *testing.T) {
	s := &Set{
		Store: "melt", Pattern: "melt.{step}.*", Name: "400", Ranks: 1, Tree: true, Ended: noon,
		Files: []File{{Rank: 0, Path: "/melt.400.0", Size: 5, Mode: 0o640, Modified: noon, Sums: []Sum{0}}},
		Call:  &call{Peers: []string{"run.1", "run.2"}, Limit: 1 << 20, Background: true},
	}
	text, err := encode(s)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("testdata/call-v1.json", text, 0o600))
	}
	want, err := os.ReadFile("testdata/call-v1.json")
	require.NoError(t, err)
	assert.Equal(t, string(want), string(text))
	got, err := decode(want)
	require.NoError(t, err)
	assert.Equal(t, s, got)
}

// TestGoldenShards compares the manifest of a shard, and all shards of a file, byte for byte.
func TestGoldenShards(t *testing.T) {
	s := &Set{
		Store: "melt", Pattern: "melt.{step}.*", Name: "400", Ranks: 2, Tree: true, Ended: noon, Drained: noon.Add(1e9),
		Files: []File{{
			Rank: 1, Path: "/melt.400.1", Size: 6, Mode: 0o600, Modified: noon, Sums: []Sum{1}, Whole: &Whole{11, []Sum{2}},
		}},
		Code: Code{Data: 2, Parity: 2, Unit: 4}, Shard: 3, Parts: []int{4, 0, 2, 1},
	}
	text, err := encode(s)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("testdata/shard-v1.json", text, 0o600))
	}
	want, err := os.ReadFile("testdata/shard-v1.json")
	require.NoError(t, err)
	assert.Equal(t, string(want), string(text))
	got, err := decode(want)
	require.NoError(t, err)
	assert.Equal(t, s, got)

	c, err := newCoder(s.Code)
	require.NoError(t, err)
	file := "hello world"
	c.size = int64(len(file))
	shards := make([]string, 4)
	for off := int64(0); off < c.shardSize(c.size); off += c.Unit {
		_, width := c.row(c.size, off)
		rows, err := c.encode(off, width, c.ofFile(func(b []byte, off int64) error { copy(b, file[off:]); return nil }))
		require.NoError(t, err)
		for i, b := range rows {
			shards[i] += string(b)
		}
	}
	assert.Equal(t, []string{"hellrl", "o wod\x00", "f\xefZj^\xb4", "a\xaaAiH\xd8"}, shards)
}

// FuzzManifest checks that any text decodes to a set, or to an error that wraps ErrManifest.
func FuzzManifest(f *testing.F) {
	text, err := os.ReadFile("testdata/manifest-v1.json")
	require.NoError(f, err)
	f.Add(text)
	shard, err := os.ReadFile("testdata/shard-v1.json")
	require.NoError(f, err)
	f.Add(shard)
	f.Add([]byte(`{"format":"nvmecr-set","version":2,"set":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := decode(text)
		if err != nil {
			require.ErrorIs(t, err, ErrManifest)
			return
		}
		require.NoError(t, s.check(false))
	})
}
