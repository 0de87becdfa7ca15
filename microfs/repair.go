package microfs

import (
	"bytes"
	"context"
	"fmt"

	"nvmecr/nvmf"
)

// Repair repairs what Check reports as Repairable or Note. It mounts seg for writing, which writes
// damaged copies again and drops files that were open without a name. It drops inodes that no path
// leads to, corrects counts that contradict the names, and writes the result as a new state
// checkpoint, so that every structure has both copies again. If a structure that a mount needs is
// lost, Repair changes nothing and fails as Mount does. It never drops a file that a path leads to.
// done lists the changes.
//
// Repair claims the partition like any other mount for writing. If the last holder was killed,
// Repair does not release the claim: the index may still have to adopt files of that process.
func Repair(ctx context.Context, dev nvmf.Device, seg Segment, opts Options) (done []string, err error) {
	logf := opts.Logf
	opts.ReadOnly, opts.repair = false, true
	opts.Logf = func(format string, args ...any) {
		done = append(done, fmt.Sprintf(format, args...))
		if logf != nil {
			logf(format, args...)
		}
	}
	killed, claimed := false, opts.Claimed
	opts.Claimed = func(last *Claim) (Late, error) {
		killed = !last.Released
		if claimed == nil {
			return LateNone, nil
		}
		return claimed(last)
	}
	fs, err := Mount(ctx, dev, seg, opts)
	if err != nil {
		return done, err
	}
	if err = fs.repairSuperblocks(); err == nil {
		err = fs.Checkpoint()
	}
	if uerr := fs.unmount(!killed); err == nil {
		err = uerr
	}
	return done, err
}

// repairSuperblocks makes both copies equal to the mounted one. A mount repairs only damaged
// copies.
func (fs *FS) repairSuperblocks() error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	got, want := make([]byte, blockSize), make([]byte, blockSize)
	fs.g.encode(want)
	for i, at := range fs.g.seg.superblocks() {
		err := fs.readBlocks(fs.g.lbaOf(at), got)
		if err != nil || bytes.Equal(got, want) {
			continue // the mount has rewritten unreadable copies: a copy that still cannot be read is left
		}
		if err := fs.transfer(nvmf.Write, fs.g.lbaOf(at), want, true); err != nil {
			return err
		}
		fs.logf("superblock copy %d: it differed from the other copy, and was rewritten", i)
	}
	return nil
}

// repair drops inodes without a path and corrects counts, so that the records of the log find a
// consistent tree. The inodes stay, like files that are open without a name, until the end of the
// log, since records may name them.
func (t *tree) repair(logf func(format string, args ...any)) {
	up := t.reachable()
	var lost []entry
	for e := range t.names.all() {
		if _, ok := up[e.dir]; !ok {
			lost = append(lost, e)
		}
	}
	for _, e := range lost {
		logf("inode %d, name %q in inode %d: no path leads to it, and it is removed", e.ino, e.name, e.dir)
		t.names.remove(e.dir, e.name)
		t.bytes -= nvmf.Bytes(entrySize + len(e.name))
	}
	for in := range t.inodes.all() {
		in.found = 0
		if in.special != nil {
			in.special.found = 0
		}
	}
	links, entries := map[Ino]uint32{RootIno: 2}, map[Ino]int{}
	for e := range t.names.all() {
		entries[e.dir]++
		links[e.ino]++
		in := t.inodes.get(e.ino)
		in.found++
		t.inodes.get(e.dir).special.found++
		if in.isDir() && e.ino != RootIno {
			links[e.ino]++
			links[e.dir]++
			in.special.parent, in.special.name = e.dir, e.name
		}
	}
	if root := t.inodes.get(RootIno); root != nil && root.special != nil {
		root.special.parent = RootIno
	}
	for in := range t.inodes.all() {
		ino := in.ino
		if in.nlink != links[ino] {
			if links[ino] == 0 {
				logf("inode %d: no path leads to it, and it is removed, with %d hugeblocks", ino, in.mapped)
			} else {
				logf("inode %d: %d links instead of %d", ino, links[ino], in.nlink)
			}
			in.nlink = links[ino]
		}
		if n := entries[ino]; in.entries() != n {
			logf("inode %d: %d names instead of %d", ino, n, in.entries())
			in.special.entries = n
		}
	}
}
