package drain

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden file")

// TestGolden: the manifest of version 1, byte for byte.
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
	s.Files[1].Sums = nil // as JSON has it
	assert.Equal(t, s, got)
}

// FuzzManifest: whatever the text, there is a set or an error in ErrManifest.
func FuzzManifest(f *testing.F) {
	text, err := os.ReadFile("testdata/manifest-v1.json")
	require.NoError(f, err)
	f.Add(text)
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
