package index

import (
	"math"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// maxQueue is how many shards wait for the client of a partition to remove them. More are found by its next Shards.
const maxQueue = 1 << 20

// A shardKey is a shard of a file that is known.
type shardKey struct{ place, cut uint32 }

// A shardSet is some shards of one file. nil is empty.
type shardSet map[shardKey]struct{}

func (s *shardSet) add(k shardKey) {
	if *s == nil {
		*s = shardSet{}
	}
	(*s)[k] = struct{}{}
}

// lose notes the shards whose ranges are about to be taken from a part of the file: no range may name them then.
func (f *file) lose(off, n int64) error {
	return f.placed(off, n, func(k shardKey) bool {
		f.shards.add(k)
		return true
	})
}

// sweep releases what nobody needs of a file that nobody has open: all shards of one without a name, of others those
// of other cuts that no range names.
func (f *file) sweep() {
	a, err := f.read.Stat()
	if err != nil {
		return // the file system is out of service; the next start finds them
	}
	if a.Nlink == 0 {
		if f.lose(0, math.MaxInt64) == nil {
			f.free(f.shards)
		}
		return
	}
	if len(f.shards) == 0 || !f.unnamed(f.shards) {
		return
	}
	for k := range f.shards {
		if k.cut == a.Cut { // it may be written to again
			f.x.stray(f.ino, k)
			delete(f.shards, k)
		}
	}
	f.free(f.shards)
}

// unnamed takes the shards out of set that ranges of the file name. It reports false if it does not know.
func (f *file) unnamed(set shardSet) bool {
	err := f.placed(0, math.MaxInt64, func(k shardKey) bool {
		delete(set, k)
		return len(set) > 0
	})
	return err == nil
}

// stray remembers a shard that goes with its file.
func (x *Index) stray(ino microfs.Ino, k shardKey) {
	set := x.strays[ino]
	set.add(k)
	x.strays[ino] = set
}

// free tells the partitions, as far as somebody has them, to remove shards.
func (f *file) free(set shardSet) {
	for k := range set {
		if c := f.x.places[k.place]; c != nil && len(c.queue) < maxQueue {
			c.queue = append(c.queue, wire.Shard{Ino: f.ino, Birth: f.birth, Cut: k.cut})
			c.unsynced = true
		}
	}
}

// releases takes shards from the queue of a client, for an answer. What has made them of no use is durable then:
// after a loss of power a range could name them again.
func (c *client) releases() []wire.Shard {
	if len(c.queue) == 0 || c.unsynced && c.x.fs.Sync() != nil {
		return nil
	}
	c.unsynced = false
	n := min(len(c.queue), wire.MaxReleases)
	list := c.queue[:n]
	if c.queue = c.queue[n:]; len(c.queue) == 0 {
		c.queue = nil
	}
	return list
}

// inspect decides about a shard that a partition has.
func (c *client) inspect(s wire.Shard) {
	x := c.x
	f, err := x.hold(s.Ino)
	if err == nil && f.birth == s.Birth {
		f.shards.add(shardKey{c.partition, s.Cut})
		_ = f.release() // it was only read
		return
	}
	if err == nil {
		_ = f.release()
	} else if !isStale(err) {
		return // the file system is out of service
	}
	c.queue = append(c.queue, s)
	c.unsynced = true
}
