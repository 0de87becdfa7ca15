// Package filedev implements nvmf.Device on a local file or block device, through the
// page cache.
//
// Submit executes commands by blocking preadv and pwritev calls on the calling thread.
// For a file on tmpfs it copies to and from a memory mapping. A completed write is in
// the page cache and survives the process. After Flush (fdatasync), or with FUA
// (RWF_DSYNC), it also survives a failure of the machine. So the identity reports a
// volatile write cache.
//
// Several processes may open the same file. No lock prevents that.
//
// # The UUID of a file
//
// The UUID of a file is in its extended attribute user.nvmecr.uuid. So a renamed file
// keeps its UUID, and a plain copy is another namespace. A copy with attributes, as of
// cp -a, is the same namespace. If the file system has no user attributes, or the file
// cannot be written, the UUID is derived from device and inode number. The UUID of a
// block device is derived from its wwid, or from its device number if it has no wwid.
package filedev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
)

// Options of a device. The zero value is usable.
type Options struct {
	// LBASize in bytes; 0 means 4096.
	LBASize nvmf.Bytes
	// MaxTransfer in bytes; 0 means 1 MiB.
	MaxTransfer nvmf.Bytes
	// OptimalTransfer in bytes; 0 means MaxTransfer.
	OptimalTransfer nvmf.Bytes
	// ReadOnly opens the file for reading only. Commands that write fail with
	// syscall.EROFS.
	ReadOnly bool
}

// A Device is a namespace backed by a file. All methods are safe for concurrent use.
type Device struct {
	path     string
	file     *os.File
	readOnly bool
	identity nvmf.Identity
	mapped   *mapped // nil unless the file is on tmpfs and writable

	// damaged is set by the first failed fdatasync. The kernel reports such a failure
	// once and discards the dirty pages, so a later successful fdatasync proves
	// nothing.
	damaged atomic.Pointer[error]

	mu     sync.Mutex // guards the following fields
	queues int        // open queues: the file stays open until the last is closed
	closed bool
}

var _ nvmf.Device = (*Device)(nil)

// Create creates a sparse file of size bytes, accessible only by its owner, and opens
// it. It fails with fs.ErrExist if path exists.
func Create(path string, size nvmf.Bytes, o Options) (*Device, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create namespace file: %w", err)
	}
	err = errors.Join(f.Truncate(int64(size)), f.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create namespace file %s of %s: %w", path, size, err), os.Remove(path))
	}
	return Open(path, o)
}

// Open opens an existing file or block device, for writing unless o.ReadOnly is set. The
// size of the namespace is that of the file, rounded down to whole logical blocks.
func Open(path string, o Options) (*Device, error) {
	flags := unix.O_RDWR
	if o.ReadOnly {
		flags = unix.O_RDONLY
	}
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open namespace file: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	file := os.NewFile(uintptr(ownfd.Hold(fd)), path)
	d := &Device{path: path, file: file, readOnly: o.ReadOnly}
	if err := d.identify(o); err != nil {
		return nil, errors.Join(fmt.Errorf("namespace file %s: %w", path, err), ownfd.CloseFile(file))
	}
	return d, nil
}

func (d *Device) identify(o Options) error {
	if o.LBASize == 0 {
		o.LBASize = 4096
	}
	if o.MaxTransfer == 0 {
		o.MaxTransfer = nvmf.MiB
	}
	if o.OptimalTransfer == 0 {
		o.OptimalTransfer = o.MaxTransfer
	}
	if o.LBASize < 512 || o.LBASize > 4096 || o.LBASize&(o.LBASize-1) != 0 {
		return fmt.Errorf("LBA size %d is not a power of two from 512 to 4096: %w", uint64(o.LBASize), nvmf.ErrUnsupported)
	}
	if o.MaxTransfer%o.LBASize != 0 || o.OptimalTransfer < o.LBASize || o.OptimalTransfer > o.MaxTransfer {
		return fmt.Errorf("transfers of %s, at most %s, do not fit blocks of %s: %w",
			o.OptimalTransfer, o.MaxTransfer, o.LBASize, nvmf.ErrUnsupported)
	}
	size, err := Size(d.file)
	if err != nil {
		return err
	}
	if size < o.LBASize {
		return fmt.Errorf("%s is too small for one logical block of %s: make it larger (truncate -s SIZE): %w",
			size, o.LBASize, nvmf.ErrUnsupported)
	}
	id, err := identity(d.file, !o.ReadOnly)
	if err != nil {
		return err
	}
	d.identity = nvmf.Identity{
		UUID:               id,
		LBASize:            o.LBASize,
		Blocks:             nvmf.LBA(size / o.LBASize),
		MaxTransfer:        o.MaxTransfer,
		OptimalTransfer:    o.OptimalTransfer,
		VolatileWriteCache: true,
		CanDeallocate:      !o.ReadOnly && CanDeallocate(d.file, size),
	}
	if !o.ReadOnly {
		d.mapped = mapMemory(d.file, size.AlignDown(o.LBASize))
	}
	return nil
}

// Identity returns the identity that Open determined.
func (d *Device) Identity() *nvmf.Identity { return &d.identity }

// Path returns the absolute path of the file.
func (d *Device) Path() string {
	if p, err := filepath.Abs(d.path); err == nil {
		return p
	}
	return d.path
}

// OpenQueue returns a queue of any depth. It fails with nvmf.ErrClosed after Close.
func (d *Device) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("namespace file %s: %w", d.path, nvmf.ErrClosed)
	}
	d.queues++
	return &queue{device: d, fd: d.file.Fd()}, nil
}

// Close closes the file as soon as all queues are closed. It does not flush.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	return d.closeIfIdle()
}

func (d *Device) closeIfIdle() error {
	if !d.closed || d.queues > 0 {
		return nil
	}
	return errors.Join(d.mapped.close(), ownfd.CloseFile(d.file))
}

// queue executes commands synchronously on the calling thread.
type queue struct {
	device *Device
	fd     uintptr
	closed bool
	iov    []unix.Iovec // reused for every command
}

func (q *queue) Submit(cmds []*nvmf.Command) {
	for _, c := range cmds {
		c.Begin()
		c.Finish(q.execute(c))
	}
}

func (q *queue) execute(c *nvmf.Command) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	if err := c.Check(&q.device.identity); err != nil {
		return err
	}
	var err error
	switch c.Opcode {
	case nvmf.Write, nvmf.Deallocate:
		if q.device.readOnly {
			return fmt.Errorf("%s at LBA %d of %s, opened for reading: %w", c.Opcode, c.LBA, q.device.path, unix.EROFS)
		}
	}
	switch c.Opcode {
	case nvmf.Flush:
		err = q.device.flush()
	case nvmf.Write:
		err = q.write(c)
	case nvmf.Read:
		err = q.read(c)
	case nvmf.Deallocate:
		q.device.mapped.forget(q.offset(c.LBA), q.offset(c.LBA+c.Blocks))
		err = deallocate(q.fd, q.offset(c.LBA), q.offset(c.Blocks))
	default:
		return &nvmf.StatusError{Opcode: c.Opcode, LBA: c.LBA, SC: 0x01, DNR: true}
	}
	if err != nil {
		return fmt.Errorf("%s at LBA %d of %s: %w", c.Opcode, c.LBA, q.device.path, err)
	}
	return nil
}

func (q *queue) offset(n nvmf.LBA) int64 { return int64(n) * int64(q.device.identity.LBASize) }

func (q *queue) read(c *nvmf.Command) error {
	if done, err := q.device.mapped.read(c, q.offset(c.LBA), q.offset(c.Blocks)); done || err != nil {
		return err
	}
	return q.transfer(c, unix.SYS_PREADV2, 0)
}

func (q *queue) write(c *nvmf.Command) error {
	var flags uintptr
	if c.FUA {
		if e := q.device.damaged.Load(); e != nil {
			return *e
		}
		flags = unix.RWF_DSYNC
	}
	if done, err := q.device.mapped.write(c, q.offset(c.LBA), q.offset(c.Blocks)); done || err != nil {
		return err
	}
	return q.transfer(c, unix.SYS_PWRITEV2, flags)
}

func (d *Device) flush() error {
	if e := d.damaged.Load(); e != nil {
		return *e
	}
	err := unix.Fdatasync(int(d.file.Fd()))
	if err != nil {
		err = fmt.Errorf("fdatasync, writes since the last flush may be lost: %w", err)
		d.damaged.CompareAndSwap(nil, &err)
	}
	return err
}

// maxIovecs is the kernel's IOV_MAX.
const maxIovecs = 1024

// transfer transfers all of c.Data. It repeats the system call after a partial
// transfer.
func (q *queue) transfer(c *nvmf.Command, trap, flags uintptr) error {
	offset := q.offset(c.LBA)
	rest, skip := c.Data, 0
	for {
		for len(rest) > 0 && skip >= len(rest[0]) {
			skip -= len(rest[0])
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return nil
		}
		q.iov = q.iov[:0]
		for i, d := range rest {
			if i == 0 {
				d = d[skip:]
			}
			if len(d) == 0 {
				continue
			}
			if len(q.iov) == maxIovecs {
				break
			}
			q.iov = append(q.iov, unix.Iovec{Base: &d[0], Len: uint64(len(d))})
		}
		n, _, errno := unix.Syscall6(trap, q.fd, uintptr(unsafe.Pointer(&q.iov[0])), uintptr(len(q.iov)),
			uintptr(offset), 0, flags)
		clear(q.iov) // keeps no reference to the caller's memory
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return errno
		case n == 0:
			return fmt.Errorf("file ends at byte %d, was it truncated?: %w", offset, unix.EIO)
		}
		if errno == 0 {
			offset += int64(n)
			skip += int(n)
		}
	}
}

func (q *queue) Wait(cmds []*nvmf.Command) error { return nvmf.FirstError(cmds) }

func (q *queue) Reset(ctx context.Context) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	return ctx.Err()
}

func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	q.closed = true
	q.device.mu.Lock()
	defer q.device.mu.Unlock()
	q.device.queues--
	return q.device.closeIfIdle()
}
