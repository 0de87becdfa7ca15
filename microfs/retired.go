package microfs

import (
	"time"

	"nvmecr/oplog"
)

// retired holds the hugeblocks that had a command in flight when a connection
// was lost. They are not written for oplog.Quarantine, since that command may
// still land. Guarded by FS.mu.
type retired map[Hugeblock]retiree

type retiree struct {
	since time.Time
	free  bool // belongs to no file: goes to the pool when its time is over
}

func (m *retired) add(h Hugeblock, free bool) {
	if *m == nil {
		*m = make(retired)
	}
	(*m)[h] = retiree{time.Now(), free}
}

// hold keeps a hugeblock that is being freed, if it is retired.
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

// expire gives back what has waited long enough.
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
