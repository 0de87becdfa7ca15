package posixshim

import (
	"encoding/binary"
	"errors"
	"syscall"

	"nvmecr/microfs"
)

// Getdents writes records of struct dirent64, in the byte order of the machine:
//
//	offset  bytes
//	     0      8  inode
//	     8      8  offset of the next record, for seekdir
//	    16      2  length of this one, a multiple of 8
//	    18      1  type, DT_*
//	    19      -  name, a zero byte, padding
const direntName = 19

// dots is the number of entries before the names of a directory: "." and "..".
const dots = 2

// listBatch is how many names are read from the file system at a time.
const listBatch = 1024

// Getdents writes as many records as fit, from the offset on, and advances the offset. It returns 0 at the end, and EINVAL if no
// record fits. Names are read once; after a seek to 0 they are read again.
func (p *Process) Getdents(h Handle, buf []byte) (int, error) {
	f, err := p.getForIO(h)
	if err != nil {
		return 0, err
	}
	if !f.isDir {
		return 0, syscall.ENOTDIR
	}
	bufs, err := writable([][]byte{buf}, int64(len(buf)))
	if err != nil {
		return 0, err
	}
	buf = bufs[0]
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for {
		entry, err := p.entry(f)
		switch {
		case err != nil && n == 0:
			return 0, err
		case err != nil || entry == nil:
			return n, nil // the next call returns the error
		}
		size := (direntName + len(entry.Name) + 1 + 7) &^ 7
		if n+size > len(buf) {
			if n == 0 {
				return 0, syscall.EINVAL
			}
			return n, nil
		}
		f.offset++
		putDirent(buf[n:n+size], entry, f.offset)
		n += size
	}
}

func putDirent(b []byte, entry *microfs.Dirent, next int64) {
	binary.NativeEndian.PutUint64(b, uint64(entry.Ino))
	binary.NativeEndian.PutUint64(b[8:], uint64(next))
	binary.NativeEndian.PutUint16(b[16:], uint16(len(b)))
	b[18] = uint8(entry.Mode & syscall.S_IFMT >> 12)
	n := copy(b[direntName:], entry.Name)
	clear(b[direntName+n:])
}

// entry returns the entry at the offset of f, nil at the end. The caller holds
// f.mu.
func (p *Process) entry(f *openFile) (*microfs.Dirent, error) {
	if f.offset < dots {
		if attr, err := f.current().Stat(); err != nil || attr.Nlink == 0 {
			return nil, err // a directory that has been removed is empty
		}
	}
	switch f.offset {
	case 0:
		return &microfs.Dirent{Name: ".", Ino: f.current().Ino(), Mode: syscall.S_IFDIR}, nil
	case 1:
		return p.parent(f)
	}
	i := f.offset - dots
	for i >= int64(len(f.listing)) && !f.listedAll {
		after := ""
		if n := len(f.listing); n > 0 {
			after = f.listing[n-1].Name
		}
		more, err := f.current().ReadDir(after, listBatch)
		if err != nil {
			return nil, err
		}
		f.listing = append(f.listing, more...)
		f.listedAll = len(more) < listBatch
	}
	if i >= int64(len(f.listing)) {
		return nil, nil
	}
	return &f.listing[i], nil
}

// parent returns the entry "..", which at the mount's root is the root.
func (p *Process) parent(f *openFile) (*microfs.Dirent, error) {
	fs, err := f.mountPoint.acquire(false)
	if err != nil {
		return nil, err
	}
	defer p.mu.RUnlock()
	ino := f.current().Ino()
	attr, err := fs.Stat(ino, "..", false)
	var escape *microfs.EscapeError
	switch {
	case errors.As(err, &escape):
	case err == nil:
		ino = attr.Ino
	case errors.Is(err, syscall.ENOENT): // the directory has been removed
	case errors.Is(err, syscall.EACCES): // the user may read the directory, but not search it
	default:
		return nil, err
	}
	return &microfs.Dirent{Name: "..", Ino: ino, Mode: syscall.S_IFDIR}, nil
}
