package parttable

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

var update = flag.Bool("update", false, "write the golden files anew")

const capacity = 16 * nvmf.MiB

// sample returns a table with a value in every field.
func sample() *Table {
	return &Table{
		Sequence:   7,
		Name:       "melt-2.run_a",
		UID:        1000,
		Generation: 0x1122334455667788,
		Namespace:  uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff"),
		JobSize:    5,
		Target:     1,
		Targets:    2,
		Hugeblock:  32 * nvmf.KiB,
		Created:    time.Unix(1700000000, 123456789).UTC(),
		Written:    time.Unix(1700000001, 987654321).UTC(),
		Entries: []Entry{
			{Rank: 1, Start: 2 * nvmf.MiB, Length: 4 * nvmf.MiB},
			{Rank: 3, Start: 6 * nvmf.MiB, Length: 4 * nvmf.MiB},
		},
	}
}

func decode(b []byte, slot int) (*Table, error) {
	if len(b) < int(headerSize) {
		return nil, errNoMagic
	}
	t, n, err := decodeHeader(b, slot)
	if err != nil {
		return nil, err
	}
	rest := b[headerSize:]
	if len(rest) < n*int(entrySize) {
		return nil, errDamaged
	}
	return t, decodeEntries(t, b, rest, n, capacity)
}

// divided returns a table that needs version 2: with a singleton partition, unordered ranks, a rank of an earlier, larger job, and free
// space.
func divided() *Table {
	t := sample()
	t.Entries = []Entry{
		{Rank: Singleton, Start: 2 * nvmf.MiB, Length: nvmf.MiB},
		{Rank: 3, Start: 4 * nvmf.MiB, Length: 4 * nvmf.MiB},
		{Rank: 7, Start: 8 * nvmf.MiB, Length: 2 * nvmf.MiB},
		{Rank: 1, Start: 12 * nvmf.MiB, Length: 4 * nvmf.MiB},
	}
	return t
}

// withCopies returns a table of a namespace with a copy area.
func withCopies() *Table {
	t := sample()
	t.Incompatible, t.Copies = CopyArea, Extent{Start: 10 * nvmf.MiB, Length: 6 * nvmf.MiB}
	return t
}

// TestGolden checks that the bytes of a version never change.
func TestGolden(t *testing.T) {
	for name, table := range map[string]*Table{"v1-slot1": sample(), "v2-slot1": divided(), "copies-slot1": withCopies()} {
		name = "testdata/" + name + ".bin"
		image := encode(table, 1)
		if *update {
			require.NoError(t, os.WriteFile(name, image, 0o644))
		}
		golden, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(golden, image), "the encoding of %s has changed", name)
		got, err := decode(golden, 1)
		require.NoError(t, err)
		assert.Equal(t, table, got)
	}
}

// TestVersion checks that a table is written in the oldest possible version.
func TestVersion(t *testing.T) {
	for _, c := range []struct {
		name string
		want uint32
		edit func(*Table)
	}{
		{"ranks", version1, func(*Table) {}},
		{"of other lengths, free space between", version1, func(t *Table) { t.Entries[0].Length /= 2 }},
		{"singleton", version2, func(t *Table) {
			t.Entries = append(t.Entries, Entry{Rank: Singleton, Start: 10 * nvmf.MiB, Length: nvmf.MiB})
		}},
		{"not ascending", version2, func(t *Table) { t.Entries[0].Rank = 4 }},
		{"beyond the job size", version2, func(t *Table) { t.JobSize = 3 }},
	} {
		table := sample()
		c.edit(table)
		b := encode(table, 0)
		assert.Equal(t, c.want, binary.LittleEndian.Uint32(b[offVersion:]), c.name)
		got, err := decode(b, 0)
		require.NoError(t, err, c.name)
		assert.Equal(t, table, got, c.name)
	}
}

// TestSingleton tests SingletonEntry and Keeper.
func TestSingleton(t *testing.T) {
	e, ok := divided().SingletonEntry()
	assert.True(t, ok)
	assert.Equal(t, divided().Entries[0], e)
	assert.Equal(t, 1, divided().Keeper())

	_, ok = sample().SingletonEntry()
	assert.False(t, ok)
	single := sample()
	single.JobSize, single.Entries = 1, []Entry{{Rank: 0, Start: 2 * nvmf.MiB, Length: nvmf.MiB}}
	e, ok = single.SingletonEntry()
	assert.True(t, ok, "in a store of one rank it is that of the rank")
	assert.Equal(t, single.Entries[0], e)
	assert.Zero(t, single.Keeper())
}

// resealed applies edit to the image of a table and corrects the checksums, as hostile media would.
func resealed(table *Table, edit func(b []byte)) []byte {
	b := encode(table, 0)
	edit(b)
	n := binary.LittleEndian.Uint32(b[offEntries:])
	if end := int(headerSize) + int(n)*int(entrySize); end <= len(b) {
		binary.LittleEndian.PutUint64(b[offEntriesCRC:], crc64.Checksum(b[headerSize:end]))
	}
	binary.LittleEndian.PutUint64(b[offHeaderCRC:], crc64.Checksum(b[:offHeaderCRC]))
	return b
}

func TestDecodeRefuses(t *testing.T) {
	le := binary.LittleEndian
	entry := int(headerSize)
	for name, edit := range map[string]func(b []byte){
		"generation 0":         func(b []byte) { le.PutUint64(b[offGeneration:], 0) },
		"name too long":        func(b []byte) { le.PutUint32(b[offNameLength:], 65) },
		"name far too long":    func(b []byte) { le.PutUint32(b[offNameLength:], 1<<31) },
		"empty name":           func(b []byte) { le.PutUint32(b[offNameLength:], 0) },
		"name with slash":      func(b []byte) { b[offName] = '/' },
		"hugeblock odd":        func(b []byte) { le.PutUint32(b[offHugeblock:], 33000) },
		"hugeblock huge":       func(b []byte) { le.PutUint32(b[offHugeblock:], 8<<20) },
		"target beyond":        func(b []byte) { le.PutUint32(b[offTarget:], 2) },
		"no targets":           func(b []byte) { le.PutUint32(b[offTargets:], 0) },
		"more than fit":        func(b []byte) { le.PutUint32(b[offEntries:], uint32(maxEntries)+1) },
		"more than ranks":      func(b []byte) { le.PutUint32(b[offJobSize:], 1) },
		"rank beyond":          func(b []byte) { le.PutUint32(b[entry:], 5) },
		"rank twice":           func(b []byte) { le.PutUint32(b[entry:], 3) },
		"over the head":        func(b []byte) { le.PutUint64(b[entry+8:], 1<<20) },
		"empty partition":      func(b []byte) { le.PutUint64(b[entry+16:], 0) },
		"partitions overlap":   func(b []byte) { le.PutUint64(b[entry+16:], 5<<20) },
		"behind the end":       func(b []byte) { le.PutUint64(b[entry+32+16:], uint64(capacity)) },
		"length overflows":     func(b []byte) { le.PutUint64(b[entry+32+16:], 1<<64-1) },
		"start overflows":      func(b []byte) { le.PutUint64(b[entry+32+8:], 1<<64-1) },
		"copy of another slot": func(b []byte) { le.PutUint32(b[offSlot:], 1) },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decode(resealed(sample(), edit), 0)
			require.ErrorIs(t, err, errDamaged)
		})
	}
	for name, edit := range map[string]func(b []byte){
		"version 1":         func(b []byte) { le.PutUint32(b[offVersion:], 1) },
		"rank twice":        func(b []byte) { le.PutUint32(b[entry+32:], 7) },
		"singleton twice":   func(b []byte) { le.PutUint32(b[entry+64:], 1<<32-1) },
		"rank -2":           func(b []byte) { le.PutUint32(b[entry:], 1<<32-2) },
		"partition overlap": func(b []byte) { le.PutUint64(b[entry+16:], 3<<20) },
		"not ascending":     func(b []byte) { le.PutUint64(b[entry+32+8:], 14<<20) },
	} {
		t.Run("version 2, "+name, func(t *testing.T) {
			_, err := decode(resealed(divided(), edit), 0)
			require.ErrorIs(t, err, errDamaged)
		})
	}
	for name, edit := range map[string]func(b []byte){
		"in a partition":  func(b []byte) { le.PutUint64(b[offCopiesStart:], 9<<20) },
		"in the head":     func(b []byte) { le.PutUint64(b[offCopiesStart:], 1<<20) },
		"behind the end":  func(b []byte) { le.PutUint64(b[offCopiesLength:], 7<<20) },
		"start overflows": func(b []byte) { le.PutUint64(b[offCopiesStart:], 1<<64-1) },
		"empty":           func(b []byte) { le.PutUint64(b[offCopiesLength:], 0) },
	} {
		t.Run("copy area, "+name, func(t *testing.T) {
			_, err := decode(resealed(withCopies(), edit), 0)
			require.ErrorIs(t, err, errDamaged)
		})
	}
	for _, table := range []*Table{sample(), divided(), withCopies()} {
		_, err := decode(resealed(table, func(b []byte) {}), 0)
		require.NoError(t, err, "without an edit")
	}
}

// TestDecodeNoticesEveryByte checks that any flipped byte of the used part is detected.
func TestDecodeNoticesEveryByte(t *testing.T) {
	image := encode(sample(), 0)
	used := int(headerSize) + len(sample().Entries)*int(entrySize)
	for i := 0; i < used; i++ {
		image[i] ^= 0x5a
		_, err := decode(image, 0)
		require.Error(t, err, "byte %d", i)
		image[i] ^= 0x5a
	}
}

func TestCheck(t *testing.T) {
	want := Want{Name: "melt-2.run_a", UID: 1000, Size: 5, Target: 1, Targets: 2}
	for _, c := range []struct {
		name string
		edit func(*Table, *Want)
		err  error
	}{
		{"as wanted", func(*Table, *Want) {}, nil},
		{"other name", func(_ *Table, w *Want) { w.Name = "b" }, ErrOtherName},
		{"other user", func(_ *Table, w *Want) { w.UID = 1 }, ErrOtherOwner},
		{"other user, any accepted", func(_ *Table, w *Want) { w.UID, w.AnyUser = 0, true }, nil},
		{"other size", func(_ *Table, w *Want) { w.Size = 6 }, ErrOtherSize},
		{"any size", func(_ *Table, w *Want) { w.Size = 0 }, nil},
		{"targets in another order", func(_ *Table, w *Want) { w.Target = 0 }, ErrOtherTargets},
		{"fewer targets", func(_ *Table, w *Want) { w.Targets = 3 }, ErrOtherTargets},
		{"any targets", func(_ *Table, w *Want) { w.Target, w.Targets = 0, 0 }, nil},
		{"unknown incompatible feature", func(t *Table, _ *Want) { t.Incompatible = 8 }, ErrVersion},
		{"unknown incompatible feature, reading", func(t *Table, w *Want) { t.Incompatible, w.ReadOnly = 8, true }, ErrVersion},
		{"mirrored", func(t *Table, w *Want) { t.Incompatible, w.Mirrored = Mirrored, true }, nil},
		{"mirrored, opened alone", func(t *Table, w *Want) { t.Incompatible = Mirrored }, ErrOtherMirror},
		{"not mirrored, opened as a mirror", func(t *Table, w *Want) { w.Mirrored = true }, ErrOtherMirror},
		{"mirrored, any targets", func(t *Table, w *Want) { t.Incompatible, w.Target, w.Targets = Mirrored, 0, 0 }, nil},
		{"a copy area", func(t *Table, _ *Want) { t.Incompatible = CopyArea }, nil},
		{"the tree of the job", func(t *Table, w *Want) { t.Incompatible, w.Tree = Shards, TreeOfJob }, nil},
		{"either tree", func(t *Table, w *Want) { t.Incompatible = Shards }, nil},
		{"a tree for each rank", func(t *Table, w *Want) { w.Tree = TreeOfRanks }, nil},
		{"the tree of the job, not of ranks", func(t *Table, w *Want) { t.Incompatible, w.Tree = Shards, TreeOfRanks }, ErrOtherTree},
		{"trees of ranks, not of the job", func(t *Table, w *Want) { w.Tree = TreeOfJob }, ErrOtherTree},
		{"unknown read-only feature", func(t *Table, _ *Want) { t.ReadOnlyCompatible = 1 }, ErrVersion},
		{"unknown read-only feature, reading", func(t *Table, w *Want) { t.ReadOnlyCompatible, w.ReadOnly = 1, true }, nil},
		{"unknown compatible feature", func(t *Table, _ *Want) { t.Compatible = 1 }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, w := sample(), want
			c.edit(table, &w)
			err := table.Check(w)
			if c.err == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.err)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestTooSmall(t *testing.T) {
	dev, err := memdev.New(nvmf.MiB, 512, memdev.Options{})
	require.NoError(t, err)
	defer dev.Close()
	_, err = Read(ctx, dev)
	require.ErrorContains(t, err, "too small")
}

func TestCheckName(t *testing.T) {
	for _, ok := range []string{"a", "default", "A-1_b.c", string(bytes.Repeat([]byte{'x'}, MaxName))} {
		assert.NoError(t, CheckName(ok))
	}
	for _, bad := range []string{"", ".", "..", "a/b", "a b", "ä", "a\n", "a;b", string(bytes.Repeat([]byte{'x'}, MaxName+1))} {
		assert.Error(t, CheckName(bad), bad)
	}
}
