package microfs

import (
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// check checks the properties that extentMap documents for its chunks.
func (m *extentMap) check(t *testing.T) {
	end := Hugeblock(0)
	for i := range m.chunks {
		c := &m.chunks[i]
		require.NotEmpty(t, c.list)
		require.LessOrEqual(t, len(c.list), maxChunk)
		require.Equal(t, c.first, c.list[0].file, "chunk %d", i)
		for k := range c.list {
			require.LessOrEqual(t, end, c.list[k].file, "chunk %d, extent %d", i, k)
			end = c.list[k].end()
		}
	}
}

// TestExtentMapAgainstSlice inserts and removes random extents and compares the map with a sorted slice.
// The map grows and shrinks in turn.
func TestExtentMapAgainstSlice(t *testing.T) {
	skipRace(t)
	r := rand.New(rand.NewPCG(newSeed(t), 0))
	var m extentMap
	var list []extent
	at := func(h Hugeblock) int { return sort.Search(len(list), func(i int) bool { return list[i].end() > h }) }
	for step := range 30_000 {
		h := Hugeblock(r.Uint32N(100_000))
		i, s := at(h), m.find(h)
		if i == len(list) {
			require.Nil(t, m.at(s))
		} else {
			require.Equal(t, list[i], *m.at(s))
			require.Equal(t, m.find(list[i].end()), m.next(s))
		}
		if i > 0 {
			require.Equal(t, list[i-1], *m.before(s))
		} else {
			require.Nil(t, m.before(s))
		}
		free := i == len(list) || list[i].file > h
		switch shrink := step/7_500%2 == 1; {
		case free && (!shrink || r.IntN(4) == 0):
			x := extent{file: h, count: 1, phys: Hugeblock(step)}
			list = slices.Insert(list, i, x)
			m.insert(s, x)
			require.Equal(t, x, *m.at(m.find(h)))
		case i < len(list) && (shrink || r.IntN(4) == 0):
			list = slices.Delete(list, i, i+1)
			s = m.remove(s)
			if i == len(list) {
				require.Nil(t, m.at(s))
			} else {
				require.Equal(t, list[i], *m.at(s))
			}
		}
		if step%1000 == 0 || len(list) < 10 {
			m.check(t)
			require.Equal(t, len(list), m.len())
			k := 0
			for x := range m.all() {
				require.Equal(t, list[k], *x)
				k++
			}
		}
	}
}

// block is the state of one hugeblock of a file in the model.
type block struct {
	phys    Hugeblock
	covered nvmf.Bytes
	crcs    []uint64
	frozen  bool
}

// extentModel has an inode and a model of its mapping, hugeblock by hugeblock.
type extentModel struct {
	g      *geometry
	in     *inode
	blocks map[Hugeblock]block
	freed  map[Hugeblock]bool // hugeblocks on the media that the last operation freed
	used   map[Hugeblock]bool // hugeblocks on the media in use
	phys   Hugeblock          // this and all later hugeblocks on the media were never used
	reused int
	end    Hugeblock // of the file, where the last write ended
}

// write applies a Write record to the inode and to the model.
func (m *extentModel) write(t *testing.T, r *oplog.Record) {
	want := map[Hugeblock]bool{}
	left, crcs := nvmf.Bytes(r.End), r.CRCs
	for h := Hugeblock(r.File); left > 0; h++ {
		b := block{phys: Hugeblock(r.Phys) + h - Hugeblock(r.File), covered: min(left, m.g.hugeblock)}
		n := m.g.units(b.covered)
		old, ok := m.blocks[h]
		if ok && old.phys != b.phys {
			want[old.phys] = true
			delete(m.used, old.phys)
		}
		m.used[b.phys] = true
		if h == Hugeblock(r.File) {
			n -= int(r.FirstUnit)
			b.crcs = append(b.crcs, old.crcs[:r.FirstUnit]...)
		}
		b.crcs = append(b.crcs, crcs[:n]...)
		crcs, left = crcs[n:], left-b.covered
		m.blocks[h] = b
	}
	require.NoError(t, m.in.applyWrite(m.g, r, m.free))
	m.compareFreed(t, want)
}

func (m *extentModel) truncate(t *testing.T, r *oplog.Record) {
	want := map[Hugeblock]bool{}
	for h, b := range m.blocks {
		start := nvmf.Bytes(h) * m.g.hugeblock
		if start >= nvmf.Bytes(r.Size) {
			want[b.phys] = true
			delete(m.used, b.phys)
			delete(m.blocks, h)
		} else if left := nvmf.Bytes(r.Size) - start; left < b.covered {
			b.covered, b.frozen, b.crcs = left, true, slices.Clone(b.crcs[:m.g.units(left)])
			if left%m.g.unit != 0 {
				b.crcs[len(b.crcs)-1] = r.CRC
			}
			m.blocks[h] = b
		}
	}
	require.NoError(t, m.in.applyTruncate(m.g, r, m.free))
	m.compareFreed(t, want)
}

func (m *extentModel) free(r run) {
	for h := r.start; h < r.start+r.count; h++ {
		m.freed[h] = true
	}
}

func (m *extentModel) compareFreed(t *testing.T, want map[Hugeblock]bool) {
	require.Equal(t, want, m.freed)
	m.freed = map[Hugeblock]bool{}
}

// compare compares every hugeblock of the inode with the model. It also checks that the inode is the
// same after it was encoded and decoded.
func (m *extentModel) compare(t *testing.T) {
	m.in.extents.check(t)
	require.EqualValues(t, len(m.blocks), m.in.mapped)
	got := map[Hugeblock]block{}
	for x := range m.in.extents.all() {
		for h := x.file; h < x.end(); h++ {
			b := block{phys: x.phys + h - x.file, covered: x.coveredIn(h, m.g), frozen: x.frozen && h == x.end()-1}
			first := int(h-x.file) * m.g.unitsPerBlock()
			for n := range m.g.units(b.covered) {
				b.crcs = append(b.crcs, m.in.extents.sums.get(x.unit(m.g, first+n)))
			}
			got[h] = b
		}
	}
	require.Equal(t, m.blocks, got)
	bytes := m.in.encode(m.g, nil)
	again, err := (&stateReader{b: bytes}).inode(m.g)
	require.NoError(t, err)
	require.Equal(t, bytes, again.encode(m.g, nil))
	again.extents.check(t)
}

// next makes one random operation.
func (m *extentModel) next(t *testing.T, r *rand.Rand, top Hugeblock) {
	sums := func(n int) []uint64 {
		s := make([]uint64, n)
		for i := range s {
			s[i] = r.Uint64()
		}
		return s
	}
	h := Hugeblock(r.Uint32N(uint32(top)))
	if r.IntN(3) == 0 {
		h = min(m.end, top-1)
	}
	x := m.in.extents.lookup(h)
	switch n := r.IntN(100); {
	case n == 0 && m.in.extents != nil: // the file has data
		size := uint64(m.in.size) * uint64(90+r.IntN(15)) / 100
		m.truncate(t, &oplog.Record{Size: size, HasCRC: true, CRC: r.Uint64()})
	case n < 30 && x != nil && !x.frozen: // append in place to the end of the extent
		last := x.end() - 1
		covered := x.coveredIn(last, m.g)
		first := uint32(covered / m.g.unit)
		end := covered + 1 + nvmf.Bytes(r.Uint64N(uint64(2*m.g.hugeblock)))
		phys := x.phys + x.count - 1
		if m.in.extents.lookup(last+1) != nil || m.used[phys+1] || m.used[phys+2] || covered == m.g.hugeblock {
			end = min(end, m.g.hugeblock)
		}
		if end <= covered {
			return
		}
		m.phys = max(m.phys, phys+4)
		m.write(t, &oplog.Record{File: uint32(last), Phys: uint32(phys), FirstUnit: first, End: uint64(end),
			CRCs: sums(m.g.units(end) - int(first))})
	default:
		count := Hugeblock(1 + r.Uint32N(3))
		if n > 95 {
			count = Hugeblock(1 + r.Uint32N(300))
		}
		end := nvmf.Bytes(count) * m.g.hugeblock
		if b, ok := m.blocks[h+count-1]; !ok || b.covered < m.g.hugeblock && m.in.extents.lookup(h+count) == nil {
			end -= nvmf.Bytes(r.Uint64N(uint64(m.g.hugeblock)))
		}
		if r.IntN(2) == 0 {
			m.phys++ // a gap on the media between writes that are consecutive in the file
		}
		rec := &oplog.Record{File: uint32(h), Phys: uint32(m.place(h, count)), End: uint64(end), CRCs: sums(m.g.units(end))}
		m.end = h + count
		m.write(t, rec)
	}
}

// place returns the hugeblocks on the media for count hugeblocks of the file from h on. These follow the
// hugeblock of h-1 on the media if they are free again. Otherwise place returns unused hugeblocks.
func (m *extentModel) place(h, count Hugeblock) Hugeblock {
	if b, ok := m.blocks[h-1]; ok && b.phys+1+count <= m.phys {
		used := false
		for p := range count {
			used = used || m.used[b.phys+1+p]
		}
		if !used {
			m.reused++
			return b.phys + 1
		}
	}
	m.phys += count
	return m.phys - count
}

// TestExtentsAgainstMap applies random Write and Truncate records to an inode and compares it with a
// model.
func TestExtentsAgainstMap(t *testing.T) {
	skipRace(t)
	steps := 10_000
	if testing.Short() {
		steps = 3000
	}
	r := rand.New(rand.NewPCG(newSeed(t), 0))
	for _, top := range []Hugeblock{20, 30_000} {
		m := extentModel{
			g:  &geometry{hugeblock: 8192, unit: 4096, sums: true, blocks: 1 << 30},
			in: &inode{}, blocks: map[Hugeblock]block{}, freed: map[Hugeblock]bool{}, used: map[Hugeblock]bool{}, phys: 1,
		}
		limit := 0
		for step := range steps {
			m.next(t, r, top)
			if step%(steps/20) == 0 || top < 100 && step%10 == 0 {
				m.compare(t)
			}
			limit = max(limit, len(m.in.extents.chunks))
		}
		m.compare(t)
		require.Greater(t, m.reused, 100, "places on the media used again")
		if top > 100 {
			require.Greater(t, limit, 10, "chunks")
		}
	}
}
