package microfs

import (
	"time"

	"nvmecr/oplog"
)

// retired holds the hugeblocks that had a command in flight when a connection
// was lost. They are not written for oplog.Quarantine, since that command may
// still land. Guarded by FS.mu.
type retired map[Hugeblock]retiredBlock

type retiredBlock struct {
	since time.Time
	free  bool // belongs to no file: goes to the pool after oplog.Quarantine
}

func (m *retired) add(h Hugeblock, free bool) {
	if *m == nil {
		*m = make(retired)
	}
	(*m)[h] = retiredBlock{time.Now(), free}
}

// hold reports whether a hugeblock that is being freed is retired. Then expire
// returns it to the pool, and the caller must not.
func (m retired) hold(h Hugeblock) bool {
	r, ok := m[h]
	if !ok {
		return false
	}
	if time.Since(r.since) > oplog.Quarantine {
		delete(m, h)
		return false
	}
	r.free = true
	m[h] = r
	return true
}

// expire returns hugeblocks to the pool that were retired for oplog.Quarantine.
func (m retired) expire(p *pool) {
	for h, r := range m {
		if time.Since(r.since) > oplog.Quarantine {
			delete(m, h)
			if r.free {
				p.give(run{h, 1})
			}
		}
	}
}
