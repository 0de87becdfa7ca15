package drain

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/bits"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
)

// named returns n failure domains with one target each.
func named(n int) (domains []string) {
	for i := range n {
		domains = append(domains, string(rune('a'+i)))
	}
	return domains
}

func newCodedFleet(t *testing.T, size nvmf.Bytes, c Code, domains ...string) *fleet {
	f := newFleet(t, size, domains...)
	f.code = c
	return f
}

// anyDomain is a dependency for tests in which dependencies do not matter.
func anyDomain(*File) []int { return []int{0} }

// edges returns a checkpoint with files whose sizes are at or near boundaries, and files of random sizes.
func edges(t *testing.T, name string, c Code, random *rand.Rand) (*Set, *memory, map[string][]byte) {
	data := map[string][]byte{}
	row := int(c.Unit) * c.Data
	sizes := []int{0, 1, c.Data, c.Data + 1, row - 1, row, row + 1, 2*row + random.IntN(row), random.IntN(row)}
	for i, n := range sizes {
		b := make([]byte, n)
		for j := range b {
			b[j] = byte(random.Uint32())
		}
		data[fmt.Sprintf("/melt.%s.%d", name, i)] = b
	}
	data["/d/hole."+name] = append(make([]byte, 3*row), 1)
	s, m := checkpointOf(name, data)
	s.Tree = true
	return s, m, data
}

// seeded returns random numbers, and logs the seed.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// requireFiles checks that the copies have exactly one set, with all files.
func requireFiles(t *testing.T, c *Copies, data map[string][]byte) {
	t.Helper()
	sets, err := c.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	require.Len(t, sets[0].Files, len(data))
	for i := range sets[0].Files {
		f := &sets[0].Files[i]
		requireCopy(t, c, sets, f, data[f.Path])
	}
}

// requireReported checks that an incomplete set is reported as incomplete.
func requireReported(t *testing.T, c *Copies) {
	t.Helper()
	sets, err := c.Sets()
	require.NoError(t, err)
	for i := range sets {
		s := &sets[i]
		assert.False(t, s.Protected())
		assert.Negative(t, s.Spare())
		for file, f := range s.Files {
			assert.False(t, s.holds(file))
			if f.Size > 0 {
				require.Error(t, c.Get(t.Context(), s, file, make(buffer, f.Size), Options{}), f.Path)
			}
		}
		merged := Merge(nil, nil, sets, nil, "")
		assert.False(t, merged[0].Checkpoints[0].Complete())
	}
}

// TestShardsCover loses failure domains: up to the number of parity shards every byte is readable; if more are lost
// that is reported.
func TestShardsCover(t *testing.T) {
	for _, c := range []struct {
		code    Code
		domains []string
	}{
		{NewCode(1, 1), named(2)},
		{Code{2, 1, 16 << 10}, named(3)},
		{Code{2, 2, 16 << 10}, []string{"a", "a", "b", "c", "c", "d", "e"}},
		{Code{3, 1, 16 << 10}, named(4)},
		{Code{4, 2, 16 << 10}, named(6)},
	} {
		t.Run(fmt.Sprint(c.code, c.domains), func(t *testing.T) {
			s, m, data := edges(t, "400", c.code, seeded(t))
			fleet := newCodedFleet(t, 8<<20, c.code, c.domains...)
			put, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
			require.NoError(t, err)
			require.True(t, put.Protected())
			require.True(t, put.Same(func() *Set { s.Code = c.code; return s }()))
			all := slices.Compact(slices.Clone(c.domains))
			for lost := range 1 << len(all) {
				var without []string
				for i, d := range all {
					if lost>>i&1 != 0 {
						without = append(without, d)
					}
				}
				copies := fleet.mount(t, true, without...)
				sets, err := copies.Sets()
				require.NoError(t, err)
				gone := 0
				for _, target := range put.Parts {
					if slices.Contains(without, c.domains[target]) {
						gone++
					}
				}
				switch {
				case gone <= c.code.Parity:
					requireFiles(t, copies, data)
					assert.Equal(t, c.code.Parity-gone, sets[0].Spare())
					assert.Equal(t, gone == 0, sets[0].Protected())
				default:
					requireReported(t, copies)
				}
				require.GreaterOrEqual(t, bits.OnesCount(uint(lost)), gone, "two shards are in one domain")
			}
		})
	}
}

// TestShardsOfSegments tests files of several segments that do not all end with a row.
func TestShardsOfSegments(t *testing.T) {
	code := NewCode(3, 1)
	large := make([]byte, 4*SegmentSize+12345)
	random := seeded(t)
	for at := 0; at < len(large); at += 1 << 20 {
		large[at] = byte(random.Uint32())
	}
	data := map[string][]byte{"/melt.400.0": large}
	s, m := checkpointOf("400", data)
	fleet := newCodedFleet(t, 160<<20, code, named(4)...)
	put, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.NoError(t, err)
	require.Len(t, put.Files[0].Sums, 5)
	requireFiles(t, fleet.mount(t, true, "b"), data)
}

// TestFewDomains checks that fewer failure domains than shards are refused.
func TestFewDomains(t *testing.T) {
	s, m, _ := ofRanks(t, "400", 2, 10)
	_, err := newCodedFleet(t, 4<<20, NewCode(2, 1), "a", "a", "b", "b").mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.ErrorIs(t, err, ErrFewDomains)
	assert.Contains(t, err.Error(), "rs:2+1 needs 3, and 2 can be used")
}

// TestShardsCutShort kills a Put before each change: the existing shards of a set count, the set is protected only if
// all exist, and the next process completes it.
func TestShardsCutShort(t *testing.T) {
	code := NewCode(2, 1)
	for at := 0; ; at++ {
		s, m, data := ofRanks(t, "400", 2, 100)
		fleet := newCodedFleet(t, 4<<20, code, named(4)...)
		n := 0
		_, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{Workers: 1, step: dieAfter(at, &n)})
		if n <= at {
			require.NoError(t, err)
			require.Greater(t, at, 50)
			return
		}
		require.ErrorIs(t, err, errDead)
		c := fleet.mount(t, true)
		sets, err := c.Sets()
		require.NoError(t, err)
		for i := range sets {
			require.False(t, sets[i].Protected(), "after %d changes", at)
		}
		if len(sets) > 0 && sets[0].Spare() >= 0 {
			requireFiles(t, c, data)
		} else {
			requireReported(t, c)
		}
		c = fleet.mount(t, false)
		put, err := c.Put(t.Context(), s, m, anyDomain, Options{Workers: 1})
		require.NoError(t, err, "after %d changes", at)
		require.True(t, put.Protected())
		require.NoError(t, c.Verify(t.Context(), put, Options{}))
		requireFiles(t, fleet.mount(t, true, fleet.domains[put.Parts[0]]), data)
	}
}

// TestShardsRebuilt kills the Put that writes the shards of replaced targets before each change, and loses another
// target at once: every byte is readable from the remaining shards. The next process writes the lost shards, and
// reads nothing if nothing was lost.
func TestShardsRebuilt(t *testing.T) {
	code := NewCode(2, 2)
	s, m, data := ofRanks(t, "400", 3, 300)
	for at := 0; ; at++ {
		fleet := newCodedFleet(t, 4<<20, code, named(4)...)
		_, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
		require.NoError(t, err)
		fleet.devices[at%4] = newAreaDevice(t, 4<<20)
		n := 0
		_, err = fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{Workers: 1, step: dieAfter(at, &n)})
		require.Equal(t, n > at, err != nil)
		fleet.devices[(at+1)%4] = newAreaDevice(t, 4<<20)
		requireFiles(t, fleet.mount(t, true), data)
		put, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
		require.NoError(t, err)
		require.True(t, put.Protected())
		requireFiles(t, fleet.mount(t, true, "a", "b"), data)
		if n <= at {
			break
		}
	}
	fleet := newCodedFleet(t, 4<<20, code, named(4)...)
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.NoError(t, err)
	read := m.read
	_, err = fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.NoError(t, err)
	require.Equal(t, read, m.read)
}

// killable makes the device of a target's area one that can be killed.
func (f *fleet) killable(t *testing.T, target int) *blocktest.Faulty {
	dev, err := blocktest.NewFaulty(f.devices[target].dev)
	require.NoError(t, err)
	f.devices[target] = &areaDevice{dev, f.devices[target].seg}
	return dev
}

// TestShardsTargetKilled kills a target before each of its writes, while a checkpoint is cut in addition to an older
// one, and then another target. Every byte of the older checkpoint is readable; the newer one is complete, or
// reported as incomplete.
func TestShardsTargetKilled(t *testing.T) {
	code := NewCode(2, 2)
	old, m, data := ofRanks(t, "200", 2, 300)
	next, m2, data2 := ofRanks(t, "400", 2, 300)
	random := seeded(t)
	for at := 1; ; at += 1 + random.IntN(3) {
		fleet := newCodedFleet(t, 4<<20, code, named(4)...)
		_, err := fleet.mount(t, false).Put(t.Context(), old, m, anyDomain, Options{})
		require.NoError(t, err)
		target := random.IntN(4)
		dev := fleet.killable(t, target)
		c := fleet.mount(t, false)
		dev.CutAt(at, 0)
		_, err = c.Put(t.Context(), next, m2, anyDomain, Options{})
		killed := err != nil
		lost := []string{fleet.domains[target], fleet.domains[(target+1+random.IntN(3))%4]}
		left := fleet.mount(t, true, lost...)
		sets, err := left.Sets()
		require.NoError(t, err)
		require.NotEmpty(t, sets)
		for i := range sets {
			s := &sets[i]
			for file, f := range s.Files {
				want := data[f.Path]
				if s.Name == "400" {
					want = data2[f.Path]
				}
				if s.holds(file) {
					requireCopy(t, left, sets[i:i+1], &s.Files[file], want)
				}
			}
			require.True(t, s.Name == "400" && killed || s.Spare() == 0, "checkpoint %s, target %d killed at write %d", s.Name, target, at)
		}
		if !killed {
			require.Len(t, sets, 2)
			require.Greater(t, at, 15)
			return
		}
	}
}

// TestShardsAway checks that, while a target with a shard cannot be used, other shards are completed and kept, and
// that a new set lacks only the shard of that target.
func TestShardsAway(t *testing.T) {
	code := NewCode(2, 2)
	fleet := newCodedFleet(t, 8<<20, code, named(4)...)
	s, m, data := ofRanks(t, "400", 3, 1000)
	_, err := fleet.mount(t, false, "c").Put(t.Context(), s, m, anyDomain, Options{})
	require.ErrorIs(t, err, ErrPartAway)
	assert.Contains(t, err.Error(), "shards [3] are missing")
	requireFiles(t, fleet.mount(t, true, "c", "a"), data)
	fleet.devices[0] = newAreaDevice(t, 8<<20)
	_, err = fleet.mount(t, false, "c").Put(t.Context(), s, m, anyDomain, Options{})
	require.ErrorIs(t, err, ErrPartAway)
	requireFiles(t, fleet.mount(t, true, "c", "b"), data)
	put, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.NoError(t, err)
	assert.Equal(t, []int{0, 1, 3, 2}, put.Parts)
	requireFiles(t, fleet.mount(t, true, "d", "b"), data)
	_, err = fleet.mount(t, false, "a", "b", "c").Put(t.Context(), &Set{Name: "600", Ranks: 1, Files: s.Files}, m, anyDomain, Options{})
	require.ErrorIs(t, err, ErrFewDomains)
}

// TestShardsSpread checks that shards are placed on the targets with the fewest sets, each in another domain.
func TestShardsSpread(t *testing.T) {
	fleet := newCodedFleet(t, 4<<20, NewCode(1, 1), "a", "a", "b", "b")
	var parts [][]int
	for _, step := range []string{"1", "2", "3"} {
		s, m, _ := ofRanks(t, step, 1, 10)
		put, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
		require.NoError(t, err)
		parts = append(parts, put.Parts)
	}
	assert.Equal(t, [][]int{{0, 2}, {1, 3}, {0, 2}}, parts)
}

// TestShardsSpace checks that the oldest set is removed for the next one, and that the newest stays even if the next
// one has no space.
func TestShardsSpace(t *testing.T) {
	fleet := newCodedFleet(t, 8<<20, NewCode(2, 1), named(3)...)
	c := fleet.mount(t, false)
	put := func(step int, size int) error {
		s, m, _ := ofRanks(t, fmt.Sprint(step), 1, size)
		s.Ended = noon.AddDate(0, 0, step)
		_, err := c.Put(t.Context(), s, m, anyDomain, Options{})
		return err
	}
	names := func() (names []string) {
		sets, err := fleet.mount(t, true).Sets()
		require.NoError(t, err)
		for _, s := range sets {
			assert.True(t, s.Protected())
			names = append(names, s.Name)
		}
		return names
	}
	for step := 1; step <= 5; step++ {
		require.NoError(t, put(step, 2<<20))
	}
	assert.Contains(t, names(), "5")
	assert.NotContains(t, names(), "1")
	require.ErrorIs(t, put(6, 12<<20), syscall.ENOSPC)
	assert.Equal(t, []string{"5"}, names())
	require.NoError(t, put(7, 2<<20))
	assert.Equal(t, []string{"5", "7"}, names())
}

// TestShardsChanged checks that nothing is left of a checkpoint that is changed while it is cut.
func TestShardsChanged(t *testing.T) {
	fleet := newCodedFleet(t, 4<<20, NewCode(2, 1), named(3)...)
	s, m, _ := ofRanks(t, "400", 1, 100)
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{Workers: 1, step: func(what string) error {
		if what == "journal" {
			for _, f := range m.files {
				f.modified = noon.AddDate(0, 0, 1)
			}
		}
		return nil
	}})
	require.ErrorIs(t, err, ErrChanged)
	sets, err := fleet.mount(t, true).Sets()
	require.NoError(t, err)
	assert.Empty(t, sets)
}

// TestShardsDiffer checks that shards of other content are not added to existing shards.
func TestShardsDiffer(t *testing.T) {
	fleet := newCodedFleet(t, 4<<20, NewCode(2, 1), named(3)...)
	s, m, data := ofRanks(t, "400", 1, 100)
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.NoError(t, err)
	fleet.devices[1] = newAreaDevice(t, 4<<20)
	for _, f := range m.files {
		f.data = random(t, 100)
	}
	_, err = fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.ErrorIs(t, err, ErrDamaged)
	requireFiles(t, fleet.mount(t, true), data)
}

// TestShardsOtherwise checks that copies with another code stay until the set is complete with the present code.
func TestShardsOtherwise(t *testing.T) {
	s, m, data := ofRanks(t, "400", 2, 100)
	for _, c := range []struct{ from, to Code }{{Code{}, NewCode(2, 1)}, {NewCode(2, 1), Code{}}, {NewCode(2, 1), NewCode(1, 2)}} {
		fleet := newCodedFleet(t, 4<<20, c.from, named(3)...)
		_, err := fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{})
		require.NoError(t, err)
		fleet.code = c.to
		renames := 0
		_, err = fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{step: func(what string) error {
			if what == "rename" {
				renames++
			}
			if renames == 2 {
				return errDead
			}
			return nil
		}})
		require.ErrorIs(t, err, errDead)
		sets, err := fleet.mount(t, true).Sets()
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(sets, func(s Set) bool { return s.Protected() && s.Code == c.from }))
		_, err = fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{})
		require.NoError(t, err)
		requireFiles(t, fleet.mount(t, true), data)
	}
}

// TestShardsDamaged checks that a damaged sector of any shard is computed from other shards, in all ways of reading,
// and that damage in too many shards is reported.
func TestShardsDamaged(t *testing.T) {
	random := seeded(t)
	code := Code{3, 2, 64 << 10}
	s, m, data := edges(t, "400", code, random)
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprint("silent ", silent), func(t *testing.T) {
			fleet := newCodedFleet(t, 8<<20, code, named(5)...)
			c := fleet.mount(t, false)
			put, err := c.Put(t.Context(), s, m, anyDomain, Options{})
			require.NoError(t, err)
			spoiled := random.Perm(5)
			for n := range code.Parity {
				fleet.spoil(t, put, spoiled[n], silent)
			}
			requireFiles(t, fleet.mount(t, true), data)
			if !silent {
				requireParts(t, fleet.mount(t, true), data, random)
			}
			fleet.spoil(t, put, spoiled[code.Parity], silent)
			c = fleet.mount(t, true)
			sets, err := c.Sets()
			require.NoError(t, err)
			failed := 0
			for i, f := range sets[0].Files {
				got := make(buffer, f.Size)
				if err := c.Get(t.Context(), &sets[0], i, got, Options{}); err != nil {
					failed++
				} else {
					require.True(t, bytes.Equal(data[f.Path], got), f.Path)
				}
			}
			assert.Positive(t, failed)
		})
	}
}

// TestShardsDamagedZeros checks that zeros are written, too, where wrong bytes were written before.
func TestShardsDamagedZeros(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": append(make([]byte, 4*shardUnit), 1)}
	s, m := checkpointOf("400", data)
	fleet := newCodedFleet(t, 8<<20, NewCode(2, 1), named(3)...)
	put, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.NoError(t, err)
	fleet.spoil(t, put, 0, true)
	requireFiles(t, fleet.mount(t, true), data)
}

// spoil changes a byte of each file of a shard: on the device, which the area detects, or, with silent, through the
// area.
func (f *fleet) spoil(t *testing.T, s *Set, number int, silent bool) {
	p := s.shard(number)
	l := f.devices[p.target].mount(t, false)
	dir, err := l.root.Sub(p.set.Dir[len(l.dir)+1:])
	require.NoError(t, err)
	for i := range p.set.Files {
		g := &p.set.Files[i]
		if g.Size == 0 {
			continue
		}
		file, err := dir.Open(p.set.In(g), syscall.O_RDWR, 0)
		require.NoError(t, err)
		b := make([]byte, 1)
		off := g.Size / 2
		_, err = file.ReadAt(b, off)
		require.NoError(t, err)
		if silent {
			_, err = file.WriteAt([]byte{b[0] ^ 1}, off)
		} else {
			err = file.Truncate(off)
		}
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	require.NoError(t, l.root.(areaDir).fs.Unmount())
}

// requireParts reads parts of files, and parts of their shards as computed from the files.
func requireParts(t *testing.T, c *Copies, data map[string][]byte, random *rand.Rand) {
	sets, err := c.Sets()
	require.NoError(t, err)
	s := &sets[0]
	for i, f := range s.Files {
		for range 10 {
			off := random.Int64N(f.Size + 1)
			b := make([]byte, random.Int64N(min(f.Size-off, 1<<20)+1))
			require.NoError(t, c.ReadAt(s, i, b, off))
			require.True(t, bytes.Equal(data[f.Path][off:off+int64(len(b))], b), "%s from %d", f.Path, off)
		}
		require.Error(t, c.ReadAt(s, i, make([]byte, 2), f.Size-1))
	}
}

// TestAsCopied computes parts of a target's shard from the file.
func TestAsCopied(t *testing.T) {
	random := seeded(t)
	code := Code{3, 2, 64 << 10}
	s, m, data := edges(t, "400", code, random)
	fleet := newCodedFleet(t, 8<<20, code, named(5)...)
	put, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.NoError(t, err)
	for i, f := range put.Files {
		whole := func(b []byte, off int64) error {
			require.Equal(t, len(b), copy(b, data[f.Path][off:]))
			return nil
		}
		for _, p := range put.present {
			size := code.shardSize(f.Size)
			want := make([]byte, size)
			if size > 0 {
				require.NoError(t, p.level.readAt(p.set.Dir[len(p.level.dir)+1:]+"/"+put.In(&f), want, 0))
			}
			read := put.AsCopied(p.target, i, whole)
			for range 5 {
				off := random.Int64N(size + 1)
				got := make([]byte, random.Int64N(size-off+1))
				require.NoError(t, read(got, off))
				require.True(t, bytes.Equal(want[off:off+int64(len(got))], got), "shard %d of %s from %d", p.set.Shard, f.Path, off)
			}
			require.ErrorIs(t, read(make([]byte, 1), size), fs.ErrNotExist)
			assert.Equal(t, i, put.CopyAt(p.target, "/melt.400/"+put.In(&f)))
		}
	}
}

// TestShardsOfOther checks that shards of a checkpoint with the same name and time, but other files, belong to
// another set.
func TestShardsOfOther(t *testing.T) {
	fleet := newCodedFleet(t, 4<<20, NewCode(2, 1), named(3)...)
	s, m, _ := ofRanks(t, "400", 1, 100)
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, anyDomain, Options{})
	require.NoError(t, err)
	fleet.devices[1] = newAreaDevice(t, 4<<20)
	again, m, data := ofRanks(t, "400", 1, 200)
	_, err = fleet.mount(t, false).Put(t.Context(), again, m, anyDomain, Options{})
	require.NoError(t, err)
	requireFiles(t, fleet.mount(t, true, "a"), data)
}
