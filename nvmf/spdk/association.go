//go:build spdk

package spdk

// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/google/uuid"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

const (
	// tending is how often the admin queue is looked after.
	tending = time.Second
	// parting is how long a controller may take to shut down.
	parting = time.Second
	forever = math.MaxInt64
)

// An association is a connected controller.
type association struct {
	id      nvmf.TransportID
	hostNQN string
	hostID  uuid.UUID
	facts   *initiator.Controller
	alias   int

	socket int // of the admin queue, or -1
	// own are descriptors of a local device, or of an RDMA one.
	own deviceSet

	admin      sync.Mutex // held while the admin queue is used; guards what follows
	controller *C.struct_driver_controller
	lost       error
	timeout    time.Duration // of an admin command
	clock      *os.File
}

// prepare is what is left to do when the controller is connected, by one of the fresh
// descriptors.
func (a *association) prepare(ctx context.Context, o *Options, fresh map[int]string) (err error) {
	if a.socket, err = claimSocket(fresh, a.id, o.CongestionControl); err != nil {
		return err
	}
	if err = a.silence(ctx); err != nil {
		return err
	}
	if a.facts, err = initiator.IdentifyController(asking{a, ctx}, nvme.CAP(C.driver_cap(a.controller))); err != nil {
		return err
	}
	interval := min(tending, o.KeepAlive/4)
	if a.id.Transport == nvmf.PCIe { // it has no keep-alive, but is watched
		interval = tending
	}
	if interval > 0 {
		if a.clock, err = initiator.NewClock(interval); err != nil {
			return err
		}
		go a.routineAdmin(a.clock)
	}
	return nil
}

// silence asks the controller for no notices. SPDK would change what it knows
// of a namespace when one comes, on the thread that looks after the admin queue,
// while others use it: commands for one that has gone would never end. What
// becomes of a namespace shows when it is used, and is verified by Reset.
func (a *association) silence(ctx context.Context) error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminSetFeatures, 0, 0)
	sqe.SetCDW(10, nvme.FeatureAsyncEventConfig)
	err := a.exec(ctx, "Set Features (Asynchronous Event Configuration)", &sqe, nil)
	var se *nvmf.StatusError
	if errors.As(err, &se) { // it has none
		return nil
	}
	return err
}

// routineAdmin looks after the admin queue until the association ends, which
// closes the clock.
func (a *association) routineAdmin(clock *os.File) {
	var ticks [8]byte
	for {
		if _, err := io.ReadFull(clock, ticks[:]); err != nil {
			return
		}
		a.admin.Lock()
		a.watch()
		a.pollAdmin()
		a.admin.Unlock()
	}
}

// watch looks after a local device, which says nothing when it is pulled or
// fails: its queues find out with their next poll. The caller holds a.admin.
func (a *association) watch() {
	if a.lost == nil && a.id.Transport == nvmf.PCIe {
		switch err := errno(C.driver_watch(a.controller)); err {
		case 0:
		case syscall.ENODEV:
			a.lost = fmt.Errorf("%w: the drive is gone: %w", nvmf.ErrConnectionLost, err)
		default:
			a.lost = fmt.Errorf("%w: the drive has failed: %w", nvmf.ErrConnectionLost, err)
		}
	}
}

// tend sends and receives on the admin queue. The caller holds a.admin.
func (a *association) pollAdmin() {
	if a.lost == nil {
		if err := errno(C.driver_tend(a.controller)); err != 0 {
			a.lost = fmt.Errorf("%w: the admin queue: %w%s", nvmf.ErrConnectionLost, err, behind(C.driver_said(a.controller)))
		}
	}
}

// alive reports whether the association has not ended as far as is known.
func (a *association) alive() bool {
	a.admin.Lock()
	defer a.admin.Unlock()
	return a.lost == nil
}

// asking is an association that is polled as long as a caller waits for it.
type asking struct {
	*association
	ctx context.Context
}

// Identify reads a page of Identify.
func (a asking) Identify(what string, cns uint8, nsid uint32, page *[nvme.IdentifySize]byte) error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminIdentify, 0, nsid)
	sqe.SetIdentify(cns)
	return a.exec(a.ctx, "Identify "+what, &sqe, page[:])
}

// exec runs one admin command whose data comes from the controller. One that is
// not answered in the time of a connection, or while ctx lasts, ends the association.
func (a *association) exec(ctx context.Context, what string, sqe *nvme.SQE, data []byte) error {
	a.admin.Lock()
	defer a.admin.Unlock()
	if a.lost != nil {
		return fmt.Errorf("%s: %w", what, a.lost)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	c := (*C.struct_driver_command)(C.calloc(1, C.sizeof_struct_driver_command))
	buffer := C.driver_alloc(C.size_t(max(1, len(data))))
	if buffer == nil {
		C.free(unsafe.Pointer(c))
		return fmt.Errorf("%s: %w", what, syscall.ENOMEM)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&c.sqe[0])), len(c.sqe)), sqe[:])
	c.data, c.length = buffer, C.uint32_t(len(data))
	if err := errno(C.driver_admin(a.controller, c)); err != 0 { // it was not begun
		C.driver_free(buffer)
		C.free(unsafe.Pointer(c))
		a.lost = fmt.Errorf("%w: the admin queue: %w%s", nvmf.ErrConnectionLost, err, behind(C.driver_said(a.controller)))
		return fmt.Errorf("%s: %w", what, a.lost)
	}
	began := time.Now()
	for a.lost == nil && !bool(c.done) {
		switch a.pollAdmin(); {
		case bool(c.done):
		case ctx.Err() != nil || time.Since(began) > a.timeout:
			a.lost = &nvmf.TimeoutError{After: time.Since(began).Round(time.Millisecond), Busy: 1}
		default:
			rest(a.socket, pause)
		}
	}
	if a.lost == nil && bool(c.lost) {
		a.lost = fmt.Errorf("%w: the admin queue%s", nvmf.ErrConnectionLost, behind(C.driver_said(a.controller)))
	}
	if a.lost != nil && (bool(c.lost) || !bool(c.done)) {
		// What is in flight ends here, or else its memory is SPDK's for good.
		if C.driver_fail(a.controller); bool(c.done) {
			C.driver_free(buffer)
			C.free(unsafe.Pointer(c))
		}
		return fmt.Errorf("%s: %w", what, silent(ctx, a.lost, began, a.timeout))
	}
	status := nvme.Status(c.status)
	copy(data, unsafe.Slice((*byte)(buffer), len(data)))
	C.driver_free(buffer)
	C.free(unsafe.Pointer(c))
	if status.Code() != 0 {
		return &nvmf.StatusError{Name: what, SCT: status.SCT(), SC: status.SC(), DNR: status.DNR()}
	}
	return nil
}

// close shuts the controller down, in order if it still answers. It has no
// queues any more.
func (a *association) close() {
	if a.clock != nil {
		_ = ownfd.CloseFile(a.clock) // wakes the routine
	}
	a.admin.Lock()
	defer a.admin.Unlock()
	if a.controller == nil {
		return
	}
	ownfd.Drop(a.socket)
	_, _ = explained(func() struct{} { // no caller is left to report to
		a.step(func() {
			if a.lost != nil {
				C.driver_fail(a.controller)
			}
			C.driver_detach(a.controller)
		})
		leave := func(us C.uint32_t) syscall.Errno { return errno(C.driver_detaching(a.controller, us)) }
		if a.patiently(context.Background(), parting, leave) == syscall.EAGAIN {
			a.step(func() { C.driver_fail(a.controller) })
			a.patiently(context.Background(), forever, leave)
		}
		return struct{}{}
	})
	a.controller, a.lost = nil, nvmf.ErrClosed
	a.forget()
}
