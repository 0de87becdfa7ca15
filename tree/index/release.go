package index

import (
	"cmp"
	"math"
	"slices"

	"nvmecr/tree/wire"
)

// promptRelease is from how many bytes on, about, released shards are removed at once. Fewer wait until something is synced anyway: a sync
// for each small file would take longer than the removal.
const promptRelease = 16 << 20

// maxQueue is how many shards wait for the client of a partition to remove them. More are found by its next Shards.
const maxQueue = 1 << 20

// A shardKey is a shard of a file that is known.
type shardKey struct{ place, cut uint32 }

func (k shardKey) compare(o shardKey) int {
	return cmp.Or(cmp.Compare(k.place, o.place), cmp.Compare(k.cut, o.cut))
}

// A shardSet is some shards of one file, in order. Most have one, and there may be millions of them.
type shardSet []shardKey

func (s *shardSet) add(k shardKey) {
	if i, there := slices.BinarySearchFunc(*s, k, shardKey.compare); !there {
		*s = slices.Insert(*s, i, k)
	}
}

func (s *shardSet) remove(k shardKey) {
	if i, there := slices.BinarySearchFunc(*s, k, shardKey.compare); there {
		*s = slices.Delete(*s, i, i+1)
	}
}

// noteUnmapped notes the shards mapped in a part of the file that is about to be unmapped: they may be orphans then.
func (f *file) noteUnmapped(off, n int64) error {
	return f.placed(off, n, func(k shardKey, bytes int64) bool {
		f.shards.add(k)
		f.unmapped += bytes
		return true
	})
}

// sweep releases the orphaned shards of a file that no client has open: all shards if the file has no name, otherwise those
// of other cuts that no range refers to.
func (f *file) sweep() {
	a, err := f.read.Stat()
	if err != nil {
		return // the file system is out of service; the next start finds them
	}
	if a.Nlink == 0 {
		f.freeAll()
		return
	}
	if len(f.shards) == 0 || !f.dropNamed() {
		return
	}
	var orphans, rest shardSet
	for _, k := range f.shards {
		if k.cut == a.Cut { // it may be written to again
			orphans = append(orphans, k)
		} else {
			rest = append(rest, k)
		}
	}
	if len(orphans) > 0 {
		f.x.orphans[f.ino] = orphans
	}
	f.free(rest, f.unmapped)
}

// freeAll releases all shards. Those that no range names have hardly any bytes.
func (f *file) freeAll() {
	unnamed := f.shards
	f.shards, f.unmapped = nil, 0
	if f.noteUnmapped(0, math.MaxInt64) != nil {
		return
	}
	for _, k := range f.shards {
		unnamed.remove(k)
	}
	f.free(f.shards, f.unmapped)
	f.free(unnamed, 0)
}

// dropNamed forgets the shards that ranges of the file name. It reports false if it does not know.
func (f *file) dropNamed() bool {
	err := f.placed(0, math.MaxInt64, func(k shardKey, _ int64) bool {
		f.shards.remove(k)
		return len(f.shards) > 0
	})
	return err == nil
}

// free tells the clients that have the partitions to remove shards, which have so many bytes, or more.
func (f *file) free(set shardSet, bytes int64) {
	for _, k := range set {
		if c := f.x.places[k.place]; c != nil {
			c.release(wire.Shard{Ino: f.ino, Birth: f.birth, Cut: k.cut}, bytes)
		}
	}
}

// release tells the client to remove a shard of so many bytes.
func (c *client) release(s wire.Shard, bytes int64) {
	if len(c.queue) < maxQueue {
		c.queue, c.queued = append(c.queue, s), c.queued+min(bytes, promptRelease)
		c.x.unsynced = true
	}
}

// hurry has the next answer tell what waits to be released.
func (c *client) hurry() {
	if len(c.queue) > 0 {
		c.queued = promptRelease
	}
}

// releases takes shards from the queue of a client, for an answer. What has made them of no use is durable then:
// after a loss of power a range could name them again. Few small ones wait until something is synced, or until the client
// asks how much space there is, or takes leave.
func (c *client) releases() []wire.Shard {
	x := c.x
	if len(c.queue) == 0 {
		return nil
	}
	if x.unsynced && (c.queued < promptRelease && len(c.queue) < wire.MaxReleases || x.sync() != nil) {
		return nil
	}
	n := min(len(c.queue), wire.MaxReleases)
	list := c.queue[:n]
	if c.queue = c.queue[n:]; len(c.queue) == 0 {
		c.queue, c.queued = nil, 0
	}
	return list
}

// inspect decides about a shard that a partition has.
func (c *client) inspect(s wire.Shard) error {
	x := c.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.ended {
		return errClosed
	}
	f, err := x.hold(s.Ino)
	if err != nil && !isStale(err) {
		return err
	}
	if err == nil {
		defer f.release() // it is only read
	}
	if err == nil && f.birth == s.Birth {
		f.shards.add(shardKey{c.partition, s.Cut})
	} else {
		c.release(s, promptRelease)
	}
	return nil
}
