package index

import (
	"errors"
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// Sweep removes unused shards from a partition, which the caller has mounted for writing. Its rank may be one of an earlier run, to
// which nobody can tell what the index has released since.
func (x *Index) Sweep(partition uint32, fs *microfs.FS) error {
	x.mu.Lock()
	err := x.sync() // after a loss of power a range could name them again
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
	defer root.Close() // it was only read
	names, err := root.ReadDir("", 0)
	for _, n := range names {
		if s, ok := wire.ParseShard(n.Name); ok {
			shards = append(shards, s)
		}
	}
	return shards, err
}

// needs says whether a shard is of a file that there is, and of its cut or named by a range. In doubt it is.
func (x *Index) needs(partition uint32, s wire.Shard) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	f, err := x.hold(s.Ino)
	if err != nil {
		return !errors.Is(err, syscall.ESTALE)
	}
	defer f.release() // it is only read
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
