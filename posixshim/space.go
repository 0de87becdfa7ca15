package posixshim

import (
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// Fallocate is fallocate(2): modes 0, KEEP_SIZE, PUNCH_HOLE and ZERO_RANGE.
func (p *Process) Fallocate(h Handle, mode int, off, n, most int64) error {
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
		if err := mayGrow(f.current().Stat, off+n, most); err != nil {
			return err
		}
	}
	return p.besideMapping(f, do)
}

// copyAtOnce is how much Copy moves at most. Programs call again for the rest.
const copyAtOnce = 16 << 20

// Copy is copy_file_range(2) between two open files of the mount. An offset of
// -1 is that of the open file, which moves on. Holes become zeros.
func (p *Process) Copy(in Handle, inOff int64, out Handle, outOff, n, most int64) (int, error) {
	from, err := p.reader(in)
	if err != nil {
		return 0, err
	}
	to, err := p.writer(out)
	if err != nil {
		return 0, err
	}
	switch {
	case from.isDir || to.isDir:
		return 0, syscall.EISDIR
	case to.flags.Load()&syscall.O_APPEND != 0:
		return 0, syscall.EBADF
	case n < 0 || inOff < -1 || outOff < -1:
		return 0, syscall.EINVAL
	}
	at, toAt := inOff, outOff
	if at < 0 {
		at = from.tell()
	}
	if toAt < 0 {
		toAt = to.tell()
	}
	if n > 0 && toAt >= most {
		return 0, microfs.ErrBeyond
	}
	n = min(n, copyAtOnce, max(0, most-toAt))
	if from.current().Ino() == to.current().Ino() && at < toAt+n && toAt < at+n {
		return 0, syscall.EINVAL
	}
	done, err := p.copyBytes(from, at, to, toAt, n)
	if inOff < 0 {
		from.advance(done)
	}
	if outOff < 0 {
		to.advance(done)
	}
	return written(int(done), err)
}

func (p *Process) copyBytes(from *openFile, at int64, to *openFile, toAt, n int64) (done int64, err error) {
	buf := make([]byte, min(n, 1<<20))
	for done < n {
		got, err := p.readAt(from, [][]byte{buf[:min(n-done, int64(len(buf)))]}, at+done)
		if err != nil || got == 0 {
			return done, err
		}
		put, err := p.writeAt(to, [][]byte{buf[:got]}, toAt+done)
		done += int64(put)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (f *openFile) tell() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.offset
}

func (f *openFile) advance(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.offset += n
}
