package index

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// checked returns the result of Check on a rig whose index has ended.
func (r *rig) checked() *Report {
	r.t.Helper()
	report, err := Check(r.fs, []uint32{0, 1, 2}, func(n uint32) (*microfs.FS, error) {
		if n == 2 {
			return nil, microfs.ErrUnformatted
		}
		return r.place(n), nil
	})
	require.NoError(r.t, err)
	return report
}

// TestCheckFindsNothing checks that the state after a kill has no findings, whatever was written, truncated or
// removed.
func TestCheckFindsNothing(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.create("f", "published")
	b.open("f", unix.O_RDWR)
	b.put(f, 4, "over")
	g := a.open("g", unix.O_RDWR|unix.O_CREAT)
	a.write(g, 100, "not published")
	r.x.Close()
	assert.Empty(t, r.checked().Findings)
}

func TestCheck(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	gone, cut := a.create("gone", "gone"), a.create("cut", "cut")
	short, missing := b.create("short", "bytes"), b.create("missing", "bytes")
	r.x.Close() // no client receives the releases
	require.NoError(t, r.fs.Unlink(microfs.RootIno, "gone"))
	require.NoError(t, r.fs.Truncate(microfs.RootIno, "cut", 0))
	require.NoError(t, b.partition.Truncate(microfs.RootIno, shardOf(short)[0].Name(), 3))
	require.NoError(t, b.partition.Unlink(microfs.RootIno, shardOf(missing)[0].Name()))
	report := r.checked()
	var said []string
	for i := range report.Findings {
		said = append(said, report.Findings[i].What)
	}
	assert.Equal(t, []string{
		"bytes 0 to 4 are in the partition of rank 1, in the file " + shardOf(short)[0].Name() + " there: it has none from byte 3 on",
		"bytes 0 to 4 are in the partition of rank 1, in the file " + shardOf(missing)[0].Name() + " there: " + syscall.ENOENT.Error(),
		"2 of its files are shards of files of the tree that were removed or truncated",
	}, said)
	assert.Equal(t, map[uint32][]wire.Shard{0: {shardOf(gone)[0], shardOf(cut)[0]}}, report.Unused)
}
