package index

import (
	"cmp"
	"math"
	"net"
	"slices"

	"nvmecr/tree/wire"
)

// promptRelease is the approximate number of bytes from which on released shards are removed at once. Fewer bytes
// wait for the next sync: a sync for each small file would take longer than its removal.
const promptRelease = 16 << 20

// maxQueue is the maximum number of shards queued for removal by a client. Further ones are found by its next Shards
// request.
const maxQueue = 1 << 20

// A shardKey identifies a shard of a given file.
type shardKey struct{ place, cut uint32 }

func (k shardKey) compare(o shardKey) int {
	return cmp.Or(cmp.Compare(k.place, o.place), cmp.Compare(k.cut, o.cut))
}

// A shardSet is a sorted set of shards of one file. Most sets have one element, and there may be millions of sets.
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

// noteUnmapped records the shards mapped in a range that is about to be unmapped: they may become orphans.
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
		if k.cut == a.Cut { // its rank may write to it again
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

// freeAll releases all shards. Shards that no range refers to have hardly any bytes, so they count as empty.
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

// dropNamed removes, from the set of unmapped shards, those that ranges of the file still refer to. It returns false
// on an error.
func (f *file) dropNamed() bool {
	err := f.placed(0, math.MaxInt64, func(k shardKey, _ int64) bool {
		f.shards.remove(k)
		return len(f.shards) > 0
	})
	return err == nil
}

// free requests the clients of the partitions to remove shards. bytes is their approximate size.
func (f *file) free(set shardSet, bytes int64) {
	for _, k := range set {
		if c := f.x.places[k.place]; c != nil {
			c.release(wire.Shard{Ino: f.ino, Birth: f.birth, Cut: k.cut}, bytes)
		}
	}
}

// release requests the client to remove a shard of about so many bytes.
func (c *client) release(s wire.Shard, bytes int64) {
	if len(c.queue) < maxQueue {
		c.queue, c.queued = append(c.queue, s), c.queued+min(bytes, promptRelease)
		c.x.unsynced = true
	}
}

// sendReleases makes the next answer include queued releases.
func (c *client) sendReleases() {
	if len(c.queue) > 0 {
		c.queued = promptRelease
	}
}

// releases takes shards from the queue of a client for an answer. It first makes the changes durable that made these
// shards unused: after a power loss a range could refer to them again. A few small shards wait for another sync, or
// until the client requests the free space or says Goodbye.
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

// inspect decides whether a shard that a partition has is unused.
func (c *client) inspect(s wire.Shard) error {
	x := c.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.ended {
		return net.ErrClosed
	}
	f, err := x.hold(s.Ino)
	if err != nil && !isStale(err) {
		return err
	}
	if err == nil {
		defer f.release() // only read
	}
	if err == nil && f.birth == s.Birth {
		f.shards.add(shardKey{c.partition, s.Cut})
	} else {
		c.release(s, promptRelease)
	}
	return nil
}
