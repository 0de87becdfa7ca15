package blocktest_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

const block = 512

func open(t *testing.T) (*blocktest.Faulty, nvmf.Queue) {
	inner, err := memdev.New(nvmf.Bytes(blocktest.MinimumBlocks)*block, block, memdev.Options{})
	require.NoError(t, err)
	f, err := blocktest.NewFaulty(inner)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	q, err := f.OpenQueue(context.Background(), 8)
	require.NoError(t, err)
	return f, q
}

func fill(value byte, blocks int) []byte { return bytes.Repeat([]byte{value}, blocks*block) }

func command(op nvmf.Opcode, lba nvmf.LBA, b []byte) *nvmf.Command {
	return &nvmf.Command{Opcode: op, LBA: lba, Blocks: nvmf.LBA(len(b) / block), Data: [][]byte{b}}
}

func write(q nvmf.Queue, lba nvmf.LBA, b []byte) error {
	c := []*nvmf.Command{command(nvmf.Write, lba, b)}
	q.Submit(c)
	return q.Wait(c)
}

func flush(q nvmf.Queue) error {
	c := []*nvmf.Command{{Opcode: nvmf.Flush}}
	q.Submit(c)
	return q.Wait(c)
}

// content turns the power on, and reads blocks on a new queue.
func content(t *testing.T, f *blocktest.Faulty, lba nvmf.LBA, blocks int) []byte {
	f.PowerOn()
	q, err := f.OpenQueue(context.Background(), 1)
	require.NoError(t, err)
	b := make([]byte, blocks*block)
	c := []*nvmf.Command{command(nvmf.Read, lba, b)}
	q.Submit(c)
	require.NoError(t, q.Wait(c))
	require.NoError(t, q.Close())
	return b
}

// TestFaultyIsADevice runs the conformance tests with a Faulty that injects no faults, also with a volatile cache and
// reordered completions.
func TestFaultyIsADevice(t *testing.T) {
	for _, shuffled := range []bool{false, true} {
		blocktest.Run(t, func(t *testing.T) nvmf.Device {
			inner, err := memdev.New(nvmf.Bytes(blocktest.MinimumBlocks)*block, block, memdev.Options{})
			require.NoError(t, err)
			f, err := blocktest.NewFaulty(inner)
			require.NoError(t, err)
			if shuffled {
				f.UseVolatileCache()
				f.Shuffle(42)
			}
			return f
		})
	}
}

// TestFailAt checks that exactly the chosen command of an opcode fails, and that a write that fails has no effect.
func TestFailAt(t *testing.T) {
	f, q := open(t)
	bad := errors.New("bad block")
	f.FailAt(nvmf.Write, 2, bad)
	f.FailAt(nvmf.Flush, 1, bad)
	require.NoError(t, write(q, 0, fill(1, 1)))
	require.ErrorIs(t, write(q, 0, fill(2, 1)), bad)
	assert.ErrorIs(t, flush(q), bad)
	assert.Equal(t, fill(1, 1), content(t, f, 0, 1), "a failed write has no effect")
	require.NoError(t, write(q, 0, fill(3, 1)))
	require.NoError(t, flush(q))
	assert.Equal(t, 3, f.Count(nvmf.Write))
	assert.Equal(t, 2, f.Count(nvmf.Flush))
}

// TestCutTearsTheWrite checks that a power loss leaves the chosen number of bytes of its write, and that nothing is
// written later.
func TestCutTearsTheWrite(t *testing.T) {
	for _, torn := range []int{0, 1, 511, 512, 700, 1024, 5000} {
		f, q := open(t)
		f.CutAt(2, torn)
		batch := []*nvmf.Command{
			command(nvmf.Write, 0, fill(1, 1)), command(nvmf.Write, 4, fill(2, 2)), command(nvmf.Write, 8, fill(3, 1)),
		}
		q.Submit(batch)
		require.ErrorIs(t, q.Wait(batch), nvmf.ErrConnectionLost)
		assert.NoError(t, batch[0].Err)
		assert.ErrorIs(t, batch[2].Err, nvmf.ErrConnectionLost)
		assert.ErrorIs(t, q.Reset(context.Background()), nvmf.ErrUnreachable)
		assert.Equal(t, fill(1, 1), content(t, f, 0, 1))
		want := make([]byte, 2*block)
		copy(want, fill(2, 2)[:min(torn, 2*block)])
		assert.Equal(t, want, content(t, f, 4, 2), "torn at %d", torn)
		assert.Equal(t, fill(0, 1), content(t, f, 8, 1), "no write after the power loss")
	}
}

// TestLateWrites checks that Release executes a write that was in flight when the connection was lost, with the data of
// the time of Submit.
func TestLateWrites(t *testing.T) {
	f, q := open(t)
	f.Shuffle(1)
	c := []*nvmf.Command{command(nvmf.Write, 3, fill(1, 1))}
	q.Submit(c)
	f.Disconnect()
	require.ErrorIs(t, q.Wait(c), nvmf.ErrConnectionLost)
	require.ErrorIs(t, write(q, 3, fill(2, 1)), nvmf.ErrConnectionLost, "before Reset")
	require.NoError(t, q.Reset(context.Background()))
	require.NoError(t, write(q, 3, fill(3, 1)))
	assert.Equal(t, fill(3, 1), content(t, f, 3, 1))
	copy(c[0].Data[0], fill(9, 1)) // the caller may reuse its memory
	n, err := f.Release()
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.Equal(t, fill(1, 1), content(t, f, 3, 1), "the late write replaces the newer one")
}

// TestDisconnectAt checks that the chosen write loses the connection and has no effect, and that the device can be used
// again after Reset.
func TestDisconnectAt(t *testing.T) {
	f, q := open(t)
	f.DisconnectAt(nvmf.Write, 2)
	require.NoError(t, write(q, 0, fill(1, 1)))
	require.ErrorIs(t, write(q, 0, fill(2, 1)), nvmf.ErrConnectionLost)
	require.NoError(t, q.Reset(context.Background()))
	assert.Equal(t, fill(1, 1), content(t, f, 0, 1))
}

// TestVolatileCacheLosesUnflushed checks that after a crash a block has any of its versions since the last flush, and
// that a write with FUA is kept.
func TestVolatileCacheLosesUnflushed(t *testing.T) {
	seen := map[byte]bool{}
	for seed := range uint64(40) {
		f, q := open(t)
		f.UseVolatileCache()
		require.True(t, f.Identity().VolatileWriteCache)
		require.NoError(t, write(q, 0, fill(1, 1)))
		require.NoError(t, flush(q))
		require.NoError(t, write(q, 0, fill(2, 1)))
		require.NoError(t, write(q, 0, fill(3, 1)))
		c := command(nvmf.Write, 1, fill(4, 1))
		c.FUA = true
		q.Submit([]*nvmf.Command{c})
		require.NoError(t, c.Err)
		require.NoError(t, f.Crash(seed))
		got := content(t, f, 0, 2)
		assert.Equal(t, fill(got[0], 1), got[:block], "a block has one version")
		assert.Equal(t, fill(4, 1), got[block:], "FUA is durable")
		seen[got[0]] = true
	}
	assert.Equal(t, map[byte]bool{1: true, 2: true, 3: true}, seen)
}

// TestCrashTearsWhatIsInFlight checks that a write in flight at a crash is absent, complete or torn afterwards.
func TestCrashTearsWhatIsInFlight(t *testing.T) {
	kinds := map[string]bool{}
	for seed := range uint64(60) {
		f, q := open(t)
		f.Shuffle(seed)
		c := command(nvmf.Write, 0, fill(1, 2))
		q.Submit([]*nvmf.Command{c})
		require.NoError(t, f.Crash(seed))
		require.ErrorIs(t, c.Err, nvmf.ErrConnectionLost)
		switch n := bytes.Count(content(t, f, 0, 2), []byte{1}); n {
		case 0:
			kinds["absent"] = true
		case 2 * block:
			kinds["whole"] = true
		default:
			kinds["torn"] = true
		}
	}
	assert.Len(t, kinds, 3)
}

// TestTrace checks which events are recorded for a write and a flush.
func TestTrace(t *testing.T) {
	f, q := open(t)
	f.Record()
	require.NoError(t, write(q, 5, fill(7, 1)))
	require.NoError(t, flush(q))
	var lines []string
	for _, e := range f.Recorded().Events {
		lines = append(lines, e.String())
	}
	assert.Equal(t, []string{
		"submit   #1 Write 5+1", "complete #1 Write 5+1", "submit   #2 Flush", "complete #2 Flush",
	}, lines)
	assert.Equal(t, fill(7, 1), f.Recorded().Events[0].Data)
}

// TestWritesThatGoAstray checks writes that are dropped or go to another address, and a block that is damaged later.
func TestWritesThatGoAstray(t *testing.T) {
	f, q := open(t)
	require.NoError(t, write(q, 0, fill(1, 4)))
	f.DropAt(1)
	f.MisdirectAt(2, 3)
	f.MisdirectAt(3, blocktest.MinimumBlocks-1)
	require.NoError(t, write(q, 0, fill(2, 1)))
	require.NoError(t, write(q, 1, fill(3, 1)))
	require.NoError(t, write(q, 0, fill(4, 2)), "only one block fits at the other address")
	require.NoError(t, f.Rot(2, func(b []byte) { b[7] = 9 }))
	want := fill(1, 4)
	copy(want[3*block:], fill(3, 1))
	want[2*block+7] = 9
	assert.Equal(t, want, content(t, f, 0, 4))
	assert.Equal(t, fill(4, 1), content(t, f, blocktest.MinimumBlocks-1, 1))
}
