package microfs

import (
	"strings"
	"time"

	"nvmecr/nvmf"
)

// File type bits of st_mode.
const (
	modeType    = 0o170000
	modeDir     = 0o040000
	modeRegular = 0o100000
	modeSymlink = 0o120000
	modePerm    = 0o7777
)

// inode is a file, directory or symbolic link. Guarded by FS.mu. There may be millions of them, so
// fields of few inodes are in structures of their own, behind pointers that are mostly nil.
type inode struct {
	ino      Ino
	mode     uint32
	nlink    uint32
	uid, gid uint32
	size     int64
	atime    int64 // nanoseconds since the epoch, as the others
	mtime    int64
	ctime    int64
	btime    int64
	cut      uint32    // see Attr.Cut
	mapped   Hugeblock // number of mapped hugeblocks: the sum of extent.count over extents
	extents  *extentMap
	ranges   *rangeMap // bytes in other partitions
	special  *special
	closed   bool // see Attr.Closed

	// Not on the media.
	written bool   // changed since the last Close record
	changed bool   // the content has changed since the inode was created or loaded
	found   uint32 // number of its names that a state checkpoint has
	open    *openInode
}

// special has the fields of directories and symbolic links.
type special struct {
	target  string // of a symbolic link
	parent  Ino    // of a directory
	entries int    // of a directory

	// Not on the media.
	name  string // of a directory, in its parent
	found uint32 // number of its entries that a state checkpoint has
}

// openInode has the fields of an open inode. It is not on the media.
type openInode struct {
	files   int32
	writers int32  // open files that may write
	long    bool   // a long write is in progress, and others wait for it (File.change)
	version uint64 // counts changes of content, for read caches
	tail    tail
}

// tail is the content of the partly covered last LBA of the last hugeblock that was written, so
// that the next append need not read it.
type tail struct {
	pos  nvmf.Bytes // in the file, a multiple of the LBA size
	data []byte     // covered bytes from pos
}

func (in *inode) isDir() bool     { return in.mode&modeType == modeDir }
func (in *inode) isSymlink() bool { return in.mode&modeType == modeSymlink }
func (in *inode) isRegular() bool { return in.mode&modeType == modeRegular }

// parent, entries and target return the fields of special, or zero.
func (in *inode) parent() Ino {
	if in.special == nil {
		return 0
	}
	return in.special.parent
}

func (in *inode) entries() int {
	if in.special == nil {
		return 0
	}
	return in.special.entries
}

func (in *inode) target() string {
	if in.special == nil {
		return ""
	}
	return in.special.target
}

// writers returns the number of open files that may write to the inode.
func (in *inode) writers() int32 {
	if in.open == nil {
		return 0
	}
	return in.open.writers
}

// opened and done count the open files of the inode.
func (in *inode) opened(writable bool) {
	if in.open == nil {
		in.open = &openInode{}
	}
	in.open.files++
	if writable {
		in.open.writers++
	}
}

func (in *inode) done(writable bool) {
	if writable {
		in.open.writers--
	}
	if in.open.files--; in.open.files == 0 {
		in.open = nil
	}
}

// dropTail forgets the tail.
func (in *inode) dropTail() {
	if in.open != nil {
		in.open.tail = tail{}
	}
}

func (in *inode) attr(g *geometry) Attr {
	a := Attr{
		Ino: in.ino, Mode: in.mode, Nlink: in.nlink, UID: in.uid, GID: in.gid, Size: in.size,
		Atime: time.Unix(0, in.atime), Mtime: time.Unix(0, in.mtime),
		Ctime: time.Unix(0, in.ctime), Btime: time.Unix(0, in.btime),
		Closed: in.closed, Birth: uint64(in.btime), Cut: in.cut,
		Blocks: int64(nvmf.Bytes(in.mapped)*g.hugeblock/512) + (in.ranges.bytes()+511)/512,
	}
	if in.isDir() {
		a.Size = int64(in.entries()) * 32
	}
	return a
}

// tree has all metadata of the file system in DRAM. Guarded by FS.mu.
type tree struct {
	g       *geometry
	inodes  inodeTable
	names   *nameTable
	nextIno Ino
	bytes   nvmf.Bytes // size of names, inodes, link targets and ranges in a state checkpoint
	ahead   created    // of the create in flight
}

func newTree(g *geometry) *tree {
	t := &tree{g: g, names: newNameTable(), nextIno: RootIno + 1}
	t.addInode(&inode{
		ino: RootIno, mode: modeDir | g.root.mode&modePerm, nlink: 2, uid: g.root.uid, gid: g.root.gid,
		atime: g.created, mtime: g.created, ctime: g.created, btime: g.created, special: &special{parent: RootIno},
	})
	return t
}

// taken reports whether an inode with the number ino exists. Numbers of new inodes are higher than all
// others, and need no search.
func (t *tree) taken(ino Ino) bool { return ino < t.nextIno && t.inodes.get(ino) != nil }

func (t *tree) addInode(in *inode) {
	t.inodes.put(in)
	t.bytes += in.stateBytes()
	t.nextIno = max(t.nextIno, in.ino+1)
}

func (t *tree) dropInode(in *inode) {
	t.inodes.drop(in.ino)
	t.bytes -= in.stateBytes()
}

// stateBytes returns the size of the inode in a state checkpoint without its extents.
func (in *inode) stateBytes() nvmf.Bytes {
	return nvmf.Bytes(inodeSize + len(in.target()) + rangeSize*in.ranges.len())
}

func (t *tree) lookup(dir Ino, name string) (*inode, bool) {
	ino, ok := t.names.get(dir, name)
	if !ok {
		return nil, false
	}
	in := t.inodes.get(ino)
	return in, in != nil
}

// addName adds a name, unless it exists.
func (t *tree) addName(dir *inode, name string, in *inode) bool {
	if !t.names.insert(entry{dir.ino, name, in.ino}) {
		return false
	}
	t.bytes += nvmf.Bytes(entrySize + len(name))
	dir.special.entries++
	if in.isDir() {
		in.special.parent, in.special.name = dir.ino, name
		dir.nlink++
	}
	return true
}

// dropName removes an existing name.
func (t *tree) dropName(dir *inode, name string, in *inode) {
	t.names.remove(dir.ino, name)
	t.bytes -= nvmf.Bytes(entrySize + len(name))
	dir.special.entries--
	if in.isDir() {
		dir.nlink--
	}
}

// path returns a path of an inode, for messages. It searches all names.
func (t *tree) path(ino Ino) string {
	if ino == RootIno {
		return "/"
	}
	for e := range t.names.all() {
		if e.ino == ino {
			return strings.TrimSuffix(t.path(e.dir), "/") + "/" + e.name
		}
	}
	return "an unlinked file"
}
