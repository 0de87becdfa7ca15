package tree

import (
	"fmt"
	"syscall"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/tree/wire"
)

// StatFS returns the space of the whole store, the space that this process can write to, and the number of inodes of
// the tree.
func (fs *FS) StatFS() microfs.StatFS {
	var answer wire.StatFS
	if err := fs.client.Call(wire.OpStatFS, nil, &answer); err != nil {
		fs.opts.Logf("the space of the job's files: %v", err)
		answer.Hugeblock = microfs.DefaultHugeblock
	}
	switch unit := answer.Hugeblock; {
	case fs.own != nil:
		own := fs.own.StatFS()
		answer.Avail = in(unit, nvmf.Bytes(own.Free)*own.Hugeblock)
		answer.Free = max(answer.Free, answer.Avail)
	case fs.opts.Available != nil:
		answer.Avail = in(unit, fs.opts.Available(nvmf.Bytes(answer.Blocks)*unit, nvmf.Bytes(answer.Free)*unit))
	}
	return answer.StatFS
}

func in(unit, n nvmf.Bytes) microfs.Hugeblock { return microfs.Hugeblock(n / unit) }

// DataCRC reports whether data is checksummed.
func (fs *FS) DataCRC() bool { return fs.sums }

// collect removes unused shards, which the index names in each answer. It reports whether that has freed space.
func (fs *FS) collect() bool {
	before := fs.own.StatFS().Free
	return fs.client.Call(wire.OpStatFS, nil, new(wire.StatFS)) == nil && fs.own.StatFS().Free > before
}

// spaceError explains ENOSPC of a partition while others have space, as df shows.
func (fs *FS) spaceError(err error) error {
	if err != syscall.ENOSPC {
		return err
	}
	s := fs.StatFS()
	left := nvmf.Bytes(s.Free-min(s.Free, s.Avail)) * s.Hugeblock
	if left == 0 {
		return err
	}
	if fs.own == nil {
		return fmt.Errorf("what processes without a rank can write to, 1/16 of the store or 64 GiB, is full, and %v are left to ranks: "+
			"remove files that such processes have written, or take a larger store (--size, or larger namespaces): %w", left, err)
	}
	return fmt.Errorf("the partition of rank %d is full, and %v are left to others: "+
		"remove files that this rank has written, or take a larger store (--size, or larger namespaces): %w", fs.place, left, err)
}
