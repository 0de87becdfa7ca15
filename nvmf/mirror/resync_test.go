package mirror

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// TestResync cuts off the source at random reads of a Resync, and the destination at random writes. The incomplete copy is not
// used, and a second Resync completes it.
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

// TestResyncAgain fails the last write of a Resync, so that only the destination has recorded the complete copy. The mirror
// continues on the source alone. Outdate marks the destination as stale, and a second Resync makes both sides equal.
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
	p.sides[0].FailAt(nvmf.Write, 1, refused) // the last step: recording the state on the source
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

// TestResyncDamaged checks that a media error of the source fails a Resync with ErrSource.
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

// TestSplit has each of two writers use another side alone. Each side then has data that the other one lacks, and Resync refuses
// to copy.
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

// TestStaleAlone checks that writes fail with ErrStale when the remaining side has a record that it is outdated.
func TestStaleAlone(t *testing.T) {
	p := newPair(t)
	u := p.use(Options{})
	st := p.state(1)
	require.NoError(t, p.side(1).write(context.Background(), &state{stale, st.generation + 1, st.mirror, st.length}))
	p.kill(0)
	require.ErrorIs(t, u.write(0, block(1)), ErrStale)
	u.end()
}
