package tree

import (
	"errors"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// readLost reads data from a copy of the file because the original could not be read, for cause. The first time it
// logs a message. If a target is lost, later reads do not try it again.
func (f *file) readLost(bufs [][]byte, off int64, cause error) (int, error) {
	var lost *lostError
	var damage *microfs.DamageError
	if f.writable || !errors.As(cause, &lost) {
		return 0, cause
	}
	n, err := f.readCopy(bufs, off)
	if err != nil {
		return 0, cause
	}
	damaged, remedy := errors.As(lost.cause, &damage), ""
	if damaged {
		remedy = "; nvmecr verify --repair writes it again, when no job runs"
	}
	if !f.in.toldCopy.Swap(true) && f.fs.opts.Logf != nil {
		f.fs.opts.Logf("%s is read from its copy: %v%s", f.in.path, cause, remedy)
	}
	if !damaged {
		f.in.copied.Store(true)
	}
	return n, nil
}

// errNotCopied means that no copy has these bytes.
var errNotCopied = errors.New("the file is being written")

// readCopy reads from the copy of the file. Unpublished data of this process is in no copy.
func (f *file) readCopy(bufs [][]byte, off int64) (int, error) {
	in := f.in
	in.mu.RLock()
	defer in.mu.RUnlock()
	if err := f.use(); err != nil {
		return 0, err
	}
	if end, _ := in.noted(); end > 0 {
		return 0, errNotCopied
	}
	end := min(in.size(), off+total(bufs))
	if off >= end {
		return 0, nil
	}
	c := cursors.Get().(*cursor)
	all := append(c.bufs[:0], bufs...)
	c.bufs = all
	defer func() { c.release(all) }()
	return in.readIndex(wire.OpReadCopy, c.next(end-off), piece{span: span{off, end}})
}
