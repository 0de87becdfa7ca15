package oplog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"nvmecr/internal/crc64"
)

// PageSize is the size of a page image in bytes, whatever the LBA size.
const PageSize = 4096

// Offsets in a page image; see the package comment. Frozen.
const (
	pageMagic      = 0x504c564e // "NVLP"
	pageFormat     = 1
	offFormat      = 4
	offFlags       = 6
	offUUID        = 8
	offGeneration  = 24
	offPage        = 32
	offVersion     = 40
	offPrevPage    = 48
	offPrevVersion = 56
	offPrevCRC     = 64
	offDurable     = 72
	offRecordBytes = 80
	offPendingLen  = 82
	offWhole       = 84 // u16, with flagMore: bytes of records of operations that are whole
	offRecords     = 96
	offCRC         = PageSize - 8
	pendingSize    = 8

	// flagVolatile: written under the rules for a volatile write cache.
	flagVolatile = 1 << 0
	// flagMore: the operation of the last records goes on in the next image. These records count
	// only if the next image exists.
	flagMore = 1 << 1
	// flagCut: the operation that the image before left unfinished has no end, and its records are
	// void.
	flagCut    = 1 << 2
	knownFlags = flagVolatile | flagMore | flagCut
)

// Capacity is the number of bytes that the records and pending entries of one
// group may take.
const Capacity = offCRC - offRecords

// Why an image was not accepted.
var (
	errBlank     = errors.New("page was never written")
	errImage     = errors.New("not an intact page image")
	errOtherFS   = errors.New("page of another file system")
	errOtherPage = errors.New("another page")
	// ErrFormat: the image is intact but of a format this version cannot read.
	ErrFormat = errors.New("log format is not supported by this version")
)

// position identifies a settled image: what the next page names as its previous.
type position struct {
	page, version, crc uint64
}

// image is a decoded page image. It refers to the bytes it was decoded from.
type image struct {
	raw        []byte
	generation uint64
	at         position
	prev       position
	durable    uint64
	volatile   bool
	more, cut  bool
	slot       int
}

// whole returns how many bytes of the records belong to operations that end
// in this image.
func (im *image) whole() int {
	if !im.more {
		return len(im.records())
	}
	return int(binary.LittleEndian.Uint16(im.raw[offWhole:]))
}

// newer reports whether im was made after b. The generation decides first: a writer that was cut
// off from the device may have used the same versions as its successor.
func (im *image) newer(b *image) bool {
	if im.generation != b.generation {
		return im.generation > b.generation
	}
	return im.at.version > b.at.version
}

func (im *image) records() []byte {
	n := int(binary.LittleEndian.Uint16(im.raw[offRecordBytes:]))
	return im.raw[offRecords : offRecords+n]
}

// pending is one entry of the pending list: units [first, first+count) of the
// Write record at offset off of the records.
type pending struct{ off, first, count uint16 }

func (im *image) pending() []pending {
	n := int(binary.LittleEndian.Uint16(im.raw[offPendingLen:]))
	p := make([]pending, n)
	at := offRecords + len(im.records())
	for i := range p {
		b := im.raw[at+i*pendingSize:]
		p[i] = pending{
			off:   binary.LittleEndian.Uint16(b),
			first: binary.LittleEndian.Uint16(b[2:]),
			count: binary.LittleEndian.Uint16(b[4:]),
		}
	}
	return p
}

// decodeImage checks magic, checksum, format and file system, in that order.
func decodeImage(raw []byte, fs uuid.UUID, page uint64, slot int) (*image, error) {
	if len(raw) != PageSize {
		return nil, errImage
	}
	if binary.LittleEndian.Uint32(raw) != pageMagic {
		if !bytes.Equal(raw, blank[:PageSize]) {
			return nil, errImage
		}
		return nil, errBlank
	}
	crc := binary.LittleEndian.Uint64(raw[offCRC:])
	if crc64.Checksum(raw[:offCRC]) != crc {
		return nil, errImage
	}
	if uuid.UUID(raw[offUUID:offUUID+16]) != fs {
		return nil, errOtherFS
	}
	flags := binary.LittleEndian.Uint16(raw[offFlags:])
	if f := binary.LittleEndian.Uint16(raw[offFormat:]); f != pageFormat || flags&^knownFlags != 0 {
		return nil, fmt.Errorf("log page %d has format %d, flags %#x: %w", page, f, flags, ErrFormat)
	}
	im := &image{
		raw:        raw,
		generation: binary.LittleEndian.Uint64(raw[offGeneration:]),
		at: position{
			page:    binary.LittleEndian.Uint64(raw[offPage:]),
			version: binary.LittleEndian.Uint64(raw[offVersion:]),
			crc:     crc,
		},
		prev: position{
			page:    binary.LittleEndian.Uint64(raw[offPrevPage:]),
			version: binary.LittleEndian.Uint64(raw[offPrevVersion:]),
			crc:     binary.LittleEndian.Uint64(raw[offPrevCRC:]),
		},
		durable:  binary.LittleEndian.Uint64(raw[offDurable:]),
		volatile: flags&flagVolatile != 0,
		more:     flags&flagMore != 0,
		cut:      flags&flagCut != 0,
		slot:     slot,
	}
	if im.at.page != page {
		return nil, errOtherPage
	}
	records := int(binary.LittleEndian.Uint16(raw[offRecordBytes:]))
	entries := int(binary.LittleEndian.Uint16(raw[offPendingLen:]))
	if records+entries*pendingSize > Capacity || im.whole() > records {
		return nil, errImage
	}
	return im, nil
}

// pageBuffer is a page image being filled.
type pageBuffer struct {
	raw     []byte // the image
	summed  []byte // leadSize zeros, then the bytes of raw that its CRC is over
	records int    // bytes of records in raw
	pending []pending
	window  []openRecord
	more    bool // see flagMore
	whole   int  // with more: bytes of records of operations that are whole
	cut     bool // see flagCut
}

func newPageBuffer() *pageBuffer {
	mem := make([]byte, leadSize+PageSize)
	return &pageBuffer{raw: mem[leadSize:], summed: mem[:PageSize]}
}

// leadSize is the number of zeros in front of an image when its CRC is computed. They fill the
// image up to a multiple of the step of crc64.Update: a shorter last step would take half as long
// as all others together.
const leadSize = PageSize - offCRC

// beforeLead is the initial value that leadSize zeros turn into the CRC of no bytes.
var beforeLead = func() uint64 {
	const polynomial = 0x9a6c9329ac4bc9b5 // of CRC-64/NVME, reflected
	crc := ^uint64(0)
	for range 8 * leadSize { // a step back for each bit
		if crc>>63 != 0 {
			crc = (crc^polynomial)<<1 | 1
		} else {
			crc <<= 1
		}
	}
	return ^crc
}()

// openRecord is a Write record that may still grow: nothing but plain writes
// comes after it.
type openRecord struct {
	ino uint64
	off int // of the record in raw
}

func (b *pageBuffer) reset() {
	clear(b.raw)
	b.records, b.pending, b.window = 0, b.pending[:0], b.window[:0]
	b.more, b.whole, b.cut = false, 0, false
}

// copyRecords makes b a copy of src without its pending list.
func (b *pageBuffer) copyRecords(src *pageBuffer) {
	end := offRecords + src.records
	copy(b.raw[offRecords:end], src.raw[offRecords:end])
	b.records = src.records
	b.pending = b.pending[:0]
	b.window = append(b.window[:0], src.window...)
	b.more, b.whole, b.cut = src.more, src.whole, src.cut
}

// follow prepares the copy of an image for the next records: they continue the operation that the
// image left unfinished, or begin a new one.
func (b *pageBuffer) follow() {
	if !b.more {
		b.whole = b.records
	}
	b.more = false
}

// load makes b a copy of an image that was read. Its records do not grow any more.
func (b *pageBuffer) load(im *image) {
	b.reset()
	copy(b.raw, im.raw)
	b.records = im.whole()
	b.cut = im.cut
}

func (b *pageBuffer) free() int {
	return Capacity - b.records - len(b.pending)*pendingSize
}

// seal writes header, pending list and checksum, and returns the image's CRC.
func (b *pageBuffer) seal(h *header) uint64 {
	raw := b.raw
	le := binary.LittleEndian
	le.PutUint32(raw, pageMagic)
	le.PutUint16(raw[offFormat:], pageFormat)
	var flags uint16
	if h.volatile {
		flags |= flagVolatile
	}
	whole := 0
	if b.more {
		flags |= flagMore
		whole = b.whole
	}
	if b.cut {
		flags |= flagCut
	}
	le.PutUint16(raw[offFlags:], flags)
	copy(raw[offUUID:], h.fs[:])
	le.PutUint64(raw[offGeneration:], h.generation)
	le.PutUint64(raw[offPage:], h.page)
	le.PutUint64(raw[offVersion:], h.version)
	le.PutUint64(raw[offPrevPage:], h.prev.page)
	le.PutUint64(raw[offPrevVersion:], h.prev.version)
	le.PutUint64(raw[offPrevCRC:], h.prev.crc)
	le.PutUint64(raw[offDurable:], h.durable)
	le.PutUint16(raw[offRecordBytes:], uint16(b.records))
	le.PutUint16(raw[offPendingLen:], uint16(len(b.pending)))
	le.PutUint16(raw[offWhole:], uint16(whole))
	at := offRecords + b.records
	for _, p := range b.pending {
		le.PutUint16(raw[at:], p.off-offRecords)
		le.PutUint16(raw[at+2:], p.first)
		le.PutUint16(raw[at+4:], p.count)
		le.PutUint16(raw[at+6:], 0)
		at += pendingSize
	}
	clear(raw[at:offCRC])
	crc := crc64.Update(beforeLead, b.summed)
	le.PutUint64(raw[offCRC:], crc)
	return crc
}

// header has the fields of an image other than its records and pending list.
type header struct {
	fs         uuid.UUID
	generation uint64
	page       uint64
	version    uint64
	prev       position
	durable    uint64
	volatile   bool
}
