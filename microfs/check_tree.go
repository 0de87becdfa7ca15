package microfs

import (
	"fmt"
	"slices"
	"strings"

	"nvmecr/nvmf"
)

// treeCheck has the facts of a tree that are needed to check the tree. The tree may be so damaged
// that no mount accepts it.
type treeCheck struct {
	*checker
	t       *tree
	up      map[Ino]entry  // a name of each inode that can be reached
	links   map[Ino]uint32 // names of each inode
	entries map[Ino]int    // names in each directory
	subdirs map[Ino]uint32 // names of directories in each directory
}

// checkTree checks the whole tree and counts its files.
func (c *checker) checkTree() {
	k := &treeCheck{checker: c, t: c.tree, up: map[Ino]entry{}, links: map[Ino]uint32{}, entries: map[Ino]int{}, subdirs: map[Ino]uint32{}}
	k.up = k.t.reachable()
	k.countNames()
	k.root()
	inos := make([]Ino, 0, k.t.inodes.count)
	for in := range k.t.inodes.all() {
		inos = append(inos, in.ino)
		k.inode(in)
	}
	k.space(inos)
}

// reachable returns a name of every inode that a path leads to from the root. The root is in the
// map, without a name.
func (t *tree) reachable() map[Ino]entry {
	up := make(map[Ino]entry, t.inodes.count)
	if t.inodes.get(RootIno) == nil {
		return up
	}
	up[RootIno] = entry{}
	for todo := []Ino{RootIno}; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for e := range t.names.from(dir, "") {
			if e.dir != dir {
				break
			}
			in := t.inodes.get(e.ino)
			if _, seen := up[e.ino]; in != nil && !seen {
				up[e.ino] = e
				if in.isDir() {
					todo = append(todo, e.ino)
				}
			}
		}
	}
	return up
}

// path returns a path of an inode, or "" if no path leads to it.
func (k *treeCheck) path(ino Ino) string {
	if ino == RootIno {
		return "/"
	}
	var names []string
	for ino != RootIno {
		e, ok := k.up[ino]
		if !ok {
			return ""
		}
		names = append(names, e.name)
		ino = e.dir
	}
	slices.Reverse(names)
	return "/" + strings.Join(names, "/")
}

// bad adds a finding about an inode.
func (k *treeCheck) bad(ino Ino, kind FindingKind, s Severity, what, remedy string) {
	k.r.add(Finding{
		Kind: kind, Severity: s, Where: fmt.Sprintf("inode %d", ino), Offset: -1,
		Ino: ino, Path: k.path(ino), What: what, Remedy: remedy,
	})
}

// countNames checks every name.
func (k *treeCheck) countNames() {
	for e := range k.t.names.all() {
		d, in := k.t.inodes.get(e.dir), k.t.inodes.get(e.ino)
		if d == nil || !d.isDir() || in == nil || !goodName(e.name) {
			k.bad(e.ino, FoundName, Loss, fmt.Sprintf("name %q in inode %d does not name a file in a directory", e.name, e.dir), "")
			continue
		}
		k.links[e.ino]++
		k.entries[e.dir]++
		if !in.isDir() {
			continue
		}
		k.subdirs[e.dir]++
		switch {
		case e.ino == RootIno:
			k.bad(e.ino, FoundDirectory, Loss, fmt.Sprintf("it is also in directory inode %d, as %q", e.dir, e.name), "")
		case k.links[e.ino] == 2:
			k.bad(e.ino, FoundDirectory, Loss, "it has more than one name", "")
		case in.parent() != e.dir:
			k.bad(e.ino, FoundDirectory, Repairable, fmt.Sprintf("its \"..\" is inode %d, but it is in inode %d", in.parent(), e.dir), "")
		}
		continue
	}
}

func (k *treeCheck) root() {
	root := k.t.inodes.get(RootIno)
	switch {
	case root == nil || !root.isDir():
		k.bad(RootIno, FoundDirectory, Loss, "there is no root directory", "")
	case root.parent() != RootIno:
		k.bad(RootIno, FoundDirectory, Repairable, fmt.Sprintf("\"..\" of the root is inode %d", root.parent()), "")
	}
	if k.t.nextIno >= maxIno {
		k.bad(k.t.nextIno, FoundInode, Loss, "inode numbers are used up", "")
	}
}

// inode checks one inode of any type.
func (k *treeCheck) inode(in *inode) {
	k.tally(in)
	if _, ok := k.up[in.ino]; !ok && in.nlink > 0 {
		k.bad(in.ino, FoundUnreachable, Repairable, "no path leads to it from the root", "its blocks can be freed")
	}
	want := k.links[in.ino]
	if in.isDir() && (want > 0 || in.ino == RootIno) {
		want = 2 + k.subdirs[in.ino]
	}
	if in.nlink != want {
		k.bad(in.ino, FoundCount, Repairable, fmt.Sprintf("its link count is %d, but there are %d", in.nlink, want), "")
	}
	if in.entries() != k.entries[in.ino] {
		k.bad(in.ino, FoundCount, Repairable, fmt.Sprintf("its entry count is %d, but there are %d", in.entries(), k.entries[in.ino]), "")
	}
	switch kind := in.mode & modeType; {
	case in.ino == 0 || in.ino >= maxIno || in.ino >= k.t.nextIno:
		k.bad(in.ino, FoundInode, Loss, fmt.Sprintf("its number is not below the next free one, %d", k.t.nextIno), "")
	case kind != modeRegular && kind != modeDir && kind != modeSymlink:
		k.bad(in.ino, FoundInode, Loss, fmt.Sprintf("mode %#o has no valid file type", in.mode), "")
	case kind == modeSymlink && in.target() == "":
		k.bad(in.ino, FoundInode, Loss, "a symbolic link to nothing", "")
	case kind != modeRegular && (in.extents.len() > 0 || in.ranges.len() > 0):
		k.bad(in.ino, FoundExtent, Loss, "it has data but is no file", "")
	case in.size < 0 || uint64(in.size) > k.g.maxFileSize():
		k.bad(in.ino, FoundInode, Loss, fmt.Sprintf("size %d is not possible", in.size), "")
	default:
		k.extents(in)
		k.ranges(in)
	}
}

// ranges checks the ranges of a file in other partitions.
func (k *treeCheck) ranges(in *inode) {
	var last int64
	for r := range in.ranges.all() {
		if r.Off < last || !within([]Range{r}, in.size) {
			k.bad(in.ino, FoundRange, Loss, fmt.Sprintf("range of %d bytes at %d overlaps the one before or ends behind the file, at %d", r.Len, r.Off, in.size), "")
		}
		last = r.End()
	}
}

func (k *treeCheck) tally(in *inode) {
	switch {
	case in.isDir() && in.ino != RootIno:
		k.r.Directories++
	case in.isSymlink():
		k.r.Links++
	case in.isRegular():
		k.r.Files++
	}
	k.r.Extents += in.extents.len()
	k.r.Mapped += nvmf.Bytes(in.mapped) * k.g.hugeblock
	for x := range in.extents.all() {
		k.r.Covered += x.covered
	}
	k.r.Ranges += in.ranges.len()
	k.r.Placed += nvmf.Bytes(in.ranges.bytes())
}

// extents checks the mapping of a file.
func (k *treeCheck) extents(in *inode) {
	g := k.g
	var at, sum Hugeblock
	for x := range in.extents.all() {
		full := nvmf.Bytes(x.count) * g.hugeblock
		what := ""
		switch {
		case x.count == 0 || x.phys >= g.usable || x.count > g.usable-x.phys:
			what = "is not in the data area"
		case x.file < at:
			what = "overlaps the one before"
		case g.reserves && x.reserved():
		case x.covered > full || x.covered+g.hugeblock <= full:
			what = fmt.Sprintf("has %d covered bytes", x.covered)
		case nvmf.Bytes(x.file)*g.hugeblock+x.covered > nvmf.Bytes(in.size):
			what = fmt.Sprintf("goes beyond the size of the file, %d", in.size)
		}
		if what != "" {
			k.bad(in.ino, FoundExtent, Loss, fmt.Sprintf("extent of %d hugeblocks at %d of the file, %d of the data area, %s", x.count, x.file, x.phys, what), "")
		}
		at = x.end()
		sum += x.count
	}
	if sum != in.mapped {
		k.bad(in.ino, FoundCount, Repairable, fmt.Sprintf("%d hugeblocks are mapped, but its count is %d", sum, in.mapped), "")
	}
}

// space checks that no hugeblock belongs to two files, and that a mount finds all unmapped hugeblocks
// free.
func (k *treeCheck) space(inos []Ino) {
	type owned struct {
		run
		ino Ino
	}
	var used []owned
	for _, ino := range inos {
		for x := range k.t.inodes.get(ino).extents.all() {
			used = append(used, owned{run{x.phys, x.count}, ino})
		}
	}
	slices.SortStableFunc(used, func(a, b owned) int { return int(int64(a.start) - int64(b.start)) })
	var last owned
	total, shared := Hugeblock(0), false
	for _, u := range used {
		total += u.count
		if end := last.start + last.count; last.count > 0 && u.start < end {
			shared = true
			k.bad(u.ino, FoundShared, Loss, fmt.Sprintf("hugeblock %d of the data area belongs to inode %d (%s), too", u.start, last.ino, k.path(last.ino)), "")
			if u.start+u.count < end {
				continue
			}
		}
		last = u
	}
	if shared {
		return
	}
	k.pool = pool{}
	if err := k.fillPool(); err != nil || k.pool.free+total != k.g.usable {
		k.found(FoundPool, Loss, "free hugeblocks", -1,
			fmt.Sprintf("%d used and %d free are not the %d there are (%v)", total, k.pool.free, k.g.usable, err), "")
	}
}
