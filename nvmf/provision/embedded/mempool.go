package embedded

import (
	"fmt"
	"io/fs"

	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/target"
)

// memPool is a Pool in memory.
type memPool struct {
	size    nvmf.Bytes
	records map[string]record
	freed   map[string]nvmf.Bytes
}

func newMemPool(size nvmf.Bytes) *memPool {
	return &memPool{size: size, records: map[string]record{}, freed: map[string]nvmf.Bytes{}}
}

func (p *memPool) jobs() (map[string]provision.State, error) {
	jobs := map[string]provision.State{}
	for job := range p.freed {
		jobs[job] = provision.Freed
	}
	for job := range p.records {
		jobs[job] = provision.Ready
	}
	return jobs, nil
}

func (p *memPool) load(job string) (record, error) {
	r, ok := p.records[job]
	if !ok {
		return r, fs.ErrNotExist
	}
	return r, nil
}

func (p *memPool) create(r record) error {
	left := p.size
	for _, have := range p.records {
		left -= have.Size
	}
	for _, size := range p.freed {
		left -= size
	}
	if r.Size > left {
		return fmt.Errorf("job %s: %w for %s: the pool of %s has %s left", r.Job, provision.ErrNoSpace, r.Size, p.size, left)
	}
	p.records[r.Job] = r
	return nil
}

func (p *memPool) open(r record) (target.Backing, error) { return target.NewMemory(r.Size, blockSize) }

func (p *memPool) save(r record) (bool, error) {
	p.records[r.Job] = r
	return true, nil
}

func (p *memPool) free(job string) (bool, error) {
	if r, ok := p.records[job]; ok {
		p.freed[job] = r.Size
		delete(p.records, job)
	}
	return true, nil
}

func (p *memPool) purge(job string) error {
	delete(p.freed, job)
	return nil
}

// Close discards all namespaces.
func (p *memPool) Close() error { return nil }
