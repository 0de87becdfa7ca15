package microfs

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func entryOrder(a, b entry) int {
	return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.name, b.name))
}

// TestNameTable makes the same random changes to a nameTable and to a map, and compares them. The names
// are in a few directories; many have their first bytes in common.
func TestNameTable(t *testing.T) {
	type place struct {
		dir  Ino
		name string
	}
	seed := newSeed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	table, want := newNameTable(), map[place]Ino{}
	names := []func(int) string{
		func(i int) string { return fmt.Sprint(i) },
		func(i int) string { return fmt.Sprintf("checkpoint.%d", i) },
		func(i int) string { return "12345678"[:i%9] + strings.Repeat("\x00", i%3) },
		func(i int) string { return strings.Repeat("\xff", 1+i%12) },
	}
	for step := range 60_000 {
		p := place{Ino(1 + r.IntN(6)), names[r.IntN(len(names))](r.IntN(2000))}
		ino, there := want[p]
		// The table grows, shrinks to no names, and grows again.
		if grows := step/20_000 != 1; r.IntN(5) == 0 != grows {
			require.Equal(t, !there, table.insert(entry{p.dir, p.name, Ino(step)}))
			if !there {
				want[p] = Ino(step)
			}
		} else {
			if len(want) > 0 && !grows {
				for p, ino = range want {
					there = true
					break
				}
			}
			got, ok := table.remove(p.dir, p.name)
			require.Equal(t, there, ok)
			require.Equal(t, ino, got)
			delete(want, p)
		}
		got, ok := table.get(p.dir, p.name)
		ino, there = want[p]
		require.Equal(t, there, ok)
		require.Equal(t, ino, got)
		require.Equal(t, len(want), table.count)
		if step%1000 == 0 {
			table.verify(t)
		}
	}
	var all []entry
	for p, ino := range maps.All(want) {
		all = append(all, entry{p.dir, p.name, ino})
	}
	slices.SortFunc(all, entryOrder)
	require.Equal(t, all, slices.Collect(table.all()))
	for range 100 {
		from := entry{dir: Ino(r.IntN(8)), name: names[r.IntN(len(names))](r.IntN(2000))}
		i, _ := slices.BinarySearchFunc(all, from, entryOrder)
		require.Equal(t, all[i:], append([]entry{}, slices.Collect(table.from(from.dir, from.name))...))
	}
}

// verify checks the properties that nameTable and nameChunk document.
func (t *nameTable) verify(tt *testing.T) {
	count, chunks := 0, 0
	var prev *nameChunk
	for c := t.first; c != nil; prev, c = c, c.next {
		require.Same(tt, prev, c.prev)
		require.LessOrEqual(tt, c.count, maxNames)
		require.True(tt, c.count > 0 || c == t.first)
		for i := range c.count {
			require.False(tt, c.at(i).less(&c.low))
			require.True(tt, c.next == nil || c.at(i).less(&c.next.low))
			require.True(tt, i == 0 || c.at(i-1).less(&c.at(i).nameKey))
		}
		seen := map[uint8]bool{}
		for i, slot := range c.order {
			require.False(tt, seen[slot])
			seen[slot] = true
			require.True(tt, i < c.count || c.items[slot] == nameItem{}, "a name that was taken away is kept alive")
		}
		count += c.count
		chunks++
	}
	require.Equal(tt, t.count, count)
	require.Equal(tt, t.chunks.Len(), chunks)
}

// TestNameTableInOrder checks that names inserted in ascending order fill the chunks.
func TestNameTableInOrder(t *testing.T) {
	table := newNameTable()
	for i := range 10 * maxNames {
		require.True(t, table.insert(entry{1, fmt.Sprintf("%06d", i), Ino(i)}))
	}
	table.verify(t)
	require.Equal(t, 10, table.chunks.Len())
}
