package parttable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/crc64"
	"nvmecr/internal/hostile"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

const (
	fuzzMemory = 16 << 20
	fuzzTime   = 20 * time.Second
)

// reseal corrects the checksums of a slot, as far as its entries fit.
func reseal(b []byte) {
	if n := int(binary.LittleEndian.Uint32(b[offEntries:])); n <= (len(b)-int(headerSize))/int(entrySize) {
		binary.LittleEndian.PutUint64(b[offEntriesCRC:], crc64.Checksum(b[headerSize:][:n*int(entrySize)]))
	}
	binary.LittleEndian.PutUint64(b[offHeaderCRC:], crc64.Checksum(b[:offHeaderCRC]))
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(sample(), 0), false, []byte(nil))
	f.Add(encode(&Table{Name: "x"}, 0), true, []byte(nil))
	f.Add(encode(divided(), 0), false, []byte(nil))
	f.Add([]byte(magic), true, []byte(nil))
	f.Fuzz(func(t *testing.T, b []byte, sealed bool, script []byte) {
		if sealed && len(b) >= int(headerSize) {
			b = bytes.Clone(b)
			copy(b, magic)
			binary.LittleEndian.PutUint32(b[offVersion:], uint32(1+len(script)%2))
			hostile.Apply(script, 16, [][]byte{b[:200], b[headerSize:]})
			reseal(b)
		}
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
			table, err := decode(b, 0)
			if err != nil {
				return
			}
			again, err := decode(encode(table, 0), 0)
			require.NoError(t, err)
			require.Equal(t, table, again)
		})
	})
}

// FuzzRead reads, repairs and replaces the table of a namespace whose head has arbitrary content with valid checksums.
func FuzzRead(f *testing.F) {
	dev, err := memdev.New(capacity, 4096, memdev.Options{})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, dev.Close()) })
	f.Add([]byte(nil), uint8(0))
	f.Add([]byte{0, 5, 0, 0, 48, 0, 9, 0}, uint8(3))
	f.Add([]byte{1, 6, 0, 0, 100, 0, 20, 0}, uint8(1))
	f.Add([]byte{0, 7, 0, 0, 48, 0, 29, 0}, uint8(0)) // the maximum sequence
	f.Add([]byte{4, 3, 0, 0, 5, 0, 5, 0}, uint8(4))
	f.Add([]byte(nil), uint8(7))
	f.Fuzz(func(t *testing.T, script []byte, how uint8) {
		head := dev.Bytes()[:HeadSize]
		clear(head)
		slots := [2][]byte{head[:slotSize], head[slotSize:]}
		older := sample()
		older.Sequence--
		for i, table := range []*Table{sample(), older} {
			if how>>i&1 == 0 {
				copy(slots[i], encode(table, i))
			}
		}
		if how>>2&1 != 0 {
			copy(head, mark)
		}
		used := headerSize + nvmf.Bytes(len(older.Entries))*entrySize
		hostile.Apply(script, 32, [][]byte{slots[0][:200], slots[0][headerSize:used], slots[1][:200], slots[1][headerSize:used], head})
		if how>>3&1 == 0 {
			reseal(slots[0])
			reseal(slots[1])
		}
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() { readHostile(t, dev) })
	})
}

func readHostile(t *testing.T, dev nvmf.Device) {
	table, err := Read(t.Context(), dev)
	if err != nil {
		known := false
		for _, e := range []error{ErrNoTable, ErrForeign, ErrVersion, ErrCorrupt} {
			known = known || errors.Is(err, e)
		}
		require.True(t, known, "%v", err)
		return
	}
	require.NoError(t, table.validate(table.version(), capacity))
	for _, e := range table.Entries {
		require.LessOrEqual(t, e.Start+e.Length, nvmf.Bytes(capacity))
	}
	_, err = Repair(t.Context(), dev)
	require.NoError(t, err)
	again, err := Read(t.Context(), dev)
	require.NoError(t, err)
	require.Equal(t, table, again, "a repair changes nothing")
	repaired, err := Repair(t.Context(), dev)
	require.NoError(t, err)
	require.False(t, repaired, "once is enough")
	require.NoError(t, Write(t.Context(), dev, again))
	last, err := Read(t.Context(), dev)
	require.NoError(t, err)
	require.Equal(t, again, last, "what was written is the newest")
}
