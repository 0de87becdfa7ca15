package microfs

import (
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Superblock, 4 KiB, written once by Format at the start and the end of the
// partition. Offsets are frozen; docs/dev/format.md draws them.
const (
	sbMagic     = "NVMECRFS"
	sbVersion   = 2
	sbIncompat  = 16
	sbROCompat  = 24
	sbCompat    = 32
	sbUUID      = 40
	sbGen       = 56
	sbStart     = 64
	sbLength    = 72
	sbLBASize   = 80
	sbHugeblock = 84
	sbUnit      = 88
	sbRank      = 92
	sbSize      = 96
	sbLogPages  = 100
	sbState0    = 104
	sbState1    = 112
	sbStateSize = 120
	sbData      = 128
	sbBlocks    = 136
	sbRootMode  = 140
	sbRootUID   = 144
	sbRootGID   = 148
	sbCreated   = 152
	sbCRC       = blockSize - 8

	// incompatNoSums: Write records carry no checksums of the data.
	incompatNoSums = 1 << 0
	// incompatReserved: the log may hold Allocate and Punch records, and the state may hold
	// reserved extents.
	incompatReserved = 1 << 1
	// incompatRanges: the log may hold MapRange and DropRange records, and the state may hold
	// ranges and cut counts of files.
	incompatRanges = 1 << 2
	knownIncompat  = incompatNoSums | incompatReserved | incompatRanges
)

var le = binary.LittleEndian

func (g *geometry) encode(b []byte) {
	clear(b)
	copy(b, sbMagic)
	le.PutUint32(b[8:], sbVersion)
	var features uint64
	if !g.sums {
		features |= incompatNoSums
	}
	if g.reserves {
		features |= incompatReserved
	}
	if g.ranges {
		features |= incompatRanges
	}
	le.PutUint64(b[sbIncompat:], features)
	copy(b[sbUUID:], g.fs[:])
	le.PutUint64(b[sbGen:], g.generation)
	le.PutUint64(b[sbStart:], uint64(g.seg.Start))
	le.PutUint64(b[sbLength:], uint64(g.formatted))
	le.PutUint32(b[sbLBASize:], uint32(g.lba))
	le.PutUint32(b[sbHugeblock:], uint32(g.hugeblock))
	le.PutUint32(b[sbUnit:], uint32(g.unit))
	le.PutUint32(b[sbRank:], uint32(g.rank))
	le.PutUint32(b[sbSize:], uint32(g.size))
	le.PutUint32(b[sbLogPages:], uint32(g.logPages))
	le.PutUint64(b[sbState0:], uint64(g.state[0]))
	le.PutUint64(b[sbState1:], uint64(g.state[1]))
	le.PutUint64(b[sbStateSize:], uint64(g.stateSize))
	le.PutUint64(b[sbData:], uint64(g.data))
	le.PutUint32(b[sbBlocks:], uint32(g.blocks))
	le.PutUint32(b[sbRootMode:], g.root.mode)
	le.PutUint32(b[sbRootUID:], g.root.uid)
	le.PutUint32(b[sbRootGID:], g.root.gid)
	le.PutUint64(b[sbCreated:], uint64(g.created))
	le.PutUint64(b[sbCRC:], crc64.Checksum(b[:sbCRC]))
}

// decodeSuperblock checks magic, version, checksum, in that order, and that the values are
// consistent and fit the segment.
func decodeSuperblock(b []byte) (*geometry, error) {
	if string(b[:8]) != sbMagic {
		if isZero(b) {
			return nil, ErrUnformatted
		}
		return nil, fmt.Errorf("superblock has no magic: %w", ErrCorrupt)
	}
	if v := le.Uint32(b[8:]); v != sbVersion {
		return nil, fmt.Errorf("superblock has version %d, this program knows %d: %w", v, sbVersion, ErrVersion)
	}
	if crc64.Checksum(b[:sbCRC]) != le.Uint64(b[sbCRC:]) {
		return nil, fmt.Errorf("superblock checksum mismatch: %w", ErrCorrupt)
	}
	if f := le.Uint64(b[sbIncompat:]) &^ knownIncompat; f != 0 {
		return nil, fmt.Errorf("superblock has unknown features %#x: %w", f, ErrVersion)
	}
	if f := le.Uint64(b[sbROCompat:]); f != 0 {
		return nil, fmt.Errorf("superblock has unknown features %#x that forbid writing: %w", f, ErrVersion)
	}
	g := &geometry{
		fs:         uuid.UUID(b[sbUUID : sbUUID+16]),
		generation: le.Uint64(b[sbGen:]),
		seg:        Segment{nvmf.Bytes(le.Uint64(b[sbStart:])), nvmf.Bytes(le.Uint64(b[sbLength:]))},
		lba:        nvmf.Bytes(le.Uint32(b[sbLBASize:])),
		hugeblock:  nvmf.Bytes(le.Uint32(b[sbHugeblock:])),
		unit:       nvmf.Bytes(le.Uint32(b[sbUnit:])),
		rank:       int(le.Uint32(b[sbRank:])),
		size:       int(le.Uint32(b[sbSize:])),
		logPages:   uint64(le.Uint32(b[sbLogPages:])),
		state:      [2]nvmf.Bytes{nvmf.Bytes(le.Uint64(b[sbState0:])), nvmf.Bytes(le.Uint64(b[sbState1:]))},
		stateSize:  nvmf.Bytes(le.Uint64(b[sbStateSize:])),
		data:       nvmf.Bytes(le.Uint64(b[sbData:])),
		blocks:     Hugeblock(le.Uint32(b[sbBlocks:])),
		sums:       le.Uint64(b[sbIncompat:])&incompatNoSums == 0,
		reserves:   le.Uint64(b[sbIncompat:])&incompatReserved != 0,
		ranges:     le.Uint64(b[sbIncompat:])&incompatRanges != 0,
		created:    int64(le.Uint64(b[sbCreated:])),
		root:       rootOwner{le.Uint32(b[sbRootUID:]), le.Uint32(b[sbRootGID:]), le.Uint32(b[sbRootMode:])},
	}
	g.usable, g.formatted = g.blocks, g.seg.Length
	return g, g.check()
}

// check refuses values that Format does not write.
func (g *geometry) check() error {
	ok := g.lba >= 512 && g.lba <= blockSize && g.lba&(g.lba-1) == 0 &&
		g.hugeblock >= MinHugeblock && g.hugeblock <= MaxHugeblock && g.hugeblock&(g.hugeblock-1) == 0 &&
		g.unit == min(g.hugeblock, maxUnit) &&
		g.logPages >= minLogPages && g.logPages <= 1<<24 &&
		g.seg.Length < 1<<60 && g.seg.Start < 1<<60 && g.seg.Length%blockSize == 0 && g.seg.Start%blockSize == 0 &&
		g.stateSize%blockSize == 0 && g.stateSize <= framedSize(maxNamesSpace+g.seg.Length/g.hugeblock*g.statePerBlock()+stateFixed) &&
		g.state[0]%blockSize == 0 && g.state[0] < g.seg.Length && g.state[0] >= logOffset+nvmf.Bytes(g.logPages)*2*oplog.PageSize &&
		g.state[1]%blockSize == 0 && g.state[1] >= g.state[0]+g.stateSize && g.state[1] < g.seg.Length &&
		g.data%g.hugeblock == 0 && g.data >= g.state[1]+g.stateSize && g.data < g.seg.Length &&
		g.data+nvmf.Bytes(g.blocks)*g.hugeblock <= g.seg.Length-blockSize
	if !ok {
		return fmt.Errorf("superblock describes an impossible layout: %w", ErrCorrupt)
	}
	return nil
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
