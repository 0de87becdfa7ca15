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
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
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
	// wantedQueues is how many I/O queues a controller is asked for.
	wantedQueues = 64
	// turn is how long C goes on with a connection before others are let go first.
	turn      = 20 * time.Microsecond
	firstTurn = 200 * time.Microsecond
	// tending is how often the admin queue is looked after.
	tending = time.Second
	// parting is how long a controller may take to shut down.
	parting = time.Second
)

// An association is a connected controller.
type association struct {
	id     nvmf.TransportID
	hostID uuid.UUID
	facts  *initiator.Controller
	alias  int

	socket int // of the admin queue, or -1
	// own are descriptors of a local device, or of an RDMA one.
	own deviceSet

	admin      sync.Mutex // held while the admin queue is used; guards what follows
	controller *C.struct_driver_controller
	lost       error
	timeout    time.Duration // of an admin command
	clock      *os.File
}

// associate connects to the controller that id names.
func associate(ctx context.Context, id nvmf.TransportID, o *Options) (*association, error) {
	ids, err := resolve(ctx, id)
	for _, id := range ids {
		var a *association
		if a, err = associateWith(ctx, id, o); err == nil {
			return a, nil
		}
	}
	return nil, err
}

// resolve is id with each of the addresses that its host name has: SPDK wants
// one, and sockets are found by it.
func resolve(ctx context.Context, id nvmf.TransportID) ([]nvmf.TransportID, error) {
	if _, err := netip.ParseAddr(id.Address); id.Transport == nvmf.PCIe || err == nil {
		return []nvmf.TransportID{id}, nil
	}
	network := "ip4"
	if id.Family == "IPv6" {
		network = "ip6"
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, network, id.Address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", nvmf.ErrUnreachable, err)
	}
	var ids []nvmf.TransportID
	for _, ip := range ips {
		id.Address = ip.Unmap().String()
		ids = append(ids, id)
	}
	return ids, nil
}

// associateWith connects to a controller whose address is a number.
func associateWith(ctx context.Context, id nvmf.TransportID, o *Options) (*association, error) {
	a, err := begin(id, o)
	if err != nil {
		return nil, err
	}
	fresh, err := a.connect(ctx, o)
	if err != nil {
		a.abandon(o)
		return nil, err
	}
	if err = a.prepare(o, fresh); err != nil {
		a.close(o)
		return nil, err
	}
	return a, nil
}

// prepare is what is left to do when the controller is connected, by one of the fresh
// descriptors.
func (a *association) prepare(o *Options, fresh map[int]string) (err error) {
	if a.socket, err = claimSocket(fresh, a.id, o.CongestionControl); err != nil {
		return err
	}
	if err = a.silence(); err != nil {
		return err
	}
	if a.facts, err = initiator.IdentifyController(a, nvme.CAP(C.driver_cap(a.controller))); err != nil {
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
		go a.routineTend(a.clock)
	}
	return nil
}

// silence asks the controller for no notices. SPDK would change what it knows
// of a namespace when one comes, on the thread that looks after the admin queue,
// while others use it: commands for one that has gone would never end. What
// becomes of a namespace shows when it is used, and is verified by Reset.
func (a *association) silence() error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminSetFeatures, 0, 0)
	sqe.SetCDW(10, nvme.FeatureAsyncEventConfig)
	err := a.exec("Set Features (Asynchronous Event Configuration)", &sqe, nil)
	var se *nvmf.StatusError
	if errors.As(err, &se) { // it has none
		return nil
	}
	return err
}

// begin is an association that is to be connected, or went on connecting when nobody
// waited for it any more.
func begin(id nvmf.TransportID, o *Options) (*association, error) {
	if a := unready.take(id); a != nil {
		a.hostID, a.timeout = o.HostID, o.ConnectTimeout
		return a, nil
	}
	alias, err := aliases.take(id, o.HostNQN)
	if err != nil {
		return nil, err
	}
	return &association{id: id, hostID: o.HostID, alias: alias, timeout: o.ConnectTimeout}, nil
}

// abandon ends an association that could not be connected, or keeps it for the next
// who wants it.
func (a *association) abandon(o *Options) {
	if a.controller != nil {
		unready.keep(a)
		return
	}
	devices.leave(&a.own)
	aliases.free(a.id, o.HostNQN, a.alias)
}

// connect is one attempt. It lasts no longer than the connection's time-out,
// and no longer than ctx has at its beginning. It returns the descriptors that
// SPDK has opened; see arrivals.
func (a *association) connect(ctx context.Context, o *Options) (fresh map[int]string, err error) {
	if retired.Load() {
		return nil, fmt.Errorf("%w: %w", nvmf.ErrClosed, ErrUnusable)
	}
	timeout := o.ConnectTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	if err := ctx.Err(); err != nil || timeout <= 0 {
		return nil, errors.Join(err, context.DeadlineExceeded)
	}
	address, free := addressOf(a.id, a.alias, o, timeout)
	defer free()
	var proved bool
	limit := time.Duration(0) // SPDK minds the time, but not that of a drive
	if a.id.Transport == nvmf.PCIe {
		limit = timeout
	}
	text, result := explained(func() (err syscall.Errno) {
		defer proving(&proved)()
		begin := func() {
			if a.controller == nil {
				a.controller = C.driver_connect(address)
			}
			if a.controller == nil {
				err = syscall.EINVAL
			} else {
				err = errno(C.driver_connecting(a.controller, C.uint32_t(firstTurn.Microseconds()))) // the socket is there then
			}
		}
		a.step(func() { fresh = arrivals(begin) })
		if err == syscall.EAGAIN {
			err = a.patiently(limit, func(us C.uint32_t) C.int { return C.driver_connecting(a.controller, us) })
		}
		return err
	})
	if result == 0 {
		return fresh, nil
	}
	if result != syscall.EAGAIN {
		a.controller = nil // it is gone
	}
	err = refusal(o, a.id.SubNQN, text, proved)
	if a.id.Transport == nvmf.PCIe {
		if result == syscall.EAGAIN {
			err = fmt.Errorf("%w; the drive has not got ready within %s", err, timeout)
		}
		if strings.Contains(text, "has claimed it") {
			err = fmt.Errorf("%w; a local drive can be used by one process only at a time, so by one rank", err)
		}
		if strings.Contains(text, "could not open "+lockFile) {
			err = fmt.Errorf("%w%s", err, lockRemedy(lockFile+fullAddress(a.id.Address)))
		}
		err = fmt.Errorf("%w%s", err, pciRemedy(sysfs, a.id.Address))
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return nil, err
}

// unready are the drives which did not get ready in time. SPDK has no way to give
// one up, so the next who wants it goes on with it.
var unready unreadyDrives

type unreadyDrives struct {
	mu     sync.Mutex
	drives map[string]*association // by address
}

func (u *unreadyDrives) take(id nvmf.TransportID) *association {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.drives[fullAddress(id.Address)]
	delete(u.drives, fullAddress(id.Address))
	return a
}

func (u *unreadyDrives) keep(a *association) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.drives == nil {
		u.drives = map[string]*association{}
	}
	u.drives[fullAddress(a.id.Address)] = a
}

// A step of a connection is polled for turn, and then others are let go first
// for pause: where more processes than processors connect at a time, polling
// alone would keep the one who is to answer from its processor. Over anything but TCP
// it costs something to look what a step has opened, so they are longer.
const (
	pause  = 50 * time.Microsecond
	longer = 10 // times
)

// patiently takes steps of a connection until one says something else than EAGAIN, or
// until limit, if that is not 0, is over.
func (a *association) patiently(limit time.Duration, step func(us C.uint32_t) C.int) (err syscall.Errno) {
	turn, pause := turn, pause
	if a.id.Transport != nvmf.TCP {
		turn, pause = longer*turn, longer*pause
	}
	for began := time.Now(); ; rest(-1, pause) {
		a.step(func() { err = errno(step(C.uint32_t(turn.Microseconds()))) })
		if err != syscall.EAGAIN || limit > 0 && time.Since(began) > limit {
			return err
		}
	}
}

// step takes a step of the connection, which over anything but TCP may open and close
// descriptors of devices.
func (a *association) step(step func()) {
	if a.id.Transport == nvmf.TCP {
		step()
	} else {
		devices.around(&a.own, step)
	}
}

// addressOf puts what SPDK is to know into its memory.
func addressOf(id nvmf.TransportID, alias int, o *Options, timeout time.Duration) (*C.struct_driver_address, func()) {
	a := (*C.struct_driver_address)(C.calloc(1, C.sizeof_struct_driver_address))
	var texts []*C.char
	text := func(s string) *C.char {
		t := C.CString(s)
		texts = append(texts, t)
		return t
	}
	service := id.Service
	if service != "" {
		service = strings.Repeat("0", alias) + service
	}
	a.transport, a.family = text(strings.ToUpper(string(id.Transport))), text(id.Family)
	a.address, a.service = text(id.Address), text(service)
	a.subnqn, a.hostnqn = text(id.SubNQN), text(o.HostNQN)
	for i, b := range o.HostID {
		a.host_id[i] = C.uint8_t(b)
	}
	a.queues = wantedQueues
	a.keep_alive_ms = C.uint32_t(max(0, o.KeepAlive).Milliseconds())
	a.timeout_ms = C.uint32_t(max(time.Millisecond, timeout).Milliseconds())
	a.lasting_ms = C.uint32_t(max(time.Millisecond, o.ConnectTimeout).Milliseconds())
	a.header_digest, a.data_digest = C.bool(o.HeaderDigest), C.bool(o.DataDigest)
	setKeys(a, id, o)
	return a, func() {
		clearKeys(a)
		for _, t := range texts {
			C.free(unsafe.Pointer(t))
		}
		C.free(unsafe.Pointer(a))
	}
}

// refused is how SPDK tells of a Connect that a controller has answered.
var refused = regexp.MustCompile(`sct (\d+), sc (\d+)`)

// refusal makes an error of what SPDK said about a connection that failed, and
// of whether it had begun to prove who the host is.
func refusal(o *Options, subNQN, text string, proved bool) error {
	m := refused.FindStringSubmatch(text)
	if m == nil && (proved || strings.Contains(text, C.DRIVER_PROOF)) {
		return unproved(o, subNQN, text)
	}
	if err := unsecured(o, subNQN, text); m == nil && err != nil {
		return err
	}
	if strings.Contains(text, "authentication is unsupported") {
		return fmt.Errorf("%w: SPDK was built with an OpenSSL before 3.0, by which it does not authenticate; use --driver=go, over TCP%s",
			nvmf.ErrUnsupported, text)
	}
	if m == nil {
		return fmt.Errorf("%w%s%s", nvmf.ErrUnreachable, text, tlsHint(o, text))
	}
	sct, _ := strconv.ParseUint(m[1], 10, 8)
	sc, _ := strconv.ParseUint(m[2], 10, 8)
	status := &nvmf.StatusError{Name: "Connect", SCT: uint8(sct), SC: uint8(sc)}
	switch nvme.Status(sct)<<8 | nvme.Status(sc) {
	case nvme.StatusConnectInvalidHost:
		return fmt.Errorf("%w: %w", nvmf.ErrHostRefused, status)
	case nvme.StatusConnectInvalidParameters:
		return fmt.Errorf("%w: %w", nvmf.ErrNoSubsystem, status)
	}
	return fmt.Errorf("%w: %w", nvmf.ErrUnreachable, status)
}

// routineTend looks after the admin queue until the association ends, which
// closes the clock.
func (a *association) routineTend(clock *os.File) {
	var ticks [8]byte
	for {
		if _, err := io.ReadFull(clock, ticks[:]); err != nil {
			return
		}
		a.admin.Lock()
		a.watch()
		a.tend()
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
func (a *association) tend() {
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

// Identify reads a page of Identify.
func (a *association) Identify(what string, cns uint8, nsid uint32, page *[nvme.IdentifySize]byte) error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminIdentify, 0, nsid)
	sqe.SetIdentify(cns)
	return a.exec("Identify "+what, &sqe, page[:])
}

// exec runs one admin command whose data comes from the controller. One that is
// not answered in the time of a connection ends the association.
func (a *association) exec(what string, sqe *nvme.SQE, data []byte) error {
	a.admin.Lock()
	defer a.admin.Unlock()
	if a.lost != nil {
		return fmt.Errorf("%s: %w", what, a.lost)
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
	for deadline := time.Now().Add(a.timeout); a.lost == nil && !bool(c.done); {
		switch a.tend(); {
		case bool(c.done):
		case time.Now().After(deadline):
			a.lost = &nvmf.TimeoutError{After: a.timeout, Busy: 1}
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
		return fmt.Errorf("%s: %w", what, a.lost)
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
func (a *association) close(o *Options) {
	if a.clock != nil {
		_ = ownfd.CloseFile(a.clock) // wakes the routine
	}
	a.admin.Lock()
	defer a.admin.Unlock()
	if a.controller == nil {
		return
	}
	ownfd.Drop(a.socket)
	_, _ = explained(func() struct{} { // nobody is left to be told
		a.step(func() {
			if a.lost != nil {
				C.driver_fail(a.controller)
			}
			C.driver_detach(a.controller)
		})
		leave := func(us C.uint32_t) C.int { return C.driver_detaching(a.controller, us) }
		if a.patiently(parting, leave) == syscall.EAGAIN {
			a.step(func() { C.driver_fail(a.controller) })
			a.patiently(0, leave)
		}
		return struct{}{}
	})
	devices.leave(&a.own)
	a.controller, a.lost = nil, nvmf.ErrClosed
	aliases.free(a.id, o.HostNQN, a.alias)
}

// aliases keep SPDK from answering a connection with another one of this
// process: it has one controller for each address and host NQN, whatever the
// host identifier, and for as long as anything refers to it. A port, however,
// may be written with zeros in front. A local device is one controller indeed.
var aliases = aliasTable{used: map[aliasKey]uint32{}}

type aliasKey struct {
	id      nvmf.TransportID
	hostNQN string
}

type aliasTable struct {
	mu   sync.Mutex
	used map[aliasKey]uint32 // a bit for each number of zeros
}

func (t *aliasTable) take(id nvmf.TransportID, hostNQN string) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id.NSID = 0
	most := 24
	if id.Transport == nvmf.PCIe {
		most, hostNQN = 1, ""
	}
	k := aliasKey{id, hostNQN}
	for n := range most {
		if t.used[k]&(1<<n) == 0 {
			t.used[k] |= 1 << n
			return n, nil
		}
	}
	return 0, fmt.Errorf("this process has %d connections to it already: %w", most, syscall.EBUSY)
}

func (t *aliasTable) free(id nvmf.TransportID, hostNQN string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id.NSID = 0
	if id.Transport == nvmf.PCIe {
		hostNQN = ""
	}
	k := aliasKey{id, hostNQN}
	if t.used[k] &^= 1 << n; t.used[k] == 0 {
		delete(t.used, k)
	}
}
