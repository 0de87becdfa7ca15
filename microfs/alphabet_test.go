package microfs

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// letter is one kind of operation; short workloads are sequences of letters. op makes the operation
// for a state of the model, and returns false if the kind is not possible in that state.
type letter struct {
	name string
	op   func(m *model) (op, bool)
}

// The sizes of the files that a workload starts from: /a fills one hugeblock and a part of another,
// /b is small, and /d/x is in a directory.
const (
	sizeA = 6000
	sizeB = 100
	sizeX = 300
)

// alphabet has every kind of operation. The first coreLetters of them write log groups that differ
// most from each other.
var alphabet = []letter{
	{"append", func(m *model) (op, bool) { return m.writeAt("/b", m.size("/b"), 100) }},
	{"small", func(m *model) (op, bool) { return m.writeAt("/a", 10, 40) }},
	{"grow", func(m *model) (op, bool) { return m.writeAt("/a", m.size("/a"), 5000) }},
	{"create", func(m *model) (op, bool) { return createOp("/n", 0o640), m.size("/n") < 0 }},
	{"replace", func(m *model) (op, bool) { return renameOp("/b", "/a", 0), m.size("/b") >= 0 && m.size("/a") >= 0 }},
	{"unlink", func(m *model) (op, bool) { return m.remove("/a") }},
	{"cut", func(m *model) (op, bool) { return truncateOp("/a", 1000), m.size("/a") > 1000 }},
	{"step", func(*model) (op, bool) { return stepOp, true }},
	{"fsync", func(*model) (op, bool) { return syncOp, true }},
	{"close", func(m *model) (op, bool) { return closeOp("/b"), m.size("/b") >= 0 }},
	{"gap", func(m *model) (op, bool) { return m.writeAt("/b", m.size("/b")+3000, 50) }},

	{"unit", func(m *model) (op, bool) { return m.writeAt("/a", 0, 4096) }},
	{"over", func(m *model) (op, bool) { return m.writeAt("/a", 4000, 200) }},
	{"empty", func(m *model) (op, bool) { return truncateOp("/a", 0), m.size("/a") > 0 }},
	{"stretch", func(m *model) (op, bool) { return truncateOp("/b", m.size("/b")+2000), m.size("/b") >= 0 }},
	{"mkdir", func(m *model) (op, bool) { return mkdirOp("/e"), !m.has("/e") }},
	{"rmdir", func(m *model) (op, bool) { return m.remove("/e") }},
	{"move", func(m *model) (op, bool) { return renameOp("/d/x", "/y", 0), m.has("/d/x") && !m.has("/y") }},
	{"exchange", func(m *model) (op, bool) {
		return renameOp("/a", "/d", unix.RENAME_EXCHANGE), m.has("/a") && m.has("/d")
	}},
	{"checkpoint", func(*model) (op, bool) {
		return op{name: "checkpoint", fs: (*FS).Checkpoint, model: func(*model) {}}, true
	}},
	{"allocate", func(m *model) (op, bool) { return allocateOp("/b", m.size("/b"), 5000, false), m.size("/b") >= 0 }},
	{"keep", func(m *model) (op, bool) { return allocateOp("/b", 0, 12000, true), m.size("/b") >= 0 }},
	{"punch", func(m *model) (op, bool) { return punchOp("/a", 0, 4096), m.size("/a") >= 0 }},
	{"deallocate", func(*model) (op, bool) { return deallocateOp, true }},
	{"chmod", func(m *model) (op, bool) { return chmodOp("/a", 0o604), m.size("/a") >= 0 }},
	{"link", func(m *model) (op, bool) { return linkOp("/b", "/l"), m.size("/b") >= 0 && !m.has("/l") }},
	{"symlink", func(m *model) (op, bool) { return symlinkOp("target", "/s"), !m.has("/s") }},
}

const coreLetters = 11

// startOps returns the operations that make the tree that a workload starts from.
func startOps(m *model) []op {
	var ops []op
	add := func(o op, _ bool) { o.model(m); ops = append(ops, o) }
	add(createOp("/a", 0o600), true)
	add(m.writeAt("/a", 0, sizeA))
	add(createOp("/b", 0o600), true)
	add(m.writeAt("/b", 0, sizeB))
	add(mkdirOp("/d"), true)
	add(createOp("/d/x", 0o600), true)
	add(m.writeAt("/d/x", 0, sizeX))
	add(closeOp("/d/x"), true)
	return ops
}

// size returns the size of the file at path, or -1 if no file has that path.
func (m *model) size(path string) int64 {
	if _, _, n := m.find(path); n != nil && n.dir == nil && !n.isTarget {
		return int64(len(n.data))
	}
	return -1
}

func (m *model) has(path string) bool {
	_, _, n := m.find(path)
	return n != nil
}

// writeAt returns a write of n bytes that differ from the bytes of every other write.
func (m *model) writeAt(path string, off int64, n int) (op, bool) {
	if m.size(path) < 0 {
		return op{}, false
	}
	m.writes++
	return writeOp(path, off, stamp(n, m.writes)), true
}

// stamp returns n bytes that depend on seed in a few places: at every 2 KiB, and at the end. All
// other bytes are zeros. So a crash during the write leaves few LBAs undetermined, and the test can
// try all combinations of their contents.
func stamp(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		if i%2048 < 16 || n-i <= 16 {
			b[i] = byte(1 + (seed*31+i*7)%255)
		}
	}
	return b
}

func (m *model) remove(path string) (op, bool) {
	_, _, n := m.find(path)
	if n == nil || len(n.dir) > 0 {
		return op{}, false
	}
	return removeOp(m, path), true
}

var syncOp = op{name: "fsync", fs: (*FS).Sync, model: func(*model) {}, durable: true}

// stepOp makes one step of a state checkpoint.
var stepOp = op{
	name: "step",
	fs: func(fs *FS) error {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		return fs.checkpointStep()
	},
	model: func(*model) {},
}

func openedOp(path string, do func(*File) error) func(*FS) error {
	return func(fs *FS) error {
		f, err := fs.Open(RootIno, path, unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		return firstError(do(f), f.forget())
	}
}

func allocateOp(path string, off, n int64, keepSize bool) op {
	return op{
		name:  fmt.Sprintf("allocate %s %d+%d %v", path, off, n, keepSize),
		fs:    openedOp(path, func(f *File) error { return f.Allocate(off, n, keepSize) }),
		model: func(m *model) { m.allocate(path, off+n, keepSize) },
	}
}

// allocate extends a shorter file to end, unless keepSize is set.
func (m *model) allocate(path string, end int64, keepSize bool) {
	_, _, n := m.find(path)
	if more := end - int64(len(n.data)); more > 0 && !keepSize {
		n.resize(end)
		n.closed, n.written = false, true
	}
}

// deallocateOp deallocates the freed hugeblocks, as the background goroutine does while the
// application pauses.
var deallocateOp = op{
	name: "deallocate",
	fs: func(fs *FS) error {
		if err := fs.enterWrite(); err != nil {
			return err
		}
		defer fs.leave()
		fs.lastChange = time.Time{}
		for fs.deallocateSome() == time.Millisecond {
			fs.lastChange = time.Time{}
		}
		return nil
	},
	model: func(*model) {},
}

// punchOp punches a hole. A crash leaves all or none of the hole if it consists of whole hugeblocks.
func punchOp(path string, off, n int64) op {
	return op{
		name:  fmt.Sprintf("punch %s %d+%d", path, off, n),
		fs:    openedOp(path, func(f *File) error { return f.Punch(off, n) }),
		model: func(m *model) { m.punch(path, off, n) },
	}
}

func (m *model) punch(path string, off, n int64) {
	_, _, in := m.find(path)
	size := int64(len(in.data))
	clear(in.data[min(off, size):min(off+n, size)])
	clear(in.places[min(off, size):min(off+n, size)])
	in.cut++
	in.closed, in.written = false, true
}

func zeroOp(path string, off, n int64, keepSize bool) op {
	return op{
		name: fmt.Sprintf("zero %s %d+%d %v", path, off, n, keepSize),
		fs:   openedOp(path, func(f *File) error { return f.ZeroRange(off, n, keepSize) }),
		model: func(m *model) {
			m.punch(path, off, n)
			m.allocate(path, off+n, keepSize)
		},
	}
}

func closeOp(path string) op {
	return op{
		name: "close " + path,
		fs: func(fs *FS) error {
			f, err := fs.Open(RootIno, path, unix.O_WRONLY, 0)
			if err != nil {
				return err
			}
			return f.Close()
		},
		model: func(m *model) {
			_, _, n := m.find(path)
			n.closed, n.written = n.closed || n.written, false
		},
		durable: true,
	}
}

func renameOp(from, to string, flags uint) op {
	return op{
		name: fmt.Sprintf("rename %s %s %d", from, to, flags),
		fs:   func(fs *FS) error { return fs.Rename(RootIno, from, RootIno, to, flags) },
		model: func(m *model) {
			d, n, in := m.find(from)
			e, k, old := m.find(to)
			delete(d.dir, n)
			e.dir[k] = in
			if flags&unix.RENAME_EXCHANGE != 0 {
				d.dir[n] = old
			}
		},
	}
}

func chmodOp(path string, mode uint32) op {
	return op{
		name:  "chmod " + path,
		fs:    func(fs *FS) error { return fs.SetAttr(RootIno, path, true, SetAttr{Mode: &mode}) },
		model: func(m *model) { _, _, n := m.find(path); n.mode = mode },
	}
}

func linkOp(from, to string) op {
	return op{
		name:  fmt.Sprintf("link %s %s", from, to),
		fs:    func(fs *FS) error { return fs.Link(RootIno, from, RootIno, to, false) },
		model: func(m *model) { _, _, in := m.find(from); d, n, _ := m.find(to); d.dir[n] = in },
	}
}

// outOfSpace reports whether an operation was refused, without effect, because there was no space
// for it in the data area, the log or the state area.
func outOfSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) }
