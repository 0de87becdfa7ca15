package microfs

import (
	"time"

	"nvmecr/oplog"
)

// retired has the hugeblocks that had a command in flight when a connection was lost. They are not
// written for oplog.Quarantine, since that command may still be executed. Guarded by FS.mu.
type retired map[Hugeblock]retiredBlock

type retiredBlock struct {
	since time.Time
	free  bool // belongs to no file: returns to the pool after oplog.Quarantine
}

func (m *retired) add(h Hugeblock, free bool) {
	if *m == nil {
		*m = make(retired)
	}
	(*m)[h] = retiredBlock{time.Now(), free}
}

// hold reports whether a hugeblock that is being freed is retired. Then expire returns the hugeblock to
// the pool later, and the caller must not do so.
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

// expire ends the retirement of hugeblocks whose oplog.Quarantine is over, and returns the free ones of
// them to the pool.
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
