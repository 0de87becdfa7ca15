package crash_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/blocktest/crash"
)

const block = 512

// TestDiskIsADevice runs the conformance tests with a Disk.
func TestDiskIsADevice(t *testing.T) {
	blocktest.Run(t, func(*testing.T) nvmf.Device {
		return crash.NewDisk(nvmf.Bytes(blocktest.MinimumBlocks)*block, block, true)
	})
}

// TestRollback checks that Rollback undoes the writes since Mark, and no others.
func TestRollback(t *testing.T) {
	d := crash.NewDisk(8*block, block, false)
	q, err := d.OpenQueue(context.Background(), 1)
	require.NoError(t, err)
	submit(q, 1, 'a', 2)
	d.Keep()
	mark := d.Mark()
	submit(q, 0, 'b', 3)
	submit(q, 2, 'c', 1)
	d.Rollback(mark)
	assert.Equal(t, bytes.Repeat([]byte{0}, block), d.Bytes()[:block])
	assert.Equal(t, bytes.Repeat([]byte{'a'}, 2*block), d.Bytes()[block:3*block])
}

// submit submits a write of n blocks, and does not wait for it.
func submit(q nvmf.Queue, lba nvmf.LBA, value byte, n int) *nvmf.Command {
	c := &nvmf.Command{Opcode: nvmf.Write, LBA: lba, Blocks: nvmf.LBA(n), Data: [][]byte{bytes.Repeat([]byte{value}, n*block)}}
	q.Submit([]*nvmf.Command{c})
	return c
}

// contents returns the images of h. An image is represented by the first and the last
// byte of each block.
func contents(h *crash.History, data func() []byte, o crash.Options) map[string]bool {
	seen := map[string]bool{}
	o.Random = rand.New(rand.NewPCG(1, 1))
	for range h.Images(o) {
		var s []byte
		for b := data(); len(b) > 0; b = b[block:] {
			for _, c := range []byte{b[0], b[block-1]} {
				s = append(s, max(c, '.'))
			}
		}
		seen[string(s)] = true
	}
	return seen
}

// TestImages checks which images a crash can leave: the events of each case are passed to a History, and its images are
// compared with the expected ones.
func TestImages(t *testing.T) {
	whole := crash.Options{Tears: -1}
	for _, c := range []struct {
		name     string
		volatile bool
		o        crash.Options
		f        func(q nvmf.Queue, wait func(...*nvmf.Command))
		want     []string
	}{
		{"completed", false, whole, func(q nvmf.Queue, wait func(...*nvmf.Command)) { wait(submit(q, 1, 'a', 1)) },
			[]string{"..aa...."}},
		{"in flight, each block on its own", false, whole, func(q nvmf.Queue, _ func(...*nvmf.Command)) { submit(q, 0, 'a', 2) },
			[]string{"........", "aa......", "..aa....", "aaaa...."}},
		{"torn", false, crash.Options{}, func(q nvmf.Queue, _ func(...*nvmf.Command)) { submit(q, 3, 'a', 1) },
			[]string{"........", "......aa", "......a."}},
		{"two in flight, one torn", false, crash.Options{Tears: 1}, func(q nvmf.Queue, _ func(...*nvmf.Command)) {
			submit(q, 0, 'a', 1)
			submit(q, 3, 'b', 1)
		}, []string{"........", "aa......", "......bb", "aa....bb", "a.......", "a.....bb", "......b.", "aa....b."}},
		{"overwritten with the same data", false, whole, func(q nvmf.Queue, _ func(...*nvmf.Command)) { submit(q, 0, 0, 2) },
			[]string{"........"}},
		{"unflushed", true, whole, func(q nvmf.Queue, wait func(...*nvmf.Command)) {
			wait(submit(q, 0, 'a', 1))
			wait(submit(q, 0, 'b', 1))
		}, []string{"........", "aa......", "bb......"}},
		{"unflushed, only the process crashes", true, crash.Options{Kept: true}, func(q nvmf.Queue, wait func(...*nvmf.Command)) {
			wait(submit(q, 0, 'a', 1))
		}, []string{"aa......"}},
		{"flushed", true, whole, func(q nvmf.Queue, wait func(...*nvmf.Command)) {
			wait(submit(q, 0, 'a', 1))
			flush := &nvmf.Command{Opcode: nvmf.Flush}
			q.Submit([]*nvmf.Command{flush})
			late := submit(q, 1, 'b', 1)
			wait(late)
			wait(flush)
		}, []string{"aa......", "aabb...."}},
		{"a flush in flight", true, whole, func(q nvmf.Queue, wait func(...*nvmf.Command)) {
			wait(submit(q, 0, 'a', 1))
			q.Submit([]*nvmf.Command{{Opcode: nvmf.Flush}})
		}, []string{"........", "aa......"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var data []byte
			d := crash.NewDisk(4*block, block, c.volatile)
			data = bytes.Clone(d.Bytes())
			d.Record()
			q, err := d.OpenQueue(context.Background(), 8)
			require.NoError(t, err)
			c.f(q, func(cmds ...*nvmf.Command) { require.NoError(t, q.Wait(cmds)) })
			h := crash.NewHistory(data, block, c.volatile)
			for _, e := range d.Stop().Events {
				h.Step(e)
			}
			before := bytes.Clone(data)
			got := contents(h, func() []byte { return data }, c.o)
			want := map[string]bool{}
			for _, s := range c.want {
				want[s] = true
			}
			assert.Equal(t, want, got)
			assert.Equal(t, before, data, "the memory is not restored")
			h.Restore()
			assert.Equal(t, make([]byte, 4*block), data)
		})
	}
}

// TestManyUndetermined checks that the images include every single undetermined block
// and every pair of them when there are too many combinations to enumerate.
func TestManyUndetermined(t *testing.T) {
	const n = 20
	data := make([]byte, n*block)
	h := crash.NewHistory(data, block, false)
	h.Step(blocktest.Event{ID: 1, Opcode: nvmf.Write, Blocks: n, Data: bytes.Repeat([]byte{1}, n*block)})
	counts := map[int]int{}
	for im := range h.Images(crash.Options{Tears: -1}) {
		assert.False(t, im.Exhaustive)
		assert.Equal(t, n, im.Undetermined)
		counts[bytes.Count(data, []byte{1})/block]++
	}
	assert.Equal(t, map[int]int{0: 1, 1: n, 2: n * (n - 1) / 2, n - 2: n * (n - 1) / 2, n - 1: n, n: 1}, counts)
}
