package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/target"
)

// TestMirrorDamage damages data on either target of a mirror. Reads must return the data of the other target, Verify
// must report the damage of both targets, and Repair must write both.
func TestMirrorDamage(t *testing.T) {
	t.Parallel()
	const unit = 32 * int64(nvmf.KiB)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random, data := rand.New(rand.NewPCG(seed, 0)), make([]byte, 200_000)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	memory := []target.Backing{blankMemory(t), blankMemory(t)}
	targets := []*served{serve(t, 0, memory[0]), serve(t, 1, memory[1])}
	run := startMirrored(t, targets...)
	require.NoError(t, writeFile(run.ranks[0].FS, "file", data))
	run.end()
	spoil := func(side int, at int64) { flip(t, memory[side], data[at:][:64]) }
	spoil(0, unit+100)
	spoil(0, 6*unit)
	spoil(0, 4*unit)
	spoil(1, 2*unit+50)
	assert.Equal(t, []place{{0, unit}, {0, 4 * unit}, {0, 6 * unit}, {1, 2 * unit}}, damagedPlaces(t, run.cfg))

	run = startMirrored(t, targets...)
	fs := run.ranks[0].FS
	require.True(t, bytes.Equal(data, contentOf(t, fs, "file")))
	f, err := fs.Open(microfs.RootIno, "file", os.O_RDWR, 0)
	require.NoError(t, err)
	b := make([]byte, 200) // a part of two units
	for _, at := range []int64{unit - 100, 2*unit - 100, int64(len(data)) - 200} {
		n, err := f.ReadAt([][]byte{b[:70], b[70:]}, at)
		require.NoError(t, err)
		require.Equal(t, data[at:][:n], b[:n], "at %d", at)
	}
	data[4*unit+1]++ // a partial write: the rest of the damaged unit is read from the other side
	_, err = f.WriteAt([][]byte{data[4*unit+1:][:1]}, 4*unit+1)
	require.NoError(t, err)
	for _, at := range []int64{unit, 2 * unit, 6 * unit} {
		require.NoError(t, fs.Repair(f.Ino(), at, data[at:min(at+unit, int64(len(data)))]))
	}
	require.NoError(t, f.Close())
	require.True(t, bytes.Equal(data, contentOf(t, fs, "file")))
	run.end()
	require.Empty(t, damagedPlaces(t, run.cfg))

	spoil(0, unit)
	spoil(1, unit)
	p, err := Open(ctx, run.cfg, Proc{Rank: 0, Size: 2}, Options{ReadOnly: true})
	require.NoError(t, err)
	f, err = p.FS.Open(microfs.RootIno, "file", os.O_RDONLY, 0)
	require.NoError(t, err)
	_, err = f.ReadAt([][]byte{b}, unit)
	require.ErrorAs(t, err, new(*microfs.DamageError), "of both sides")
	require.NoError(t, p.Close())
}

// where returns the position of some bytes in a namespace.
func where(t *testing.T, memory target.Backing, what []byte) int {
	all := make([]byte, 64*nvmf.MiB)
	require.NoError(t, memory.ReadAt(all, 0))
	at := bytes.Index(all, what)
	require.Positive(t, at)
	return at
}

// flip changes a bit of the byte at which some bytes begin in a namespace.
func flip(t *testing.T, memory target.Backing, what []byte) {
	require.NoError(t, memory.WriteAt([]byte{what[0] ^ 1}, int64(where(t, memory, what))))
}

// A place is the target and the offset in the file of a damaged range.
type place struct {
	target int
	offset int64
}

func damagedPlaces(t *testing.T, cfg *config.Config) (list []place) {
	r, err := Verify(ctx, cfg, Proc{Rank: 0, Size: 2}, VerifyOptions{})
	require.NoError(t, err)
	for _, b := range r.Bad {
		var side *SideError
		require.True(t, errors.As(b.Cause, &side), b.Cause)
		for i, id := range cfg.Targets {
			if id == side.Target {
				list = append(list, place{i, b.Offset})
			}
		}
	}
	return list
}

// unreadable is a namespace in which one position cannot be read.
type unreadable struct {
	target.Backing
	at atomic.Int64 // the position; 0: none
}

// Memory returns nil, so that the target calls ReadAt.
func (u *unreadable) Memory() []byte { return nil }

func (u *unreadable) ReadAt(b []byte, off int64) error {
	if at := u.at.Load(); at > 0 && off <= at && at < off+int64(len(b)) {
		return syscall.EIO
	}
	return u.Backing.ReadAt(b, off)
}

// TestMirrorSourceDamaged makes a part of the only complete target unreadable while the other one has to be restored.
// The run must start without the other target. Its messages must name the target with the damage.
func TestMirrorSourceDamaged(t *testing.T) {
	t.Parallel()
	left := &unreadable{Backing: blankMemory(t)}
	targets := []*served{serve(t, 0, left), serve(t, 1, blankMemory(t))}
	run := startMirrored(t, targets...)
	run.write("before")
	targets[1].stop()
	run.write("after")
	run.end()
	left.at.Store(int64(where(t, left, mirroredContent(0, "before")[:4096])))
	targets[1] = serve(t, 1, blankMemory(t))
	run = startMirrored(t, targets...)
	run.check("after")
	run.end()
	assert.Contains(t, run.said.String(), fmt.Sprintf("target %s: what is to be copied is damaged: ", targets[0].id))
	assert.Contains(t, run.said.String(), "nvmecr verify names the files")
	assert.Contains(t, run.said.String(), "the store goes on without it, and what is mirrored there is on one target only")
	assert.Equal(t, []nvmf.TransportID{targets[1].id}, degradedOf(run.lease))
}
