package mirror

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
)

func (kept) Close() error { return nil }

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		lost int
	}{{"both sides", none}, {"home alone", 1}, {"partner alone", 0}} {
		t.Run(test.name, func(t *testing.T) {
			blocktest.Run(t, func(t *testing.T) nvmf.Device {
				p := newPair(t)
				u := p.use(Options{})
				if test.lost != none {
					p.kill(test.lost)
					require.NoError(t, u.write(0, block(1)))
				}
				require.NoError(t, u.q.Close())
				return u.dev
			})
		})
	}
}

// TestLoss kills either side at each command of a small workload. What was acknowledged is there, on the side that is left and
// after the other one was replaced, and that was lost.
func TestLoss(t *testing.T) {
	t.Parallel()
	const blocks = 5
	work := func(u *user, acknowledged *byte) {
		for i := range byte(blocks) {
			require.NoError(u.t, u.write(nvmf.LBA(i%3), block(i+1)))
			*acknowledged = i + 1
		}
	}
	check := func(t *testing.T, u *user) {
		for lba, want := range []int{4, 5, 3} {
			require.Equal(t, want, u.read(nvmf.LBA(lba)), "block %d", lba)
		}
	}
	for lost := range 2 {
		for at := 1; at <= blocks; at++ {
			p := newPair(t)
			var told []int
			u := p.use(Options{})
			u.dev.OnAlone(func(s int, _ error) { told = append(told, s) })
			p.gone[lost] = true
			p.sides[lost].CutAt(at, 100)
			var acknowledged byte
			work(u, &acknowledged)
			require.Equal(t, []int{lost}, told)
			check(t, u)
			u.end()
			require.Equal(t, alone, p.state(1-lost).mode)

			// A start goes on with it, and so does one that finds the stale side again.
			for range 2 {
				u = p.use(Options{})
				check(t, u)
				u.end()
				p.back(lost)
			}
			p.replace(lost)
			require.NoError(t, Resync(context.Background(), p.side(1-lost), p.side(lost), nil, nil))
			p.kill(1 - lost)
			_, err := p.open(Options{})
			require.ErrorIs(t, err, ErrAway, "the other one may be ahead")
			p.replace(1 - lost)
			u = p.use(Options{})
			check(t, u)
			u.end()
		}
	}
}

// TestAdvance loses either side at each write of a new generation: all is there, and the side that was lost is behind, or as new as the other one.
func TestAdvance(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for lost := range 2 {
		for at := 1; at <= 2; at++ {
			p := newPair(t)
			u := p.use(Options{})
			require.NoError(t, u.dev.Advance(ctx))
			require.EqualValues(t, 2, p.state(0).generation)
			require.Equal(t, p.state(0), p.state(1))
			require.NoError(t, u.write(0, block(1)))
			p.gone[lost] = true
			p.sides[lost].CutAt(at, 100)
			require.NoError(t, u.dev.Advance(ctx))
			require.NoError(t, u.write(0, block(2)))
			_, alone := u.dev.Alone()
			require.True(t, alone)
			u.end()
			p.back(lost)
			u = p.use(Options{})
			require.Equal(t, 2, u.read(0))
			u.end()
		}
	}
}

// TestBothLost: where both sides are gone, so is the mirror.
func TestBothLost(t *testing.T) {
	p := newPair(t)
	u := p.use(Options{})
	require.NoError(t, u.write(0, block(1)))
	p.kill(0)
	p.kill(1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.ErrorIs(t, u.do(nvmf.Write, 0, block(2)), nvmf.ErrConnectionLost)
	require.Error(t, u.q.Reset(ctx))
	_, alone := u.dev.Alone()
	require.False(t, alone)
}

// TestPause: a side that comes back in time stays, and gets what it has missed.
func TestPause(t *testing.T) {
	t.Parallel()
	for s := range 2 {
		p := newPair(t)
		p.sides[s].UseVolatileCache()
		u := p.use(Options{Patience: time.Minute})
		require.NoError(t, u.write(0, block(1)))
		require.NoError(t, u.write(1, block(2)))
		require.NoError(t, p.sides[s].Crash(3)) // with what it had in its cache, perhaps
		p.sides[s].PowerOn()
		b := make([]byte, 4096)
		err := u.do(nvmf.Write, 2, block(3))
		require.ErrorIs(t, err, nvmf.ErrConnectionLost)
		require.NoError(t, u.q.Reset(context.Background()))
		for lba, want := range []byte{1, 2} { // as a file system looks what is there
			require.NoError(t, u.do(nvmf.Read, nvmf.LBA(lba), b))
			require.True(t, bytes.Equal(block(want), b))
		}
		require.NoError(t, u.write(2, block(3)))
		require.NoError(t, u.do(nvmf.Flush, 0, nil))
		u.end()
		p.replace(1 - s)
		u = p.use(Options{})
		for lba := range 3 {
			require.Equal(t, lba+1, u.read(nvmf.LBA(lba)), "block %d", lba)
		}
		u.end()
	}
}

// TestPauseInTurn: one side pauses, and later the other one does and loses its cache. Neither loss costs anything.
func TestPauseInTurn(t *testing.T) {
	t.Parallel()
	for s := range 2 {
		p := newPair(t)
		p.sides[s].UseVolatileCache()
		u := p.use(Options{Patience: time.Minute})
		require.NoError(t, u.write(0, block(1)))
		p.sides[1-s].Disconnect()
		require.NoError(t, u.write(0, block(2)))
		p.sides[s].Disconnect()
		require.NoError(t, p.sides[s].Rot(p.side(s).blockAt(0), func(b []byte) { copy(b, block(9)) })) // as if lost with a cache
		require.ErrorIs(t, u.do(nvmf.Write, 1, block(3)), nvmf.ErrConnectionLost)
		require.NoError(t, u.q.Reset(context.Background()))
		require.Equal(t, 2, u.read(0))
		// Until what it lacks is there, it is not read, though the other one pauses, too.
		require.NoError(t, p.sides[s].Rot(p.side(s).blockAt(1), func(b []byte) { copy(b, block(9)) }))
		p.sides[1-s].Disconnect()
		require.ErrorIs(t, u.do(nvmf.Read, 0, make([]byte, 4096)), nvmf.ErrConnectionLost)
		require.NoError(t, u.q.Reset(context.Background()))
		require.NotEqual(t, 9, u.read(1))
		u.end()
		u = p.useAfter(1 - s)
		require.Equal(t, 2, u.read(0))
		u.end()
	}
}

// TestPauseStrict: what is read of one side is read of that side also after a pause.
func TestPauseStrict(t *testing.T) {
	t.Parallel()
	for s := range 2 {
		p := newPair(t)
		p.use(Options{}).end()
		require.NoError(t, p.sides[s].Rot(p.side(s).blockAt(0), func(b []byte) { copy(b, block(9)) }))
		dev, err := p.open(Options{ReadOnly: true, Patience: time.Minute})
		require.NoError(t, err)
		require.NoError(t, dev.ReadFrom(s))
		q, err := dev.OpenQueue(context.Background(), 1)
		require.NoError(t, err)
		u := &user{t, dev, q}
		p.sides[s].Disconnect()
		require.ErrorIs(t, u.do(nvmf.Read, 0, make([]byte, 4096)), nvmf.ErrConnectionLost)
		require.NoError(t, u.q.Reset(context.Background()))
		require.Equal(t, 9, u.read(0))
		u.end()
	}
}

// TestHeal: what a crash has left on one side only is on both once it was read.
func TestHeal(t *testing.T) {
	p := newPair(t)
	u := p.use(Options{})
	require.NoError(t, u.write(0, block(1)))
	require.NoError(t, p.sides[0].Rot(0, func(b []byte) { copy(b, block(9)) })) // in flight at the crash
	u.end()

	u = p.use(Options{})
	require.Equal(t, 9, u.read(0))
	u.dev.Heal(true)
	require.Equal(t, 9, u.read(0))
	u.dev.Heal(false)
	u.end()
	p.replace(0)
	u = p.use(Options{})
	require.Equal(t, 9, u.read(0))
	u.end()
}

// TestHealAgain: where the connection is lost to the side that what is read is written to, that side gets it after the reset, and what it
// has lost with its cache before.
func TestHealAgain(t *testing.T) {
	t.Parallel()
	for s := range 2 {
		p := newPair(t)
		p.sides[s].UseVolatileCache()
		u := p.use(Options{Patience: time.Minute})
		require.NoError(t, u.write(0, block(1)))
		require.NoError(t, u.write(1, block(2)))
		if s == 1 {
			p.sides[0].Disconnect()
			require.NoError(t, u.write(0, block(1))) // so reads are from side 1
		}
		u.dev.Heal(true)
		require.NoError(t, u.do(nvmf.Read, 0, make([]byte, 4096)))
		p.sides[1-s].Disconnect()
		require.ErrorIs(t, u.do(nvmf.Read, 0, make([]byte, 4096)), nvmf.ErrConnectionLost)
		u.dev.Heal(false)
		require.NoError(t, p.sides[1-s].Rot(p.side(1-s).blockAt(1), func(b []byte) { copy(b, block(9)) })) // as if lost with a cache
		require.NoError(t, u.q.Reset(context.Background()))
		for lba, want := range []byte{1, 2} {
			b := make([]byte, 4096)
			require.NoError(t, u.do(nvmf.Read, nvmf.LBA(lba), b))
			require.True(t, bytes.Equal(block(want), b), "block %d", lba)
		}
		u.end()
		u = p.useAfter(s)
		require.Equal(t, 2, u.read(1))
		u.end()
	}
}

// TestDamagedAway: where one side is damaged, and the connection to the other one is lost, a read can be repeated.
func TestDamagedAway(t *testing.T) {
	p := newPair(t)
	u := p.use(Options{})
	require.NoError(t, u.write(0, block(1)))
	media := &nvmf.StatusError{Opcode: nvmf.Read, SCT: 2, SC: 0x81}
	p.sides[0].FailAt(nvmf.Read, 1, media)
	p.sides[1].DisconnectAt(nvmf.Read, 1)
	require.ErrorIs(t, u.do(nvmf.Read, 0, make([]byte, 4096)), nvmf.ErrConnectionLost)
	require.NoError(t, u.q.Reset(context.Background()))
	p.sides[0].FailAt(nvmf.Read, 1, media)
	require.Equal(t, 1, u.read(0))
	u.end()
}

// TestDamaged: what one side cannot read the other one can.
func TestDamaged(t *testing.T) {
	p := newPair(t)
	u := p.use(Options{})
	require.NoError(t, u.write(0, block(1)))
	media := &nvmf.StatusError{Opcode: nvmf.Read, SCT: 2, SC: 0x81}
	p.sides[0].FailAt(nvmf.Read, 1, media)
	require.Equal(t, 1, u.read(0))
	p.sides[0].FailAt(nvmf.Read, 1, media)
	p.sides[1].FailAt(nvmf.Read, 1, media)
	require.ErrorIs(t, u.do(nvmf.Read, 0, make([]byte, 4096)), media)
	refused := &nvmf.StatusError{Opcode: nvmf.Write, SC: 0x83}
	for s := range 2 {
		p.sides[s].FailAt(nvmf.Write, 1, refused)
		require.ErrorIs(t, u.do(nvmf.Write, 0, block(2)), refused, "a write that one side refuses")
	}
	u.end()
}

// TestReader: a reader sees what a writer has acknowledged on the side that it does not read from.
func TestReader(t *testing.T) {
	t.Parallel()
	for lost := range 2 {
		p := newPair(t)
		w := p.use(Options{})
		require.NoError(t, w.write(0, block(1)))
		r := p.use(Options{ReadOnly: true})
		require.Equal(t, 1, r.read(0))

		p.kill(lost) // for the writer: the reader still reaches it
		require.NoError(t, w.write(0, block(2)))
		p.back(lost)
		b := make([]byte, 4096)
		for range 2 {
			if err := r.do(nvmf.Read, 0, b); err != nil {
				require.ErrorIs(t, err, nvmf.ErrConnectionLost)
				require.NoError(t, r.q.Reset(context.Background()))
			}
		}
		require.Equal(t, 2, r.read(0))
		require.Equal(t, alone, p.state(1-lost).mode)
		r.end()
		w.end()
	}
}

// TestFollow: so it does where it has noticed no loss itself.
func TestFollow(t *testing.T) {
	t.Parallel()
	for ahead := range 2 {
		p := newPair(t)
		w := p.use(Options{})
		require.NoError(t, w.write(0, block(1)))
		w.end()
		r := p.use(Options{ReadOnly: true})
		require.Equal(t, 1, r.read(0))
		side, st := p.side(ahead), p.state(ahead)
		require.NoError(t, side.write(context.Background(), &state{alone, st.generation + 1, st.mirror, st.length}))
		at := nvmf.LBA(side.start() / 4096)
		require.NoError(t, side.run(context.Background(), &nvmf.Command{Opcode: nvmf.Write, LBA: at, Blocks: 1, Data: [][]byte{block(2)}}))
		require.Equal(t, 2, r.read(0))
		r.end()
	}
}

// TestAllocations: an I/O allocates nothing.
func TestAllocations(t *testing.T) {
	p := newPair(t)
	u := p.use(Options{})
	write := &nvmf.Command{Opcode: nvmf.Write, Blocks: 1, Data: [][]byte{block(1)}}
	read := &nvmf.Command{Opcode: nvmf.Read, Blocks: 1, Data: [][]byte{block(1)}}
	direct, err := p.sides[0].OpenQueue(context.Background(), 8)
	require.NoError(t, err)
	run := func(q nvmf.Queue) float64 {
		cmds := []*nvmf.Command{write, read}
		return testing.AllocsPerRun(100, func() { q.Submit(cmds); _ = q.Wait(cmds) })
	}
	_ = run(u.q)
	assert.LessOrEqual(t, run(u.q), 2*run(direct), "what the two devices of the test allocate")
}
