package microfs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/oplog"
)

// model is a simple file system in memory: the tests compare microfs with it.
type model struct {
	root   *mnode
	writes int  // number of writes made by writeAt
	ranges bool // the file system has ranges
}

type mnode struct {
	dir      map[string]*mnode // nil for files and links
	data     []byte
	places   []byte // whoseOf the range of each byte of data, 0 for bytes of the file itself
	cut      uint32 // Attr.Cut
	target   string
	mode     uint32
	isTarget bool
	closed   bool // Attr.Closed
	written  bool // changed since the last close, in the present mount
}

func newModel() *model { return &model{root: &mnode{dir: map[string]*mnode{}, mode: 0o700}} }

func (m *model) find(path string) (parent *mnode, name string, n *mnode) {
	n = m.root
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		if part == "" {
			continue
		}
		parent, name = n, part
		if parent == nil || parent.dir == nil {
			return nil, part, nil
		}
		n = parent.dir[part]
	}
	return parent, name, n
}

// snapshot returns a description of every path. For empty files it leaves out whether the file is
// closed, because a crash may lose the close of a file that was never written.
func (m *model) snapshot() map[string]string {
	s := map[string]string{}
	var walk func(path string, n *mnode)
	walk = func(path string, n *mnode) {
		switch {
		case n.dir != nil:
			s[path] = fmt.Sprintf("dir %o", n.mode)
			for name, c := range n.dir {
				walk(path+"/"+name, c)
			}
		case n.isTarget:
			s[path] = "link " + n.target
		default:
			s[path] = fmt.Sprintf("file %o %d %x %t", n.mode, len(n.data), checksum(n.data), n.closed && len(n.data) > 0)
			if m.ranges {
				s[path] += n.placed()
			}
		}
	}
	walk("", m.root)
	return s
}

// snapshotFS returns the snapshot of a mounted file system. It reads all files.
func snapshotFS(t require.TestingT, fs *FS) map[string]string {
	s := map[string]string{}
	var walk func(path string)
	walk = func(path string) {
		a, err := fs.Stat(RootIno, path+"/.", false)
		if err != nil {
			a, err = fs.Stat(RootIno, path, false)
		}
		require.NoError(t, err, path)
		switch a.Mode & modeType {
		case modeDir:
			s[path] = fmt.Sprintf("dir %o", a.Mode&modePerm)
			d, err := fs.Open(RootIno, path+"/.", unix.O_DIRECTORY, 0)
			require.NoError(t, err, path)
			list, err := d.ReadDir("", 0)
			require.NoError(t, err)
			require.NoError(t, d.Close())
			for _, e := range list {
				walk(path + "/" + e.Name)
			}
		case modeSymlink:
			target, err := fs.Readlink(RootIno, path)
			require.NoError(t, err)
			s[path] = "link " + target
		default:
			f, err := fs.Open(RootIno, path, unix.O_RDONLY, 0)
			require.NoError(t, err, path)
			withoutReadAhead(t, f)
			b := make([]byte, a.Size)
			placed := ""
			if fs.g.ranges {
				places, err := readPlaced(f, b)
				require.NoError(t, err, path)
				placed = (&mnode{cut: a.Cut, places: places}).placed()
			} else {
				n, err := f.ReadAt([][]byte{b}, 0)
				require.NoError(t, err, path)
				require.EqualValues(t, a.Size, n, path)
			}
			require.NoError(t, f.Close())
			s[path] = fmt.Sprintf("file %o %d %x %t", a.Mode&modePerm, a.Size, checksum(b), a.Closed && a.Size > 0) + placed
		}
	}
	walk("")
	return s
}

// withoutReadAhead turns read-ahead off for an open file. The buffer for read-ahead, and the timer that
// frees the buffer, would keep each of thousands of file systems in memory for seconds.
func withoutReadAhead(t require.TestingT, f *File) {
	require.NoError(t, f.Advise(0, 0, unix.FADV_RANDOM))
}

// op is one operation of a workload, made on the file system and on the model.
type op struct {
	name  string
	fs    func(fs *FS) error
	model func(m *model)
	// durable says that after the call all acknowledged operations, this one included, survive a
	// loss of power.
	durable bool
}

func writeOp(path string, off int64, data []byte) op {
	return op{
		name: fmt.Sprintf("write %s %d+%d", path, off, len(data)),
		fs: func(fs *FS) error {
			f, err := fs.Open(RootIno, path, unix.O_WRONLY, 0)
			if err != nil {
				return err
			}
			k := len(data) / 3
			n, err := f.WriteAt([][]byte{data[:k], nil, data[k:]}, off)
			if err == nil && n != len(data) {
				err = fmt.Errorf("short write of %d", n)
			}
			return firstError(err, f.forget())
		},
		model: func(m *model) {
			_, _, n := m.find(path)
			n.resize(max(off+int64(len(data)), int64(len(n.data))))
			copy(n.data[off:], data)
			clear(n.places[off : off+int64(len(data))])
			n.closed, n.written = false, true
		},
	}
}

// forget closes an open file without the log record and the Flush of Close. So an operation that opens a
// file and writes to it makes no other change.
func (f *File) forget() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.opens--
	f.in.done(f.writable)
	f.in = nil
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// generator makes random operations that are valid for the state of the model.
type generator struct {
	r       *rand.Rand
	m       *model
	maxFile int
	ranges  bool // also makes operations on ranges; a crash may leave a part of them
}

func (g *generator) paths(dirs, files bool) []string {
	var list []string
	for p, s := range g.m.snapshot() {
		if p == "" || (strings.HasPrefix(s, "dir") && !dirs) || (!strings.HasPrefix(s, "dir") && !files) {
			continue
		}
		list = append(list, p)
	}
	sort.Strings(list)
	return list
}

func (g *generator) pick(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[g.r.IntN(len(list))]
}

func (g *generator) files() []string {
	var list []string
	for p, s := range g.m.snapshot() {
		if strings.HasPrefix(s, "file") {
			list = append(list, p)
		}
	}
	sort.Strings(list)
	return list
}

func (g *generator) next() op {
	file := g.pick(g.files())
	dir := g.pick(append(g.paths(true, false), ""))
	fresh := fmt.Sprintf("%s/n%d", dir, g.r.IntN(30))
	_, _, there := g.m.find(fresh)
	switch k := g.r.IntN(100); {
	case (k < 15 || file == "") && there == nil:
		return createOp(fresh, 0o600+uint32(g.r.IntN(8)))
	case k < 20 && there == nil && strings.Count(fresh, "/") < 4:
		return mkdirOp(fresh)
	case k < 23 && there == nil:
		return symlinkOp(fmt.Sprintf("t%d", g.r.IntN(100)), fresh)
	case k < 30:
		if p := g.pick(g.paths(true, true)); p != "" {
			return removeOp(g.m, p)
		}
	case k < 38 && file != "":
		return g.rename(file, fresh)
	case k < 46 && file != "":
		_, _, n := g.m.find(file)
		return truncateOp(file, int64(g.r.IntN(2*len(n.data)+100)))
	case k < 60 && g.ranges && file != "":
		return g.onRange(file)
	case k < 70 && g.m.ranges && file != "":
		return g.mapRanges(file)
	case k < 50:
		return op{name: "sync", fs: (*FS).Sync, model: func(*model) {}}
	case k < 52:
		return op{name: "checkpoint", fs: checkpointUnlessLate, model: func(*model) {}}
	case k < 54:
		return deallocateOp
	case file != "":
		return g.write(file)
	}
	return op{name: "sync", fs: (*FS).Sync, model: func(*model) {}}
}

// checkpointUnlessLate is Checkpoint, except that it ignores ErrUnstable: after a lost connection a state
// checkpoint may have to wait.
func checkpointUnlessLate(fs *FS) error {
	if err := fs.Checkpoint(); !errors.Is(err, oplog.ErrUnstable) {
		return err
	}
	return nil
}

// onRange returns a punch, zero or allocate operation on a random range, which may be behind the end of
// the file.
func (g *generator) onRange(file string) op {
	_, _, n := g.m.find(file)
	size := len(n.data)
	off := int64(g.r.IntN(size + 50000))
	if g.r.IntN(3) == 0 {
		off &^= 32767
	}
	length := min(int64(1+g.r.IntN(200000)), int64(g.maxFile)-off)
	switch keep := g.r.IntN(2) == 0; {
	case length < 1:
	case g.r.IntN(3) == 0:
		return punchOp(file, off, length)
	case g.r.IntN(3) == 0:
		return zeroOp(file, off, length, keep)
	default:
		return allocateOp(file, off, length, keep)
	}
	return punchOp(file, 0, 100)
}

func (g *generator) write(file string) op {
	_, _, n := g.m.find(file)
	sizes := []int{1 + g.r.IntN(100), 1 + g.r.IntN(5000), 1 + g.r.IntN(70000), 4096, 32768}
	size := sizes[g.r.IntN(len(sizes))]
	off := len(n.data)
	switch g.r.IntN(4) {
	case 0:
		off = g.r.IntN(len(n.data) + 1)
	case 1:
		if g.r.IntN(4) == 0 {
			off += g.r.IntN(100000)
		}
	}
	if off+size > g.maxFile {
		off = g.r.IntN(g.maxFile - size)
	}
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(g.r.Uint32())
	}
	return writeOp(file, int64(off), data)
}

func createOp(path string, mode uint32) op {
	return op{
		name: "create " + path,
		fs: func(fs *FS) error {
			f, err := fs.Open(RootIno, path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, mode)
			if err != nil {
				return err
			}
			return f.forget()
		},
		model: func(m *model) { d, n, _ := m.find(path); d.dir[n] = &mnode{mode: mode, written: true} },
	}
}

func mkdirOp(path string) op {
	return op{
		name:  "mkdir " + path,
		fs:    func(fs *FS) error { return fs.Mkdir(RootIno, path, 0o750) },
		model: func(m *model) { d, n, _ := m.find(path); d.dir[n] = &mnode{mode: 0o750, dir: map[string]*mnode{}} },
	}
}

func symlinkOp(target, path string) op {
	return op{
		name:  "symlink " + path,
		fs:    func(fs *FS) error { return fs.Symlink(target, RootIno, path) },
		model: func(m *model) { d, n, _ := m.find(path); d.dir[n] = &mnode{target: target, isTarget: true} },
	}
}

func truncateOp(path string, size int64) op {
	return op{
		name: fmt.Sprintf("truncate %s %d", path, size),
		fs: func(fs *FS) error {
			f, err := fs.Open(RootIno, path, unix.O_RDWR, 0)
			if err != nil {
				return err
			}
			return firstError(f.Truncate(size), f.forget())
		},
		model: func(m *model) {
			_, _, n := m.find(path)
			if size < int64(len(n.data)) {
				n.cut++
			}
			n.resize(size)
			n.closed, n.written = false, true
		},
	}
}

func removeOp(m *model, path string) op {
	_, _, n := m.find(path)
	if len(n.dir) > 0 {
		return op{
			name: "rmdir full " + path,
			fs: func(fs *FS) error {
				if err := fs.Rmdir(RootIno, path); !errors.Is(err, syscall.ENOTEMPTY) && !lostTarget(err) {
					return fmt.Errorf("rmdir of a full directory: %v", err)
				} else if lostTarget(err) {
					return err
				}
				return nil
			},
			model: func(*model) {},
		}
	}
	isDir := n.dir != nil
	return op{
		name: "remove " + path,
		fs: func(fs *FS) error {
			if isDir {
				return fs.Rmdir(RootIno, path)
			}
			return fs.Unlink(RootIno, path)
		},
		model: func(m *model) { d, n, _ := m.find(path); delete(d.dir, n) },
	}
}

func lostTarget(err error) bool {
	return errors.Is(err, nvmf.ErrConnectionLost) || errors.Is(err, syscall.EIO)
}

func (g *generator) rename(from, to string) op {
	if files := g.files(); g.r.IntN(2) == 0 && len(files) > 1 {
		to = g.pick(files) // replaces an existing file
	}
	if _, _, n := g.m.find(to); n != nil && n.dir != nil {
		to += "x"
		if _, _, n := g.m.find(to); n != nil {
			return op{name: "sync", fs: (*FS).Sync, model: func(*model) {}}
		}
	}
	return op{
		name: "rename " + from + " " + to,
		fs:   func(fs *FS) error { return fs.Rename(RootIno, from, RootIno, to, 0) },
		model: func(m *model) {
			d, n, in := m.find(from)
			delete(d.dir, n)
			d, n, _ = m.find(to)
			d.dir[n] = in
		},
	}
}

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0: a new one each time")

// newSeed returns the seed of a random test, and logs it.
func newSeed(t testing.TB) uint64 {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again with -seed %d", seed)
	return seed
}

// openNew opens a file for reading and writing, and creates it if it does not exist.
func openNew(t testing.TB, fs *FS, name string) *File {
	f, err := fs.Open(RootIno, name, unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	return f
}

// pattern returns n bytes that depend on seed, with a long period.
func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = seed + byte(i*7) + byte(i>>8)
	}
	return p
}

func memory(t testing.TB, size, lba nvmf.Bytes) nvmf.Device {
	dev, err := memdev.New(size, lba, memdev.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// variant is one of the configurations in which every random workload runs.
type variant struct {
	name  string
	lba   nvmf.Bytes
	f     FormatOptions
	o     Options
	cache bool
}

var variants = []variant{
	{name: "default", lba: 4096},
	{name: "512-byte LBAs", lba: 512},
	{name: "4 KiB hugeblocks", lba: 512, f: FormatOptions{Hugeblock: 4 * nvmf.KiB}},
	{name: "128 KiB hugeblocks", lba: 4096, f: FormatOptions{Hugeblock: 128 * nvmf.KiB}},
	{name: "small log", lba: 4096, f: FormatOptions{LogPages: minLogPages}},
	{name: "no coalescing", lba: 4096, o: Options{NoCoalesce: true}, f: FormatOptions{LogPages: 16}},
	{name: "no data checksums", lba: 4096, f: FormatOptions{NoDataCRC: true}},
	{name: "volatile cache", lba: 4096, cache: true},
	{name: "volatile cache, small log", lba: 512, f: FormatOptions{LogPages: minLogPages, Hugeblock: 8 * nvmf.KiB}, cache: true},
}

// behindVariants are the configurations with write-behind.
var behindVariants = []variant{
	{name: "writing behind", lba: 512, o: Options{WriteBehind: true}},
	{name: "writing behind, no data checksums", lba: 4096, o: Options{WriteBehind: true}, f: FormatOptions{NoDataCRC: true}},
	{name: "writing behind, volatile cache", lba: 4096, o: Options{WriteBehind: true}, cache: true},
}

var allVariants = append(variants[:len(variants):len(variants)], behindVariants...)

// TestModel makes random operations, mounts again now and then, with and without an Unmount, and
// compares the file system with a model.
func TestModel(t *testing.T) {
	steps := 1500
	if testing.Short() {
		steps = 400
	}
	for _, v := range everyVariant {
		t.Run(v.name, func(t *testing.T) {
			seed := newSeed(t)
			runModel(t, v, seed, steps)
		})
	}
}

func runModel(t *testing.T, v variant, seed uint64, steps int) {
	dev, err := memdev.New(64*nvmf.MiB, v.lba, memdev.Options{VolatileWriteCache: v.cache})
	require.NoError(t, err)
	defer dev.Close()
	ctx := context.Background()
	seg := Segment{Start: nvmf.MiB, Length: 60 * nvmf.MiB}
	v.f.Generation, v.o.Generation = 7, 7
	require.NoError(t, Format(ctx, dev, seg, v.f))
	fs, err := Mount(ctx, dev, seg, v.o)
	require.NoError(t, err)
	g := &generator{r: rand.New(rand.NewPCG(seed, 0)), m: v.model(), maxFile: 2 << 20, ranges: seed%2 == 0}
	for i := range steps {
		o := g.next()
		require.NoError(t, o.fs(fs), "step %d: %s", i, o.name)
		o.model(g.m)
		if g.r.IntN(100) == 0 {
			if g.r.IntN(2) == 0 {
				require.NoError(t, fs.Unmount())
			} else {
				if v.o.WriteBehind {
					require.NoError(t, fs.Sync())
				}
				fs.ckpt.stop() // as after a crash
			}
			fs, err = Mount(ctx, dev, seg, v.o)
			require.NoError(t, err, "step %d", i)
		}
		if g.r.IntN(150) == 0 || i == steps-1 {
			require.Equal(t, g.m.snapshot(), snapshotFS(t, fs), "step %d after %s", i, o.name)
		}
	}
	require.NoError(t, fs.Unmount())
}
