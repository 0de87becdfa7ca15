package blocktest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// MinimumBlocks is the minimum size of a device for Run, in logical blocks.
const MinimumBlocks nvmf.LBA = 2048

// Run checks that the devices that open returns implement nvmf.Device. Each case opens
// a device of at least MinimumBlocks, overwrites its contents, and closes it. The cases
// run one after another.
func Run(t *testing.T, open func(t *testing.T) nvmf.Device) {
	cases := []struct {
		name string
		test func(*testing.T, *rig)
	}{
		{"identity makes sense", testIdentity},
		{"read returns what was written", testReadBack},
		{"pieces of any length", testScatterGather},
		{"largest transfer", testLargest},
		{"last block", testLastBlock},
		{"outside the namespace is refused", testRange},
		{"wrong length is refused", testLength},
		{"more commands than the queue is deep", testOverflow},
		{"wait for some of many", testWaitSome},
		{"flush, FUA and deallocate", testDurability},
		{"many deallocations at once", testDeallocate},
		{"unknown opcode is refused", testOpcode},
		{"two queues see each other's writes", testTwoQueues},
		{"queues work in parallel", testParallel},
		{"reset of a healthy queue", testReset},
		{"closed queue and device", testClose},
		{"random commands against a model", testModel},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := open(t)
			r := &rig{t: t, device: d, id: d.Identity()}
			r.queue = r.open(16)
			c.test(t, r)
			assert.NoError(t, r.queue.Close(), "Queue.Close")
			assert.NoError(t, d.Close(), "Device.Close")
		})
	}
}

// rig is a device under test with one queue.
type rig struct {
	t      *testing.T
	device nvmf.Device
	id     *nvmf.Identity
	queue  nvmf.Queue
}

func (r *rig) open(depth int) nvmf.Queue {
	q, err := r.device.OpenQueue(context.Background(), depth)
	require.NoError(r.t, err, "OpenQueue")
	return q
}

// do executes commands, and returns their first error.
func (r *rig) do(cmds ...*nvmf.Command) error {
	r.queue.Submit(cmds)
	err := r.queue.Wait(cmds)
	for _, c := range cmds {
		assert.True(r.t, c.Done(), "done after Wait")
	}
	return err
}

// bytes returns memory for n blocks.
func (r *rig) bytes(n nvmf.LBA) []byte { return make([]byte, uint64(n)*uint64(r.id.LBASize)) }

// pattern returns n blocks of bytes that depend on seed.
func (r *rig) pattern(n nvmf.LBA, seed uint64) []byte {
	b := r.bytes(n)
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, err := random.Read(b)
	require.NoError(r.t, err)
	return b
}

func (r *rig) write(lba nvmf.LBA, b []byte) *nvmf.Command {
	return &nvmf.Command{Opcode: nvmf.Write, LBA: lba, Blocks: nvmf.LBA(len(b)) / nvmf.LBA(r.id.LBASize), Data: [][]byte{b}}
}

func (r *rig) read(lba nvmf.LBA, b []byte) *nvmf.Command {
	c := r.write(lba, b)
	c.Opcode = nvmf.Read
	return c
}

// same checks that two slices are equal. A failure does not print them, since they may
// be large.
func (r *rig) same(want, got []byte, what string) {
	r.t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	for i := range want {
		if want[i] != got[i] {
			require.FailNow(r.t, "bytes differ", "%s: byte %d of %d is %#02x, not %#02x", what, i, len(want), got[i], want[i])
		}
	}
}

func testIdentity(t *testing.T, r *rig) {
	id := r.id
	assert.NotZero(t, id.UUID)
	assert.True(t, id.LBASize >= 512 && id.LBASize <= 4096 && id.LBASize&(id.LBASize-1) == 0, "LBA size %d", id.LBASize)
	assert.GreaterOrEqual(t, id.Blocks, MinimumBlocks)
	assert.NotZero(t, id.MaxTransfer)
	assert.Zero(t, id.MaxTransfer%id.LBASize)
	assert.True(t, id.LBASize <= id.OptimalTransfer && id.OptimalTransfer <= id.MaxTransfer)
	assert.True(t, id.Same(r.device.Identity()))
}

func testReadBack(t *testing.T, r *rig) {
	want := r.pattern(3, 1)
	require.NoError(t, r.do(r.write(7, want)))
	got := r.bytes(3)
	require.NoError(t, r.do(r.read(7, got)))
	r.same(want, got, "three blocks")
	// A block in the middle is replaced, and its neighbours do not change.
	block := r.pattern(1, 2)
	require.NoError(t, r.do(r.write(8, block)))
	copy(want[r.id.LBASize:], block)
	require.NoError(t, r.do(r.read(7, got)))
	r.same(want, got, "after a write into the middle")
}

func testScatterGather(t *testing.T, r *rig) {
	want := r.pattern(2, 3)
	for _, step := range []int{1, 7, 511, 1000, int(r.id.LBASize) + 1} {
		// Reversed bytes make each round differ from the one before.
		slices.Reverse(want)
		w, rd := r.write(4, want), r.read(4, r.bytes(2))
		got := rd.Data[0]
		w.Data, rd.Data = split(want, step), split(got, step)
		require.NoError(t, r.do(w), "write in pieces of %d", step)
		require.NoError(t, r.do(rd), "read in pieces of %d", step)
		r.same(want, got, fmt.Sprintf("pieces of %d", step))
	}
}

// split divides b into pieces of step bytes, with an empty one among them.
func split(b []byte, step int) [][]byte {
	var pieces [][]byte
	for len(b) > step {
		pieces = append(pieces, b[:step])
		b = b[step:]
	}
	return append(pieces, nil, b)
}

func testLargest(t *testing.T, r *rig) {
	n := min(nvmf.LBA(r.id.MaxTransfer/r.id.LBASize), r.id.Blocks)
	want := r.pattern(n, 4)
	require.NoError(t, r.do(r.write(0, want)))
	got := r.bytes(n)
	require.NoError(t, r.do(r.read(0, got)))
	r.same(want, got, "largest transfer")
	if n < r.id.Blocks {
		assert.ErrorIs(t, r.do(r.write(0, r.bytes(n+1))), nvmf.ErrBadLength)
	}
}

func testLastBlock(t *testing.T, r *rig) {
	want, got := r.pattern(1, 5), r.bytes(1)
	require.NoError(t, r.do(r.write(r.id.Blocks-1, want)))
	require.NoError(t, r.do(r.read(r.id.Blocks-1, got)))
	r.same(want, got, "last block")
}

func testRange(t *testing.T, r *rig) {
	for _, lba := range []nvmf.LBA{r.id.Blocks - 1, r.id.Blocks, ^nvmf.LBA(0)} {
		assert.ErrorIs(t, r.do(r.write(lba, r.bytes(2))), nvmf.ErrOutOfRange, "write at %d", lba)
		assert.ErrorIs(t, r.do(r.read(lba, r.bytes(2))), nvmf.ErrOutOfRange, "read at %d", lba)
		assert.ErrorIs(t, r.do(&nvmf.Command{Opcode: nvmf.Deallocate, LBA: lba, Blocks: 2}), nvmf.ErrOutOfRange)
	}
	assert.ErrorIs(t, r.do(&nvmf.Command{Opcode: nvmf.Read}), nvmf.ErrOutOfRange, "no blocks")
	require.NoError(t, r.do(r.read(0, r.bytes(1))), "the queue still works")
}

func testLength(t *testing.T, r *rig) {
	c := r.write(0, r.bytes(2))
	c.Blocks = 1
	assert.ErrorIs(t, r.do(c), nvmf.ErrBadLength)
	c.Blocks = 3
	assert.ErrorIs(t, r.do(c), nvmf.ErrBadLength)
	c.Data = nil
	assert.ErrorIs(t, r.do(c), nvmf.ErrBadLength)
	// An invalid command of a batch does not affect the other commands.
	good, bad := r.write(1, r.pattern(1, 6)), r.read(r.id.Blocks, r.bytes(1))
	last := r.read(2, r.bytes(1))
	assert.ErrorIs(t, r.do(good, bad, last), nvmf.ErrOutOfRange)
	assert.NoError(t, good.Err)
	assert.NoError(t, last.Err)
}

func testOverflow(t *testing.T, r *rig) {
	require.NoError(t, r.queue.Close())
	r.queue = r.open(2)
	want := r.pattern(100, 7)
	block := int(r.id.LBASize)
	var writes, reads []*nvmf.Command
	got := r.bytes(100)
	for i := range 100 {
		writes = append(writes, r.write(nvmf.LBA(i), want[i*block:][:block]))
		reads = append(reads, r.read(nvmf.LBA(i), got[i*block:][:block]))
	}
	require.NoError(t, r.do(writes...))
	require.NoError(t, r.do(reads...))
	r.same(want, got, "hundred commands on a queue of two")
	require.NoError(t, r.do(writes...), "commands can be reused")
}

func testWaitSome(t *testing.T, r *rig) {
	a, b, c := r.write(0, r.pattern(1, 8)), r.write(1, r.pattern(1, 9)), r.write(2, r.pattern(1, 10))
	r.queue.Submit([]*nvmf.Command{a, b})
	r.queue.Submit([]*nvmf.Command{c})
	require.NoError(t, r.queue.Wait([]*nvmf.Command{b}))
	assert.True(t, b.Done())
	require.NoError(t, r.queue.Wait([]*nvmf.Command{c, a, b}))
	assert.True(t, a.Done() && c.Done())
	require.NoError(t, r.queue.Wait(nil))
	require.NoError(t, r.queue.Wait([]*nvmf.Command{a, {}}), "completed and unused commands")
}

func testDurability(t *testing.T, r *rig) {
	want, got := r.pattern(8, 11), r.bytes(8)
	c := r.write(16, want)
	c.FUA = true
	require.NoError(t, r.do(c))
	require.NoError(t, r.do(&nvmf.Command{Opcode: nvmf.Flush}))
	require.NoError(t, r.do(r.read(16, got)))
	r.same(want, got, "after FUA and flush")
	if !r.id.CanDeallocate {
		return
	}
	assert.Zero(t, r.id.DeallocateUnit%r.id.LBASize)
	require.NoError(t, r.do(&nvmf.Command{Opcode: nvmf.Deallocate, LBA: 18, Blocks: 3}))
	require.NoError(t, r.do(r.read(16, got)))
	block := int(r.id.LBASize)
	r.same(want[:2*block], got[:2*block], "before the deallocated blocks")
	r.same(want[5*block:], got[5*block:], "after the deallocated blocks")
	require.NoError(t, r.do(r.write(16, want)))
	require.NoError(t, r.do(r.read(16, got)))
	r.same(want, got, "written again")
}

// testDeallocate writes ranges, and deallocates the end of each. The deallocations have
// odd lengths, and are more than the queue depth. The test checks that the rest of each
// range keeps its data, and that a deallocated block can be written again.
func testDeallocate(t *testing.T, r *rig) {
	if !r.id.CanDeallocate {
		return
	}
	const ranges = 40
	span := min(32, nvmf.LBA(r.id.MaxTransfer/r.id.LBASize))
	at := r.id.Blocks - ranges*span // up to the last block
	kept := r.pattern(span, 14)
	var writes, gone []*nvmf.Command
	for i := range nvmf.LBA(ranges) {
		n := 1 + i%min(7, span)
		writes = append(writes, r.write(at+i*span, kept))
		gone = append(gone, &nvmf.Command{Opcode: nvmf.Deallocate, LBA: at + (i+1)*span - n, Blocks: n})
	}
	require.NoError(t, r.do(writes...))
	require.NoError(t, r.do(gone...))
	want, got := r.pattern(1, 15), r.bytes(1)
	require.NoError(t, r.do(r.write(gone[ranges-1].LBA, want)))
	require.NoError(t, r.do(r.read(gone[ranges-1].LBA, got)))
	r.same(want, got, "written again")
	for i, c := range gone {
		if n := span - c.Blocks; n > 0 {
			got := r.bytes(n)
			require.NoError(t, r.do(r.read(at+nvmf.LBA(i)*span, got)))
			r.same(kept[:len(got)], got, fmt.Sprintf("before deallocation %d", i))
		}
	}
}

func testOpcode(t *testing.T, r *rig) {
	c := r.write(0, r.bytes(1))
	c.Opcode = 0x7d
	var status *nvmf.StatusError
	assert.ErrorAs(t, r.do(c), &status)
	require.NoError(t, r.do(r.read(0, r.bytes(1))), "the queue still works")
}

func testTwoQueues(t *testing.T, r *rig) {
	want, got := r.pattern(4, 12), r.bytes(4)
	require.NoError(t, r.do(r.write(3, want)))
	other := r.open(4)
	c := r.read(3, got)
	other.Submit([]*nvmf.Command{c})
	require.NoError(t, other.Wait([]*nvmf.Command{c}))
	r.same(want, got, "through another queue")
	require.NoError(t, other.Close())
}

func testParallel(t *testing.T, r *rig) {
	const workers, rounds = 4, 20
	var group sync.WaitGroup
	for w := range workers {
		q := r.open(8)
		group.Go(func() {
			for i := range rounds {
				want, got := r.pattern(4, uint64(w*rounds+i)), r.bytes(4)
				lba := nvmf.LBA(w*64 + i%16*4)
				for _, c := range []*nvmf.Command{r.write(lba, want), r.read(lba, got)} {
					q.Submit([]*nvmf.Command{c})
					assert.NoError(t, q.Wait([]*nvmf.Command{c}))
				}
				assert.True(t, bytes.Equal(want, got), "worker %d round %d", w, i)
			}
			assert.NoError(t, q.Close())
		})
	}
	group.Wait()
}

func testReset(t *testing.T, r *rig) {
	want, got := r.pattern(1, 13), r.bytes(1)
	require.NoError(t, r.do(r.write(5, want)))
	require.NoError(t, r.queue.Reset(context.Background()))
	require.NoError(t, r.do(r.read(5, got)))
	r.same(want, got, "after Reset")
}

func testClose(t *testing.T, r *rig) {
	require.NoError(t, r.queue.Close())
	c := r.read(0, r.bytes(1))
	assert.Error(t, r.do(c), "a command on a closed queue")
	assert.NoError(t, r.queue.Close(), "a second Close")
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := r.device.OpenQueue(cancelled, 4)
	assert.ErrorIs(t, err, context.Canceled)
	require.NoError(t, r.device.Close())
	_, err = r.device.OpenQueue(context.Background(), 4)
	assert.ErrorIs(t, err, nvmf.ErrClosed)
}

// testModel executes batches of random writes that do not overlap. It checks the
// contents by reads, and reads all blocks at the end.
func testModel(t *testing.T, r *rig) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	blocks := min(r.id.Blocks, MinimumBlocks)
	block := nvmf.LBA(r.id.LBASize)
	model := r.pattern(blocks, seed)
	limit := min(64, nvmf.LBA(r.id.MaxTransfer/r.id.LBASize))
	for at := nvmf.LBA(0); at < blocks; at += limit {
		n := min(limit, blocks-at)
		require.NoError(t, r.do(r.write(at, model[at*block:(at+n)*block])))
	}
	for range 30 {
		var batch []*nvmf.Command
		for at := random.Uint64N(64); at < uint64(blocks); {
			n := min(1+random.Uint64N(uint64(limit)), uint64(blocks)-at)
			part := model[nvmf.LBA(at)*block : nvmf.LBA(at+n)*block]
			copy(part, r.pattern(nvmf.LBA(n), random.Uint64()))
			c := r.write(nvmf.LBA(at), part)
			c.Data = split(part, 1+random.IntN(len(part)))
			c.FUA = random.IntN(8) == 0
			batch = append(batch, c)
			at += n + random.Uint64N(256)
		}
		require.NoError(t, r.do(batch...))
		at := nvmf.LBA(random.Uint64N(uint64(blocks)))
		n := min(limit, blocks-at)
		got := r.bytes(n)
		require.NoError(t, r.do(r.read(at, got)))
		r.same(model[at*block:(at+n)*block], got, fmt.Sprintf("%d blocks at %d", n, at))
	}
	for at := nvmf.LBA(0); at < blocks; at += limit {
		n := min(limit, blocks-at)
		got := r.bytes(n)
		require.NoError(t, r.do(r.read(at, got)))
		r.same(model[at*block:(at+n)*block], got, fmt.Sprintf("%d blocks at %d, at the end", n, at))
	}
}
