package index

import (
	"syscall"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// readCopyCall reads data from a copy for a client that cannot read the original.
type readCopyCall struct {
	wire.Read
	answer wire.Data
}

// before reads the data without the lock of the index.
func (r *readCopyCall) before(c *client) error {
	switch {
	case c.x.opts.Copy == nil:
		return syscall.ENOENT
	case r.Len > wire.MaxData || r.Off < 0:
		return syscall.EINVAL
	}
	path, a, err := r.file(c)
	if err != nil {
		return err
	}
	if cap(c.data) < int(r.Len) {
		c.data = make([]byte, r.Len)
	}
	r.answer.Bytes = c.data[:r.Len]
	return c.x.opts.Copy(path, a.Size, a.Mtime, r.answer.Bytes, r.Off)
}

// file returns the path and the present attributes of the file.
func (r *readCopyCall) file(c *client) (path string, a microfs.Attr, err error) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	s, err := c.session(r.Ino, false)
	if err != nil {
		return "", a, err
	}
	if s.copyOf == "" { // kept after a rename
		s.copyOf, err = c.x.fs.AnyPath(r.Ino)
	}
	if err == nil {
		a, err = s.file.read.Stat()
	}
	return s.copyOf, a, err
}

func (r *readCopyCall) run(*client) (wire.Body, error) { return &r.answer, nil }
