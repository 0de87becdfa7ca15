package mirror

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

var update = flag.Bool("update", false, "write the golden file")

// patience is how long tests wait for a side that is lost.
const patience = 10 * time.Millisecond

// pair is two devices that fail, and outlast the mirrors on them.
type pair struct {
	t     *testing.T
	sides [2]*blocktest.Faulty
	mem   [2]*memdev.Device
	gone  [2]bool // cannot be reached
}

// kept is a device that Close leaves open.
type kept struct{ *blocktest.Faulty }

func (kept) Close() error { return nil }

func newPair(t *testing.T) *pair {
	p := &pair{t: t}
	for s := range p.sides {
		p.replace(s)
	}
	return p
}

// replace puts an empty device in the place of a side.
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

// back makes it reachable again, with what it had.
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

// useAfter uses the mirror after the side s was lost and replaced.
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

// user is a mirror with one queue.
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

// write is what the owner of a queue does: it repeats what was lost.
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

// read returns what fills a block.
func (u *user) read(lba nvmf.LBA) int {
	b := make([]byte, 4096)
	require.NoError(u.t, u.do(nvmf.Read, lba, b))
	require.True(u.t, bytes.Equal(block(b[0]), b), "a mixture in block %d", lba)
	return int(b[0])
}

// blockAt returns where a block of the mirror is.
func (s Side) blockAt(lba nvmf.LBA) nvmf.LBA { return nvmf.LBA(s.start()/4096) + lba }

func block(n byte) []byte { return bytes.Repeat([]byte{n}, 4096) }

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

func TestGolden(t *testing.T) {
	var got []byte
	for side, st := range []*state{
		{alone, 7, uuid.UUID{1, 2, 3, 15: 16}, 8 * nvmf.MiB},
		{stale, 6, uuid.UUID{1, 2, 3, 15: 16}, 8 * nvmf.MiB},
	} {
		got = append(got, st.encode(side)...)
	}
	const golden = "testdata/state.golden"
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
		require.NoError(t, os.WriteFile(golden, got, 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got), "the format has changed")
	st, err := decode(append(make([]byte, slotSize), want[:slotSize]...), 0)
	require.NoError(t, err)
	assert.Equal(t, &state{alone, 7, uuid.UUID{1, 2, 3, 15: 16}, 8 * nvmf.MiB}, st)
}

// TestDecode: of two slots the newer one that is whole counts, and a later version is refused.
func TestDecode(t *testing.T) {
	older, newer := &state{both, 4, uuid.UUID{1}, nvmf.MiB}, &state{alone, 5, uuid.UUID{1}, nvmf.MiB}
	slots := func() []byte { return append(older.encode(0), newer.encode(0)...) }
	for _, test := range []struct {
		name   string
		change func(b []byte)
		want   *state
		err    error
	}{
		{"whole", func([]byte) {}, newer, nil},
		{"torn", func(b []byte) { clear(b[slotSize+64 : 2*slotSize]) }, older, nil},
		{"both torn", func(b []byte) { b[50]++; b[slotSize+50]++ }, nil, nil},
		{"a slot in the other one's place", func(b []byte) { copy(b, b[slotSize:]); clear(b[slotSize:]) }, nil, nil},
		{"later", func(b []byte) { b[offVersion] = 2 }, nil, ErrVersion},
	} {
		b := slots()
		test.change(b)
		got, err := decode(b, 0)
		assert.ErrorIs(t, err, test.err, test.name)
		assert.Equal(t, test.want, got, test.name)
	}
	got, err := decode(slots(), 1)
	require.NoError(t, err)
	assert.Nil(t, got, "the state of the other side")
}

func FuzzDecode(f *testing.F) {
	s := &state{both, 4, uuid.UUID{1}, nvmf.MiB}
	f.Add(append(s.encode(0), s.encode(0)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != int(stateSize) {
			b = append(b, make([]byte, stateSize)...)[:stateSize]
		}
		if st, err := decode(b, 0); err == nil && st != nil {
			require.NotZero(t, st.length)
		}
	})
}

// TestChoose: which sides count, by what they say.
func TestChoose(t *testing.T) {
	id := uuid.UUID{9}
	st := func(m mode, g uint64) probe { return probe{state: &state{m, g, id, nvmf.MiB}} }
	gone, blank := probe{err: nvmf.ErrUnreachable}, probe{}
	foreign := probe{state: &state{both, 1, uuid.UUID{8}, nvmf.MiB}}
	for _, test := range []struct {
		name string
		a, b probe
		only int
		err  error
	}{
		{"both", st(both, 3), st(both, 3), none, nil},
		{"new", blank, blank, none, nil},
		{"one alone, the other one behind", st(alone, 4), st(both, 3), 0, nil},
		{"one alone, the other one gone", st(alone, 4), gone, 0, nil},
		{"one alone, the other one replaced", st(alone, 4), blank, 0, nil},
		{"one alone, the other one being copied to", st(alone, 4), st(stale, 4), 0, nil},
		{"one alone, the other one just copied to", st(alone, 4), st(both, 5), 0, nil},
		{"one both, the other one gone", st(both, 3), gone, none, ErrAway},
		{"one both, the other one replaced", st(both, 3), blank, 0, nil},
		{"one both, in the other one's place one of before", st(both, 5), st(both, 3), 0, nil},
		{"one both, in the other one's place a stale one of before", st(both, 5), st(stale, 3), 0, nil},
		{"one both that is behind what a stale one has known of", st(both, 3), st(stale, 4), none, ErrStale},
		{"one stale, the other one gone", st(stale, 4), gone, none, ErrStale},
		{"one stale, the other one replaced", st(stale, 4), blank, none, ErrStale},
		{"both alone", st(alone, 4), st(alone, 4), none, ErrSplit},
		{"of two mirrors", st(both, 3), foreign, none, ErrOther},
		{"both gone", gone, gone, none, nvmf.ErrUnreachable},
		{"one blank, the other one gone", blank, gone, none, nvmf.ErrUnreachable},
	} {
		for _, swap := range []bool{false, true} {
			found, want := [2]probe{test.a, test.b}, test.only
			if swap {
				found[0], found[1] = found[1], found[0]
				if want != none {
					want = 1 - want
				}
			}
			only, _, err := choose(&found)
			assert.ErrorIs(t, err, test.err, test.name)
			assert.Equal(t, want, only, test.name)
		}
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

// TestResync kills either side at each write, and each read, of a resynchronisation: it can be done again, and no half copy counts.
func TestResync(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, op := range []nvmf.Opcode{nvmf.Read, nvmf.Write} {
		for at := 1; at < 40; at += 1 + random.IntN(4) {
			p := newPair(t)
			u := p.use(Options{})
			last := nvmf.LBA(u.dev.Identity().Blocks - 1)
			require.NoError(t, u.write(last, block(1)))
			p.kill(1)
			require.NoError(t, u.write(last, block(2)))
			u.end()
			p.back(1)
			cut := map[nvmf.Opcode]int{nvmf.Read: 0, nvmf.Write: 1}[op]
			p.sides[cut].DisconnectAt(op, at)
			err := Resync(context.Background(), p.side(0), p.side(1), nil, nil)
			p.sides[cut].Heal()
			if err != nil {
				u = p.use(Options{})
				only, ok := u.dev.Alone()
				require.True(t, ok && only == 0)
				u.end()
				require.Equal(t, stale, p.state(1).mode)
				p.gone[0] = true
				_, err := p.open(Options{})
				require.ErrorIs(t, err, ErrStale)
				p.gone[0] = false
				require.NoError(t, Resync(context.Background(), p.side(0), p.side(1), nil, nil))
			}
			p.replace(0)
			u = p.use(Options{})
			require.Equal(t, 2, u.read(last))
			u.end()
		}
	}
}

// TestResyncAgain: a copy whose end one side alone has on record is made again. Until that is complete it does not count, though its side said that it had everything.
func TestResyncAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPair(t)
	u := p.use(Options{})
	last := nvmf.LBA(u.dev.Identity().Blocks - 1)
	require.NoError(t, u.write(last, block(1)))
	p.kill(1)
	require.NoError(t, u.write(last, block(2)))
	u.end()
	p.back(1)
	refused := &nvmf.StatusError{Opcode: nvmf.Write, SC: 0x83}
	p.sides[0].FailAt(nvmf.Write, 1, refused) // the last step
	require.ErrorIs(t, Resync(ctx, p.side(0), p.side(1), nil, nil), refused)
	require.Equal(t, both, p.state(1).mode)

	u = p.use(Options{})
	require.NoError(t, u.write(last, block(3)))
	u.end()
	require.NoError(t, Outdate(ctx, p.side(0), p.side(1)))
	require.Equal(t, stale, p.state(1).mode, "outdated")
	require.NoError(t, Resync(ctx, p.side(0), p.side(1), nil, nil))
	require.Equal(t, p.state(0), p.state(1))

	p.kill(0)
	u = p.useAfter(0)
	require.Equal(t, 3, u.read(last))
	u.end()
}

// TestResyncDamaged: where a sector of the side that has everything cannot be read, the error says that it is this one.
func TestResyncDamaged(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	u := p.use(Options{})
	require.NoError(t, u.write(0, block(1)))
	p.kill(1)
	require.NoError(t, u.write(0, block(2)))
	u.end()
	p.back(1)
	media := &nvmf.StatusError{Opcode: nvmf.Read, SCT: 2, SC: 0x81}
	p.sides[0].FailAt(nvmf.Read, 5, media)
	err := Resync(context.Background(), p.side(0), p.side(1), nil, nil)
	require.ErrorIs(t, err, ErrSource)
	require.ErrorIs(t, err, media)
}

// TestSplit: sides of which each has something that the other one lacks are not used.
func TestSplit(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	a, b := p.use(Options{}), p.use(Options{})
	p.kill(0)
	require.NoError(t, a.write(0, block(1)))
	p.back(0)
	require.NoError(t, b.q.Reset(context.Background()))
	p.kill(1)
	require.NoError(t, b.write(0, block(2)))
	p.back(1)
	require.ErrorIs(t, Resync(context.Background(), p.side(0), p.side(1), nil, nil), ErrSplit)
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

// TestStaleAlone: a side that knows that it is behind does not go on where the other one is lost.
func TestStaleAlone(t *testing.T) {
	p := newPair(t)
	u := p.use(Options{})
	st := p.state(1)
	require.NoError(t, p.side(1).write(context.Background(), &state{stale, st.generation + 1, st.mirror, st.length}))
	p.kill(0)
	require.ErrorIs(t, u.write(0, block(1)), ErrStale)
	u.end()
}
