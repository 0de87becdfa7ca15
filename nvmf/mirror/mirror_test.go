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

// TestLoss cuts off one side at each command of a small workload. All acknowledged writes must be readable from the remaining
// side. They must also be readable after that side was copied to a replacement and was then lost itself.
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

			// The mirror opens with the remaining side, both without the outdated side and when that side is reachable again.
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

// TestAdvance cuts off one side at the write of Advance, or at the write after it. The mirror continues on the other side, and
// returns the latest data after the lost side is reachable again.
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

// TestBothLost checks that writes and resets fail when both sides are lost, and that neither side is recorded as alone.
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

// TestPause checks that a side which is reachable again within Options.Patience stays part of the mirror, and that it receives the
// data that it missed or lost with its cache.
func TestPause(t *testing.T) {
	t.Parallel()
	for s := range 2 {
		p := newPair(t)
		p.sides[s].UseVolatileCache()
		u := p.use(Options{Patience: time.Minute})
		require.NoError(t, u.write(0, block(1)))
		require.NoError(t, u.write(1, block(2)))
		require.NoError(t, p.sides[s].Crash(3)) // may lose writes in its volatile cache
		p.sides[s].PowerOn()
		b := make([]byte, 4096)
		err := u.do(nvmf.Write, 2, block(3))
		require.ErrorIs(t, err, nvmf.ErrConnectionLost)
		require.NoError(t, u.q.Reset(context.Background()))
		for lba, want := range []byte{1, 2} { // a file system reads its blocks after a reset
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

// TestPauseInTurn disconnects one side, and later the other one, which also loses the contents of its cache. No data is lost.
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
		require.NoError(t, p.sides[s].Rot(p.side(s).blockAt(0), func(b []byte) { copy(b, block(9)) })) // simulates a lost cache
		require.ErrorIs(t, u.do(nvmf.Write, 1, block(3)), nvmf.ErrConnectionLost)
		require.NoError(t, u.q.Reset(context.Background()))
		require.Equal(t, 2, u.read(0))
		// Side s is not read before all its missing data was restored, even when the other side is disconnected meanwhile.
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

// TestPauseStrict checks that a queue that ReadFrom has restricted to one side still reads that side after a reconnection.
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

// TestHeal checks that a block that differs between the sides after a crash is the same on both sides after a read with Heal.
func TestHeal(t *testing.T) {
	p := newPair(t)
	u := p.use(Options{})
	require.NoError(t, u.write(0, block(1)))
	require.NoError(t, p.sides[0].Rot(0, func(b []byte) { copy(b, block(9)) })) // a write in flight at the crash
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

// TestHealAgain disconnects the side that Heal writes to. After the reset that side receives the block that was read, and also
// the blocks that it lost with its cache.
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
			require.NoError(t, u.write(0, block(1))) // makes the queue read from side 1
		}
		u.dev.Heal(true)
		require.NoError(t, u.do(nvmf.Read, 0, make([]byte, 4096)))
		p.sides[1-s].Disconnect()
		require.ErrorIs(t, u.do(nvmf.Read, 0, make([]byte, 4096)), nvmf.ErrConnectionLost)
		u.dev.Heal(false)
		require.NoError(t, p.sides[1-s].Rot(p.side(1-s).blockAt(1), func(b []byte) { copy(b, block(9)) })) // simulates a lost cache
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

// TestDamagedAway checks a read of a block that is damaged on one side while the connection to the other side is lost. The read
// fails with ErrConnectionLost, not with the media error, so that its owner repeats it after a reset.
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

// TestDamaged checks that a read that fails with a media error on one side is answered from the other one. A write fails if one
// side refuses it.
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

// TestReader checks that a reader sees the data that a writer has written to one side alone, although the reader can still reach
// the side that the writer has lost.
func TestReader(t *testing.T) {
	t.Parallel()
	for lost := range 2 {
		p := newPair(t)
		w := p.use(Options{})
		require.NoError(t, w.write(0, block(1)))
		r := p.use(Options{ReadOnly: true})
		require.Equal(t, 1, r.read(0))

		p.kill(lost) // only the writer notices: the side is restored before the reader uses it
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

// TestFollow checks that a reader that has lost no connection notices the record of the side that is used alone, and reads from
// that side.
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

// TestAllocations checks that a mirror's queue allocates no more for an I/O than the queues of its two devices do.
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
	assert.LessOrEqual(t, run(u.q), 2*run(direct), "no more than the queues of both devices")
}
