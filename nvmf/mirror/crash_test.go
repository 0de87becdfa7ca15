package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
)

var seg = microfs.Segment{Start: 2 * nvmf.MiB, Length: 5 * nvmf.MiB}

// mount mounts a file system as internal/store does.
func mount(dev *Device) (*microfs.FS, error) {
	ctx := context.Background()
	fs, err := microfs.Mount(ctx, dev, seg, microfs.Options{
		Generation: 1, Timeout: 4 * patience,
		Claimed: func(*microfs.Claim) (microfs.Late, error) { dev.Heal(true); return microfs.LateNone, nil },
	})
	if err != nil {
		return nil, err
	}
	dev.Heal(false)
	err = dev.Level(ctx, seg.Start, 4096)
	if err == nil {
		err = dev.Level(ctx, seg.Start+seg.Length-4096, 4096)
	}
	return fs, err
}

// files returns the contents of the files f0, f1, ... that exist, by name.
func files(t *testing.T, fs *microfs.FS, names int) map[string][]byte {
	all := map[string][]byte{}
	for i := range names {
		name := fmt.Sprint("f", i)
		f, err := fs.Open(microfs.RootIno, name, os.O_RDONLY, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		b := make([]byte, 1<<16)
		n, err := f.ReadAt([][]byte{b}, 0)
		require.NoError(t, err, name)
		require.NoError(t, f.Close())
		all[name] = b[:n]
	}
	return all
}

// TestFileSystem cuts off both sides in the middle of a workload, at different writes. All durable files must be there after the
// next mount. Each side by itself must have the same files that this mount has shown.
func TestFileSystem(t *testing.T) {
	t.Parallel()
	const names = 6
	for round := range 60 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		p := newPair(t)
		if round%3 == 2 {
			p.sides[0].UseVolatileCache()
			p.sides[1].UseVolatileCache()
		}
		dev, err := p.open(Options{})
		require.NoError(t, err)
		require.NoError(t, dev.record())
		require.NoError(t, microfs.Format(context.Background(), dev, seg, microfs.FormatOptions{Generation: 1, Size: 1, Hugeblock: 4 * nvmf.KiB, LogPages: 8}))
		fs, err := mount(dev)
		require.NoError(t, err)
		first := random.IntN(2)
		cut := 1 + random.IntN(60)
		for s := range 2 {
			p.sides[s].Shuffle(seed + uint64(s))
		}
		p.sides[first].CutAt(cut, random.IntN(8192))
		p.sides[1-first].CutAt(cut+random.IntN(4)*random.IntN(4), random.IntN(8192))
		saved := map[string][]byte{} // acknowledged and durable
		touched := ""
		for i := 0; ; i++ {
			touched = fmt.Sprint("f", i%names)
			want := bytes.Repeat([]byte{byte(i)}, 1+random.IntN(20000))
			if err = rewrite(fs, touched, want); err != nil {
				break
			}
			saved[touched] = want
		}
		name := fmt.Sprintf("round %d seed %d: %v", round, seed, err)
		_ = fs.Unmount() // fails, since both sides are cut off
		for s := range 2 {
			require.NoError(t, p.sides[s].Crash(seed))
			p.sides[s].Heal()
			p.back(s)
		}

		dev, err = p.open(Options{})
		require.NoError(t, err, name)
		fs, err = mount(dev)
		require.NoError(t, err, name)
		shown := files(t, fs, names)
		for n, want := range saved {
			if n != touched {
				require.True(t, bytes.Equal(want, shown[n]), "%s: %s", name, n)
			}
		}
		if _, ok := dev.Alone(); !ok {
			for s := range 2 {
				require.Equal(t, len(shown), len(alike(t, p, s, shown, names, name)), name)
			}
		}
		require.NoError(t, fs.Unmount())
	}
}

// rewrite replaces the contents of a file, and makes them durable.
func rewrite(fs *microfs.FS, name string, b []byte) error {
	f, err := fs.Open(microfs.RootIno, name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([][]byte{b}, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// alike requires that a mount of a copy of one side, without the other one, shows the files in shown. It returns the files found.
func alike(t *testing.T, p *pair, side int, shown map[string][]byte, names int, name string) map[string][]byte {
	single := newPair(t)
	copy(single.mem[side].Bytes(), p.mem[side].Bytes())
	dev, err := single.open(Options{})
	require.NoError(t, err, name)
	fs, err := microfs.Mount(context.Background(), dev, seg, microfs.Options{Generation: 1, ReadOnly: true, Timeout: time.Minute})
	require.NoError(t, err, name)
	got := files(t, fs, names)
	for n, want := range shown {
		require.True(t, bytes.Equal(want, got[n]), "%s: side %d alone: %s", name, side, n)
	}
	require.NoError(t, fs.Unmount())
	return got
}
