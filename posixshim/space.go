package posixshim

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Fallocate is fallocate(2): modes 0, KEEP_SIZE, PUNCH_HOLE and ZERO_RANGE.
func (p *Process) Fallocate(h Handle, mode int, off, n, limit int64) error {
	f, err := p.writer(h)
	switch {
	case err != nil:
		return err
	case off < 0 || n <= 0:
		return syscall.EINVAL
	case off+n < off:
		return syscall.EFBIG
	}
	keep := mode&unix.FALLOC_FL_KEEP_SIZE != 0
	var do func() error
	switch mode &^ unix.FALLOC_FL_KEEP_SIZE {
	case 0:
		do = func() error { return f.current().Allocate(off, n, keep) }
	case unix.FALLOC_FL_ZERO_RANGE:
		do = func() error { return f.current().ZeroRange(off, n, keep) }
	case unix.FALLOC_FL_PUNCH_HOLE:
		if !keep {
			return syscall.EOPNOTSUPP
		}
		do = func() error { return f.current().Punch(off, n) }
	default:
		return syscall.EOPNOTSUPP
	}
	if !keep {
		if err := checkGrowth(f.current().Stat, off+n, limit); err != nil {
			return err
		}
	}
	return p.changeMapped(f, do)
}

// position returns the offset of the open file.
func (f *openFile) position() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.offset
}
