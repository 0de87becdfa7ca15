package index

import (
	"errors"
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// Sweep removes unused shards from a partition, which the caller has mounted for writing. The rank of the partition
// may belong to an earlier run, and does not receive releases.
func (x *Index) Sweep(partition uint32, fs *microfs.FS) error {
	x.mu.Lock()
	err := x.sync() // after a power loss a range could refer to them again
	x.mu.Unlock()
	if err != nil {
		return err
	}
	shards, err := shardsIn(fs)
	for _, s := range shards {
		if err == nil && !x.needs(partition, s) {
			err = fs.Unlink(microfs.RootIno, s.Name())
		}
	}
	return err
}

// shardsIn lists the shards of a partition.
func shardsIn(fs *microfs.FS) (shards []wire.Shard, err error) {
	root, err := fs.OpenIno(microfs.RootIno, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer root.Close() // only read
	names, err := root.ReadDir("", 0)
	for _, n := range names {
		if s, ok := wire.ParseShard(n.Name); ok {
			shards = append(shards, s)
		}
	}
	return shards, err
}

// needs reports whether the file of a shard exists, and has the cut of the shard or refers to it. On an error it
// returns true.
func (x *Index) needs(partition uint32, s wire.Shard) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	f, err := x.hold(s.Ino)
	if err != nil {
		return !errors.Is(err, syscall.ESTALE)
	}
	defer f.release() // only read
	a, err := f.attr()
	if err != nil || f.birth != s.Birth {
		return err != nil
	}
	needed := a.Cut == s.Cut
	err = f.placed(0, math.MaxInt64, func(k shardKey, _ int64) bool {
		needed = needed || k == shardKey{partition, s.Cut}
		return !needed
	})
	return needed || err != nil
}
