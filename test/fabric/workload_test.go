package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// work runs operations on a file system and on a model, which changes by acknowledged operations only.
type work struct {
	fs    *microfs.FS
	files map[string]*microfs.File
	model map[string]*content
}

// content is the model's state of a path.
type content struct {
	dir  bool
	link string
	data []byte
}

func newWork(fs *microfs.FS) *work {
	return &work{fs: fs, files: map[string]*microfs.File{}, model: map[string]*content{}}
}

// step is one operation: it returns the result of the file system, and has changed the model accordingly.
type step struct {
	name string
	do   func(w *work) error
}

func mkdir(path string) step {
	return step{"mkdir " + path, func(w *work) error {
		err := w.fs.Mkdir(microfs.RootIno, path, 0o755)
		if err == nil {
			w.model[path] = &content{dir: true}
		}
		return err
	}}
}

func create(path string) step {
	return step{"create " + path, func(w *work) error {
		if dir, _, ok := strings.Cut(path, "/"); ok && w.model[dir] == nil {
			return errSkipped
		}
		f, err := w.fs.Open(microfs.RootIno, path, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o644)
		if err == nil {
			w.files[path], w.model[path] = f, &content{}
		}
		return err
	}}
}

var errSkipped = errors.New("there is no such file")

// with calls f for an open file.
func (w *work) with(path string, f func(*microfs.File, *content) error) error {
	if w.files[path] == nil {
		return errSkipped
	}
	return f(w.files[path], w.model[path])
}

func (c *content) write(b []byte, off int) {
	if n := off + len(b); n > len(c.data) {
		c.data = append(c.data, make([]byte, n-len(c.data))...)
	}
	copy(c.data[off:], b)
}

func write(path string, off int, b []byte) step {
	return step{fmt.Sprintf("write %s %d+%d", path, off, len(b)), func(w *work) error {
		return w.with(path, func(f *microfs.File, c *content) error {
			n, err := f.WriteAt([][]byte{b}, int64(off))
			if n > 0 {
				c.write(b[:n], off)
			}
			return err
		})
	}}
}

func appendTo(path string, b []byte) step {
	return step{fmt.Sprintf("append %s %d", path, len(b)), func(w *work) error {
		return w.with(path, func(f *microfs.File, c *content) error {
			n, _, err := f.Append([][]byte{b})
			if n > 0 {
				c.write(b[:n], len(c.data))
			}
			return err
		})
	}}
}

func truncate(path string, n int) step {
	return step{fmt.Sprintf("truncate %s %d", path, n), func(w *work) error {
		return w.with(path, func(f *microfs.File, c *content) error {
			err := f.Truncate(int64(n))
			if err == nil {
				c.data = c.data[:min(n, len(c.data))]
				c.data = append(c.data, make([]byte, n-len(c.data))...)
			}
			return err
		})
	}}
}

func fsync(path string) step {
	return step{"fsync " + path, func(w *work) error {
		return w.with(path, func(f *microfs.File, _ *content) error { return f.Sync() })
	}}
}

func closing(path string) step {
	return step{"close " + path, func(w *work) error {
		return w.with(path, func(f *microfs.File, _ *content) error {
			delete(w.files, path)
			return f.Close()
		})
	}}
}

func unlink(path string) step {
	return step{"unlink " + path, func(w *work) error {
		if w.model[path] == nil {
			return errSkipped
		}
		err := w.fs.Unlink(microfs.RootIno, path)
		if err == nil {
			delete(w.model, path)
		}
		return err
	}}
}

func rmdir(path string) step {
	return step{"rmdir " + path, func(w *work) error {
		err := w.fs.Rmdir(microfs.RootIno, path)
		if err == nil {
			delete(w.model, path)
		}
		return err
	}}
}

func rename(from, to string) step {
	return step{"rename " + from + " " + to, func(w *work) error {
		if w.model[from] == nil {
			return errSkipped
		}
		err := w.fs.Rename(microfs.RootIno, from, microfs.RootIno, to, 0)
		if err == nil {
			w.model[to] = w.model[from]
			delete(w.model, from)
		}
		return err
	}}
}

// symlink creates a link with a long target, which fills a page of the log.
func symlink(path string) step {
	return step{"symlink " + path, func(w *work) error {
		target := strings.Repeat("x", 3000) + path
		err := w.fs.Symlink(target, microfs.RootIno, path)
		if err == nil {
			w.model[path] = &content{link: target}
		}
		return err
	}}
}

func checkpoint() step {
	return step{"checkpoint", func(w *work) error { return w.fs.Checkpoint() }}
}

var errWrong = errors.New("wrong bytes were read")

// readback reads a whole file in pieces that are not aligned to its units.
func readback(path string) step {
	return step{"read " + path, func(w *work) error {
		c := w.model[path]
		if c == nil {
			return errSkipped
		}
		f, err := w.fs.Open(microfs.RootIno, path, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return compare(f, c.data)
	}}
}

func compare(f *microfs.File, want []byte) error {
	buf := make([]byte, 100_000)
	for off := 0; ; {
		n, err := f.ReadAt([][]byte{buf}, int64(off))
		if off+n > len(want) || !bytes.Equal(buf[:n], want[off:off+n]) {
			return fmt.Errorf("at %d: %w", off, errWrong)
		}
		if err != nil {
			return err
		}
		off += n
		if n == 0 && off < len(want) {
			return fmt.Errorf("%d bytes of %d: %w", off, len(want), errWrong)
		}
		if n == 0 {
			return nil
		}
	}
}

// pattern returns n bytes that occur nowhere else.
func pattern(n int, seed uint32) []byte {
	b := make([]byte, n)
	x := seed*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// workload has all kinds of operations of checkpointing applications and shells, small and large.
func workload() []step {
	steps := []step{
		mkdir("d"),
		create("d/small"), write("d/small", 0, pattern(100, 1)), appendTo("d/small", pattern(5000, 2)),
		create("big"), write("big", 0, pattern(300_000, 3)), write("big", 70_001, pattern(40_000, 4)),
		fsync("big"),
		appendTo("big", pattern(33_333, 5)), readback("big"),
		create("d/new"), write("d/new", 0, pattern(9_000, 6)), fsync("d/new"), closing("d/new"),
		rename("d/new", "d/small"),
		truncate("big", 200_001), truncate("big", 250_000), write("big", 240_000, pattern(70_000, 7)),
		checkpoint(),
		create("gone"), write("gone", 0, pattern(66_000, 8)), closing("gone"), unlink("gone"),
	}
	for i := range 6 {
		steps = append(steps, appendTo("big", pattern(1_000, uint32(10+i))))
	}
	return append(steps,
		write("big", 0, pattern(4096, 20)), fsync("big"), closing("big"), readback("big"), readback("d/small"),
		create("last"), write("last", 12345, pattern(20_000, 21)), appendTo("last", pattern(3, 22)),
	)
}

// run executes all steps; none may fail.
func (w *work) run(t testing.TB, what string, steps []step) {
	for _, s := range steps {
		require.NoError(t, s.do(w), "%s: %s", what, s.name)
	}
}

// match compares a file system with the model.
func (w *work) match(t testing.TB, fs *microfs.FS, what string) {
	t.Helper()
	require.Equal(t, slices.Sorted(maps.Keys(w.model)), names(t, fs, ""), what)
	for path, c := range w.model {
		if c.dir {
			continue
		}
		if c.link != "" {
			target, err := fs.Readlink(microfs.RootIno, path)
			require.NoError(t, err, "%s: %s", what, path)
			require.Equal(t, c.link, target, "%s: %s", what, path)
			continue
		}
		f, err := fs.Open(microfs.RootIno, path, unix.O_RDONLY, 0)
		require.NoError(t, err, "%s: %s", what, path)
		require.NoError(t, compare(f, c.data), "%s: %s", what, path)
		require.NoError(t, f.Close())
	}
}

// names lists all paths below dir, sorted.
func names(t testing.TB, fs *microfs.FS, dir string) (list []string) {
	d, err := fs.Open(microfs.RootIno, "./"+dir, unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	entries, err := d.ReadDir("", 0)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	for _, e := range entries {
		path := strings.TrimPrefix(dir+"/"+e.Name, "/")
		list = append(list, path)
		if e.Mode&unix.S_IFMT == unix.S_IFDIR {
			list = append(list, names(t, fs, path)...)
		}
	}
	slices.Sort(list)
	return list
}
