package microfs

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// damages are the kinds of damage to a sector. other is a sector of another place on the media, which a
// misdirected write may have written here.
var damages = []struct {
	name string
	do   func(sector, other []byte)
}{
	{"one bit", func(b, _ []byte) { b[len(b)/3] ^= 4 }},
	{"zeros", func(b, _ []byte) { clear(b) }},
	{"ones", func(b, _ []byte) { copy(b, bytes.Repeat([]byte{0xff}, len(b))) }},
	{"noise", func(b, _ []byte) { copy(b, pattern(len(b), 77)) }},
	{"another sector", func(b, other []byte) { copy(b, other) }},
	{"the next byte", func(b, _ []byte) { copy(b, b[1:]) }},
}

// TestEverySector makes everything durable, and then damages every sector of a small partition in turn.
// It checks that Mount repairs damaged metadata: all content is right, and the next mount finds nothing
// to repair. Reads of damaged data must fail with EIO and name file and offset. All other data must be
// right.
func TestEverySector(t *testing.T) {
	skipRace(t)
	for _, cfg := range everyConfig(setups[2:4]) {
		if cfg.noSums || (testing.Short() && cfg.lba == 4096) {
			continue // damaged data is not noticed without checksums
		}
		t.Run(cfg.name, func(t *testing.T) {
			c := newCrasher(t, cfg, 1)
			s := sectors{crasher: c, seen: map[string]int{}}
			fs := c.mount(c.dead)
			for _, o := range []op{stepOp, stepOp, stepOp} { // they write a state checkpoint
				c.must(fs, o)
			}
			o, _ := c.start.writeAt("/b", c.start.size("/b"), 5000)
			c.must(fs, o)
			c.must(fs, closeOp("/b"))
			c.must(fs, syncOp)
			s.keep()
			s.damage(0, c.seg.Length)
			t.Logf("%v", s.seen)
			require.Positive(t, s.seen["repaired"])
			require.Positive(t, s.seen["EIO"])
		})
	}
}

// TestEverySectorOfNames checks a device with a volatile write cache. There one Flush makes records
// without data durable, and no image names them as durable afterwards. Damage of any one sector of the
// log must be repaired all the same: the records are in both slots before the Flush.
func TestEverySectorOfNames(t *testing.T) {
	for _, cfg := range everyConfig(setups[2:4]) {
		if !cfg.cache || cfg.noSums {
			continue
		}
		t.Run(cfg.name, func(t *testing.T) {
			c := newCrasher(t, cfg, 1)
			s := sectors{crasher: c, seen: map[string]int{}}
			fs := c.mount(c.dead)
			for range 3 {
				c.must(fs, syncOp)
				c.must(fs, chmodOp("/a", 0o604))
				c.must(fs, mkdirOp("/n"))
				c.must(fs, renameOp("/b", "/n/b", 0))
				c.must(fs, renameOp("/n/b", "/b", 0))
				c.must(fs, renameOp("/n", "/d/n", 0))
			}
			c.must(fs, syncOp)
			s.keep()
			s.damage(logOffset, fs.g.state[0])
			t.Logf("%v", s.seen)
			require.Positive(t, s.seen["repaired"])
		})
	}
}

type sectors struct {
	*crasher
	want string
	seen map[string]int
}

// keep makes the present state the one that all mounts must find.
func (s *sectors) keep() {
	s.start = s.start.clone()
	s.dead.Keep()
	s.want = s.start.canon()
}

// damage damages every sector of a part of the partition in turn.
func (s *sectors) damage(from, to nvmf.Bytes) {
	const sector = 512
	media := s.dead.Bytes()[s.seg.Start:][:s.seg.Length]
	for at := int(from); at < int(to); at += sector {
		for _, d := range damages {
			saved := bytes.Clone(media[at : at+sector])
			d.do(media[at:at+sector], media[(at+7*blockSize)%len(media):][:sector])
			if !bytes.Equal(saved, media[at:at+sector]) {
				s.check(nvmf.Bytes(at), fmt.Sprintf("%s in the sector at byte %d of the partition", d.name, at))
			}
			copy(media[at:], saved)
		}
	}
}

// check mounts the damaged media and checks the content. Then it puts the media back as it was before
// the mount.
func (s *sectors) check(at nvmf.Bytes, what string) {
	mark := s.dead.Mark()
	defer s.dead.Rollback(mark)
	fs, err := s.tryMount(s.dead)
	require.NoError(s.t, err, what)
	got, err := s.canon.canon(fs)
	if err == nil {
		require.True(s.t, s.want == string(got), "%s: another tree", what)
		before := bytes.Clone(s.dead.Bytes())
		again := s.mount(s.dead)
		require.Empty(s.t, again.repair, what)
		got, err = s.canon.canon(again)
		require.NoError(s.t, err, what)
		require.True(s.t, s.want == string(got), "%s: another tree after the repair", what)
		s.seen["repaired, or not in use"]++
		if !bytes.Equal(before, s.dead.Bytes()) && at < fs.g.data {
			s.seen["repaired"]++
		}
		return
	}
	require.GreaterOrEqual(s.t, at, fs.g.data, "%s: %v", what, err)
	s.seen["EIO"]++
	s.files(fs, fs.g, at, what)
}

// files reads every file unit by unit. It checks that exactly one unit is damaged, the one at offset at.
func (s *sectors) files(fs *FS, g *geometry, at nvmf.Bytes, what string) {
	bad := 0
	for _, path := range []string{"/a", "/b", "/d/x"} {
		_, _, n := s.start.find(path)
		f, err := fs.Open(RootIno, path, unix.O_RDONLY, 0)
		require.NoError(s.t, err, what)
		for off := 0; off < len(n.data); off += int(g.unit) {
			want := n.data[off:min(len(n.data), off+int(g.unit))]
			b := make([]byte, len(want))
			_, err := f.ReadAt([][]byte{b}, int64(off))
			var damage *DamageError
			if errors.As(err, &damage) {
				bad++
				require.ErrorIs(s.t, err, unix.EIO)
				require.Equal(s.t, path, damage.Name, what)
				require.EqualValues(s.t, off, damage.Offset, what)
				start := nvmf.Bytes(damage.LBA)*g.lba - g.seg.Start
				require.True(s.t, start <= at && at < start+g.unit, "%s: reported at %d", what, start)
				continue
			}
			require.NoError(s.t, err, what)
			require.Equal(s.t, want, b, what)
		}
		require.NoError(s.t, f.Close())
	}
	require.Equal(s.t, 1, bad, what)
}
