package unionfs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

const (
	mountPoint = "/nvmecr"
	root       = microfs.RootIno
)

var ctx = context.Background()

// disk is a file system in memory.
type disk struct {
	t   *testing.T
	dev nvmf.Device
	seg microfs.Segment
}

func newDisk(t *testing.T) *disk {
	dev, err := memdev.New(4*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	d := &disk{t: t, dev: dev, seg: microfs.Segment{Length: 4 * nvmf.MiB}}
	require.NoError(t, microfs.Format(ctx, dev, d.seg, microfs.FormatOptions{}))
	return d
}

func (d *disk) mount(readOnly bool) *microfs.FS {
	fs, err := microfs.Mount(ctx, d.dev, d.seg, microfs.Options{ReadOnly: readOnly, MountPoint: mountPoint})
	require.NoError(d.t, err)
	return fs
}

// write runs do on the files of a rank or a script.
func (d *disk) write(do func(fs vfs.FS)) {
	fs := d.mount(false)
	do(vfs.Microfs(fs))
	require.NoError(d.t, fs.Unmount())
}

// job has a singleton partition and the partitions of ranks.
type job struct {
	*FS
	ranks  []*disk
	layers []Layer
	looks  int
}

// look mounts the partitions of all ranks again.
func (j *job) look() ([]Layer, error) {
	j.looks++
	return j.layers, nil
}

func (j *job) changed() {
	j.layers = nil
	for i, d := range j.ranks {
		j.layers = append(j.layers, Layer{Rank: i, FS: vfs.Microfs(d.mount(true)), Mount: uint64(j.looks*100 + i)})
	}
}

// newJob creates a job with these files, "+" in front of a directory, "->" for a link.
func newJob(t *testing.T, singleton []string, ranks ...[]string) *job {
	j := &job{}
	for _, names := range ranks {
		d := newDisk(t)
		d.write(func(fs vfs.FS) { fill(t, fs, fmt.Sprintf("rank %d", len(j.ranks)), names) })
		j.ranks = append(j.ranks, d)
	}
	d := newDisk(t)
	fs := d.mount(false)
	t.Cleanup(func() { assert.NoError(t, fs.Unmount()) })
	fill(t, vfs.Microfs(fs), "singleton", singleton)
	j.FS = New(vfs.Microfs(fs), mountPoint, j.look)
	j.changed()
	return j
}

func fill(t *testing.T, fs vfs.FS, text string, names []string) {
	for _, name := range names {
		var err error
		switch kind, rest := name[0], name[1:]; kind {
		case '+':
			err = fs.Mkdir(root, rest, 0o750)
		case '@':
			var link, target string
			_, err = fmt.Sscanf(rest, "%s %s", &link, &target)
			require.NoError(t, err)
			err = fs.Symlink(target, root, link)
		default:
			put(t, fs, name, text)
		}
		require.NoError(t, err, name)
	}
}

func put(t *testing.T, fs vfs.FS, name, text string) {
	f, err := fs.Open(root, name, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, 0o640)
	require.NoError(t, err, name)
	_, err = f.WriteAt([][]byte{[]byte(text)}, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func read(t *testing.T, fs vfs.FS, name string) string {
	f, err := fs.Open(root, name, unix.O_RDONLY, 0)
	require.NoError(t, err, name)
	defer func() { require.NoError(t, f.Close()) }()
	return readFile(t, f)
}

func readFile(t *testing.T, f vfs.File) string {
	a, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, a.Size)
	_, err = f.ReadAt([][]byte{b}, 0)
	require.NoError(t, err)
	return string(b)
}

func names(t *testing.T, fs vfs.FS, dir string, atOnce int) (list []string) {
	f, err := fs.Open(root, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	for after := ""; ; {
		some, err := f.ReadDir(after, atOnce)
		require.NoError(t, err)
		for _, d := range some {
			a, err := fs.Stat(root, dir+"/"+d.Name, false)
			require.NoError(t, err)
			assert.Equal(t, a.Ino, d.Ino, d.Name)
			assert.Equal(t, a.Mode&syscall.S_IFMT, d.Mode, d.Name)
			list = append(list, d.Name)
			after = d.Name
		}
		if len(some) < atOnce {
			return list
		}
	}
}

func sample(t *testing.T) *job {
	return newJob(t,
		[]string{"+both", "both/s", "same", "+only", "@latest both/r1", "@up ../x", "@abs /nvmecr/both/r0", "+kind"},
		[]string{"+both", "both/r0", "same", "+ck", "ck/a", "@link ck/a", "kind", "+order"},
		[]string{"+both", "both/r1", "same", "two", "+ck", "ck/b", "kind", "order"},
	)
}

func TestRead(t *testing.T) {
	j := sample(t)
	for name, want := range map[string]string{
		"same": "singleton", "both/s": "singleton", "both/r0": "rank 0", "/both/r1": "rank 1", "two": "rank 1", "ck/../ck/./b": "rank 1",
		"latest": "rank 1", "abs": "rank 0", "link": "rank 0", "ck/a": "rank 0",
	} {
		assert.Equal(t, want, read(t, j, name), name)
	}
	for dir, want := range map[string][]string{
		"/":     {"abs", "both", "ck", "kind", "latest", "link", "only", "order", "same", "two", "up"},
		"/both": {"r0", "r1", "s"},
		"ck":    {"a", "b"},
		"only":  nil,
		"kind":  nil,
		"order": nil,
	} {
		for _, atOnce := range []int{1, 2, 3, 1000} {
			assert.Equal(t, want, names(t, j, dir, atOnce), dir)
		}
	}
	for name, want := range map[string]error{
		"none": syscall.ENOENT, "none/x": syscall.ENOENT, "same/x": syscall.ENOTDIR, "same/": syscall.ENOTDIR, "": syscall.ENOENT, "latest/": syscall.ENOTDIR,
	} {
		_, err := j.Stat(root, name, true)
		assert.ErrorIs(t, err, want, name)
	}
	for name, want := range map[string]string{"..": "/", "../x": "/x", "up": "/x", "both/../../y": "/y"} {
		_, err := j.Stat(root, name, true)
		var escape *microfs.EscapeError
		require.ErrorAs(t, err, &escape, name)
		assert.Equal(t, want, escape.Path)
	}
	a, err := j.Stat(root, "latest", false)
	require.NoError(t, err)
	assert.EqualValues(t, syscall.S_IFLNK, a.Mode&syscall.S_IFMT)
	target, err := j.Readlink(root, "link")
	require.NoError(t, err)
	assert.Equal(t, "ck/a", target)
	real, err := j.RealPath(root, "latest")
	require.NoError(t, err)
	assert.Equal(t, "/both/r1", real)
}

// TestDirectoriesByNumber checks that directories of any layer can be found by inode number.
func TestDirectoriesByNumber(t *testing.T) {
	j := sample(t)
	seen := map[microfs.Ino]string{}
	for _, dir := range []string{"/", "/both", "/ck", "/only", "/order"} {
		a, err := j.Stat(root, dir, true)
		require.NoError(t, err)
		assert.NotContains(t, seen, a.Ino)
		seen[a.Ino] = dir
		path, err := j.PathOf(a.Ino)
		require.NoError(t, err)
		assert.Equal(t, dir, path)
		again, err := j.Stat(a.Ino, ".", true)
		require.NoError(t, err)
		assert.Equal(t, a, again)
	}
	both, err := j.Stat(root, "both", true)
	require.NoError(t, err)
	_, err = j.Stat(both.Ino, "../ck/b", true)
	require.NoError(t, err)
	_, err = j.Stat(tag(7, 9), "x", true)
	require.ErrorIs(t, err, syscall.ENOENT)
}

// TestChange checks that files of the own file system can be changed, those of ranks cannot, and that new files are in the own file
// system.
func TestChange(t *testing.T) {
	var readOnly *ReadOnlyError
	open := func(flags int) func(j *job, name string) error {
		return func(j *job, name string) error {
			f, err := j.Open(root, name, flags, 0o600)
			if err == nil {
				err = f.Close()
			}
			return err
		}
	}
	mode := uint32(0o700)
	calls := map[string]func(j *job, name string) error{
		"write":    open(unix.O_WRONLY),
		"append":   open(unix.O_RDWR | unix.O_APPEND | unix.O_CREAT),
		"truncate": func(j *job, name string) error { return j.Truncate(root, name, 0) },
		"chmod":    func(j *job, name string) error { return j.SetAttr(root, name, true, microfs.SetAttr{Mode: &mode}) },
		"unlink":   func(j *job, name string) error { return j.Unlink(root, name) },
		"rename":   func(j *job, name string) error { return j.Rename(root, name, root, "new", 0) },
		"over":     func(j *job, name string) error { return j.Rename(root, "both/s", root, name, 0) },
		"link":     func(j *job, name string) error { return j.Link(root, name, root, "new", false) },
	}
	for what, call := range calls {
		j := sample(t)
		require.NoError(t, call(j, "same"), what)
		j = sample(t)
		err := call(j, "both/r1")
		require.ErrorAs(t, err, &readOnly, what)
		require.ErrorIs(t, err, syscall.EROFS)
		assert.Contains(t, err.Error(), "/nvmecr/both/r1")
		if what != "unlink" && what != "over" {
			require.ErrorIs(t, call(j, "none/none"), syscall.ENOENT, what)
		}
		assert.Equal(t, "rank 1", read(t, j, "both/r1"), what)
	}
	for what, c := range map[string]struct {
		do   func(j *job) error
		want error
	}{
		"excl":                    {func(j *job) error { return open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)(j, "two") }, syscall.EEXIST},
		"mkdir of a rank's":       {func(j *job) error { return j.Mkdir(root, "ck", 0o700) }, syscall.EEXIST},
		"mkdir of a rank's file":  {func(j *job) error { return j.Mkdir(root, "two", 0o700) }, syscall.EEXIST},
		"symlink":                 {func(j *job) error { return j.Symlink("x", root, "two") }, syscall.EEXIST},
		"link over":               {func(j *job) error { return j.Link(root, "same", root, "two", false) }, syscall.EEXIST},
		"rmdir of a rank's":       {func(j *job) error { return j.Rmdir(root, "ck") }, syscall.EROFS},
		"rmdir of both's":         {func(j *job) error { return j.Rmdir(root, "both") }, syscall.EROFS},
		"rename of both's":        {func(j *job) error { return j.Rename(root, "both", root, "b", 0) }, syscall.EROFS},
		"rmdir of its own":        {func(j *job) error { return j.Rmdir(root, "only/") }, nil},
		"write to a directory":    {func(j *job) error { return open(unix.O_WRONLY)(j, "ck") }, syscall.EISDIR},
		"access of a rank's file": {func(j *job) error { return j.Access(root, "two", 2, true) }, syscall.EROFS},
		"read of a rank's file":   {func(j *job) error { return j.Access(root, "two", 4, true) }, nil},
		"access of its directory": {func(j *job) error { return j.Access(root, "ck", 7, true) }, nil},
		"missing":                 {func(j *job) error { return j.Access(root, "none", 0, true) }, syscall.ENOENT},
	} {
		err := c.do(sample(t))
		require.True(t, errors.Is(err, c.want), "%s: %v", what, err)
	}
}

// TestNewInARanksDirectory checks that the directories above a new file are created in the own file system.
func TestNewInARanksDirectory(t *testing.T) {
	j := newJob(t, nil, []string{"+a", "+a/b", "a/b/r"}, []string{"+a", "a/x"})
	put(t, j, "a/b/new", "singleton")
	require.NoError(t, j.Mkdir(root, "a/d", 0o700))
	require.NoError(t, j.Rename(root, "a/b/new", root, "a/d/moved", 0))
	require.NoError(t, j.Symlink("../b/r", root, "a/d/l"))
	assert.Equal(t, []string{"b", "d", "x"}, names(t, j, "a", 100))
	assert.Equal(t, []string{"r"}, names(t, j, "a/b", 100))
	assert.Equal(t, "singleton", read(t, j, "a/d/moved"))
	assert.Equal(t, "rank 0", read(t, j, "a/d/l"))
	assert.Equal(t, []string{"b", "d"}, names(t, j.own, "a", 100))
	a, err := j.own.Stat(root, "a/b", true)
	require.NoError(t, err)
	assert.EqualValues(t, 0o750, a.Mode&0o7777)
	require.ErrorIs(t, j.Mkdir(root, "none/x", 0o700), syscall.ENOENT)
	require.NoError(t, j.Unlink(root, "a/d/l"))
}

// TestRankGoesOn checks that an open file of a rank shows later writes of the rank, and is stale after it was replaced.
func TestRankGoesOn(t *testing.T) {
	j := newJob(t, nil, []string{"f", "g"})
	f, err := j.Open(root, "f", unix.O_RDONLY, 0)
	require.NoError(t, err)
	g, err := j.Open(root, "g", unix.O_RDONLY, 0)
	require.NoError(t, err)
	before, err := f.Stat()
	require.NoError(t, err)
	j.ranks[0].write(func(fs vfs.FS) {
		put(t, fs, "f", "rank 0, and more")
		require.NoError(t, fs.Unlink(root, "g"))
		put(t, fs, "g", "another")
		put(t, fs, "h", "new")
	})
	j.changed()
	assert.Equal(t, "rank 0, and more", readFile(t, f))
	after, err := f.Stat()
	require.NoError(t, err)
	assert.Equal(t, before.Ino, after.Ino)
	assert.Equal(t, f.Ino(), after.Ino)
	_, err = g.ReadAt([][]byte{make([]byte, 5)}, 0)
	require.ErrorIs(t, err, syscall.ESTALE)
	assert.Equal(t, []string{"f", "g", "h"}, names(t, j, "/", 100))
	require.ErrorIs(t, f.SetAttr(microfs.SetAttr{}), syscall.EROFS)
	require.NoError(t, f.Close())
	require.NoError(t, g.Close())
}

// TestNoRanks checks that without ranks the own file system handles all calls.
func TestNoRanks(t *testing.T) {
	j := newJob(t, []string{"+d", "d/f", "@l d"})
	f, err := j.Open(root, "l/f", unix.O_RDWR, 0)
	require.NoError(t, err)
	plain, err := j.own.Open(root, "d/f", unix.O_RDONLY, 0)
	require.NoError(t, err)
	assert.IsType(t, plain, f)
	require.NoError(t, f.Close())
	require.NoError(t, plain.Close())
	a, err := j.Stat(root, "d", true)
	require.NoError(t, err)
	assert.EqualValues(t, 2, a.Nlink)
	require.NoError(t, j.Rename(root, "d", root, "e", 0))
	require.ErrorIs(t, j.Rmdir(root, "e"), syscall.ENOTEMPTY)
}
