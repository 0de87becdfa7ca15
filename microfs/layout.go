package microfs

import (
	"fmt"

	"github.com/google/uuid"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Sizes and offsets of the format; docs/dev/format.md draws them.
const (
	blockSize = 4096 // superblock, state header, log page; any LBA size divides it

	DefaultHugeblock = 32 * nvmf.KiB
	MinHugeblock     = 4 * nvmf.KiB
	MaxHugeblock     = 4 * nvmf.MiB
	maxUnit          = 32 * nvmf.KiB

	superblockOffset = 0
	headerOffset     = 1 * blockSize // two state headers
	claimOffset      = 3 * blockSize // two claims
	logOffset        = 5 * blockSize

	minLogPages = 8
	maxLogPages = 1 << 14
)

// geometry is the layout of one partition, from its superblock.
type geometry struct {
	fs         uuid.UUID
	generation uint64
	seg        Segment
	lba        nvmf.Bytes
	hugeblock  nvmf.Bytes
	unit       nvmf.Bytes
	logPages   uint64
	state      [2]nvmf.Bytes // offsets in the segment
	stateSize  nvmf.Bytes
	data       nvmf.Bytes // offset in the segment
	blocks     Hugeblock
	formatted  nvmf.Bytes // length of the segment when it was formatted; see shrink.go
	usable     Hugeblock  // blocks that end within the segment
	sums       bool       // data is checksummed
	reserves   bool       // hugeblocks can be reserved and punched
	ranges     bool       // files may have bytes in other partitions
	rank, size int
	created    int64
	root       rootOwner
}

type rootOwner struct{ uid, gid, mode uint32 }

// newGeometry lays out a segment. It fails if the segment is too small.
func newGeometry(id *nvmf.Identity, seg Segment, o *FormatOptions) (*geometry, error) {
	g := &geometry{
		fs: uuid.New(), generation: o.Generation, seg: seg, lba: id.LBASize,
		hugeblock: o.Hugeblock, sums: !o.NoDataCRC, reserves: true, ranges: o.Ranges, rank: o.Rank, size: o.Size,
		root: rootOwner{o.Cred.UID, o.Cred.GID, o.RootMode},
	}
	if g.hugeblock == 0 {
		g.hugeblock = DefaultHugeblock
	}
	if g.root.mode == 0 {
		g.root.mode = 0o700
	}
	if g.hugeblock < MinHugeblock || g.hugeblock > MaxHugeblock || g.hugeblock&(g.hugeblock-1) != 0 {
		return nil, fmt.Errorf("hugeblock size %v is not a power of two from %v to %v: %w",
			g.hugeblock, MinHugeblock, MaxHugeblock, ErrBadFormat)
	}
	if seg.Start%blockSize != 0 || seg.Length%blockSize != 0 || seg.Start+seg.Length > id.Capacity() {
		return nil, fmt.Errorf("segment of %v at %v does not fit a namespace of %v: %w",
			seg.Length, seg.Start, id.Capacity(), ErrBadFormat)
	}
	g.unit = min(g.hugeblock, maxUnit)
	g.logPages = uint64(o.LogPages)
	if g.logPages == 0 {
		g.logPages = min(max(uint64(seg.Length/(2*nvmf.MiB)), 64), maxLogPages)
	}
	g.logPages = max(g.logPages, minLogPages)
	return g, g.divide()
}

// CheckFormat returns the error with which Format would refuse the segment: ErrTooSmall or
// ErrBadFormat.
func CheckFormat(id *nvmf.Identity, seg Segment, o FormatOptions) error {
	_, err := newGeometry(id, seg, &o)
	return err
}

// maxNamesSpace limits the space for names and inodes in a state area.
const maxNamesSpace = 256 * nvmf.MiB

// statePerBlock returns the largest size of a hugeblock in a state checkpoint.
func (g *geometry) statePerBlock() nvmf.Bytes { return extentSize + 8*(g.hugeblock/g.unit) }

// divide splits the space behind the log into state areas and data. Each state area has space for
// the checksums of all data in the worst fragmentation, and for names and inodes.
func (g *geometry) divide() error {
	used := nvmf.Bytes(logOffset) + nvmf.Bytes(g.logPages)*2*oplog.PageSize + blockSize
	if g.seg.Length < used+8*blockSize {
		return fmt.Errorf("partition of %v is too small: at least %v, better 64 MiB: %w",
			g.seg.Length, used+8*blockSize+4*g.hugeblock, ErrTooSmall)
	}
	rest := g.seg.Length - used
	perBlock := g.statePerBlock()
	names := min(max(rest/128, 64*nvmf.KiB), rest/8, maxNamesSpace)
	if g.ranges { // the names of all ranks, and the ranges of their files
		names = min(max(rest/64, nvmf.MiB), rest/8, maxNamesSpace)
	}
	blocks := (rest - 2*framedSize(names)) / (g.hugeblock + 2*perBlock)
	g.stateSize = framedSize(names + blocks*perBlock + stateFixed)
	g.state[0] = used - blockSize
	g.state[1] = g.state[0] + g.stateSize
	g.data = (g.state[1] + g.stateSize).AlignUp(g.hugeblock)
	if g.data+g.hugeblock+blockSize > g.seg.Length {
		return fmt.Errorf("partition of %v is too small for hugeblocks of %v: %w", g.seg.Length, g.hugeblock, ErrTooSmall)
	}
	n := (g.seg.Length - blockSize - g.data) / g.hugeblock
	if n > 1<<32-2 {
		return fmt.Errorf("partition of %v has too many hugeblocks of %v, choose larger ones: %w", g.seg.Length, g.hugeblock, ErrBadFormat)
	}
	g.blocks, g.usable, g.formatted = Hugeblock(n), Hugeblock(n), g.seg.Length
	return nil
}

// superblocks returns the two offsets of the superblock in the segment.
func (s Segment) superblocks() [2]nvmf.Bytes {
	return [2]nvmf.Bytes{superblockOffset, s.Length - blockSize}
}

// SuperblockOffsets returns the offsets of a partition's superblocks in the namespace, 4 KiB each.
// Zeros in all of them make Mount return ErrUnformatted.
func SuperblockOffsets(seg Segment) []nvmf.Bytes {
	s := seg.superblocks()
	return []nvmf.Bytes{seg.Start + s[0], seg.Start + s[1]}
}

// lbaOf converts an offset in the segment, a multiple of the LBA size, to an LBA.
func (g *geometry) lbaOf(off nvmf.Bytes) nvmf.LBA { return nvmf.LBA((g.seg.Start + off) / g.lba) }

// dataOffset returns the offset of a hugeblock in the segment.
func (g *geometry) dataOffset(h Hugeblock) nvmf.Bytes { return g.data + nvmf.Bytes(h)*g.hugeblock }

func (g *geometry) unitsPerBlock() int { return int(g.hugeblock / g.unit) }

// units returns the number of units in n bytes.
func (g *geometry) units(n nvmf.Bytes) int { return int((n + g.unit - 1) / g.unit) }

func (g *geometry) log(volatile, noCoalesce bool) oplog.Geometry {
	return oplog.Geometry{
		FS: g.fs, Start: g.lbaOf(logOffset), Pages: g.logPages, LBASize: g.lba,
		Unit: g.unit, Hugeblock: g.hugeblock, Volatile: volatile, NoCoalesce: noCoalesce,
	}
}

// maxFileSize is the largest size of a file: hugeblocks of a file have numbers of 32 bits.
func (g *geometry) maxFileSize() uint64 { return uint64(g.hugeblock) * (1<<32 - 2) }
