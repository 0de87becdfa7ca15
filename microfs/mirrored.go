package microfs

import "nvmecr/nvmf"

// On a device that has two copies of every block (nvmf.MirroredQueue), a unit whose checksum does
// not match is read from the other copy. The damaged copy stays damaged until Repair, which writes
// both: a read writes nothing.

// otherUnit returns a damaged unit from the other copy. It fails with a *DamageError if the other
// copy is damaged as well, or if there is none.
func (fs *FS) otherUnit(in *inode, x *extent, unit int) ([]byte, error) {
	damage := fs.damage(in, x, unit)
	q, ok := fs.q.(nvmf.MirroredQueue)
	if !ok {
		return nil, damage
	}
	g := fs.g
	at := nvmf.Bytes(unit) * g.unit
	n := min(g.unit, x.covered-at)
	buf := make([]byte, n.AlignUp(g.lba))
	err := q.ReadOther(&nvmf.Command{
		Opcode: nvmf.Read, LBA: g.lbaOf(g.dataOffset(x.phys) + at), Blocks: nvmf.LBA(nvmf.Bytes(len(buf)) / g.lba), Data: [][]byte{buf},
	})
	switch {
	case lost(err):
		return nil, err
	case err != nil || checksum(buf[:n]) != in.extents.sums.get(x.unit(g, unit)):
		return nil, damage
	}
	fs.logf("%s: bytes %d to %d are damaged on one of two targets, and were read from the other one; nvmecr verify --repair writes them again",
		fs.tree.path(in.ino), nvmf.Bytes(x.file)*g.hugeblock+at, nvmf.Bytes(x.file)*g.hugeblock+at+n-1)
	return buf[:n], nil
}

// receiveOther stores a damaged unit, from the other copy, where the commands of a readRange should
// have put it.
func (fs *FS) receiveOther(in *inode, st *readRange, unit int) error {
	good, err := fs.otherUnit(in, st.x, unit)
	if err != nil {
		return err
	}
	skip := int(nvmf.Bytes(unit)*fs.g.unit - st.start)
	for _, c := range fs.io.list[st.first:st.last] {
		for _, p := range c.Data {
			if skip < len(p) {
				good = good[copy(p[skip:], good):]
			}
			skip = max(0, skip-len(p))
		}
	}
	return nil
}
