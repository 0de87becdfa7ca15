//go:build spdk

package spdk

// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// fill copies a command to a slot. It fails if there is no memory for the data.
func (q *Queue) fill(i uint32, cmd *nvmf.Command) bool {
	s, f := &q.slots[i], &q.inflight[i]
	s.lba, s.blocks, s.fua = C.uint64_t(cmd.LBA), C.uint32_t(cmd.Blocks), C.bool(cmd.FUA)
	f.inward, f.registered = false, false
	switch cmd.Opcode {
	case nvmf.Flush:
		s.kind = C.DRIVER_FLUSH
	case nvmf.Deallocate:
		s.kind = C.DRIVER_DEALLOCATE
		q.ranges(s, cmd)
	case nvmf.Read:
		s.kind = C.DRIVER_READ
		return q.place(i, cmd)
	case nvmf.Write:
		s.kind = C.DRIVER_WRITE
		return q.place(i, cmd)
	}
	return true
}

// place sets the pieces of a slot to those of a command, or to a buffer that replaces
// them.
func (q *Queue) place(i uint32, cmd *nvmf.Command) bool {
	s := &q.slots[i]
	pieces := (*[C.DRIVER_PIECES]C.struct_iovec)(unsafe.Pointer(&s.u))
	n := 0
	for _, d := range cmd.Data {
		if len(d) == 0 {
			continue
		}
		if n == q.direct {
			return q.copied(i, cmd)
		}
		setPiece(&pieces[n], unsafe.Pointer(&d[0]), len(d))
		n++
	}
	s.pieces = C.uint16_t(n)
	if q.dev.id.Transport == nvmf.RDMA && !q.register(i, cmd.Length()) {
		return q.copied(i, cmd)
	}
	return true
}

// register gives the device access to the pieces of a slot until the command completes,
// if that costs less than a copy. It returns false if the pieces have to be copied.
func (q *Queue) register(i uint32, length nvmf.Bytes) bool {
	s, f := &q.slots[i], &q.inflight[i]
	f.registered = length >= nvmf.Bytes(s.pieces)*q.dev.opts.RegisterFrom && C.driver_register(q.c, C.uint32_t(i)) == 0
	if f.registered {
		q.registrations++
	}
	return f.registered
}

// deregister deregisters the memory of a slot that was not started.
func (q *Queue) deregister(i uint32) {
	if q.inflight[i].registered {
		C.driver_deregister(q.c, C.uint32_t(i))
	}
}

// setPiece stores an address in C memory as a number, since Go's garbage collector must
// not treat it as a pointer. The command keeps the memory alive, and Go does not move
// it.
func setPiece(p *C.struct_iovec, data unsafe.Pointer, n int) {
	*(*uintptr)(unsafe.Pointer(&p.iov_base)) = uintptr(data)
	p.iov_len = C.size_t(n)
}

// copied uses the slot's buffer for the data of a command.
func (q *Queue) copied(i uint32, cmd *nvmf.Command) bool {
	s, f := &q.slots[i], &q.inflight[i]
	length := cmd.Length()
	if !q.alloc(f, length) {
		return false
	}
	f.inward = cmd.Opcode == nvmf.Read
	if !f.inward {
		b := unsafe.Slice((*byte)(f.buffer), length)
		for _, d := range cmd.Data {
			b = b[copy(b, d):]
		}
	}
	setPiece((*C.struct_iovec)(unsafe.Pointer(&s.u)), f.buffer, int(length))
	s.pieces = 1
	return true
}

// unload copies data that was read into the slot's buffer to the completed command.
func (q *Queue) unload(i uint32) {
	f := &q.inflight[i]
	if !f.inward {
		return
	}
	b := unsafe.Slice((*byte)(f.buffer), f.cmd.Length())
	for _, d := range f.cmd.Data {
		b = b[copy(d, b):]
	}
}

// alloc makes sure that a slot has a buffer of at least size bytes. The slot keeps the
// buffer.
func (q *Queue) alloc(f *flight, size nvmf.Bytes) bool {
	if f.size >= size {
		return true
	}
	q.dealloc(f)
	capacity := 4 * nvmf.KiB
	for capacity < size {
		capacity *= 2
	}
	if q.dev.id.Transport == nvmf.TCP {
		f.buffer = C.malloc(C.size_t(capacity))
	} else {
		f.buffer = C.driver_alloc(C.size_t(capacity))
	}
	if f.buffer != nil {
		f.size = capacity
	}
	return f.buffer != nil
}

func (q *Queue) dealloc(f *flight) {
	if q.dev.id.Transport == nvmf.TCP {
		C.free(f.buffer)
	} else if f.buffer != nil {
		C.driver_free(f.buffer)
	}
	f.buffer, f.size = nil, 0
}

// ranges sets the ranges of a Deallocate in a slot.
func (q *Queue) ranges(s *C.struct_driver_slot, cmd *nvmf.Command) {
	list := (*[C.DRIVER_RANGES]C.struct_driver_range)(unsafe.Pointer(&s.u))
	n := 0
	for at, left := uint64(cmd.LBA), uint64(cmd.Blocks); left > 0; n++ {
		blocks := min(left, initiator.MaxRange)
		list[n].lba, list[n].blocks = C.uint64_t(at), C.uint32_t(blocks)
		at, left = at+blocks, left-blocks
	}
	s.pieces = C.uint16_t(n)
}

// Exec executes any NVMe command; see initiator.Executor.
func (q *Queue) Exec(what string, sqe *nvme.SQE, data []byte, write bool) error {
	cmd := &nvmf.Command{Data: [][]byte{data}}
	cmds := []*nvmf.Command{cmd}
	cmd.Begin()
	q.mu.Lock()
	switch i := q.free[len(q.free)-1]; {
	case q.err != nil:
		cmd.Finish(q.err)
	case !q.raw(i, sqe, data, write):
		cmd.Finish(syscall.ENOMEM)
	default:
		q.free = q.free[:len(q.free)-1]
		q.inflight[i].cmd, cmd.Tag = cmd, i
		q.todo[0] = C.uint32_t(i)
		q.start(1)
	}
	q.mu.Unlock()
	err := q.Wait(cmds)
	var se *nvmf.StatusError
	switch {
	case errors.As(err, &se):
		se.Name = what
		return se
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// raw copies an NVMe command to a slot without changes.
func (q *Queue) raw(i uint32, sqe *nvme.SQE, data []byte, write bool) bool {
	s, f := &q.slots[i], &q.inflight[i]
	if !q.alloc(f, nvmf.Bytes(len(data))) {
		return false
	}
	if f.inward = !write; write {
		copy(unsafe.Slice((*byte)(f.buffer), len(data)), data)
	}
	u := (*C.struct_driver_any)(unsafe.Pointer(&s.u))
	*(*nvme.SQE)(unsafe.Pointer(&u.sqe)) = *sqe
	u.data, u.length = f.buffer, C.uint32_t(len(data))
	s.kind = C.DRIVER_ANY
	return true
}
