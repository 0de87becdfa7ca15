package microfs

import "time"

// aheadPool is the memory for read-ahead: at most aheadBuffers buffers, allocated on
// demand and freed when they are idle. Guarded by FS.mu.
type aheadPool struct {
	owners  []*File
	spare   [][]byte // returned, for the next file
	idle    bool     // no file has used a buffer since the timer ran
	timer   *time.Timer
	ticking bool
	one     [1][]byte
}

// takeBuffer reports whether the open file has a buffer. If it has none, takeBuffer takes one if
// one is free.
func (f *File) takeBuffer() bool {
	a, p := &f.ahead, &f.fs.ahead
	if a.buffer != nil {
		return true
	}
	n := len(p.spare)
	switch {
	case n > 0:
		a.buffer, p.spare = p.spare[n-1], p.spare[:n-1]
	case len(p.owners) < aheadBuffers:
		a.buffer = make([]byte, aheadSize)
	default:
		return false
	}
	a.used, a.unit, p.idle = true, nil, false
	p.owners = append(p.owners, f)
	p.tick(f.fs)
	return true
}

// dropBuffer discards the data that was read ahead, and returns the buffer to the pool.
func (f *File) dropBuffer() {
	a, p := &f.ahead, &f.fs.ahead
	a.data, a.window = nil, 0
	if a.buffer == nil {
		return
	}
	p.spare = append(p.spare, a.buffer)
	a.buffer = nil
	for i, o := range p.owners {
		if o == f {
			last := len(p.owners) - 1
			p.owners[i], p.owners[last] = p.owners[last], nil
			p.owners = p.owners[:last]
			return
		}
	}
}

// tick starts the timer that runs dropIdle.
func (p *aheadPool) tick(fs *FS) {
	switch {
	case p.ticking:
	case p.timer == nil:
		p.timer = time.AfterFunc(aheadIdle, fs.dropIdle)
	default:
		p.timer.Reset(aheadIdle)
	}
	p.ticking = true
}

// dropIdle takes the buffers from open files that have not used them since dropIdle ran last.
func (fs *FS) dropIdle() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	p := &fs.ahead
	if p.idle {
		clear(p.spare)
		p.spare = p.spare[:0]
	}
	for i := len(p.owners) - 1; i >= 0; i-- {
		f := p.owners[i]
		if !f.ahead.used {
			f.dropBuffer()
		}
		f.ahead.used = false
	}
	p.idle, p.ticking = true, false
	if fs.q != nil && len(p.owners)+len(p.spare) > 0 {
		p.tick(fs)
	}
}
