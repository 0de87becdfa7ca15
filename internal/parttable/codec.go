package parttable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
)

// The package comment describes the layout. These values must not change within a version.
const (
	slotSize   nvmf.Bytes = 1 << 20
	headerSize nvmf.Bytes = 4096
	entrySize  nvmf.Bytes = 32

	version1 = 1
	version2 = 2
	magic    = "NVMECR-PARTTABLE"
	mark     = "NVMECR-NO-TABLE\x00"

	offVersion      = 16
	offSlot         = 20
	offIncompatible = 24
	offReadOnly     = 32
	offCompatible   = 40
	offSequence     = 48
	offGeneration   = 56
	offNamespace    = 64
	offUID          = 80
	offJobSize      = 84
	offTarget       = 88
	offTargets      = 92
	offHugeblock    = 96
	offEntries      = 100
	offCreated      = 104
	offWritten      = 112
	offNameLength   = 120
	offName         = 124
	offEntriesCRC   = 192
	offCopiesStart  = 200
	offCopiesLength = 208
	offHeaderCRC    = 4088
)

// Reasons why a slot holds no valid copy.
var (
	errNoMagic = errors.New("no magic")
	errVersion = errors.New("unknown version")
	errDamaged = errors.New("damaged")
)

// encode returns the image of a slot: header and entries, padded with zeros to
// a multiple of 4096 bytes.
func encode(t *Table, slot int) []byte {
	le := binary.LittleEndian
	b := make([]byte, headerSize+(nvmf.Bytes(len(t.Entries))*entrySize).AlignUp(4096))
	entries := b[headerSize:][:nvmf.Bytes(len(t.Entries))*entrySize]
	for i, e := range t.Entries {
		p := entries[i*int(entrySize):]
		le.PutUint32(p[0:], uint32(e.Rank))
		le.PutUint32(p[4:], e.Flags)
		le.PutUint64(p[8:], uint64(e.Start))
		le.PutUint64(p[16:], uint64(e.Length))
	}
	copy(b, magic)
	le.PutUint32(b[offVersion:], t.version())
	le.PutUint32(b[offSlot:], uint32(slot))
	le.PutUint64(b[offIncompatible:], t.Incompatible)
	le.PutUint64(b[offReadOnly:], t.ReadOnlyCompatible)
	le.PutUint64(b[offCompatible:], t.Compatible)
	le.PutUint64(b[offSequence:], t.Sequence)
	le.PutUint64(b[offGeneration:], t.Generation)
	copy(b[offNamespace:], t.Namespace[:])
	le.PutUint32(b[offUID:], t.UID)
	le.PutUint32(b[offJobSize:], uint32(t.JobSize))
	le.PutUint32(b[offTarget:], uint32(t.Target))
	le.PutUint32(b[offTargets:], uint32(t.Targets))
	le.PutUint32(b[offHugeblock:], uint32(t.Hugeblock))
	le.PutUint32(b[offEntries:], uint32(len(t.Entries)))
	le.PutUint64(b[offCreated:], uint64(t.Created.UnixNano()))
	le.PutUint64(b[offWritten:], uint64(t.Written.UnixNano()))
	le.PutUint32(b[offNameLength:], uint32(len(t.Name)))
	copy(b[offName:offName+MaxName], t.Name)
	le.PutUint64(b[offEntriesCRC:], crc64.Checksum(entries))
	le.PutUint64(b[offCopiesStart:], uint64(t.Copies.Start))
	le.PutUint64(b[offCopiesLength:], uint64(t.Copies.Length))
	le.PutUint64(b[offHeaderCRC:], crc64.Checksum(b[:offHeaderCRC]))
	return b
}

// decodeHeader checks a header and returns its table, without the entries, and
// how many of those there are.
func decodeHeader(b []byte, slot int) (t *Table, entries int, err error) {
	le := binary.LittleEndian
	switch {
	case string(b[:len(magic)]) != magic:
		return nil, 0, errNoMagic
	case le.Uint32(b[offVersion:]) == 0:
		return nil, 0, fmt.Errorf("%w: version 0", errDamaged)
	case le.Uint32(b[offVersion:]) > version2:
		return nil, 0, fmt.Errorf("%w %d", errVersion, le.Uint32(b[offVersion:]))
	case le.Uint64(b[offHeaderCRC:]) != crc64.Checksum(b[:offHeaderCRC]):
		return nil, 0, fmt.Errorf("%w: checksum of the header", errDamaged)
	case le.Uint32(b[offSlot:]) != uint32(slot):
		return nil, 0, fmt.Errorf("%w: the copy of slot %d", errDamaged, le.Uint32(b[offSlot:]))
	}
	name, n := le.Uint32(b[offNameLength:]), le.Uint32(b[offEntries:])
	if name > MaxName || n > uint32(maxEntries) {
		return nil, 0, fmt.Errorf("%w: name of %d bytes, %d entries", errDamaged, name, n)
	}
	t = &Table{
		Incompatible:       le.Uint64(b[offIncompatible:]),
		ReadOnlyCompatible: le.Uint64(b[offReadOnly:]),
		Compatible:         le.Uint64(b[offCompatible:]),
		Sequence:           le.Uint64(b[offSequence:]),
		Name:               string(b[offName : offName+name]),
		UID:                le.Uint32(b[offUID:]),
		Generation:         le.Uint64(b[offGeneration:]),
		JobSize:            int(le.Uint32(b[offJobSize:])),
		Target:             int(le.Uint32(b[offTarget:])),
		Targets:            int(le.Uint32(b[offTargets:])),
		Hugeblock:          nvmf.Bytes(le.Uint32(b[offHugeblock:])),
		Created:            time.Unix(0, int64(le.Uint64(b[offCreated:]))).UTC(),
		Written:            time.Unix(0, int64(le.Uint64(b[offWritten:]))).UTC(),
	}
	copy(t.Namespace[:], b[offNamespace:])
	if t.Incompatible&CopyArea != 0 {
		t.Copies = Extent{nvmf.Bytes(le.Uint64(b[offCopiesStart:])), nvmf.Bytes(le.Uint64(b[offCopiesLength:]))}
	}
	return t, int(n), nil
}

// decodeEntries completes t, whose header is header, with its n entries.
func decodeEntries(t *Table, header, b []byte, n int, capacity nvmf.Bytes) error {
	le := binary.LittleEndian
	b = b[:n*int(entrySize)]
	if le.Uint64(header[offEntriesCRC:]) != crc64.Checksum(b) {
		return fmt.Errorf("%w: checksum of the entries", errDamaged)
	}
	t.Entries = make([]Entry, n)
	for i := range t.Entries {
		p := b[i*int(entrySize):]
		t.Entries[i] = Entry{
			Rank:   int(int32(le.Uint32(p[0:]))),
			Flags:  le.Uint32(p[4:]),
			Start:  nvmf.Bytes(le.Uint64(p[8:])),
			Length: nvmf.Bytes(le.Uint64(p[16:])),
		}
	}
	if err := t.validate(le.Uint32(header[offVersion:]), capacity); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// isMark reports whether the header of slot 0 is the formatting mark.
func isMark(header []byte) bool {
	return string(header[:len(mark)]) == mark && len(bytes.Trim(header[len(mark):], "\x00")) == 0
}

// isBlank reports whether head, the first HeadSize bytes, is of a namespace that was never formatted, whose unwritten bytes read as
// fill. A mark that is incomplete after a crash counts as blank.
func isBlank(head []byte, fill byte) bool {
	for i, c := range head[:headerSize] {
		if c != fill && c != 0 && (i >= len(mark) || c != mark[i]) {
			return false
		}
	}
	rest := head[headerSize:]
	return bytes.Count(rest, []byte{fill}) == len(rest)
}
