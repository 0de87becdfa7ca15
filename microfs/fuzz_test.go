package microfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/hostile"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/oplog"
)

// The tests of this file mount and decode forged media with valid checksums. The file system may refuse
// any of it. It must not crash the application, hang, or allocate much memory.

const (
	fuzzMemory = 64 << 20
	fuzzTime   = 20 * time.Second
)

// FuzzDecodeState decodes arbitrary states. It checks that a state that is accepted can be encoded and
// decoded again, and that decoding needs little memory and time.
func FuzzDecodeState(f *testing.F) {
	g := goldenGeometry(f)
	g.ranges = true
	f.Add(goldenTree(f, g).encode(nil), []byte(nil))
	f.Add(rangesTree(f, g).encode(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, b, script []byte) {
		b = bytes.Clone(b)
		hostile.Apply(script, 16, [][]byte{b})
		hostile.Bounded(t, fuzzMemory+64*uint64(len(b)), fuzzTime, func() {
			tr, err := decodeTree(g, b)
			if err != nil {
				require.True(t, refusal(err), "%v", err)
				return
			}
			requireSound(t, tr)
		})
	})
}

// requireSound encodes a tree that was accepted and checks that it decodes to the same tree.
func requireSound(t *testing.T, tr *tree) {
	b := tr.encode(nil)
	back, err := decodeTree(tr.g, b)
	require.NoError(t, err)
	require.True(t, bytes.Equal(b, back.encode(nil)), "a state that is read is written as it was")
	require.Equal(t, tr.bytes, back.bytes)
	require.Equal(t, tr.nextIno, back.nextIno)
	for in := range back.inodes.all() {
		_ = back.path(in.ino)
	}
}

// refusal reports whether err is one of the documented errors of Mount for invalid media.
func refusal(err error) bool {
	for _, e := range []error{ErrUnformatted, ErrVersion, ErrCorrupt, ErrOtherGeneration, oplog.ErrDamaged, oplog.ErrRecord, oplog.ErrFormat} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// FuzzDecodeSuperblock decodes arbitrary superblocks with valid checksums. It checks that an accepted
// one is the same after it was encoded and decoded again.
func FuzzDecodeSuperblock(f *testing.F) {
	g := goldenGeometry(f)
	b := make([]byte, blockSize)
	g.encode(b)
	f.Add(b, []byte(nil))
	f.Fuzz(func(t *testing.T, b, script []byte) {
		p := make([]byte, blockSize)
		copy(p, b)
		hostile.Apply(script, 16, [][]byte{p[:160]})
		sign(p)
		g, err := decodeSuperblock(p)
		if err != nil {
			require.True(t, refusal(err), "%v", err)
			return
		}
		require.NoError(t, g.check())
		again := make([]byte, blockSize)
		g.encode(again)
		back, err := decodeSuperblock(again)
		require.NoError(t, err)
		require.Equal(t, g, back)
	})
}

// FuzzDecodeStateHeader is FuzzDecodeSuperblock for state headers.
func FuzzDecodeStateHeader(f *testing.F) {
	g := goldenGeometry(f)
	b := make([]byte, blockSize)
	(&stateHeader{sequence: 5, area: 1, length: 4711, crc: 42, prior: oplog.Prior{Page: 6, Version: 7, CRC: 8, Generation: 9}}).encode(b, g.fs)
	f.Add(b, []byte(nil))
	f.Fuzz(func(t *testing.T, b, script []byte) {
		p := make([]byte, blockSize)
		copy(p, b)
		hostile.Apply(script, 16, [][]byte{p[:96]})
		sign(p)
		h, err := decodeStateHeader(p, g)
		if err != nil {
			require.True(t, refusal(err), "%v", err)
			return
		}
		require.LessOrEqual(t, h.length, g.stateSize)
		again := make([]byte, blockSize)
		h.encode(again, g.fs)
		back, err := decodeStateHeader(again, g)
		require.NoError(t, err)
		require.Equal(t, h, back)
	})
}

// sign writes the checksum of a block to its end.
func sign(b []byte) { le.PutUint64(b[sbCRC:], checksum(b[:sbCRC])) }

// FuzzDecodeClaim is FuzzDecodeSuperblock for claims. It also checks that the holder is one line.
func FuzzDecodeClaim(f *testing.F) {
	g := goldenGeometry(f)
	b := make([]byte, blockSize)
	(&Claim{Holder: testHolder(4711), Sequence: 5, Since: time.Unix(1, 2)}).encode(b, g.fs)
	f.Add(b, []byte(nil))
	f.Add([]byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, b, script []byte) {
		p := make([]byte, blockSize)
		copy(p, b)
		hostile.Apply(script, 16, [][]byte{p[:192]})
		if !isZero(p) {
			sign(p)
		}
		c, err := decodeClaim(p, g.fs)
		if err != nil {
			require.True(t, refusal(err), "%v", err)
			return
		}
		if c == nil {
			return
		}
		require.NotContains(t, c.String(), "\n")
		again := make([]byte, blockSize)
		c.encode(again, g.fs)
		back, err := decodeClaim(again, g.fs)
		require.NoError(t, err)
		require.Equal(t, c, back)
	})
}

// FuzzUnframe damages blocks of a state. It checks that unframe either returns the original state and
// repairs all blocks, or fails, and that it fails only if a group has more than one damaged block.
func FuzzUnframe(f *testing.F) {
	f.Add(uint32(20000), []byte(nil))
	f.Add(uint32(groupPayload+9), []byte{0, 0, 0, 0, 3, 0, 9, 0})
	f.Add(uint32(0), []byte{1, 0, 0, 0, 3, 0, 9, 0, 0, 0, 0, 0, 3, 0, 9, 0})
	f.Fuzz(func(t *testing.T, length uint32, script []byte) {
		state := pattern(int(length%(2*groupPayload)), 7)
		good := frame(state, 9)
		bad := bytes.Clone(good)
		var places [][]byte
		for at := 0; at < len(bad); at += blockSize {
			places = append(places, bad[at:at+blockSize])
		}
		if len(places) > 0 {
			hostile.Apply(script, 4, places)
		}
		hit := map[int]int{} // damaged blocks of each group
		for i := range places {
			if !bytes.Equal(places[i], good[i*blockSize:][:blockSize]) {
				hit[i/groupBlocks]++
			}
		}
		got, repaired, err := unframe(bad, nvmf.Bytes(len(state)), 9)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			limit := 0
			for _, n := range hit {
				limit = max(limit, n)
			}
			require.Greater(t, limit, 1)
			return
		}
		require.Len(t, repaired, len(hit))
		require.True(t, bytes.Equal(state, got) && bytes.Equal(good, bad))
	})
}

// FuzzApply applies arbitrary records to a tree. It checks that the tree after the accepted records can
// be encoded and decoded.
func FuzzApply(f *testing.F) {
	f.Add([]byte{1, 4, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{6, 4, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0})
	f.Add([]byte{5, 2, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 5, 3, 2, 1, 2, 1, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{11, 4, 3, 200, 150, 9, 0, 200, 0, 3, 0, 0, 12, 4, 3, 210, 0, 0, 0, 0, 30, 0, 0, 0, 6, 4, 0, 0, 0, 0, 0, 3, 7, 0, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
			tr := replayedTree(t)
			for n := 0; len(script) >= recordScript && n < 200; n++ {
				r := recordOf(tr.g, script)
				script = script[recordScript:]
				if err := tr.apply(&r, nil); err != nil {
					require.ErrorIs(t, err, oplog.ErrRecord)
					return
				}
			}
			tr.dropNameless()
			requireSound(t, tr)
		})
	})
}

const recordScript = 12

// recordOf makes a record from twelve bytes. Most numbers in it are small, so that records often refer
// to the same inodes and hugeblocks; a few are very large.
func recordOf(g *geometry, b []byte) oplog.Record {
	names := []string{"d", "e", "f", "x", "", ".", "..", "a/b", "nul\x00", string(bytes.Repeat([]byte("n"), 256))}
	number := func(at int) uint64 {
		if b[at] >= 250 {
			return []uint64{1 << 31, 1<<32 - 1, 1<<32 - 2, 1 << 62, 1<<64 - 1, uint64(g.blocks)}[b[at]-250]
		}
		return uint64(b[at])
	}
	r := oplog.Record{
		Type: oplog.Type(b[0] % 13), Ino: number(1), Parent: number(2), NewParent: number(3), Time: int64(b[11]),
		Name: []byte(names[int(b[4])%len(names)]), NewName: []byte(names[int(b[5])%len(names)]),
		Flags: uint32(b[6] & 1), Mode: uint32(b[6]&0xf0)<<8 | uint32(b[7]),
		File: uint32(number(4)), Phys: uint32(number(5)), FirstUnit: uint32(number(6)),
		HasCRC: b[10]&1 != 0, Mask: uint32(b[10]),
	}
	r.End = number(7)*4096 + number(8)
	r.Size = number(7)*4096 + number(8)
	r.Offset, r.Length = number(2)*4096+number(3), number(7)*4096+number(8)
	for i := range b[9] % 4 {
		at := int64(number(2)*4096+number(3)) + int64(i)*int64(b[5])
		r.Ranges = append(r.Ranges, rangeOf(at, int64(number(4)), uint32(b[10]&1), uint32(b[10]&2)))
	}
	if r.Type == oplog.Create && r.Mode&modeType != modeSymlink && b[10]&2 == 0 {
		r.NewName = nil
	}
	n := int(b[9])
	if b[9] >= 200 { // as many checksums as the record needs
		n = g.units(nvmf.Bytes(r.End)) - int(r.FirstUnit)
	}
	if n > 0 && n < 480 {
		r.CRCs = make([]uint64, n)
	}
	return r
}

// forgery is a partition that has all kinds of structures, for scripts to edit.
type forgery struct {
	dev  *memdev.Device
	seg  Segment
	opts Options
	base []byte
	g    *geometry
}

func newForgery(f *testing.F, volatile, sums bool) *forgery {
	const size = nvmf.MiB
	dev, err := memdev.New(size, 512, memdev.Options{VolatileWriteCache: volatile})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, dev.Close()) })
	m := &forgery{dev: dev, seg: Segment{Start: 64 * nvmf.KiB, Length: size - 64*nvmf.KiB}, opts: Options{Generation: 7}}
	ctx := context.Background()
	require.NoError(f, Format(ctx, dev, m.seg, FormatOptions{Generation: 7, Hugeblock: 4 * nvmf.KiB, LogPages: minLogPages, NoDataCRC: !sums, Ranges: true}))
	fs, err := Mount(ctx, dev, m.seg, m.opts)
	require.NoError(f, err)
	must := func(err error) { require.NoError(f, err) }
	write := func(path string, n int, off int64) {
		w, err := fs.Open(RootIno, path, unix.O_CREAT|unix.O_RDWR, 0o600)
		must(err)
		_, err = w.WriteAt([][]byte{pattern(n, byte(n))}, off)
		must(err)
		must(w.Close())
	}
	must(fs.Mkdir(RootIno, "d", 0o700))
	must(fs.Mkdir(RootIno, "d/e", 0o700))
	must(fs.Mkdir(RootIno, "x", 0o700))
	must(fs.Symlink("d/e", RootIno, "s"))
	write("f", 50000, 0)
	write("f", 100, 100000)
	write("d/e/g", 5000, 0)
	must(fs.Link(RootIno, "f", RootIno, "x/hard", false))
	must(mapOp("f", 100100, rangeOf(3000, 500, 1, 0), rangeOf(60000, 30000, 2, 0)).fs(fs))
	must(fs.Checkpoint())
	write("f", 9000, 2000)
	write("d/h", 7000, 0)
	must(mapOp("f", 0, rangeOf(3300, 20, 1, 0), rangeOf(70000, 1, 1, 1)).fs(fs))
	must(fs.Truncate(RootIno, "f", 99000))
	must(fs.Rename(RootIno, "d/h", RootIno, "x/h", 0))
	must(fs.Sync())
	write("i", 4096, 0)
	must(fs.Unlink(RootIno, "d/e/g"))
	write("i", 3000, 4096)
	m.g = fs.g
	fs.ckpt.stop()
	m.base = bytes.Clone(dev.Bytes())
	return m
}

// at returns n bytes of the partition's image.
func (m *forgery) at(image []byte, off, n nvmf.Bytes) []byte {
	off += m.seg.Start
	return image[off : off+n]
}

// slots returns the slots of the log that are not blank, in the order of the ring.
func (m *forgery) slots(image []byte) [][]byte {
	var list [][]byte
	for i := range nvmf.Bytes(m.g.logPages) * 2 {
		if b := m.at(image, logOffset+i*oplog.PageSize, oplog.PageSize); !isZero(b) {
			list = append(list, b)
		}
	}
	return list
}

// edit lets a script change the state, the superblock, the state header, the claim, the log images and
// some data of an image. Then it makes all checksums valid again.
func (m *forgery) edit(image, script []byte) {
	sb, header := m.at(image, superblockOffset, blockSize), m.at(image, headerOffset, blockSize)
	h, err := decodeStateHeader(header, m.g)
	if err != nil {
		panic(err) // the base image is valid
	}
	area := m.at(image, m.g.state[h.area], framedSize(h.length))
	state, _, err := unframe(bytes.Clone(area), h.length, h.sequence)
	if err != nil {
		panic(err)
	}
	claim := m.at(image, claimOffset, blockSize)
	places := [][]byte{state, header[:96], sb[:160], state, m.at(image, m.g.data, 64*nvmf.KiB), claim[:192]}
	slots := m.slots(image)
	for _, s := range slots {
		places = append(places, s[:96], s[96:512])
	}
	before := make([]uint64, len(slots))
	for i, s := range slots {
		before[i] = le.Uint64(s[sbCRC:])
	}
	hostile.Apply(script, 32, places)
	m.seal(image, state, slots, before)
	sign(claim)
	copy(m.at(image, claimOffset+blockSize, blockSize), claim)
	copy(area, frame(state, le.Uint64(header[hdSequence:])))
}

// seal computes all checksums again. Where an image or the state header names another image by checksum,
// seal puts the new checksum there.
func (m *forgery) seal(image, state []byte, slots [][]byte, before []uint64) {
	sb, header := m.at(image, superblockOffset, blockSize), m.at(image, headerOffset, blockSize)
	sign(sb)
	copy(m.at(image, m.seg.Length-blockSize, blockSize), sb)
	now := map[uint64]uint64{}
	for range slots { // images name earlier ones: after as many rounds all names are right
		for i, s := range slots {
			if crc, ok := now[le.Uint64(s[64:])]; ok {
				le.PutUint64(s[64:], crc)
			}
			sign(s)
			if crc := le.Uint64(s[sbCRC:]); before[i] != crc {
				now[before[i]], before[i] = crc, crc
			}
		}
	}
	le.PutUint64(header[hdStateCRC:], checksum(state))
	if crc, ok := now[le.Uint64(header[hdPageCRC:])]; ok {
		le.PutUint64(header[hdPageCRC:], crc)
	}
	sign(header)
	copy(m.at(image, headerOffset+blockSize, blockSize), header)
}

// FuzzMount mounts forged media. It checks that Mount either fails with a documented error, or that the
// file system can be used, unmounted and mounted again with the same content.
func FuzzMount(f *testing.F) {
	forgeries := []*forgery{newForgery(f, false, true), newForgery(f, true, true), newForgery(f, false, false)}
	f.Add(uint8(0), []byte(nil))
	f.Add(uint8(1), []byte(nil))
	f.Add(uint8(2), []byte{0, 4, 0, 0, 40, 0, 0, 0})
	f.Add(uint8(3), []byte{6, 1, 0, 0, 8, 0, 1, 0, 5, 7, 0, 0, 40, 0, 9, 0})
	f.Fuzz(func(t *testing.T, variant uint8, script []byte) {
		m := forgeries[int(variant>>1)%len(forgeries)]
		image := m.dev.Bytes()
		copy(image, m.base)
		m.edit(image, script)
		opts := m.opts
		opts.ReadOnly = variant&1 != 0
		hostile.Bounded(t, 2*fuzzMemory, fuzzTime, func() {
			fs, err := Mount(context.Background(), m.dev, m.seg, opts)
			if err != nil {
				require.True(t, refusal(err), "%v", err)
				return
			}
			exercise(fs)
			want := listing(fs)
			if opts.ReadOnly || fs.broken != nil || usedUp(fs) {
				_ = fs.Unmount() // may fail here
				return
			}
			require.NoError(t, fs.Unmount())
			fs, err = Mount(context.Background(), m.dev, m.seg, opts)
			require.NoError(t, err, "what was mounted and used can be mounted again")
			require.Equal(t, want, listing(fs))
			require.NoError(t, fs.Unmount())
		})
	})
}

// usedUp reports whether a number of an inode, page, version or the like is so high that the next mount
// may refuse it.
func usedUp(fs *FS) bool {
	h := &fs.ckpt.header
	p := h.prior
	return max(uint64(fs.tree.nextIno), p.Page, p.Version, p.Generation, fs.log.Generation(), h.sequence, fs.claim.Sequence) > 1<<61
}

// exercise makes calls of all kinds, and ignores their errors.
func exercise(fs *FS) {
	visit(fs, func(path string, a Attr) {
		switch a.Mode & modeType {
		case modeSymlink:
			_, _ = fs.Readlink(RootIno, path)
			_, _ = fs.RealPath(RootIno, path)
		case modeRegular:
			readWindows(fs, path)
			appendTo(fs, path)
		}
		_, _ = fs.Stat(RootIno, path+"/..", true)
		_ = fs.SetAttr(RootIno, path, false, SetAttr{TimesNow: true})
	})
	useAll(fs)
	_ = fs.Truncate(RootIno, "i", 2000)
	_ = fs.Rename(RootIno, "i", RootIno, "x/h", 0)
	_ = fs.Link(RootIno, "x/hard", RootIno, "harder", false)
	_ = fs.Checkpoint()
	appendTo(fs, "last")
	_ = fs.StatFS()
}

// visit calls do for every path. It ends early if there are too many directories, as in a cycle.
func visit(fs *FS, do func(path string, a Attr)) {
	for dirs := []string{""}; len(dirs) > 0 && len(dirs) < 1000; dirs = dirs[1:] {
		d, err := fs.Open(RootIno, "./"+dirs[0], unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			continue
		}
		list, _ := d.ReadDir("", 1000)
		_ = d.Close()
		for _, e := range list {
			path := dirs[0] + e.Name
			a, err := fs.Stat(RootIno, path, false)
			if err != nil {
				continue
			}
			do(path, a)
			if a.Mode&modeType == modeDir {
				dirs = append(dirs, path+"/")
			}
		}
	}
}

func readWindows(fs *FS, path string) {
	r, err := fs.Open(RootIno, path, unix.O_RDONLY, 0)
	if err != nil {
		return
	}
	a, _ := r.Stat()
	for _, off := range []int64{0, 4000, 90000, a.Size / 2, a.Size - 10} {
		_, _ = r.ReadAt([][]byte{make([]byte, 100), make([]byte, 70000)}, off)
		_, _ = r.SeekData(off)
		_, _ = r.SeekHole(off)
	}
	_ = r.Close()
}

func appendTo(fs *FS, path string) {
	w, err := fs.Open(RootIno, path, unix.O_CREAT|unix.O_RDWR, 0o600)
	if err != nil {
		return
	}
	_, _, _ = w.Append([][]byte{make([]byte, 5000)})
	_, _ = w.WriteAt([][]byte{make([]byte, 300)}, 4000)
	_ = w.Close()
}

// listing returns one line for the metadata of each path.
func listing(fs *FS) []string {
	var list []string
	visit(fs, func(path string, a Attr) {
		list = append(list, fmt.Sprintf("%s %d %o %d %d %d %d", path, a.Ino, a.Mode, a.Nlink, a.UID, a.Size, a.Blocks))
	})
	return list
}

// FuzzPath resolves arbitrary paths, also with "..", many slashes, cycles of symbolic links and names
// that are too long. It checks that the RealPath of a path names the same file as the path.
func FuzzPath(f *testing.F) {
	dev, err := memdev.New(8*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, dev.Close()) })
	seg := Segment{Length: 8 * nvmf.MiB}
	require.NoError(f, Format(context.Background(), dev, seg, FormatOptions{Generation: 7}))
	fs, err := Mount(context.Background(), dev, seg, Options{Generation: 7, MountPoint: "/mnt/cr"})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, fs.Unmount()) })
	for _, d := range []string{"a", "a/b", "a/b/c"} {
		require.NoError(f, fs.Mkdir(RootIno, d, 0o700))
	}
	for name, target := range map[string]string{
		"up": "..", "a/up": "../a", "self": "self", "a/abs": "/mnt/cr/a/b", "out": "/etc", "a/b/l": "../../a/b/c/", "dot": ".", "nowhere": "zz/y", "zero": "a/z\x00",
	} {
		require.NoError(f, fs.Symlink(target, RootIno, name))
	}
	appendTo(fs, "a/f")
	for _, p := range []string{"", "/", "a//b/./../b/l/..", "self", "a/abs/c", "out/passwd", "up/up", "../..", "a/f/", "dot/dot/a/up/b", "nowhere", "a/zero\x00"} {
		f.Add(p, true)
		f.Add(p, false)
	}
	f.Fuzz(func(t *testing.T, path string, follow bool) {
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
			a, err := fs.Stat(RootIno, path, follow)
			real, rerr := fs.RealPath(RootIno, path)
			if rerr == nil {
				b, err := fs.Stat(RootIno, path, true)
				require.NoError(t, err)
				c, err := fs.Stat(RootIno, real, false)
				require.NoError(t, err, "the real path of %q", path)
				require.Equal(t, b, c)
			}
			if err == nil && follow {
				require.NoError(t, rerr)
			}
			for _, change := range []func() error{
				func() error { return fs.Mkdir(RootIno, path, 0o700) },
				func() error { return fs.Rename(RootIno, path, RootIno, "a/b/moved", 0) },
				func() error { return fs.Rename(RootIno, "a/b/moved", RootIno, path, unix.RENAME_NOREPLACE) },
			} {
				if follow || err == nil { // only paths that do not exist are changed
					break
				}
				if change() == nil {
					_ = fs.Rmdir(RootIno, path)
					_ = fs.Rmdir(RootIno, "a/b/moved")
				}
			}
			_ = a
			require.NoError(t, fs.broken)
		})
	})
}
