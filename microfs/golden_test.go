package microfs

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

var update = flag.Bool("update", false, "write the golden files anew")

func goldenGeometry(t testing.TB) *geometry {
	id := &nvmf.Identity{LBASize: 4096, Blocks: 16384}
	g, err := newGeometry(id, Segment{Start: 2 * nvmf.MiB, Length: 32 * nvmf.MiB}, &FormatOptions{
		Generation: 0x1122334455667788, Rank: 3, Size: 16, Cred: Cred{UID: 1000, GID: 100}, RootMode: 0o750,
	})
	require.NoError(t, err)
	g.fs = uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff")
	g.created = 1_700_000_000_000_000_001
	return g
}

func compareGolden(t *testing.T, name string, got []byte) {
	var b strings.Builder
	for i := 0; i < len(got); i += 32 {
		line := got[i:min(i+32, len(got))]
		if !bytes.Equal(line, make([]byte, len(line))) {
			fmt.Fprintf(&b, "%04x %s\n", i, hex.EncodeToString(line))
		}
	}
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "the format changed: old media could not be read any more")
}

// TestGoldenSuperblock pins the bytes of a superblock.
func TestGoldenSuperblock(t *testing.T) {
	g := goldenGeometry(t)
	b := make([]byte, blockSize)
	g.encode(b)
	compareGolden(t, "superblock.hex", b)
	got, err := decodeSuperblock(b)
	require.NoError(t, err)
	require.Equal(t, g, got)
}

// TestGoldenStateHeader pins the bytes of a state header.
func TestGoldenStateHeader(t *testing.T) {
	g := goldenGeometry(t)
	h := &stateHeader{sequence: 5, area: 1, length: 4711, crc: 42, prior: oplog.Prior{Page: 6, Version: 7, CRC: 8, Generation: 9}}
	b := make([]byte, blockSize)
	h.encode(b, g.fs)
	compareGolden(t, "stateheader.hex", b)
	got, err := decodeStateHeader(b, g)
	require.NoError(t, err)
	require.Equal(t, h, got)
}

// goldenTree returns a tree with a file of two extents, a directory, a hard link and a symbolic link.
func goldenTree(t testing.TB, g *geometry) *tree {
	tr := newTree(g)
	for _, r := range []oplog.Record{
		{Type: oplog.Create, Ino: 2, Parent: 1, Mode: modeDir | 0o755, UID: 1, GID: 2, Time: 3, Name: []byte("d")},
		{Type: oplog.Create, Ino: 3, Parent: 2, Mode: modeRegular | 0o600, UID: 1, GID: 2, Time: 4, Name: []byte("file")},
		{Type: oplog.Create, Ino: 4, Parent: 1, Mode: modeSymlink | 0o777, Time: 5, Name: []byte("s"), NewName: []byte("d/file")},
		{Type: oplog.Link, Ino: 3, Parent: 1, Time: 6, Name: []byte("hard")},
		{Type: oplog.Write, Ino: 3, Time: 7, File: 0, Phys: 10, End: 70000, CRCs: []uint64{1, 2, 3}},
		{Type: oplog.Write, Ino: 3, Time: 8, File: 5, Phys: 20, End: 100, CRCs: []uint64{4}},
		{Type: oplog.Truncate, Ino: 3, Time: 9, Size: 163900, HasCRC: true, CRC: 5},
		{Type: oplog.Close, Ino: 3, Time: 10},
	} {
		require.NoError(t, tr.apply(&r, nil))
	}
	return tr
}

// TestGoldenRanges pins the bytes of the superblock and the state of a file system with ranges.
func TestGoldenRanges(t *testing.T) {
	g := goldenGeometry(t)
	g.ranges = true
	sb := make([]byte, blockSize)
	g.encode(sb)
	compareGolden(t, "superblock-ranges.hex", sb)
	back, err := decodeSuperblock(sb)
	require.NoError(t, err)
	require.Equal(t, g, back)

	b := rangesTree(t, g).encode(nil)
	compareGolden(t, "state-ranges.hex", b)
	got, err := decodeTree(g, b)
	require.NoError(t, err)
	require.Equal(t, b, got.encode(nil))
	require.Equal(t, rangesTree(t, g).bytes, got.bytes)
}

// rangesTree returns goldenTree with three ranges in the file. Two of them are the parts of one range
// that a DropRange record has split.
func rangesTree(t testing.TB, g *geometry) *tree {
	tr := goldenTree(t, g)
	for _, r := range []oplog.Record{
		{Type: oplog.MapRange, Ino: 3, Time: 11, Mtime: 12, Size: 500000, Ranges: []Range{rangeOf(1, 99999, 7, 0), rangeOf(400000, 100000, 0x80000001, 0xfffffffe)}},
		{Type: oplog.DropRange, Ino: 3, Time: 13, Offset: 5000, Length: 1},
		{Type: oplog.Punch, Ino: 3, Time: 14, File: 5, Count: 1},
	} {
		require.NoError(t, tr.apply(&r, nil))
	}
	return tr
}

// TestGoldenState pins the bytes of an encoded tree.
func TestGoldenState(t *testing.T) {
	g := goldenGeometry(t)
	b := goldenTree(t, g).encode(nil)
	compareGolden(t, "state.hex", b)
	got, err := decodeTree(g, b)
	require.NoError(t, err)
	require.Equal(t, b, got.encode(nil))
	require.Equal(t, goldenTree(t, g).bytes, got.bytes)
}
