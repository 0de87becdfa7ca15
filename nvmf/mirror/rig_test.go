package mirror

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

// patience is the default Options.Patience of the tests.
const patience = 10 * time.Millisecond

// pair is two devices with injected faults. The mirrors that a test opens on them do not close them.
type pair struct {
	t     *testing.T
	sides [2]*blocktest.Faulty
	mem   [2]*memdev.Device
	gone  [2]bool // cannot be reached
}

// kept is a device whose Close does nothing.
type kept struct{ *blocktest.Faulty }

func newPair(t *testing.T) *pair {
	p := &pair{t: t}
	for s := range p.sides {
		p.replace(s)
	}
	return p
}

// replace replaces a side by an empty device.
func (p *pair) replace(s int) {
	const size = 2*8*nvmf.MiB + 2*stateSize
	dev, err := memdev.New(size, 4096, memdev.Options{MaxTransfer: 256 * nvmf.KiB})
	require.NoError(p.t, err)
	p.mem[s] = dev
	p.sides[s], err = blocktest.NewFaulty(dev)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { assert.NoError(p.t, dev.Close()) })
	p.gone[s] = false
}

// kill makes a side unreachable for good.
func (p *pair) kill(s int) {
	p.gone[s] = true
	require.NoError(p.t, p.sides[s].Crash(1))
}

// back makes a side reachable again, with its contents.
func (p *pair) back(s int) {
	p.gone[s] = false
	p.sides[s].PowerOn()
}

func (p *pair) dial(s int) Dial {
	return func(context.Context) (nvmf.Device, error) {
		if p.gone[s] {
			return nil, nvmf.ErrUnreachable
		}
		return kept{p.sides[s]}, nil
	}
}

func (p *pair) open(o Options) (*Device, error) {
	if o.Patience == 0 {
		o.Patience = patience
	}
	return Open(context.Background(), [2]Dial{p.dial(0), p.dial(1)}, o)
}

// useAfter replaces the side s by an empty device, and opens the mirror.
func (p *pair) useAfter(s int) *user {
	p.replace(s)
	return p.use(Options{})
}

func (p *pair) side(s int) Side { return Side{kept{p.sides[s]}, s} }

func (p *pair) state(s int) *state {
	st, err := p.side(s).read(context.Background())
	require.NoError(p.t, err)
	return st
}

// user is an open mirror and a queue of it.
type user struct {
	t   *testing.T
	dev *Device
	q   nvmf.Queue
}

func (p *pair) use(o Options) *user {
	dev, err := p.open(o)
	require.NoError(p.t, err)
	if !o.ReadOnly {
		require.NoError(p.t, dev.record()) // as the first write does
	}
	q, err := dev.OpenQueue(context.Background(), 8)
	require.NoError(p.t, err)
	return &user{p.t, dev, q}
}

func (u *user) end() {
	require.NoError(u.t, u.q.Close())
	require.NoError(u.t, u.dev.Close())
}

func (u *user) do(op nvmf.Opcode, lba nvmf.LBA, b []byte) error {
	c := &nvmf.Command{Opcode: op, LBA: lba, Blocks: nvmf.LBA(len(b) / 4096), Data: [][]byte{b}}
	cmds := []*nvmf.Command{c}
	u.q.Submit(cmds)
	return u.q.Wait(cmds)
}

// write writes as the owner of a queue does: after a lost connection it resets the queue and repeats the command.
func (u *user) write(lba nvmf.LBA, b []byte) error {
	for {
		err := u.do(nvmf.Write, lba, b)
		if !errors.Is(err, nvmf.ErrConnectionLost) {
			return err
		}
		if err := u.q.Reset(context.Background()); err != nil {
			return err
		}
	}
}

// read returns the byte that a block is filled with.
func (u *user) read(lba nvmf.LBA) int {
	b := make([]byte, 4096)
	require.NoError(u.t, u.do(nvmf.Read, lba, b))
	require.True(u.t, bytes.Equal(block(b[0]), b), "block %d contains different bytes", lba)
	return int(b[0])
}

// blockAt returns the address of the mirror's block lba on the device of the side.
func (s Side) blockAt(lba nvmf.LBA) nvmf.LBA { return nvmf.LBA(s.start()/4096) + lba }

func block(n byte) []byte { return bytes.Repeat([]byte{n}, 4096) }
