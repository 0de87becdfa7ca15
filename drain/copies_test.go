package drain

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// A fleet has the copy areas of several targets.
type fleet struct {
	devices []*areaDevice
	domains []string
	code    Code
}

func newFleet(t *testing.T, size nvmf.Bytes, domains ...string) *fleet {
	f := &fleet{domains: domains}
	for range domains {
		f.devices = append(f.devices, newAreaDevice(t, size))
	}
	return f
}

// mount mounts all areas but those of some domains, as after the death of the processes that had mounted them before.
func (f *fleet) mount(t *testing.T, readOnly bool, without ...string) *Copies {
	areas := make([]*Level, len(f.devices))
	for i, d := range f.devices {
		if !slices.Contains(without, f.domains[i]) {
			areas[i] = d.mount(t, readOnly)
		}
	}
	return NewCopies(areas, f.domains, f.code)
}

// ofRanks returns a checkpoint with a file of n bytes for each rank, and a file that all ranks have written.
func ofRanks(t *testing.T, name string, ranks, n int) (*Set, *memory, map[string][]byte) {
	data := map[string][]byte{"/all." + name: random(t, n)}
	for rank := range ranks {
		data[fmt.Sprintf("/melt.%s.%d", name, rank)] = random(t, n)
	}
	s, m := checkpointOf(name, data)
	s.Tree = true
	return s, m, data
}

// inTree returns the dependencies of files of ofRanks in a tree whose ranks are on the targets in turn, with the
// index on the first target.
func inTree(targets int) func(*File) []int {
	return func(f *File) []int {
		on := []int{0}
		var rank int
		if n, _ := fmt.Sscanf(f.Path[max(len(f.Path)-2, 0):], ".%d", &rank); n == 1 && f.Path[1] == 'm' {
			return append(on, rank%targets)
		}
		for t := range targets {
			on = append(on, t)
		}
		return on
	}
}

// TestCopiesCover loses each failure domain: files that depend on it have copies elsewhere. Loss of two domains may
// lose files, which is reported.
func TestCopiesCover(t *testing.T) {
	for _, domains := range [][]string{{"a", "b"}, {"a", "b", "c"}, {"a", "a", "b", "b"}, {"a", "b", "c", "d", "e"}} {
		t.Run(fmt.Sprint(domains), func(t *testing.T) {
			s, m, data := ofRanks(t, "400", 7, 1000)
			fleet, depends := newFleet(t, 8<<20, domains...), inTree(len(domains))
			put, err := fleet.mount(t, false).Put(t.Context(), s, m, depends, Options{})
			require.NoError(t, err)
			require.True(t, put.Protected())
			for _, lost := range domains {
				c := fleet.mount(t, true, lost)
				sets, err := c.Sets()
				require.NoError(t, err)
				for i := range s.Files {
					f := &s.Files[i]
					if slices.ContainsFunc(depends(f), func(t int) bool { return domains[t] == lost }) {
						requireCopy(t, c, sets, f, data[f.Path])
					}
				}
			}
			whole, err := fleet.mount(t, true).Sets()
			require.NoError(t, err)
			require.Len(t, whole, 1)
			assert.True(t, whole[0].Protected())
			assert.True(t, put.hasPart(&whole[0]))
			none, err := fleet.mount(t, true, domains...).Sets()
			require.NoError(t, err)
			assert.Empty(t, none)
		})
	}
}

func requireCopy(t *testing.T, c *Copies, sets []Set, f *File, want []byte) {
	t.Helper()
	require.Len(t, sets, 1)
	i := slices.IndexFunc(sets[0].Files, func(g File) bool { return g.Path == f.Path })
	require.True(t, sets[0].holds(i), "no copy of %s is left", f.Path)
	got := make(buffer, f.Size)
	require.NoError(t, c.Get(t.Context(), &sets[0], i, got, Options{}))
	require.True(t, bytes.Equal(want, got), f.Path)
}

func TestOneDomain(t *testing.T) {
	s, m, _ := ofRanks(t, "400", 2, 10)
	_, err := newFleet(t, 8<<20, "a", "a").mount(t, false).Put(t.Context(), s, m, inTree(2), Options{})
	require.ErrorIs(t, err, ErrOneDomain)
}

// TestCopiesCutShort kills a Put before each change: a set that is listed then is complete, it is protected only if
// all parts exist, and the next process completes it.
func TestCopiesCutShort(t *testing.T) {
	for at := 0; ; at++ {
		s, m, data := ofRanks(t, "400", 2, 100)
		fleet := newFleet(t, 4<<20, "a", "b", "c")
		n := 0
		_, err := fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{Workers: 1, step: dieAfter(at, &n)})
		if n <= at {
			require.NoError(t, err)
			require.Greater(t, at, 30)
			return
		}
		require.ErrorIs(t, err, errDead)
		sets, err := fleet.mount(t, true).Sets()
		require.NoError(t, err)
		for i := range sets {
			require.Len(t, sets[i].Files, len(s.Files))
			require.False(t, sets[i].Protected(), "after %d changes", at)
		}
		c := fleet.mount(t, false)
		_, err = c.Put(t.Context(), s, m, inTree(3), Options{Workers: 1})
		require.NoError(t, err, "after %d changes", at)
		sets, err = c.Sets()
		require.NoError(t, err)
		require.Len(t, sets, 1)
		require.True(t, sets[0].Protected())
		require.NoError(t, c.Verify(t.Context(), &sets[0], Options{}))
		for i := range sets[0].Files {
			requireCopy(t, c, sets, &sets[0].Files[i], data[sets[0].Files[i].Path])
		}
	}
}

// TestProtectedCheckpoint checks that copies protect a checkpoint only in addition to the store, and shards also
// without it.
func TestProtectedCheckpoint(t *testing.T) {
	whole, cut := &Set{}, &Set{Code: NewCode(2, 1)}
	for _, c := range []struct {
		copied    *Set
		need      []int
		protected bool
	}{{nil, nil, false}, {whole, nil, true}, {whole, []int{1}, false}, {cut, []int{1}, true}, {&Set{Parts: []int{0}}, nil, false}} {
		assert.Equal(t, c.protected, (&Checkpoint{Copied: c.copied, Need: c.need}).Protected(), "%+v", c)
	}
}

// TestCopiesTargetKilled kills a target before each of its writes, while a checkpoint is copied in addition to an
// older one. Copies of the older one have the files that depended on that target; the newer one has copies, or is not
// protected.
func TestCopiesTargetKilled(t *testing.T) {
	old, m, data := ofRanks(t, "200", 3, 300)
	next, m2, data2 := ofRanks(t, "400", 3, 300)
	depends := inTree(3)
	random := seeded(t)
	for at := 1; ; at += 1 + random.IntN(2) {
		fleet := newFleet(t, 4<<20, "a", "b", "c")
		_, err := fleet.mount(t, false).Put(t.Context(), old, m, depends, Options{})
		require.NoError(t, err)
		target := random.IntN(3)
		dev := fleet.killable(t, target)
		c := fleet.mount(t, false)
		dev.CutAt(at, 0)
		put, err := c.Put(t.Context(), next, m2, depends, Options{})
		left := fleet.mount(t, true, fleet.domains[target])
		sets, e := left.Sets()
		require.NoError(t, e)
		found := map[string]bool{}
		for i := range sets {
			s, want := &sets[i], data
			if s.Name == "400" {
				require.False(t, s.Protected() && err != nil)
				want = data2
			}
			if found[s.Name] = true; s.Name == "400" && err != nil {
				continue
			}
			for j := range s.Files {
				if f := &s.Files[j]; slices.Contains(depends(f), target) {
					requireCopy(t, left, sets[i:i+1], f, want[f.Path])
				}
			}
		}
		require.True(t, found["200"], "target %d killed at write %d", target, at)
		if err == nil {
			require.True(t, put.Protected())
			require.True(t, found["400"])
			require.Greater(t, at, 10)
			return
		}
	}
}

// TestCopiesAfterCutShort checks that a partial set is removed when the job has a later checkpoint.
func TestCopiesAfterCutShort(t *testing.T) {
	fleet := newFleet(t, 8<<20, "a", "b", "c")
	s, m, _ := ofRanks(t, "400", 3, 100)
	renames := 0
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{step: func(what string) error {
		if what == "rename" {
			renames++
		}
		if renames == 2 {
			return errDead
		}
		return nil
	}})
	require.ErrorIs(t, err, errDead)
	next, m, _ := ofRanks(t, "600", 3, 100)
	c := fleet.mount(t, false)
	_, err = c.Put(t.Context(), next, m, inTree(3), Options{})
	require.NoError(t, err)
	sets, err := c.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 2)
	assert.False(t, sets[0].Protected())
	assert.True(t, sets[1].Protected())
	for _, area := range c.areas {
		names, err := areaDir{area.root.(areaDir).fs, partialDir}.List()
		require.NoError(t, err)
		assert.Empty(t, names)
	}
}

// TestCopiesSpace checks that the oldest set is removed for the next one, and that the newest stays even if the next
// one has no space. The files of all sets have equal times, so the numbers tell which set is the oldest.
func TestCopiesSpace(t *testing.T) {
	fleet := newFleet(t, 8<<20, "a", "b")
	c := fleet.mount(t, false)
	put := func(step int, size int) error {
		s, m, _ := ofRanks(t, fmt.Sprint(step), 1, size)
		s.Ended = noon.Add(time.Duration(step) * time.Second)
		_, err := c.Put(t.Context(), s, m, inTree(2), Options{})
		return err
	}
	for step := 7; step <= 11; step++ {
		require.NoError(t, put(step, 1<<20))
	}
	names := func() (names []string) {
		sets, err := fleet.mount(t, true).Sets()
		require.NoError(t, err)
		for _, s := range sets {
			names = append(names, s.Name)
		}
		return names
	}
	have := names()
	assert.Contains(t, have, "11")
	assert.NotContains(t, have, "7")
	require.ErrorIs(t, put(12, 6<<20), syscall.ENOSPC)
	assert.Equal(t, []string{"11"}, names())
	require.NoError(t, put(13, 1<<20))
	assert.Equal(t, []string{"11", "13"}, names())
}

// TestCopiesReplaced checks that the next Put restores the part of a target that was replaced.
func TestCopiesReplaced(t *testing.T) {
	fleet := newFleet(t, 8<<20, "a", "b", "c")
	s, m, _ := ofRanks(t, "400", 6, 100)
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{})
	require.NoError(t, err)
	fleet.devices[2] = newAreaDevice(t, 8<<20)
	degraded, err := fleet.mount(t, true).Sets()
	require.NoError(t, err)
	require.Len(t, degraded, 1)
	assert.False(t, degraded[0].Protected())
	read := m.read
	_, err = fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{})
	require.NoError(t, err)
	assert.Less(t, m.read-read, s.Size(), "what is there is not copied again")
	sets, err := fleet.mount(t, true).Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	assert.True(t, sets[0].Protected())
}

// TestCopiesAway checks that copies are unchanged while a target with a part of them cannot be used, or has no space.
func TestCopiesAway(t *testing.T) {
	fleet := newFleet(t, 8<<20, "a", "b", "c", "d")
	s, m, data := ofRanks(t, "400", 8, 100000)
	own := func(f *File) []int { return inTree(4)(f)[1:] } // without the index
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, own, Options{})
	require.NoError(t, err)
	for _, f := range m.files {
		f.broken = syscall.ENOSPC // the store is lost; the same error as of an area without space
	}
	left := func() {
		sets, err := fleet.mount(t, true, "c").Sets()
		require.NoError(t, err)
		require.Len(t, sets, 1)
		for i := range s.Files {
			if f := &s.Files[i]; slices.Contains(own(f), 2) {
				requireCopy(t, fleet.mount(t, true, "c"), sets, f, data[f.Path])
			}
		}
	}
	left()
	_, err = fleet.mount(t, false, "c").Put(t.Context(), s, m, own, Options{})
	require.ErrorIs(t, err, ErrPartAway)
	left()
	fleet.devices[2] = newAreaDevice(t, 8<<20)
	_, err = fleet.mount(t, false).Put(t.Context(), s, m, own, Options{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	left()
}

// TestCopiesCutOtherwise puts a set that has to be divided differently than before: the data stays readable
// throughout, and in the end there is one set.
func TestCopiesCutOtherwise(t *testing.T) {
	fleet := newFleet(t, 8<<20, "a", "b", "c", "d")
	s, m := checkpointOf("400", map[string][]byte{"/melt.400.0": random(t, 100), "/melt.400.1": random(t, 100), "/melt.400.2": random(t, 100)})
	one := func(f *File) []int { return []int{int(f.Path[len(f.Path)-1] - '0')} }
	_, err := fleet.mount(t, false).Put(t.Context(), s, m, one, Options{})
	require.NoError(t, err)
	read := m.read
	put, err := fleet.mount(t, false).Put(t.Context(), s, m, func(f *File) []int { return []int{min(1, one(f)[0]), one(f)[0]} }, Options{})
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2, 3}, put.Parts)
	assert.Zero(t, m.read-read)
	put, err = fleet.mount(t, false).Put(t.Context(), s, m, func(f *File) []int {
		if n := one(f)[0]; n != 1 {
			return []int{n}
		}
		return []int{1, 2}
	}, Options{})
	require.NoError(t, err)
	assert.Equal(t, []int{1, 3}, put.Parts)
	assert.Equal(t, int64(200), m.read-read, "one file is not copied again")
	sets, err := fleet.mount(t, true).Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	assert.True(t, sets[0].Protected())
	assert.Equal(t, []int{1, 3}, sets[0].Parts)
}

// TestCopiesDividedOtherwise restores a file to another target, which changes the division on the same targets. Parts
// of both divisions are not combined: a set is protected only if each file has a copy outside of its domains. In the
// end there is one set.
func TestCopiesDividedOtherwise(t *testing.T) {
	s, m := checkpointOf("400", map[string][]byte{"/melt.400.0": random(t, 100), "/melt.400.1": random(t, 100)})
	on := func(first int) func(*File) []int {
		return func(f *File) []int { return []int{first ^ int(f.Path[len(f.Path)-1]-'0')} }
	}
	for at := 0; ; at++ {
		fleet := newFleet(t, 4<<20, "a", "b")
		_, err := fleet.mount(t, false).Put(t.Context(), s, m, on(0), Options{})
		require.NoError(t, err)
		fleet.devices[0] = newAreaDevice(t, 4<<20)
		n := 0
		_, err = fleet.mount(t, false).Put(t.Context(), s, m, on(1), Options{Workers: 1, step: dieAfter(at, &n)})
		require.Equal(t, n > at, err != nil)
		sets, e := fleet.mount(t, true).Sets()
		require.NoError(t, e)
		for i := range sets {
			if set := &sets[i]; set.Protected() {
				for file := range set.Files {
					require.True(t, set.holds(file), "after %d changes", at)
				}
			}
		}
		if err == nil {
			require.Len(t, sets, 1)
			require.True(t, sets[0].Protected())
			fleet.devices[0] = newAreaDevice(t, 4<<20)
			sets, err = fleet.mount(t, true).Sets()
			require.NoError(t, err)
			require.Len(t, sets, 1)
			require.False(t, sets[0].Protected(), "a target of two is lost")
			return
		}
	}
}

// TestCopiesDamagedManifest damages one manifest. One checkpoint loses a part, other checkpoints are still copied, and the files of the
// part are removed.
func TestCopiesDamagedManifest(t *testing.T) {
	old, m, _ := ofRanks(t, "200", 3, 10)
	fleet := newFleet(t, 8<<20, "a", "b", "c")
	_, err := fleet.mount(t, false).Put(t.Context(), old, m, inTree(3), Options{})
	require.NoError(t, err)
	fleet.devices[1].spoil(t, `"format": "nvmecr-set"`)
	s, m, _ := ofRanks(t, "400", 3, 10)
	c := fleet.mount(t, false)
	sets, err := c.Sets()
	require.ErrorAs(t, err, new(*microfs.DamageError))
	require.Len(t, sets, 1)
	assert.False(t, sets[0].Protected())
	removed, err := c.RemoveDamaged()
	require.NoError(t, err)
	require.Len(t, removed, 1)
	_, err = c.Put(t.Context(), s, m, inTree(3), Options{})
	require.NoError(t, err)
	sets, err = c.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 2)
	removed, err = c.RemoveDamaged()
	require.NoError(t, err)
	assert.Empty(t, removed)
}

// TestUseless checks that a set of a later version is not considered useless.
func TestUseless(t *testing.T) {
	for text, useless := range map[string]bool{
		"":                                      true,
		`{"format":"nvmecr-set","version":2}`:   false,
		`{"format":"nvmecr-set","version":1}`:   true,
		`{"format":"nvmecr-other","version":1}`: true,
	} {
		_, err := decode([]byte(text))
		assert.Equal(t, useless, (&DamagedSet{"", err}).useless(), text)
	}
	assert.False(t, (&DamagedSet{"", syscall.EIO}).useless(), "its target may be back")
}

// TestCopiesOtherPattern checks that copies which were found by another pattern are kept, and get the new pattern.
func TestCopiesOtherPattern(t *testing.T) {
	for _, pattern := range []string{"melt.{step}.0", "{name}"} {
		t.Run(pattern, func(t *testing.T) {
			s, m, _ := ofRanks(t, "400", 3, 10)
			fleet := newFleet(t, 8<<20, "a", "b", "c")
			put := func() {
				n := 0
				_, err := fleet.mount(t, false).Put(t.Context(), s, m, inTree(3), Options{Workers: 1, step: dieAfter(1000, &n)})
				require.NoError(t, err)
			}
			put()
			s.Pattern = pattern
			put()
			sets, err := fleet.mount(t, true).Sets()
			require.NoError(t, err)
			require.Len(t, sets, 1)
			assert.True(t, sets[0].Protected())
		})
	}
}
