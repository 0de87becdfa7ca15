package microfs

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// verifyRig returns a rig with /plain of 200000 bytes, /holes with data at 0, 1 MiB and 10 MiB, /second
// as another name of /plain, an empty file and a directory.
func verifyRig(t *testing.T, v variant) *logRig {
	r := newLogRig(t, v)
	write := func(name string, off int64, n int) {
		f := openNew(t, r.fs, name)
		_, err := f.WriteAt([][]byte{pattern(n, byte(off)+1)}, off)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	write("plain", 0, 200000)
	for _, off := range []int64{0, 1 << 20, 10 << 20} {
		write("holes", off, 40000)
	}
	require.NoError(t, openNew(t, r.fs, "empty").Close())
	require.NoError(t, r.fs.Mkdir(RootIno, "d", 0o700))
	require.NoError(t, r.fs.Link(RootIno, "plain", RootIno, "second", false))
	t.Cleanup(r.fs.ckpt.stop)
	return r
}

// at returns the offset on the device of a byte of a file.
func (r *logRig) at(name string, off nvmf.Bytes) nvmf.Bytes {
	g := r.fs.g
	x := r.fs.tree.named(name).extents.lookup(Hugeblock(off / g.hugeblock))
	return g.seg.Start + g.dataOffset(x.phys) + off - nvmf.Bytes(x.file)*g.hugeblock
}

func (r *logRig) verify(dev nvmf.Device, o VerifyOptions) *VerifyReport {
	ro := r.v.o
	ro.ReadOnly = true
	fs, err := Mount(context.Background(), dev, r.seg, ro)
	require.NoError(r.t, err)
	defer fs.Unmount()
	size := fs.VerifySize()
	var seen nvmf.Bytes
	if o.Only == nil {
		o.Progress = func(n nvmf.Bytes) { seen += n }
	}
	got, err := fs.Verify(context.Background(), o)
	require.NoError(r.t, err)
	if o.Only == nil {
		require.Equal(r.t, size, got.Bytes, "holes are not read, everything else is")
		require.Equal(r.t, size, seen)
	}
	return got
}

const verifySize = 200000 + 3*40000

// TestVerify damages bytes of files, or makes them unreadable, and checks the bad ranges that Verify
// reports.
func TestVerify(t *testing.T) {
	const unit = 32 << 10
	type part struct {
		name        string
		off, length int64
	}
	tests := []struct {
		name   string
		damage []part // one byte in each
		bad    []part
	}{
		{name: "nothing"},
		{"first byte", []part{{"plain", 0, 0}}, []part{{"plain", 0, unit}}},
		{"last byte", []part{{"plain", 199999, 0}}, []part{{"plain", 6 * unit, 200000 - 6*unit}}},
		{"two units in a row", []part{{"plain", unit, 0}, {"plain", 3*unit - 1, 0}}, []part{{"plain", unit, 2 * unit}}},
		{"two units apart", []part{{"plain", 5, 0}, {"plain", 2 * unit, 0}}, []part{{"plain", 0, unit}, {"plain", 2 * unit, unit}}},
		{"behind a hole", []part{{"holes", 1<<20 + 39999, 0}, {"holes", 10 << 20, 0}},
			[]part{{"holes", 1<<20 + unit, 40000 - unit}, {"holes", 10 << 20, unit}}},
		{"everything", []part{{"plain", 5, 0}, {"holes", 5, 0}}, []part{{"plain", 0, unit}, {"holes", 0, unit}}},
	}
	for _, tc := range tests {
		for _, unreadable := range []bool{false, true} {
			name := tc.name
			if unreadable {
				name += ", unreadable"
			}
			t.Run(name, func(t *testing.T) {
				r := verifyRig(t, variants[0])
				dev := nvmf.Device(r.dev)
				for _, d := range tc.damage {
					at := r.at(d.name, nvmf.Bytes(d.off))
					if !unreadable {
						r.mem.Bytes()[at] ^= 1
						continue
					}
					dev = &tapped{dev, func(c *nvmf.Command) error {
						if holds(c, r.v.lba, at) {
							return mediaError
						}
						return nil
					}}
				}
				got := r.verify(dev, VerifyOptions{})
				require.Equal(t, 3, got.Files)
				require.Equal(t, nvmf.Bytes(verifySize), got.Bytes)
				require.False(t, got.Unverified)
				var bad []part
				for _, b := range got.Bad {
					path := strings.TrimPrefix(b.Path, "/")
					require.Equal(t, r.fs.tree.named(path).ino, b.Ino)
					require.Equal(t, r.at(path, nvmf.Bytes(b.Offset)), nvmf.Bytes(b.LBA)*r.v.lba)
					var damage *DamageError
					require.ErrorAs(t, b.Cause, &damage)
					require.Equal(t, unreadable, damage.Cause != nil)
					bad = append(bad, part{path, b.Offset, b.Length})
				}
				require.Equal(t, tc.bad, bad)
			})
		}
	}
}

// TestVerifyOnly checks that VerifyOptions.Only limits Verify to the files among those inodes.
func TestVerifyOnly(t *testing.T) {
	r := verifyRig(t, variants[0])
	r.mem.Bytes()[r.at("plain", 0)]++
	r.mem.Bytes()[r.at("holes", 0)]++
	got := r.verify(r.dev, VerifyOptions{Only: []Ino{r.fs.tree.named("holes").ino, RootIno, 999}})
	require.Equal(t, 1, got.Files)
	require.Len(t, got.Bad, 1)
	require.Equal(t, "/holes", got.Bad[0].Path)
}

// TestVerifyWithoutSums checks that Verify of a file system without checksums says that it verified
// nothing, and still reports units that cannot be read.
func TestVerifyWithoutSums(t *testing.T) {
	r := verifyRig(t, variants[6])
	at := r.at("plain", 70000)
	r.mem.Bytes()[at]++
	got := r.verify(r.dev, VerifyOptions{})
	require.True(t, got.Unverified)
	require.Empty(t, got.Bad)
	got = r.verify(&tapped{r.dev, func(c *nvmf.Command) error {
		if holds(c, r.v.lba, at) {
			return mediaError
		}
		return nil
	}}, VerifyOptions{})
	require.Len(t, got.Bad, 1)
	require.Equal(t, int64(65536), got.Bad[0].Offset)
}

// TestVerifyEnds checks that Verify fails if its context is canceled and after Unmount, and that it
// continues after a lost connection.
func TestVerifyEnds(t *testing.T) {
	r := verifyRig(t, variants[0])
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := r.fs.Verify(ctx, VerifyOptions{})
	require.ErrorIs(t, err, context.Canceled)
	r.dev.DisconnectAt(nvmf.Read, 2)
	got, err := r.fs.Verify(context.Background(), VerifyOptions{})
	require.NoError(t, err)
	require.Empty(t, got.Bad)
	require.NoError(t, r.fs.Unmount())
	_, err = r.fs.Verify(context.Background(), VerifyOptions{})
	require.Error(t, err)
}

// TestVerifyManyBad checks that the report lists at most maxFindings damaged ranges, and only counts
// the others.
func TestVerifyManyBad(t *testing.T) {
	r := newLogRig(t, variants[2])
	f := openNew(t, r.fs, "f")
	_, err := f.WriteAt([][]byte{pattern(9<<20, 1)}, 0)
	require.NoError(t, firstError(err, f.Close()))
	for at := nvmf.Bytes(0); at < 9<<20; at += 2 * r.fs.g.unit {
		r.mem.Bytes()[r.at("f", at)]++
	}
	r.fs.ckpt.stop()
	got := r.verify(r.dev, VerifyOptions{})
	require.Equal(t, maxFindings, len(got.Bad))
	require.Equal(t, 9<<20/8192-maxFindings, got.More)
}
