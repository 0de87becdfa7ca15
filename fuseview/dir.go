package fuseview

import (
	"bytes"
	"context"
	"encoding/binary"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A directory is an open directory. Its names are read in batches, by posixshim.Process.Getdents.
type directory struct {
	*file
	buf  [32 << 10]byte
	left []byte // rest of buf, not returned yet
}

var _ interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileFsyncdirer
	fs.FileReleasedirer
} = (*directory)(nil)

// OpendirHandle opens the directory.
func (n *node) OpendirHandle(_ context.Context, _ uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, err := n.tree.process.Open(n.pathAt(""), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, 0, n.tree.errno(err)
	}
	return &directory{file: n.add(h)}, 0, 0
}

// Readdirent returns the next name, nil at the end.
func (d *directory) Readdirent(context.Context) (*fuse.DirEntry, syscall.Errno) {
	t := d.node.tree
	if len(d.left) == 0 {
		n, err := t.process.Getdents(d.handle, d.buf[:])
		if err != nil || n == 0 {
			return nil, t.errno(err)
		}
		d.left = d.buf[:n]
	}
	// A struct dirent64 of Getdents.
	record := d.left[:binary.NativeEndian.Uint16(d.left[16:])]
	d.left = d.left[len(record):]
	name, _, _ := bytes.Cut(record[19:], []byte{0})
	mode := uint32(record[18]) << 12
	return &fuse.DirEntry{
		Name: string(name), Mode: mode, Ino: t.stable(mode, binary.NativeEndian.Uint64(record)).Ino, Off: binary.NativeEndian.Uint64(record[8:]),
	}, 0
}

// Seekdir continues behind the name that had the offset off, or at the beginning.
func (d *directory) Seekdir(_ context.Context, off uint64) syscall.Errno {
	d.left = nil
	_, err := d.node.tree.process.Seek(d.handle, int64(off), unix.SEEK_SET)
	return d.node.tree.errno(err)
}

// Fsyncdir makes names durable.
func (d *directory) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return d.Fsync(ctx, flags)
}

// Releasedir closes the directory.
func (d *directory) Releasedir(ctx context.Context, _ uint32) {
	_ = d.Release(ctx) // cannot fail: nothing was written
}
