package tree

import (
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// A source is a shard that is open for reading.
type source struct {
	from  origin
	file  *microfs.File
	fs    *microfs.FS // mount of the shard
	since time.Time   // the mount shows the state at this time or later
}

// isOwn reports whether bytes are in this process's own partition.
func (in *inode) isOwn(from origin) bool {
	return from.kind == wire.Mapped && in.fs.own != nil && from.place == in.fs.place
}

// has returns the open shard that has the bytes, or nil. The caller holds in.mu.
func (in *inode) has(from origin) *microfs.File {
	if in.isOwn(from) && in.shard != nil && from.cut == in.cut {
		return in.shard
	}
	s := in.newest
	if s == nil || s.from != from {
		s = in.sources[from]
	}
	if s == nil || s.since.Before(in.asked) && !in.isOwn(from) {
		return nil
	}
	return s.file
}

// attach opens the shard that has bytes, in a mount that is not older than the layout. The caller holds in.mu alone.
func (in *inode) attach(from origin) error {
	fs, err := in.mountOf(from)
	if err != nil {
		return err
	}
	old := in.sources[from]
	if old != nil && old.fs == fs {
		old.since = in.asked
		return nil
	}
	shard := wire.Shard{Ino: in.ino, Birth: in.birth, Cut: from.cut}
	f, err := fs.Open(microfs.RootIno, shard.Name(), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if old != nil {
		_ = old.file.Close() // it was only read
	}
	if in.sources == nil {
		in.sources = make(map[origin]*source)
	}
	in.newest = &source{from: from, file: f, fs: fs, since: in.asked}
	in.sources[from] = in.newest
	return nil
}

// mountOf returns a mount of the partition that has bytes, which is not older than the layout.
func (in *inode) mountOf(from origin) (*microfs.FS, error) {
	if in.isOwn(from) {
		return in.fs.own, nil
	}
	return in.fs.opts.Readers.Reader(from.place, in.asked)
}

// closeSources closes the shards that are open for reading. The caller holds in.mu alone.
func (in *inode) closeSources() {
	for _, s := range in.sources {
		_ = s.file.Close() // it was only read
	}
	in.sources, in.newest = nil, nil
}
