package microfs

import (
	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// scratch is the working memory of the operation in progress: commands, their scatter/gather lists,
// checksums, bounce buffers. It is allocated at mount, grows when an operation needs more and is
// used again, so that steady I/O allocates nothing. Guarded by FS.mu.
type scratch struct {
	cmds     []nvmf.Command
	list     []*nvmf.Command // those of cmds in use, in order
	vec      [][]byte        // backing array of Command.Data
	crcs     []uint64
	parts    []piece
	drop     oplog.Record // removes the ranges whose bytes are written
	head     []byte       // bounce buffers of one unit for reads
	end      []byte
	old      oldBlocks
	taken    []run       // allocated by the operation in progress
	reserved []Hugeblock // hugeblocks of the file that are written where they were reserved
	cur      cursor      // in the application's buffers
	sink     []byte
}

// oldBlocks has the old content of hugeblocks that are overwritten in part.
type oldBlocks struct {
	bufs  [2][]byte
	known *readAhead // cached content of the file, during a small write
}

// maxBatch is the largest atomic write, of which a crash leaves all or nothing, and the largest
// read in flight at once. With small or scattered hugeblocks it takes several groups. Each group
// fits one log page with all its checksums.
const maxBatch = 8 * nvmf.MiB

// fewCommands is enough for most operations.
const fewCommands = 64

// zeroes is read only: the content of a file where nothing was written.
var zeroes [maxUnit]byte

func (s *scratch) init(g *geometry) {
	s.cmds = make([]nvmf.Command, fewCommands)
	s.list = make([]*nvmf.Command, 0, fewCommands)
	s.vec = make([][]byte, 0, 256)
	s.crcs = make([]uint64, 0, 512)
	s.head = make([]byte, g.unit)
	s.end = make([]byte, g.unit)
	s.sink = make([]byte, blockSize)
}

func (s *scratch) reset() {
	for i := range s.vec {
		s.vec[i] = nil
	}
	s.list, s.vec, s.crcs, s.parts, s.taken = s.list[:0], s.vec[:0], s.crcs[:0], s.parts[:0], s.taken[:0]
	s.reserved = s.reserved[:0]
}

// builder turns a stream of byte slices into commands of at most limit bytes for consecutive LBAs.
type builder struct {
	s     *scratch
	op    nvmf.Opcode
	fua   bool
	size  nvmf.Bytes // of an LBA
	limit nvmf.Bytes
	lba   nvmf.LBA
	cmd   *nvmf.Command
	first int // of cmd's slices in vec
	left  nvmf.Bytes
}

// add appends memory to the stream.
func (b *builder) add(p []byte) {
	for len(p) > 0 {
		if b.left == 0 {
			b.open()
		}
		n := min(len(p), int(b.left))
		b.s.vec = append(b.s.vec, p[:n])
		b.left -= nvmf.Bytes(n)
		p = p[n:]
		if b.left == 0 {
			b.close()
		}
	}
}

// fill appends n bytes, from p repeated.
func (b *builder) fill(p []byte, n nvmf.Bytes) {
	for n > 0 {
		m := min(n, nvmf.Bytes(len(p)))
		b.add(p[:m])
		n -= m
	}
}

func (b *builder) open() {
	if len(b.s.list) == len(b.s.cmds) {
		// Pointers in list stay valid: the old array is kept alive by them.
		b.s.cmds = make([]nvmf.Command, 2*len(b.s.cmds))
	}
	b.cmd = &b.s.cmds[len(b.s.list)]
	b.cmd.Opcode, b.cmd.FUA, b.cmd.LBA = b.op, b.fua, b.lba
	b.first, b.left = len(b.s.vec), b.limit
}

// close ends the command being built; the stream must be at an LBA boundary.
func (b *builder) close() {
	if b.cmd == nil {
		return
	}
	b.cmd.Blocks = nvmf.LBA((b.limit - b.left) / b.size)
	b.cmd.Data = b.s.vec[b.first:len(b.s.vec):len(b.s.vec)]
	b.lba += b.cmd.Blocks
	b.s.list = append(b.s.list, b.cmd)
	b.cmd, b.left = nil, 0
}

// summer computes the checksums of the units of a stream of slices.
type summer struct {
	unit nvmf.Bytes
	at   nvmf.Bytes // in the current unit
	crc  uint64
	out  []uint64
}

func (s *summer) add(p []byte) {
	for len(p) > 0 {
		n := min(len(p), int(s.unit-s.at))
		s.crc = crc64.Update(s.crc, p[:n])
		s.at += nvmf.Bytes(n)
		p = p[n:]
		if s.at == s.unit {
			s.out = append(s.out, s.crc)
			s.at, s.crc = 0, 0
		}
	}
}

// finish returns the checksums, the last unit's included.
func (s *summer) finish() []uint64 {
	if s.at > 0 {
		s.out = append(s.out, s.crc)
	}
	return s.out
}
