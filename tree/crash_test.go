package tree

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf/blocktest"
	"nvmecr/posixshim"
	"nvmecr/tree/wire"
)

var images = flag.Int("images", 1, "of TestCrash, for each crash: how many outcomes of what was under way")

// A crash is a run of a workload of two ranks and a script, which a fault at a message or at a write to one of the
// three devices ends. The effects of calls that had returned must exist afterwards; those of the interrupted step may
// exist in part.
type crash struct {
	*rig
	t     *testing.T
	ranks [3]*rank // the last one is a script
	open  map[string]vfs.File
	step  int // in progress
}

// A step is a sequence of calls of one rank. At its end all written data is published and durable.
type step struct {
	name string
	do   func(c *crash) error
}

func (c *crash) opened(p int, path string, flags int) (vfs.File, error) {
	key := fmt.Sprint(p, path)
	if f := c.open[key]; f != nil {
		return f, nil
	}
	f, err := c.ranks[p].Open(root, path, flags|unix.O_CREAT, 0o644)
	if err == nil {
		c.open[key] = f
	}
	return f, err
}

// write writes to a file, which stays open, and syncs it.
func write(p int, path string, off int64, data string) step {
	return step{fmt.Sprintf("process %d writes %d bytes at %d of %s", p, len(data), off, path), func(c *crash) error {
		f, err := c.opened(p, path, unix.O_RDWR)
		if err == nil {
			_, err = f.WriteAt([][]byte{[]byte(data)}, off)
		}
		if err == nil {
			err = f.Sync()
		}
		return err
	}}
}

func appends(p int, path, data string) step {
	return step{fmt.Sprintf("process %d appends to %s", p, path), func(c *crash) error {
		f, err := c.opened(p, path, unix.O_RDWR)
		if err == nil {
			_, _, err = f.AppendBelow([][]byte{[]byte(data)}, posixshim.NoLimit)
		}
		if err == nil {
			err = f.Sync()
		}
		return err
	}}
}

// closes writes to a file and closes it.
func closes(p int, path string, off int64, data string) step {
	return step{fmt.Sprintf("process %d writes to %s and closes it", p, path), func(c *crash) error {
		f, err := c.opened(p, path, unix.O_RDWR)
		if err == nil {
			_, err = f.WriteAt([][]byte{[]byte(data)}, off)
		}
		if err == nil {
			delete(c.open, fmt.Sprint(p, path))
			err = f.Close()
		}
		return err
	}}
}

// names changes names, durably.
func names(p int, what string, change func(fs *FS) error) step {
	return step{fmt.Sprintf("process %d: %s", p, what), func(c *crash) error {
		err := change(c.ranks[p].FS)
		if err == nil {
			err = c.ranks[p].Sync()
		}
		return err
	}}
}

func text(b byte, n int) string { return string(bytes.Repeat([]byte{b}, n)) }

var workload = []step{
	names(0, "mkdir /d", func(fs *FS) error { return fs.Mkdir(root, "/d", 0o755) }),
	closes(0, "/d/own", 0, text('a', 5000)),
	write(1, "/shared", 3000, text('b', 3000)),
	write(0, "/shared", 0, text('c', 3000)),
	appends(1, "/log", "one line\n"),
	appends(0, "/log", "another line\n"),
	names(1, "rename /d/own", func(fs *FS) error { return fs.Rename(root, "/d/own", root, "/moved", 0) }),
	closes(1, "/moved", 2000, text('d', 6000)),
	closes(0, "/moved", 100, text('e', 100)),
	names(0, "truncate /moved", func(fs *FS) error { return fs.Truncate(root, "/moved", 4000) }),
	closes(1, "/moved", 5000, text('f', 10)),
	closes(0, "/shared", 1000, text('h', 1000)),
	closes(1, "/shared", 1500, text('i', 1000)),
	names(1, "unlink /shared", func(fs *FS) error { return fs.Unlink(root, "/shared") }),
	closes(0, "/new", 0, text('g', 10)),
	appends(1, "/log", "the last line\n"),
	closes(0, "/log", 0, "ONE"),
	appends(2, "/log", "a line of a script\n"),
	closes(2, "/script", 10, text('j', 3000)),
	names(1, "link", func(fs *FS) error { return fs.Link(root, "/moved", root, "/d/other", false) }),
	names(2, "symlink", func(fs *FS) error { return fs.Symlink("script", root, "/soft") }),
	names(0, "chmod", func(fs *FS) error {
		mode := uint32(0o600)
		return fs.SetAttr(root, "/moved", true, microfs.SetAttr{Mode: &mode})
	}),
	punches(1, "/log", 4, 3),
	appends(1, "/log", "behind a hole\n"), // so that a successor knows which files are not closed
	locks(0, "/new"),
	asks(0),
	names(2, "O_EXCL", func(fs *FS) error {
		f, err := fs.Open(root, "/exclusive", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
		if err == nil {
			err = f.Close()
		}
		return err
	}),
	leaves(0, "/new"), leaves(2),
}

func punches(p int, path string, off, n int64) step {
	return step{fmt.Sprintf("process %d punches %s", p, path), func(c *crash) error {
		f, err := c.opened(p, path, unix.O_RDWR)
		if err == nil {
			err = f.Punch(off, n)
		}
		if err == nil {
			err = f.Sync()
		}
		return err
	}}
}

// locks overwrites bytes with the same value under a lock, which it keeps.
func locks(p int, path string) step {
	return step{fmt.Sprintf("process %d locks %s", p, path), func(c *crash) error {
		f, err := c.opened(p, path, unix.O_RDWR)
		if err == nil {
			err = f.(vfs.Locker).Lock(false, 0, 10, []vfs.Held{{Start: 0, End: 10, Write: true}})
		}
		if err == nil {
			_, err = f.WriteAt([][]byte{[]byte(text('g', 10))}, 0)
		}
		return err
	}}
}

// asks changes nothing: it opens a file that it had marked with Keep and that has a name.
func asks(p int) step {
	return step{fmt.Sprintf("process %d asks", p), func(c *crash) error {
		fs := c.ranks[p].FS
		_, stat := fs.Stat(root, "/soft", false)
		_, linked := fs.Readlink(root, "/soft")
		_, real := fs.RealPath(root, "/soft")
		dir, err := fs.OpenIno(root, unix.O_RDONLY|unix.O_DIRECTORY)
		if err = errors.Join(err, stat, linked, real, fs.Access(root, "/d", unix.R_OK, true), fs.SetCred(microfs.Cred{})); err != nil {
			return err
		}
		_, err = dir.ReadDir("", 0)
		script, opened := c.opened(p, "/script", unix.O_RDONLY)
		if err = errors.Join(err, dir.Close(), opened); err != nil {
			return err
		}
		_, err = script.ReadAt([][]byte{make([]byte, 100)}, 0)
		err = errors.Join(err, script.(*file).Keep())
		fs.StatFS() // answers after the end of the index, too
		return err
	}}
}

// leaves ends a process in order, with files open. It closes some files before, since errors of the files that are
// still open would not be reported.
func leaves(p int, closes ...string) step {
	return step{fmt.Sprintf("process %d leaves", p), func(c *crash) error {
		for _, path := range closes {
			if err := c.open[fmt.Sprint(p, path)].Close(); err != nil {
				return err
			}
		}
		return c.ranks[p].FS.Close()
	}}
}

func newCrash(t *testing.T, cache bool, seed uint64) *crash {
	c := &crash{rig: newRig(t, 3), t: t, open: map[string]vfs.File{}}
	c.cache, c.lost = cache, seed
	c.stop()
	c.start() // with the device cache
	for p, place := range []uint32{0, 1, wire.NoPartition} {
		c.ranks[p] = c.join(place)
		c.ranks[p].FS.opts.Logf = func(string, ...any) {} // messages about its end
	}
	return c
}

// run runs the workload until something fails.
func (c *crash) run() (err error) {
	for c.step = 0; c.step < len(workload) && err == nil; c.step++ {
		err = workload[c.step].do(c)
	}
	if err != nil {
		c.step--
	}
	return err
}

// killIndex kills the index, and drops unwritten data of its device.
func (c *crash) killIndex() {
	require.NoError(c.t, c.homeDev.Crash(c.lost))
	c.hangUp()
	_ = c.fs.Unmount()
}

// killAll kills everything, and starts an index.
func (c *crash) killAll() {
	c.killIndex()
	for _, p := range c.ranks {
		p.kill()
	}
	c.start()
	for place := range c.disks {
		c.index.Adopt(uint32(place))
	}
}

// A treeState has the existing paths and their content; paths of directories end in "/".
type treeState map[string]string

// look returns the tree as a new process sees it.
func (c *crash) look() treeState {
	p := c.join(2)
	defer p.leave()
	state := treeState{}
	var list func(dir string)
	list = func(dir string) {
		f := p.open(dir, unix.O_RDONLY)
		entries, err := f.ReadDir("", 0)
		require.NoError(c.t, err)
		require.NoError(c.t, f.Close())
		for _, e := range entries {
			path := dir + e.Name
			if e.Mode&unix.S_IFMT == unix.S_IFDIR {
				state[path+"/"] = ""
				list(path + "/")
				continue
			}
			state[path] = p.read(path)
			a, err := p.Stat(root, path, false)
			require.NoError(c.t, err)
			state[path+", mode"] = fmt.Sprintf("%o", a.Mode)
			if a.Size > 0 { // the mark of an unwritten file is lost with the index
				state[path+completeMark] = fmt.Sprint(a.Closed)
			}
		}
	}
	list("/")
	return state
}

// completeMark is appended to a path in a treeState to record that the file is complete.
const completeMark = ", complete"

// completeBetween reports whether a file may be complete in the middle of a step. If it is, it has all bytes of
// before, or all of after. A change of its bytes removes the mark until they are all written.
func completeBetween(file string, got, before, after treeState) bool {
	mark := file + completeMark
	same := func(a, b treeState) bool { return a[file] == b[file] && a[mark] == b[mark] }
	return same(got, before) || same(got, after) || got[mark] == "false" && !same(before, after)
}

// between reports whether a state is possible in the middle of a step: each name and each byte is that of before or
// of after.
func between(got, before, after treeState) error {
	for path := range got {
		_, was := before[path]
		_, is := after[path]
		if !was && !is {
			return fmt.Errorf("%s is there", path)
		}
		if file, ok := strings.CutSuffix(path, completeMark); ok && !completeBetween(file, got, before, after) {
			return fmt.Errorf("%s counts as complete: %s; before %q, after %q", file, got[path], before[path], after[path])
		}
	}
	missing := 0
	for path, old := range before {
		now, there := got[path]
		next, stays := after[path]
		switch {
		case !there && stays:
			return fmt.Errorf("%s is not there", path)
		case !there:
			missing++
		case strings.HasSuffix(path, completeMark): // see above
		case !mixed(now, old, next):
			return fmt.Errorf("%s has %d bytes that are neither those of before, %d, nor those of after, %d", path, len(now), len(old), len(next))
		}
	}
	if missing > 0 && len(after) == len(before) { // a rename
		for path := range after {
			if _, there := got[path]; !there {
				return fmt.Errorf("%s is gone, and no other name is there", path)
			}
		}
	}
	return nil
}

func mixed(now, old, next string) bool {
	at := func(s string, i int) byte {
		if i < len(s) {
			return s[i]
		}
		return 0
	}
	if len(now) < min(len(old), len(next)) || len(now) > max(len(old), len(next)) {
		return false
	}
	for i := range len(now) {
		if now[i] != at(old, i) && now[i] != at(next, i) {
			return false
		}
	}
	return true
}

// states returns the states of the workload without a crash: states[i] is the state before step i.
func states(t *testing.T) (list []treeState) {
	c := newCrash(t, false, 0)
	list = append(list, c.look())
	for _, s := range workload {
		require.NoError(t, s.do(c), s.name)
		list = append(list, c.look())
	}
	return list
}

// check compares the tree with the calls that had returned.
func (c *crash) check(list []treeState, what string) {
	got := c.look()
	if c.step == len(workload) {
		require.Equal(c.t, list[c.step], got, what)
		return
	}
	if err := between(got, list[c.step], list[c.step+1]); err != nil {
		require.Fail(c.t, what, "%v, in the step: %s", err, workload[c.step].name)
	}
}

// TestCrash ends the workload at every write to every device, with torn writes, and kills all processes.
func TestCrash(t *testing.T) {
	list := states(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, cache := range []bool{false, true} {
		for which := range 3 {
			crashes := 0
			for cut := 1; ; cut++ {
				var err error
				for n := range *images {
					r := rand.New(rand.NewPCG(seed+uint64(n), uint64(cut)))
					c := newCrash(t, cache, r.Uint64())
					dev := []*blocktest.Faulty{c.homeDev, c.ranks[0].dev, c.ranks[1].dev}[which]
					dev.Shuffle(r.Uint64())
					dev.CutAt(cut, r.IntN(9000))
					err = c.run()
					c.killAll()
					c.check(list, fmt.Sprintf("cut %d of device %d, cache %v, seed %d: %v", cut, which, cache, seed+uint64(n), err))
					c.end()
				}
				crashes++
				if err == nil {
					break
				}
			}
			t.Logf("cache %v, device %d: %d crashes", cache, which, crashes)
			require.Greater(t, crashes, 10)
		}
	}
}

// end releases the resources of a run before the end of the test.
func (c *crash) end() {
	for _, p := range c.processes() {
		p.kill()
	}
	c.stop()
	c.start() // for the clean-up of the test
}
