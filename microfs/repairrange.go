package microfs

import (
	"errors"
	"fmt"
	"syscall"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
)

// ErrNotSame: the bytes given to FS.Repair do not match the checksums of the damaged bytes.
var ErrNotSame = errors.New("these are not the bytes that were written")

// Repair replaces damaged bytes of a file, which Verify has reported as a [BadRange], by data from
// another copy. Repair writes to the same hugeblocks. It first compares data with the checksums of the
// file, so the content of the file cannot change. The range begins with a unit, and ends with a unit or
// at the end of the written data.
func (fs *FS) Repair(ino Ino, off int64, data []byte) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	in := fs.tree.inodes.get(ino)
	switch {
	case in == nil || !in.isRegular():
		return syscall.ENOENT
	case !fs.g.sums:
		return fmt.Errorf("the store has no checksums to compare with: %w", syscall.ENOTSUP)
	}
	for pos := nvmf.Bytes(off); len(data) > 0; {
		n, err := fs.repairPart(in, pos, data)
		if err != nil {
			return err
		}
		pos, data = pos+n, data[n:]
	}
	return nil
}

// repairPart is Repair for the first extent of the range. It returns the number of repaired bytes.
func (fs *FS) repairPart(in *inode, pos nvmf.Bytes, data []byte) (nvmf.Bytes, error) {
	g := fs.g
	x, start := in.writtenFrom(g, pos)
	if x == nil || start != pos || pos%g.unit != 0 {
		return 0, syscall.EINVAL
	}
	at := pos - nvmf.Bytes(x.file)*g.hugeblock
	n := min(nvmf.Bytes(len(data)), x.covered-at)
	if n%g.unit != 0 && at+n != x.covered {
		return 0, syscall.EINVAL
	}
	for done := nvmf.Bytes(0); done < n; done += g.unit {
		unit := data[done:min(n, done+g.unit)]
		if crc64.Checksum(unit) != in.extents.sums.get(x.unit(g, int((at+done)/g.unit))) {
			return 0, fmt.Errorf("bytes %d to %d: %w", pos+done, pos+done+nvmf.Bytes(len(unit))-1, ErrNotSame)
		}
	}
	blocks := make([]byte, n.AlignUp(g.lba)) // the last LBA is filled up with zeros
	copy(blocks, data[:n])
	return n, fs.transfer(nvmf.Write, g.lbaOf(g.dataOffset(x.phys)+at), blocks, true)
}
