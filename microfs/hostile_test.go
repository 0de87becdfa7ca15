package microfs

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// The tests of this file mount media with invalid content and valid checksums. The file system may
// refuse such media or show wrong content. It must not crash the application, nor hang.

// watch ends the test binary, with all stacks, if a test hangs.
func watch(t *testing.T) {
	timer := time.AfterFunc(5*time.Minute, func() { panic(t.Name() + " hangs") })
	t.Cleanup(func() { timer.Stop() })
}

// named returns the inode at a name of the root.
func (t *tree) named(name string) *inode { in, _ := t.lookup(RootIno, name); return in }

// TestHostileState writes state checkpoints of invalid trees. It checks that Mount refuses them, and
// that the accepted tree can be used.
func TestHostileState(t *testing.T) {
	tests := []struct {
		name    string
		change  func(tr *tree)
		mounted bool // Mount accepts it
	}{
		{name: "link count too low", change: func(tr *tree) { tr.addName(tr.inodes.get(RootIno), "second", tr.named("f")) }},
		{name: "entries zero", change: func(tr *tree) { tr.named("d").special.entries = 0 }},
		{name: "entries zero in the root", change: func(tr *tree) { tr.inodes.get(RootIno).special.entries = 0 }},
		{name: "entries huge", change: func(tr *tree) { tr.named("d").special.entries = math.MaxUint32 }},
		{name: "directory in itself", change: func(tr *tree) { tr.named("d").special.parent = tr.named("d").ino }},
		{name: "directory in its child", change: func(tr *tree) {
			e, _ := tr.lookup(tr.named("d").ino, "e")
			tr.named("d").special.parent = e.ino
		}},
		{name: "directories in each other", change: func(tr *tree) {
			d, x := tr.named("d"), tr.named("x")
			tr.dropName(tr.inodes.get(RootIno), "d", d)
			tr.dropName(tr.inodes.get(RootIno), "x", x)
			tr.addName(d, "x", x)
			tr.addName(x, "d", d)
		}},
		{name: "directory in a file", change: func(tr *tree) { tr.named("d").special.parent = tr.named("f").ino }},
		{name: "directory nowhere", change: func(tr *tree) { tr.named("d").special.parent = 999 }},
		{name: "directory twice", change: func(tr *tree) { tr.addName(tr.named("x"), "d", tr.named("d")) }},
		{name: "root in a directory", change: func(tr *tree) { tr.names.insert(entry{tr.named("x").ino, "r", RootIno}) }},
		{name: "root has a parent", change: func(tr *tree) { tr.inodes.get(RootIno).special.parent = 77 }},
		{name: "size negative", change: func(tr *tree) { tr.named("f").size = -1 }},
		{name: "size huge", change: func(tr *tree) { tr.named("f").size = math.MaxInt64 }},
		{name: "size beyond hugeblocks", change: func(tr *tree) { tr.named("f").size = 1 << 50 }},
		{name: "size small", change: func(tr *tree) { tr.named("f").size = 3 }, mounted: true},
		{name: "mode without a type", change: func(tr *tree) { tr.named("f").mode = 0o600 }},
		{name: "data of a link", change: func(tr *tree) { tr.named("f").mode, tr.named("f").special = modeSymlink|0o777, &special{target: "d"} }},
		{name: "data of a directory", change: func(tr *tree) { tr.named("f").mode, tr.named("f").special = modeDir|0o700, &special{parent: RootIno} }},
		{name: "inode numbers used up", change: func(tr *tree) { tr.nextIno = math.MaxUint64 }},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			watch(t)
			c, fs := mounted(t, variants[0])
			for _, dir := range []string{"d", "d/e", "x"} {
				require.NoError(t, fs.Mkdir(RootIno, dir, 0o700))
			}
			f := openNew(t, fs, "f")
			_, err := f.WriteAt([][]byte{pattern(50000, 1)}, 0)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			tc.change(fs.tree)
			require.NoError(t, fs.Checkpoint())
			fs.ckpt.stop()
			fs, err = c.mount()
			if tc.mounted {
				require.NoError(t, err)
				useAll(fs)
				fs.ckpt.stop()
				return
			}
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
}

// useAll makes calls of all kinds, and ignores their errors.
func useAll(fs *FS) {
	readAnything(fs)
	_ = fs.Rename(RootIno, "x", RootIno, "d/e/y", 0)
	_ = fs.Rename(RootIno, "d/e", RootIno, "x/e", 0)
	for _, name := range []string{"d", "d/e", "x"} {
		_, _ = fs.RealPath(RootIno, name)
	}
	_ = fs.Unlink(RootIno, "f")
	for _, name := range []string{"d/e", "d", "x"} {
		_ = fs.Rmdir(RootIno, name)
	}
	for _, name := range []string{"new", "newer"} {
		if f, err := fs.Open(RootIno, name, unix.O_CREAT|unix.O_RDWR, 0o600); err == nil {
			_, _ = f.WriteAt([][]byte{make([]byte, 100)}, 0)
			_ = f.Close()
		}
	}
	readAnything(fs)
}

func readAnything(fs *FS) {
	for _, name := range []string{"/.", "d", "d/e", "x"} {
		if f, err := fs.Open(RootIno, name, unix.O_RDONLY, 0); err == nil {
			_, _ = f.ReadDir("", 0)
			_ = f.Close()
		}
	}
	f, err := fs.Open(RootIno, "f", unix.O_RDWR, 0)
	if err != nil {
		return
	}
	a, _ := f.Stat()
	for _, off := range []int64{0, 40000, 100000, a.Size / 2, a.Size - 10} {
		_, _ = f.ReadAt([][]byte{make([]byte, 100)}, off)
		_, _ = f.ReadAt([][]byte{make([]byte, 100000)}, off)
		_, _ = f.SeekData(off)
		_, _ = f.SeekHole(off)
	}
	_, _, _ = f.Append([][]byte{make([]byte, 100)})
	_ = f.Close()
}

// TestHostileSuperblock checks that a superblock is refused if its areas overlap or are outside the
// partition, or if its state area is larger than any can be, so that reading the state would allocate
// too much memory.
func TestHostileSuperblock(t *testing.T) {
	tests := []struct {
		name   string
		change func(g *geometry)
	}{
		{"state before the partition", func(g *geometry) { g.state[0] = -g.stateSize }},
		{"state in the log", func(g *geometry) { g.state[0] = logOffset }},
		{"states overlap", func(g *geometry) { g.state[1] = g.state[0] }},
		{"data in the state", func(g *geometry) { g.data = g.state[1].AlignDown(g.hugeblock) }},
		{"data beyond the end", func(g *geometry) { g.blocks = math.MaxUint32 }},
		{"huge state", func(g *geometry) {
			g.seg.Length = nvmf.TiB
			g.stateSize = 256 * nvmf.GiB
			g.state[1] = g.state[0] + g.stateSize
			g.data = (g.state[1] + g.stateSize).AlignUp(g.hugeblock)
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			g := goldenGeometry(t)
			b := make([]byte, blockSize)
			g.encode(b)
			_, err := decodeSuperblock(b)
			require.NoError(t, err)
			tc.change(g)
			g.encode(b)
			_, err = decodeSuperblock(b)
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
}

// TestHostileRecords applies records that no writer logs. It checks which of them are refused, and that
// the tree after the accepted ones can be encoded and decoded.
func TestHostileRecords(t *testing.T) {
	name := func(s string) []byte { return []byte(s) }
	sums := []uint64{1, 2}
	tests := []struct {
		name     string
		accepted bool
		recs     []oplog.Record
	}{
		{"rmdir of a full directory", false, []oplog.Record{{Type: oplog.Unlink, Ino: 2, Parent: 1, Name: name("d")}}},
		{"rename into itself", false, []oplog.Record{
			{Type: oplog.Rename, Ino: 2, Parent: 1, NewParent: 3, Name: name("d"), NewName: name("x")}}},
		{"rename over a full directory", false, []oplog.Record{
			{Type: oplog.Rename, Ino: 4, Parent: 1, NewParent: 1, Name: name("f"), NewName: name("d")}}},
		{"rename to itself", false, []oplog.Record{
			{Type: oplog.Rename, Ino: 4, Parent: 1, NewParent: 1, Name: name("f"), NewName: name("f")}}},
		{"exchange with a child", false, []oplog.Record{
			{Type: oplog.Rename, Flags: oplog.RenameExchange, Ino: 2, Parent: 1, NewParent: 2, Name: name("d"), NewName: name("e")}}},
		{"greatest inode number", false, []oplog.Record{
			{Type: oplog.Create, Ino: math.MaxUint64, Parent: 1, Mode: modeRegular, Name: name("m")}}},
		{"create without a type", false, []oplog.Record{{Type: oplog.Create, Ino: 9, Parent: 1, Mode: 0o600, Name: name("m")}}},
		{"create in a removed directory", false, []oplog.Record{
			{Type: oplog.Unlink, Ino: 3, Parent: 2, Name: name("e")},
			{Type: oplog.Create, Ino: 9, Parent: 3, Mode: modeRegular, Name: name("m")}}},
		{"link of a removed file", false, []oplog.Record{
			{Type: oplog.Unlink, Ino: 4, Parent: 1, Name: name("f")},
			{Type: oplog.Link, Ino: 4, Parent: 1, Name: name("g")}}},
		{"symbolic link to nothing", false, []oplog.Record{{Type: oplog.Create, Ino: 9, Parent: 1, Mode: modeSymlink, Name: name("m")}}},
		{"write to a directory", false, []oplog.Record{{Type: oplog.Write, Ino: 2, Phys: 9, End: 40000, CRCs: sums}}},
		{"truncate of a directory", false, []oplog.Record{{Type: oplog.Truncate, Ino: 2, Size: 5}}},
		{"write beyond the end", false, []oplog.Record{{Type: oplog.Write, Ino: 4, File: 1<<32 - 2, Phys: 1, End: 1, CRCs: sums[:1]}}},
		{"allocate what is mapped", false, []oplog.Record{{Type: oplog.Allocate, Ino: 4, File: 1, Phys: 9, Count: 3}}},
		{"allocate beyond the media", false, []oplog.Record{{Type: oplog.Allocate, Ino: 4, File: 5, Phys: 1 << 31, Count: 3}}},
		{"allocate beyond the end", false, []oplog.Record{{Type: oplog.Allocate, Ino: 4, File: 1<<32 - 3, Phys: 9, Count: 3}}},
		{"allocate a size that cannot be", false, []oplog.Record{{Type: oplog.Allocate, Ino: 4, Size: math.MaxUint64}}},
		{"allocate to a directory", false, []oplog.Record{{Type: oplog.Allocate, Ino: 2, Phys: 9, Count: 3}}},
		{"punch beyond the end", false, []oplog.Record{{Type: oplog.Punch, Ino: 4, File: 1<<32 - 3, Count: 3}}},
		{"write elsewhere than was reserved", true, []oplog.Record{
			{Type: oplog.Allocate, Ino: 4, File: 3, Phys: 9, Count: 3, Size: 1},
			{Type: oplog.Write, Ino: 4, File: 4, Phys: 20, End: 40000, CRCs: sums}}},
		{"continue what is reserved", false, []oplog.Record{
			{Type: oplog.Allocate, Ino: 4, File: 3, Phys: 9, Count: 3},
			{Type: oplog.Write, Ino: 4, File: 3, Phys: 9, FirstUnit: 1, End: 40000, CRCs: sums[:1]}}},
		{"punch all, reserve again", true, []oplog.Record{
			{Type: oplog.Punch, Ino: 4, File: 0, Count: 1 << 31},
			{Type: oplog.Allocate, Ino: 4, Phys: 0, Count: 1},
			{Type: oplog.Allocate, Ino: 4, File: 1, Phys: 1, Count: 1},
			{Type: oplog.Write, Ino: 4, File: 1, Phys: 1, End: 10, CRCs: sums[:1]}}},
		{"range of nothing", false, []oplog.Record{{Type: oplog.MapRange, Ino: 4, Ranges: []Range{rangeOf(0, 0, 0, 0)}}}},
		{"range before the file", false, []oplog.Record{{Type: oplog.MapRange, Ino: 4, Ranges: []Range{rangeOf(-1, 5, 0, 0)}}}},
		{"range of less than nothing", false, []oplog.Record{{Type: oplog.MapRange, Ino: 4, Ranges: []Range{rangeOf(50, -5, 0, 0)}}}},
		{"range behind the file", false, []oplog.Record{{Type: oplog.MapRange, Ino: 4, Ranges: []Range{rangeOf(39999, 2, 0, 0)}}}},
		{"range that wraps", false, []oplog.Record{{Type: oplog.MapRange, Ino: 4, Ranges: []Range{rangeOf(math.MaxInt64, math.MaxInt64, 0, 0)}}}},
		{"range in a size that cannot be", false, []oplog.Record{{Type: oplog.MapRange, Ino: 4, Size: math.MaxUint64, Ranges: []Range{rangeOf(0, 5, 0, 0)}}}},
		{"range of a directory", false, []oplog.Record{{Type: oplog.MapRange, Ino: 2, Size: 9, Ranges: []Range{rangeOf(0, 5, 0, 0)}}}},
		{"drop ranges behind all files", false, []oplog.Record{{Type: oplog.DropRange, Ino: 4, Offset: 5, Length: math.MaxUint64 - 3}}},
		{"ranges over each other", true, []oplog.Record{
			{Type: oplog.MapRange, Ino: 4, Size: 50000, Ranges: []Range{rangeOf(100, 49900, 1, 0), rangeOf(5, 100, 2, 0), rangeOf(200, 10, 2, 1), rangeOf(0, 6, 1, 0)}},
			{Type: oplog.DropRange, Ino: 4, Offset: 40, Length: 70},
			{Type: oplog.Truncate, Ino: 4, Size: 300, HasCRC: true}}},
		{"close of a directory", true, []oplog.Record{{Type: oplog.Close, Ino: 2}}},
		{"two places in one hugeblock", true, []oplog.Record{{Type: oplog.Write, Ino: 4, File: 1, Phys: 0, End: 40000, CRCs: sums}}},
		{"over a part of itself", true, []oplog.Record{{Type: oplog.Write, Ino: 4, File: 1, Phys: 1, End: 40000, CRCs: sums}}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			watch(t)
			tr := replayedTree(t)
			for i := range tc.recs {
				if err := tr.apply(&tc.recs[i], nil); err != nil {
					require.ErrorIs(t, err, oplog.ErrRecord)
					require.False(t, tc.accepted, "%v", err)
					return
				}
			}
			require.True(t, tc.accepted)
			tr.dropNameless()
			back, err := decodeTree(tr.g, tr.encode(nil))
			require.NoError(t, err)
			require.Equal(t, tr.names.count, back.names.count)
			for in := range back.inodes.all() {
				_ = back.path(in.ino)
			}
		})
	}
}

// replayedTree returns a tree with the directories /d and /d/e, and the file /f of two hugeblocks. Their
// inodes are 2, 3 and 4.
func replayedTree(t *testing.T) *tree {
	g := goldenGeometry(t)
	g.ranges = true
	tr := newTree(g)
	for _, r := range []oplog.Record{
		{Type: oplog.Create, Ino: 2, Parent: 1, Mode: modeDir | 0o700, Name: []byte("d")},
		{Type: oplog.Create, Ino: 3, Parent: 2, Mode: modeDir | 0o700, Name: []byte("e")},
		{Type: oplog.Create, Ino: 4, Parent: 1, Mode: modeRegular | 0o700, Name: []byte("f")},
		{Type: oplog.Write, Ino: 4, Phys: 0, End: 40000, CRCs: []uint64{1, 2}},
	} {
		require.NoError(t, tr.apply(&r, nil))
	}
	return tr
}
