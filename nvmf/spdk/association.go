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
	// tending is the interval at which the admin queue is polled.
	tending = time.Second
	// parting is the time limit for shutting a controller down.
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

	socket int // socket of the admin queue, or -1
	// own has the descriptors of a local device or of an RDMA device.
	own deviceSet

	admin      sync.Mutex // held while the admin queue is used; guards the following fields
	controller *C.struct_driver_controller
	lost       error
	timeout    time.Duration // time limit of an admin command
	clock      *os.File
}

// prepare completes an association after the controller is connected. fresh has the
// descriptors that the connection has opened.
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
	if a.id.Transport == nvmf.PCIe { // a drive has no keep-alive, but is checked for removal
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

// silence disables the controller's asynchronous events. After a namespace event SPDK
// would update its data of the namespace on the thread that polls the admin queue,
// while other threads use the data. Commands to a removed namespace would then never
// complete. Without events, a change of a namespace is noticed when it is used, and
// Reset verifies it.
func (a *association) silence(ctx context.Context) error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminSetFeatures, 0, 0)
	sqe.SetCDW(10, nvme.FeatureAsyncEventConfig)
	err := a.exec(ctx, "Set Features (Asynchronous Event Configuration)", &sqe, nil)
	var se *nvmf.StatusError
	if errors.As(err, &se) { // the controller has no such feature
		return nil
	}
	return err
}

// routineAdmin polls the admin queue until the association ends, which closes the
// clock.
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

// watch checks whether a local device was removed or has failed, of which it does not
// notify the host. The device's queues notice it with their next poll. The caller holds
// a.admin.
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

// pollAdmin sends and receives on the admin queue. The caller holds a.admin.
func (a *association) pollAdmin() {
	if a.lost == nil {
		if err := errno(C.driver_tend(a.controller)); err != 0 {
			a.lost = fmt.Errorf("%w: the admin queue: %w%s", nvmf.ErrConnectionLost, err, behind(C.driver_said(a.controller)))
		}
	}
}

// alive reports whether the association has not ended, as far as is known.
func (a *association) alive() bool {
	a.admin.Lock()
	defer a.admin.Unlock()
	return a.lost == nil
}

// asking is an association whose Identify ends with ctx.
type asking struct {
	*association
	ctx context.Context
}

// Identify executes an Identify command; see initiator.Identifier.
func (a asking) Identify(what string, cns uint8, nsid uint32, page *[nvme.IdentifySize]byte) error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminIdentify, 0, nsid)
	sqe.SetIdentify(cns)
	return a.exec(a.ctx, "Identify "+what, &sqe, page[:])
}

// exec executes one admin command with data from the controller. If the command is not
// answered within a.timeout, or before ctx ends, exec ends the association.
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
	if err := errno(C.driver_admin(a.controller, c)); err != 0 { // the command was not submitted
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
		// This ends the command in flight. Otherwise SPDK keeps using its memory, which
		// then must not be freed.
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

// close shuts the controller down, in an orderly way if it still answers. All its
// queues must be closed.
func (a *association) close() {
	if a.clock != nil {
		_ = ownfd.CloseFile(a.clock) // wakes routineAdmin
	}
	a.admin.Lock()
	defer a.admin.Unlock()
	if a.controller == nil {
		return
	}
	ownfd.Drop(a.socket)
	_, _ = explained(func() struct{} { // the messages are ignored, since no caller waits for them
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
