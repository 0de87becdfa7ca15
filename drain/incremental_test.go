package drain

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A cloningDir emulates a directory whose files can share ranges, by copying them.
type cloningDir struct {
	directory
	cloned *atomic.Int64 // bytes
	broken error         // error of each Clone
}

func (d cloningDir) Open(name string, flags int, mode fs.FileMode) (file, error) {
	f, err := d.directory.Open(name, flags, mode)
	if err != nil {
		return nil, err
	}
	return cloningFile{f, d}, nil
}

func (d cloningDir) Sub(name string) (directory, error) {
	sub, err := d.directory.Sub(name)
	return cloningDir{sub, d.cloned, d.broken}, err
}

type cloningFile struct {
	file
	dir cloningDir
}

func (f cloningFile) Clone(from file, off, n int64) error {
	if f.dir.broken != nil {
		return f.dir.broken
	}
	p := make([]byte, n)
	if _, err := from.ReadAt(p, off); err != nil {
		return err
	}
	f.dir.cloned.Add(n)
	_, err := f.WriteAt(p, off)
	return err
}

func cloning(l *Level, broken error) *atomic.Int64 {
	n := &atomic.Int64{}
	l.root = cloningDir{l.root, n, broken}
	return n
}

// putNext puts a set of one file, a number of hours after noon, and checks the level.
func putNext(t *testing.T, l *Level, name string, hours int, data []byte, o Options) *Set {
	t.Helper()
	path := "/melt." + name + ".0"
	s, m := checkpointOf(name, map[string][]byte{path: data})
	s.Ended = noon.Add(time.Duration(hours) * time.Hour)
	put, err := l.Put(t.Context(), s, m, o)
	require.NoError(t, err)
	have, err := os.ReadFile(filepath.Join(put.Dir, path))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, have))
	return put
}

// changed returns data with different bytes at some offsets.
func changed(data []byte, at ...int) []byte {
	data = bytes.Clone(data)
	for _, i := range at {
		data[i]++
	}
	return data
}

var incremental = Options{Incremental: true}

func TestIncremental(t *testing.T) {
	data := random(t, 3*blockSize+unitSize+5)
	whole := int64(len(data) - 5) // size in whole units
	hole := bytes.Clone(data)
	clear(hole[blockSize : 2*blockSize])
	file := func(s *Set) string { return filepath.Join(s.Dir, "melt.400.0") }
	cases := []struct {
		name          string
		before, after []byte
		meanwhile     func(before *Set) error
		shared        int64
	}{
		{"all", data, data, nil, whole},
		{"all but two units", data, changed(data, 0, blockSize+3*unitSize), nil, whole - 2*unitSize},
		{"nothing", data, random(t, len(data)), nil, 0},
		{"up to where the one before ends", data[:blockSize+unitSize+7], data, nil, blockSize + unitSize},
		{"up to its end", data, data[:2*unitSize+7], nil, 2 * unitSize},
		{"a hole that was none", data, hole, nil, whole - blockSize},
		{"what was a hole", hole, data, nil, whole - blockSize},
		{"the one before is damaged", data, data, func(s *Set) error {
			return os.WriteFile(file(s), changed(data, 5*unitSize+1), 0)
		}, whole - unitSize},
		{"the one before is cut short", data, data, func(s *Set) error { return os.Truncate(file(s), unitSize+1) }, unitSize},
		{"the file before is gone", data, data, func(s *Set) error { return os.Remove(file(s)) }, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := open(t, t.TempDir())
			cloned := cloning(l, nil)
			before := putNext(t, l, "400", 0, c.before, incremental)
			if c.meanwhile != nil {
				require.NoError(t, c.meanwhile(before))
			}
			after := putNext(t, l, "600", 1, c.after, incremental)
			assert.Equal(t, c.shared, cloned.Load())
			assert.Equal(t, c.shared, after.Shared)
		})
	}
}

// TestIncrementalBase checks that data is shared with the newest set of the series, and only on request.
func TestIncrementalBase(t *testing.T) {
	l := open(t, t.TempDir())
	cloning(l, nil)
	first, second := random(t, 2*unitSize), random(t, 2*unitSize)
	putNext(t, l, "600", 2, second, incremental)
	putNext(t, l, "400", 1, first, incremental) // older
	assert.Equal(t, int64(2*unitSize), putNext(t, l, "700", 3, second, incremental).Shared)
	assert.Zero(t, putNext(t, l, "800", 4, second, Options{}).Shared)
	longer := append(changed(second, 0), 1)
	assert.Equal(t, int64(unitSize), putNext(t, l, "800", 5, longer, incremental).Shared, "written again")

	s, m := checkpointOf("900", map[string][]byte{"/melt.900.0": second})
	s.Ended, s.Compress = noon.Add(6*time.Hour), LZ4
	put, err := l.Put(t.Context(), s, m, incremental)
	require.NoError(t, err)
	assert.Zero(t, put.Shared)
	assert.Equal(t, int64(unitSize), putNext(t, l, "1000", 7, second, incremental).Shared, "with 800: files of 900 are compressed")

	s, m = checkpointOf("1", map[string][]byte{"/melt.1000.0": second})
	s.Pattern, s.Ended = "other.{step}", noon.Add(8*time.Hour)
	put, err = l.Put(t.Context(), s, m, incremental)
	require.NoError(t, err)
	assert.Zero(t, put.Shared, "another series")
}

// TestIncrementalRemoved removes the set with which another one shares units.
func TestIncrementalRemoved(t *testing.T) {
	l := open(t, t.TempDir())
	cloning(l, nil)
	data := random(t, 2*unitSize)
	before := putNext(t, l, "400", 0, data, incremental)
	after := putNext(t, l, "600", 1, data, incremental)
	require.NoError(t, l.Remove(before))
	require.NoError(t, l.Verify(t.Context(), after, Options{}))
}

// TestIncrementalCutShort kills a Put of a set that shares units before each change of the directory.
func TestIncrementalCutShort(t *testing.T) {
	data := random(t, 2*blockSize+7)
	for at := 0; ; at++ {
		l := open(t, t.TempDir())
		cloning(l, nil)
		putNext(t, l, "400", 0, data, incremental)
		n := 0
		s, m := checkpointOf("600", map[string][]byte{"/melt.600.0": changed(data, unitSize)})
		s.Ended = noon.Add(time.Hour)
		_, err := l.Put(t.Context(), s, m, Options{Incremental: true, Workers: 1, step: dieAfter(at, &n)})
		if err == nil {
			require.Greater(t, at, 5)
			return
		}
		require.ErrorIs(t, err, errDead)
		putNext(t, l, "600", 1, changed(data, unitSize), incremental)
	}
}

// TestCannotShare checks that units are written if they cannot be shared, and that CanShare returns the reason.
func TestCannotShare(t *testing.T) {
	l := open(t, t.TempDir())
	cloning(l, syscall.EOPNOTSUPP)
	err := l.CanShare()
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	require.ErrorContains(t, err, l.dir)
	left, err := os.ReadDir(filepath.Join(l.dir, partialDir))
	require.NoError(t, err)
	assert.Empty(t, left)
	data := random(t, 2*unitSize)
	putNext(t, l, "400", 0, data, incremental)
	assert.Zero(t, putNext(t, l, "600", 1, data, incremental).Shared)

	assert.ErrorContains(t, OpenBucket(nil, "s3://bucket", "", "melt").CanShare(), "s3://bucket/melt is a bucket")
}

// mountXFS returns a directory of a new file system that clones.
func mountXFS(t *testing.T) string {
	if os.Getuid() != 0 {
		t.Skip("mounting an image of XFS takes root")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 512<<20))
	for _, command := range [][]string{{"mkfs.xfs", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if said, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no file system that clones can be made here: %s: %v: %s", command[0], err, said)
		}
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, 0)) })
	return dir
}

// used returns the bytes of a file system that are in use.
func used(t *testing.T, dir string) int64 {
	d, err := os.Open(dir)
	require.NoError(t, err)
	require.NoError(t, errors.Join(unix.Syncfs(int(d.Fd())), d.Close()))
	var s unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &s))
	return int64(s.Blocks-s.Bfree) * s.Bsize
}

// TestIncrementalXFS checks that shared data takes no space, and outlives the set that wrote it.
func TestIncrementalXFS(t *testing.T) {
	l := open(t, mountXFS(t))
	require.NoError(t, l.CanShare())
	data := random(t, 16*blockSize)
	before := putNext(t, l, "400", 0, data, incremental)
	begin := used(t, l.dir)
	after := putNext(t, l, "600", 1, changed(data, 7*unitSize), incremental)
	assert.Equal(t, int64(len(data)-unitSize), after.Shared)
	assert.Less(t, used(t, l.dir)-begin, int64(blockSize))
	require.NoError(t, l.Remove(before))
	assert.Less(t, used(t, l.dir)-begin, int64(blockSize), "it has become the space of the other set")
	require.NoError(t, l.Verify(t.Context(), after, Options{}))
}
