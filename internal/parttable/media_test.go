package parttable

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

func newMem(t *testing.T, lba nvmf.Bytes) *memdev.Device {
	t.Helper()
	dev, err := memdev.New(capacity, lba, memdev.Options{MaxTransfer: 64 * nvmf.KiB})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

var ctx = context.Background()

func format(t *testing.T, dev nvmf.Device) *Table {
	t.Helper()
	table := sample()
	require.NoError(t, Begin(ctx, dev, nil))
	require.NoError(t, Write(ctx, dev, table))
	return table
}

func TestWriteAndRead(t *testing.T) {
	for _, lba := range []nvmf.Bytes{512, 4096} {
		t.Run(fmt.Sprint(lba), func(t *testing.T) {
			dev := newMem(t, lba)
			_, err := Read(ctx, dev)
			require.ErrorIs(t, err, ErrNoTable)
			table := format(t, dev)
			require.EqualValues(t, 1, table.Sequence)
			got, err := Read(ctx, dev)
			require.NoError(t, err)
			require.Equal(t, table, got)

			table.Entries = append(table.Entries, Entry{Rank: 4, Start: 10 * nvmf.MiB, Length: nvmf.MiB})
			require.NoError(t, Write(ctx, dev, table))
			got, err = Read(ctx, dev)
			require.NoError(t, err)
			require.EqualValues(t, 2, got.Sequence)
			require.Equal(t, table, got)

			require.NoError(t, Wipe(ctx, dev))
			_, err = Read(ctx, dev)
			require.ErrorIs(t, err, ErrNoTable)
			require.Empty(t, bytes.Trim(dev.Bytes(), "\x00"), "nothing is left")
		})
	}
}

func TestLargestTable(t *testing.T) {
	dev, err := memdev.New(64*nvmf.GiB, 512, memdev.Options{})
	require.NoError(t, err)
	defer dev.Close()
	table := sample()
	table.JobSize, table.Entries = MaxEntries, nil
	for r := 0; r < MaxEntries; r++ {
		table.Entries = append(table.Entries, Entry{Rank: r, Start: HeadSize + nvmf.Bytes(r)*nvmf.MiB, Length: nvmf.MiB})
	}
	require.NoError(t, Begin(ctx, dev, nil))
	require.NoError(t, Write(ctx, dev, table))
	got, err := Read(ctx, dev)
	require.NoError(t, err)
	require.Equal(t, table.Entries, got.Entries)
	table.JobSize++
	table.Entries = append(table.Entries, Entry{Rank: MaxEntries, Start: HeadSize + nvmf.Bytes(MaxEntries)*nvmf.MiB, Length: nvmf.MiB})
	require.Error(t, Write(ctx, dev, table), "one too many")
}

// TestLargerThanToday checks that a table that fills its slot, of an earlier version, can be read and repaired, and leaves no space for
// a run record.
func TestLargerThanToday(t *testing.T) {
	dev, err := memdev.New(64*nvmf.GiB, 512, memdev.Options{})
	require.NoError(t, err)
	defer dev.Close()
	table := sample()
	require.True(t, table.HasRunRecord())
	table.JobSize, table.Entries = maxEntries, nil
	for r := range maxEntries {
		table.Entries = append(table.Entries, Entry{Rank: r, Start: HeadSize + nvmf.Bytes(r)*nvmf.MiB, Length: nvmf.MiB})
	}
	m, err := open(ctx, dev)
	require.NoError(t, err)
	defer m.close()
	require.NoError(t, m.writeSlots(table, 0, 1))
	got, err := Read(ctx, dev)
	require.NoError(t, err)
	require.Equal(t, table.Entries, got.Entries)
	require.False(t, got.HasRunRecord())
	require.NoError(t, m.write(slotSize, make([]byte, headerSize)))
	repaired, err := Repair(ctx, dev)
	require.NoError(t, err)
	require.True(t, repaired)
	got, err = Read(ctx, dev)
	require.NoError(t, err)
	require.Equal(t, table.Entries, got.Entries)
}

func TestBlank(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(b []byte)
		err  error
	}{
		"zeros":                       {func(b []byte) {}, ErrNoTable},
		"0xff":                        {func(b []byte) { fill(b, 0xff) }, ErrNoTable},
		"0x55":                        {func(b []byte) { fill(b, 0x55) }, ErrForeign},
		"one byte at the end":         {func(b []byte) { b[HeadSize-1] = 1 }, ErrForeign},
		"data behind the head":        {func(b []byte) { b[HeadSize] = 1 }, ErrNoTable},
		"mark over data":              {func(b []byte) { fill(b, 0x55); setMark(b) }, ErrNoTable},
		"mark and then a file system": {func(b []byte) { setMark(b); copy(b[0x438:], "\x53\xef") }, ErrForeign},
		"ext4":                        {func(b []byte) { copy(b[0x438:], "\x53\xef") }, ErrForeign},
		"magic only":                  {func(b []byte) { copy(b, magic) }, ErrCorrupt},
		"magic in slot 1 only":        {func(b []byte) { copy(b[slotSize:], magic) }, ErrCorrupt},
		"version 3":                   {func(b []byte) { copy(b, magic); b[offVersion] = 3 }, ErrVersion},
	} {
		t.Run(name, func(t *testing.T) {
			dev := newMem(t, 512)
			if c.err == ErrVersion {
				fill(dev.Bytes()[slotSize:], 0xff)
			}
			c.edit(dev.Bytes())
			_, err := Read(ctx, dev)
			require.ErrorIs(t, err, c.err)
			assert.NotContains(t, err.Error(), "\n")
			// Begin removes any content.
			require.NoError(t, Begin(ctx, dev, []Range{{HeadSize, 4096}}))
			_, err = Read(ctx, dev)
			require.ErrorIs(t, err, ErrNoTable)
			rest := bytes.Clone(dev.Bytes()[headerSize : HeadSize+4096])
			for c := range 2 { // the run in progress writes its record
				clear(rest[RunRecordOffset(c)-headerSize:][:RunRecordSize])
			}
			assert.True(t, isZero(rest), "what Begin leaves")
			require.NoError(t, Wipe(ctx, dev))
			assert.True(t, isZero(dev.Bytes()[:HeadSize]), "what Wipe leaves")
		})
	}
}

func isZero(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }

func fill(b []byte, c byte) {
	for i := range b {
		b[i] = c
	}
}

func setMark(b []byte) {
	fill(b[:headerSize], 0)
	copy(b, mark)
}

// TestOverwrittenByFileSystem checks that Repair does not overwrite a new file system although slot 1 is still valid.
func TestOverwrittenByFileSystem(t *testing.T) {
	for _, s := range signatures {
		t.Run(s.what, func(t *testing.T) {
			dev := newMem(t, 512)
			format(t, dev)
			fill(dev.Bytes()[:headerSize], 0)
			copy(dev.Bytes()[s.at:], s.bytes)
			before := bytes.Clone(dev.Bytes())
			_, err := Read(ctx, dev)
			require.ErrorIs(t, err, ErrForeign)
			require.Contains(t, err.Error(), s.what)
			_, err = Repair(ctx, dev)
			require.ErrorIs(t, err, ErrForeign)
			require.True(t, bytes.Equal(before, dev.Bytes()))
		})
	}
}

// TestOneDamagedSector checks that any damaged 4 KiB block loses nothing and is repaired.
func TestOneDamagedSector(t *testing.T) {
	dev := newMem(t, 4096)
	table := format(t, dev)
	whole := bytes.Clone(dev.Bytes())
	repaired, err := Repair(ctx, dev)
	require.NoError(t, err)
	require.False(t, repaired, "nothing to do")
	for _, at := range []nvmf.Bytes{0, headerSize, slotSize, slotSize + headerSize} {
		for _, junk := range []byte{0x00, 0x5a, 0xff} {
			fill(dev.Bytes()[at:at+4096], junk)
			got, err := Read(ctx, dev)
			require.NoError(t, err, "block at %d is %#x", at, junk)
			require.Equal(t, table, got)
			repaired, err = Repair(ctx, dev)
			require.NoError(t, err)
			require.True(t, repaired)
			require.True(t, bytes.Equal(whole, dev.Bytes()), "block at %d", at)
		}
	}
}

// TestCrash cuts the power at many places of every write of formatting, updating and wiping, with and without a volatile cache.
// Afterwards there is the old table, the new one, or recognisably none, and the operation can be repeated.
func TestCrash(t *testing.T) {
	old, replaced := sample(), sample()
	replaced.Name = "replaced"
	replaced.Entries = append(replaced.Entries, Entry{Rank: 4, Start: 10 * nvmf.MiB, Length: nvmf.MiB})
	fresh := func(dev nvmf.Device) error {
		if err := Begin(ctx, dev, nil); err != nil {
			return err
		}
		table := *replaced
		return Write(ctx, dev, &table)
	}
	for _, c := range []struct {
		name    string
		before  func(dev nvmf.Device) error
		do      func(dev nvmf.Device) error
		outcome []string // names that may be found; "" stands for ErrNoTable
	}{
		{"format", nil, fresh, []string{"", "replaced"}},
		{"format on 0xff", func(dev nvmf.Device) error { return paint(dev) }, fresh, []string{"", "replaced"}},
		{"format over a table", write(old), fresh, []string{old.Name, "", "replaced"}},
		{"update", write(old), func(dev nvmf.Device) error {
			table := *replaced
			return Write(ctx, dev, &table)
		}, []string{old.Name, "replaced"}},
		{"update with slot 0 damaged", func(dev nvmf.Device) error {
			if err := write(old)(dev); err != nil {
				return err
			}
			return damage(dev, 0)
		}, func(dev nvmf.Device) error {
			table := *replaced
			return Write(ctx, dev, &table)
		}, []string{old.Name, "replaced"}},
		{"update with slot 1 damaged", func(dev nvmf.Device) error {
			if err := write(old)(dev); err != nil {
				return err
			}
			return damage(dev, slotSize)
		}, func(dev nvmf.Device) error {
			table := *replaced
			return Write(ctx, dev, &table)
		}, []string{old.Name, "replaced"}},
		{"repair", func(dev nvmf.Device) error {
			if err := write(old)(dev); err != nil {
				return err
			}
			return damage(dev, 0)
		}, func(dev nvmf.Device) error {
			_, err := Repair(ctx, dev)
			return err
		}, []string{old.Name}},
		{"extend", write(old), func(dev nvmf.Device) error {
			table := *replaced
			return Extend(ctx, dev, &table, []Range{{Start: 10 * nvmf.MiB, Length: 4096}})
		}, []string{old.Name, "replaced"}},
		{"wipe", write(old), func(dev nvmf.Device) error { return Wipe(ctx, dev) }, []string{old.Name, ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[string]int{}
			for _, cached := range []bool{false, true} {
				crashEverywhere(t, c.before, c.do, cached, func(t *testing.T, dev nvmf.Device, where string) {
					got, err := Read(ctx, dev)
					found := ""
					if err == nil {
						found = got.Name
					} else {
						require.ErrorIs(t, err, ErrNoTable, where)
					}
					seen[found]++
					require.Contains(t, c.outcome, found, where)
				})
			}
			for _, name := range c.outcome {
				assert.NotZero(t, seen[name], "no crash led to %q; seen %v", name, seen)
			}
		})
	}
}

// crashEverywhere runs do with the power cut in each of its writes; with a cache before each flush, when each block written since the
// last flush may have any of its versions.
func crashEverywhere(t *testing.T, before, do func(nvmf.Device) error, cached bool, check func(*testing.T, nvmf.Device, string)) {
	for n := 1; ; n++ {
		for i, torn := range []int{0, 1, 5, 8, 15, 16, 100, 512, 600, 2048, 4095, 4096, 5000, 1 << 30} {
			if cached && i == 6 {
				break
			}
			inner, err := memdev.New(capacity, 512, memdev.Options{})
			require.NoError(t, err)
			if before != nil {
				require.NoError(t, before(inner))
			}
			dev, err := blocktest.NewFaulty(inner)
			require.NoError(t, err)
			where, op := fmt.Sprintf("write %d cut after %d bytes", n, torn), nvmf.Write
			if cached {
				where, op = fmt.Sprintf("power lost before flush %d, seed %d", n, i), nvmf.Flush
				dev.UseVolatileCache()
				dev.FailAt(op, n, nvmf.ErrClosed)
			} else {
				dev.CutAt(n, torn)
			}
			err = do(dev)
			if err == nil { // that was the last write
				require.Less(t, dev.Count(op), n)
				require.NoError(t, dev.Close())
				return
			}
			if cached {
				require.NoError(t, dev.Crash(uint64(i)))
			}
			dev.PowerOn()
			check(t, dev, where)
			require.NoError(t, do(dev), "again after "+where)
			require.NoError(t, dev.Close())
		}
	}
}

func write(table *Table) func(nvmf.Device) error {
	return func(dev nvmf.Device) error {
		if err := Begin(ctx, dev, nil); err != nil {
			return err
		}
		copied := *table
		return Write(ctx, dev, &copied)
	}
}

func paint(dev nvmf.Device) error {
	m, err := open(ctx, dev)
	if err != nil {
		return err
	}
	defer m.close()
	return m.write(0, bytes.Repeat([]byte{0xff}, int(HeadSize)))
}

func damage(dev nvmf.Device, at nvmf.Bytes) error {
	m, err := open(ctx, dev)
	if err != nil {
		return err
	}
	defer m.close()
	return m.write(at, bytes.Repeat([]byte{0x5a}, 4096))
}

// TestConnectionLost checks that a read is repeated after a lost connection, and a write is not.
func TestConnectionLost(t *testing.T) {
	dev, err := blocktest.NewFaulty(newMem(t, 512))
	require.NoError(t, err)
	table := format(t, dev)
	dev.DisconnectAt(nvmf.Read, 2)
	got, err := Read(ctx, dev)
	require.NoError(t, err)
	require.Equal(t, table, got)
	dev.DisconnectAt(nvmf.Write, 1)
	require.ErrorIs(t, Write(ctx, dev, table), nvmf.ErrConnectionLost)
	_, err = dev.Release()
	require.NoError(t, err)
	_, err = Read(ctx, dev)
	require.NoError(t, err, "the late write lands")
}
