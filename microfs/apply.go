package microfs

import (
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// apply changes the tree by a record. Live operations and replay both use it, so after a crash the
// application finds what it saw before. Hugeblocks that become free go to free, which is nil in
// replay. A record that contradicts the tree is ErrRecord.
func (t *tree) apply(r *oplog.Record, free func(run)) error {
	switch r.Type {
	case oplog.Create:
		return t.applyCreate(r)
	case oplog.Link:
		return t.applyLink(r)
	case oplog.Unlink:
		return t.applyUnlink(r, free)
	case oplog.Rename:
		return t.applyRename(r, free)
	}
	in := t.inodes.get(Ino(r.Ino))
	if in == nil {
		return fmt.Errorf("record of type %d names inode %d, which does not exist: %w", r.Type, r.Ino, oplog.ErrRecord)
	}
	if changesData(r.Type) && !in.isRegular() {
		return fmt.Errorf("inode %d is written to but no file: %w", r.Ino, oplog.ErrRecord)
	}
	if changesData(r.Type) {
		in.change()
	}
	before := in.ranges.len()
	err := in.apply(t.g, r, free)
	t.bytes += rangeSize * nvmf.Bytes(in.ranges.len()-before)
	return err
}

// apply is tree.apply for a record that concerns one inode only.
func (in *inode) apply(g *geometry, r *oplog.Record, free func(run)) error {
	switch r.Type {
	case oplog.Write:
		return in.applyWrite(g, r, free)
	case oplog.Truncate:
		return in.applyTruncate(g, r, free)
	case oplog.Allocate:
		return in.applyAllocate(g, r)
	case oplog.Punch:
		return in.applyPunch(g, r, free)
	case oplog.MapRange:
		return in.applyMapRange(g, r, free)
	case oplog.DropRange:
		return in.applyDropRange(g, r)
	case oplog.SetAttr:
		in.applySetAttr(r)
	case oplog.Close:
		in.closed = true
	default:
		return fmt.Errorf("record of unknown type %d: %w", r.Type, oplog.ErrRecord)
	}
	return nil
}

// change notes that the content has changed, so that cached data of readers is invalid.
func (in *inode) change() {
	in.changed = true
	if in.open != nil {
		in.open.version++
	}
}

// changesData reports whether records of a type change the bytes or the size of a file.
func changesData(t oplog.Type) bool {
	switch t {
	case oplog.Write, oplog.Truncate, oplog.Allocate, oplog.Punch, oplog.MapRange, oplog.DropRange:
		return true
	}
	return false
}

// forget frees an inode without a name, and its hugeblocks. It needs no record: a file without a
// name does not survive a crash, even if it is open. Replay drops all such files at its end.
func (t *tree) forget(in *inode, free func(run)) {
	if free != nil {
		for x := range in.extents.all() {
			free(run{x.phys, x.count})
		}
	}
	in.extents.cutSums(0)
	in.extents, in.mapped = nil, 0
	in.dropTail()
	t.dropInode(in)
}

// dir returns the directory with the inode number ino.
func (t *tree) dir(ino uint64) (*inode, error) {
	d := t.inodes.get(Ino(ino))
	if d == nil || !d.isDir() || d.nlink == 0 {
		return nil, fmt.Errorf("inode %d is not a directory: %w", ino, oplog.ErrRecord)
	}
	return d, nil
}

func (t *tree) applyCreate(r *oplog.Record) error {
	d, err := t.dir(r.Parent)
	if err != nil {
		return err
	}
	name := string(r.Name)
	if !goodName(name) || !goodInode(r) {
		return fmt.Errorf("inode %d, name %q: cannot be created: %w", r.Ino, name, oplog.ErrRecord)
	}
	in := &inode{
		ino: Ino(r.Ino), mode: r.Mode, nlink: 1, uid: r.UID, gid: r.GID,
		atime: r.Time, mtime: r.Time, ctime: r.Time, btime: r.Time, closed: r.Mode&modeType != modeRegular,
	}
	switch {
	case in.isDir():
		in.nlink, in.special = 2, &special{}
	case in.isSymlink():
		in.size, in.special = int64(len(r.NewName)), &special{target: string(r.NewName)}
	}
	if t.taken(in.ino) || !t.addName(d, name, in) {
		return fmt.Errorf("inode %d, name %q: created but there already: %w", r.Ino, name, oplog.ErrRecord)
	}
	t.addInode(in)
	d.touch(r.Time)
	return nil
}

// created is the information to undo a create.
type created struct {
	dir, in      *inode
	mtime, ctime int64 // of dir, before the create
	nextIno      Ino
}

// createAhead applies a Create record while its group is in flight, to save time. It returns what
// undo needs, or nil if it did nothing. The caller holds FS.mu until the group has settled or the
// create is undone, so no other call sees the tree in between.
func (t *tree) createAhead(r *oplog.Record) *created {
	if r.Type != oplog.Create {
		return nil
	}
	d, err := t.dir(r.Parent)
	if err != nil {
		return nil
	}
	t.ahead = created{dir: d, mtime: d.mtime, ctime: d.ctime, nextIno: t.nextIno}
	if t.applyCreate(r) != nil {
		return nil // the caller applies the record again, and gets the error
	}
	t.ahead.in = t.inodes.get(Ino(r.Ino))
	return &t.ahead
}

// undo reverts createAhead for r.
func (t *tree) undo(c *created, r *oplog.Record) {
	t.dropName(c.dir, string(r.Name), c.in)
	t.dropInode(c.in)
	c.dir.mtime, c.dir.ctime, t.nextIno = c.mtime, c.ctime, c.nextIno
}

// goodInode reports whether the inode of a Create record is valid.
func goodInode(r *oplog.Record) bool {
	if r.Ino == 0 || r.Ino >= maxIno {
		return false
	}
	switch r.Mode & modeType {
	case modeRegular, modeDir:
		return len(r.NewName) == 0
	case modeSymlink:
		return len(r.NewName) > 0 && len(r.NewName) <= maxTarget
	}
	return false
}

func (in *inode) touch(now int64) { in.mtime, in.ctime = now, now }

func (t *tree) applyLink(r *oplog.Record) error {
	d, err := t.dir(r.Parent)
	if err != nil {
		return err
	}
	in, name := t.inodes.get(Ino(r.Ino)), string(r.Name)
	if in == nil || in.isDir() || in.nlink == 0 || !goodName(name) || !t.addName(d, name, in) {
		return fmt.Errorf("inode %d, name %q: cannot be linked: %w", r.Ino, name, oplog.ErrRecord)
	}
	in.nlink++
	in.ctime = r.Time
	d.touch(r.Time)
	return nil
}

func (t *tree) applyUnlink(r *oplog.Record, free func(run)) error {
	d, err := t.dir(r.Parent)
	if err != nil {
		return err
	}
	in, ok := t.lookup(d.ino, string(r.Name))
	if !ok || uint64(in.ino) != r.Ino || in.entries() > 0 {
		return fmt.Errorf("name %q in directory %d is not inode %d: %w", r.Name, r.Parent, r.Ino, oplog.ErrRecord)
	}
	t.dropName(d, string(r.Name), in)
	d.touch(r.Time)
	t.dropLink(in, r.Time, free)
	return nil
}

// dropLink removes one name from an inode. An inode without a name is freed unless it is open.
func (t *tree) dropLink(in *inode, now int64, free func(run)) {
	in.ctime = now
	if in.isDir() {
		in.nlink = 0
	} else {
		in.nlink--
	}
	if in.nlink == 0 && in.open == nil && free != nil {
		t.forget(in, free)
	}
}

func (t *tree) applyRename(r *oplog.Record, free func(run)) error {
	from, err := t.dir(r.Parent)
	if err != nil {
		return err
	}
	to, err := t.dir(r.NewParent)
	if err != nil {
		return err
	}
	name, newName := string(r.Name), string(r.NewName)
	in, ok := t.lookup(from.ino, name)
	if !ok || uint64(in.ino) != r.Ino || !goodName(newName) {
		return fmt.Errorf("name %q in directory %d is not inode %d: %w", r.Name, r.Parent, r.Ino, oplog.ErrRecord)
	}
	old, exists := t.lookup(to.ino, newName)
	if r.Flags&oplog.RenameExchange != 0 && !exists {
		return fmt.Errorf("name %q in directory %d does not exist: %w", newName, r.NewParent, oplog.ErrRecord)
	}
	exchange := r.Flags&oplog.RenameExchange != 0
	if t.isAncestor(in, to) || (exists && (in == old || !exchange && (old.entries() > 0 || old.isDir() != in.isDir()))) ||
		(exchange && t.isAncestor(old, from)) {
		return fmt.Errorf("inode %d cannot become %q in directory %d: %w", r.Ino, newName, r.NewParent, oplog.ErrRecord)
	}
	t.dropName(from, name, in)
	if exists {
		t.dropName(to, newName, old)
	}
	t.addName(to, newName, in)
	if r.Flags&oplog.RenameExchange != 0 {
		t.addName(from, name, old)
		old.ctime = r.Time
	} else if exists {
		t.dropLink(old, r.Time, free)
	}
	in.ctime = r.Time
	from.touch(r.Time)
	to.touch(r.Time)
	return nil
}

func (in *inode) applySetAttr(r *oplog.Record) {
	if r.Mask&oplog.SetMode != 0 {
		in.mode = in.mode&modeType | r.Mode&modePerm
	}
	if r.Mask&oplog.SetUID != 0 {
		in.uid = r.UID
	}
	if r.Mask&oplog.SetGID != 0 {
		in.gid = r.GID
	}
	if r.Mask&oplog.SetAtime != 0 {
		in.atime = r.Atime
	}
	if r.Mask&oplog.SetMtime != 0 {
		in.mtime = r.Mtime
	}
	in.ctime = r.Time
}
