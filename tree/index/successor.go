package index

import (
	"slices"
	"syscall"

	"nvmecr/tree/wire"
)

// This index may be the successor of one that was killed. Processes that had files open there reconnect with their next call, which may be
// late. At its start the index has adopted their unpublished data, as if they were dead. The processes lose
// nothing by that: an adoption maps data to holes only, and a later publication replaces the mapping.

func (r *reopenCall) run(c *client) (wire.Body, error) {
	a, err := c.x.inode(r.Ino)
	switch {
	case err != nil:
		return nil, err
	case a.Birth != r.Birth:
		return nil, syscall.ESTALE
	case r.Opens == 0 || r.Opens > maxFiles || r.Writers > r.Opens || c.files[r.Ino] != nil:
		return nil, syscall.EINVAL
	}
	for i := range r.Opens {
		if _, err := c.add(r.Ino, i < r.Writers); err != nil {
			return nil, err
		}
	}
	if r.Writers == 0 {
		return nil, nil
	}
	f := c.files[r.Ino].file
	f.reopened = true
	c.resume(&r.Reopen)
	if a.Closed {
		return nil, nil
	}
	return nil, f.write.MapRanges(nil, 0, a.Mtime) // it was written to; the last close will mark it complete
}

// resume records that the client is alive and still writes the file.
func (c *client) resume(r *wire.Reopen) {
	set := slices.DeleteFunc(c.x.unfinished[r.Ino], func(k shardKey) bool { return k.place == c.partition })
	if c.x.unfinished[r.Ino] = set; len(set) == 0 {
		delete(c.x.unfinished, r.Ino)
	}
}

// noteUnfinished records a shard that its process had open, unless the process has reconnected.
func (x *Index) noteUnfinished(partition uint32, s wire.Shard) {
	if c := x.places[partition]; c != nil && c.files[s.Ino] != nil && c.files[s.Ino].writers > 0 {
		return
	}
	set := x.unfinished[s.Ino]
	set.add(shardKey{partition, s.Cut})
	x.unfinished[s.Ino] = set
}

// pendingSearch returns, as an error, an adoption that determines which processes died with the previous index; nil after
// all have ended.
func (x *Index) pendingSearch() error {
	for a := range x.adoptions {
		if a.files == nil {
			return a
		}
	}
	return nil
}

// hasUnfinished reports whether a writer of the file may not have reconnected: the writer is dead, or has made no
// call yet.
func (x *Index) hasUnfinished(f *file) bool {
	a, err := f.read.Stat()
	return x.searchFailed || x.pendingSearch() != nil || slices.ContainsFunc(x.unfinished[f.ino], func(k shardKey) bool { return err != nil || k.cut == a.Cut })
}
