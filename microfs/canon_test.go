package microfs

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// The canonical form of a tree has all paths in order, with everything that an application can see
// except times, owners and hard links. Two trees are the same if their canonical forms are equal. The
// crash tests compare tens of thousands of canonical forms a second. snapshotFS returns a form that
// people can read.

func (m *model) canon() string { return string(m.root.canon(nil, "", m.ranges)) }

func (n *mnode) canon(b []byte, name string, ranges bool) []byte {
	b = append(append(b, name...), 0)
	switch {
	case n.dir != nil:
		b = canonHead(b, modeDir|n.mode, 0, 0, false)
		for _, name := range slices.Sorted(maps.Keys(n.dir)) {
			b = n.dir[name].canon(b, name, ranges)
		}
		return append(b, "..\x00"...)
	case n.isTarget:
		return append(append(b, "-> "...), n.target...)
	}
	b = canonHead(b, modeRegular|n.mode, int64(len(n.data)), checksum(n.data), n.closed)
	if ranges {
		b = append(b, n.placed()...)
	}
	return b
}

func canonHead(b []byte, mode uint32, size int64, crc uint64, closed bool) []byte {
	b = binary.LittleEndian.AppendUint32(b, mode)
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	b = binary.LittleEndian.AppendUint64(b, crc)
	if closed {
		return append(b, 1)
	}
	return append(b, 0)
}

// canonizer makes the canonical form of a mounted file system through its public calls.
type canonizer struct {
	fs   *FS
	out  []byte
	data []byte
	bufs [1][]byte
}

// canon returns the canonical form, which is valid until the next call.
func (c *canonizer) canon(fs *FS) ([]byte, error) {
	c.fs, c.out = fs, c.out[:0]
	err := c.dir(RootIno, "", ".")
	return c.out, err
}

func (c *canonizer) dir(parent Ino, name, path string) error {
	d, err := c.fs.Open(parent, path, unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	list, err := d.ReadDir("", 0)
	if err != nil {
		return err
	}
	a, err := d.Stat()
	if err != nil {
		return err
	}
	c.out = append(append(c.out, name...), 0)
	c.out = canonHead(c.out, a.Mode, 0, 0, false)
	for _, e := range list {
		switch e.Mode & modeType {
		case modeDir:
			err = c.dir(a.Ino, e.Name, e.Name)
		case modeSymlink:
			var target string
			target, err = c.fs.Readlink(a.Ino, e.Name)
			c.out = append(append(c.out, e.Name...), 0)
			c.out = append(append(c.out, "-> "...), target...)
		default:
			err = c.file(a.Ino, e.Name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	c.out = append(c.out, "..\x00"...)
	return d.Close()
}

func (c *canonizer) file(dir Ino, name string) error {
	f, err := c.fs.Open(dir, name, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if err := f.Advise(0, 0, unix.FADV_RANDOM); err != nil { // without read-ahead, see withoutReadAhead
		return err
	}
	a, err := f.Stat()
	if err != nil {
		return err
	}
	if int64(cap(c.data)) < a.Size {
		c.data = make([]byte, a.Size)
	}
	c.bufs[0] = c.data[:a.Size]
	placed, err := c.read(f, &a)
	if err != nil {
		return err
	}
	c.out = append(append(c.out, name...), 0)
	c.out = canonHead(c.out, a.Mode, a.Size, checksum(c.bufs[0]), a.Closed)
	c.out = append(c.out, placed...)
	return f.Close()
}

// read reads a file, and returns the part of the canonical form about its ranges.
func (c *canonizer) read(f *File, a *Attr) (placed string, err error) {
	if c.fs.g.ranges {
		places, err := readPlaced(f, c.bufs[0])
		return (&mnode{cut: a.Cut, places: places}).placed(), err
	}
	n, err := f.ReadAt(c.bufs[:], 0)
	if err == nil && int64(n) != a.Size {
		err = fmt.Errorf("read %d bytes of %d", n, a.Size)
	}
	return "", err
}
