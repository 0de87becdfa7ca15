//go:build spdk

package spdk

// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// wantedQueues is the number of I/O queues that the host asks for.
const wantedQueues = 64

// A step of a connection is polled for turn, and then the thread sleeps for pause. If more
// processes than processors connect at the same time, polling alone would keep the target
// from its processor. The times for devices are longer, since the open descriptors are
// compared after each turn.
const (
	turn        = 20 * time.Microsecond
	pause       = 50 * time.Microsecond
	firstTurn   = 200 * time.Microsecond
	deviceTurn  = time.Millisecond
	devicePause = 500 * time.Microsecond
)

// associate connects to the controller that id names.
func associate(ctx context.Context, id nvmf.TransportID, o *Options) (*association, error) {
	ids, err := resolve(ctx, id)
	for _, id := range ids {
		var a *association
		if a, err = associateWith(ctx, id, o); err == nil || ctx.Err() != nil {
			return a, err
		}
	}
	return nil, err
}

// resolve returns id with each address of its host name. SPDK needs an address, and the
// driver finds sockets by it.
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
	abandoned.visit()
	a, err := begin(id, o)
	if err != nil {
		return nil, err
	}
	fresh, err := a.connect(ctx, o)
	if err != nil {
		a.abandon(fresh)
		return nil, err
	}
	if err = a.prepare(ctx, o, fresh); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// begin returns an association to connect: a new one, or that of a drive that was not ready.
func begin(id nvmf.TransportID, o *Options) (*association, error) {
	if a := unready.take(id); a != nil {
		a.hostID, a.timeout = o.HostID, o.ConnectTimeout
		return a, nil
	}
	alias, err := aliases.take(id, o.HostNQN)
	if err != nil {
		return nil, err
	}
	return &association{id: id, hostNQN: o.HostNQN, hostID: o.HostID, alias: alias, socket: -1, timeout: o.ConnectTimeout}, nil
}

// connect makes one attempt to connect. It ends with ctx, and each of its steps ends
// after the connection time-out. connect returns the descriptors that SPDK has opened;
// see arrivals.
func (a *association) connect(ctx context.Context, o *Options) (fresh map[int]string, err error) {
	if retired.Load() {
		return nil, fmt.Errorf("%w: %w", nvmf.ErrClosed, ErrUnusable)
	}
	began, timeout := time.Now(), o.ConnectTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	if ctx.Err() != nil || timeout <= 0 {
		return nil, fmt.Errorf("%w: no time was left to connect; give it more with --timeout", cmp.Or(context.Cause(ctx), context.DeadlineExceeded))
	}
	address, free := addressOf(a.id, a.alias, o, timeout)
	defer free()
	var proved bool
	text, result := explained(func() (err syscall.Errno) {
		defer proving(&proved)()
		begin := func() {
			if a.controller == nil {
				a.controller = C.driver_connect(address)
			}
			if a.controller == nil {
				err = syscall.EINVAL
			} else {
				err = a.connecting(C.uint32_t(firstTurn.Microseconds())) // the socket then exists
			}
		}
		a.step(func() { fresh = arrivals(begin) })
		if err == syscall.EAGAIN {
			err = a.patiently(ctx, a.allSteps(timeout), a.connecting)
		}
		return err
	})
	if result == 0 {
		return fresh, nil
	}
	if result != syscall.EAGAIN {
		a.controller = nil // SPDK has freed the controller
	}
	err = refusal(o, a.id.SubNQN, text, proved)
	if a.id.Transport == nvmf.PCIe {
		return fresh, a.driveRefusal(ctx, err, text, result == syscall.EAGAIN, timeout)
	}
	return fresh, silent(ctx, err, began, timeout)
}

// connecting continues a connection for us microseconds.
func (a *association) connecting(us C.uint32_t) syscall.Errno {
	return errno(C.driver_connecting(a.controller, us))
}

// driveRefusal adds to an error the known reasons why a drive cannot be opened.
func (a *association) driveRefusal(ctx context.Context, err error, text string, late bool, timeout time.Duration) error {
	if late {
		err = fmt.Errorf("%w; the drive has not got ready within %s", err, timeout)
	}
	if strings.Contains(text, "has claimed it") {
		err = fmt.Errorf("%w; a local drive can be used by one process only at a time, so by one rank", err)
	}
	if strings.Contains(text, "could not open "+lockFile) {
		err = fmt.Errorf("%w%s", err, lockRemedy(lockFile+fullAddress(a.id.Address)))
	}
	err = fmt.Errorf("%w%s", err, pciRemedy(sysfs, a.id.Address))
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// abandon ends an association that is not connected. SPDK cannot abandon a connection. Over
// TCP abandon shuts the socket down. It keeps a drive for the next Open. Other associations
// are polled with the next connection.
func (a *association) abandon(fresh map[int]string) {
	switch {
	case a.controller == nil:
		a.forget()
	case a.id.Transport == nvmf.PCIe:
		unready.keep(a)
	case a.id.Transport == nvmf.TCP && cut(fresh, a.id) && a.settled(parting):
	default:
		abandoned.add(a)
	}
}

// settled polls an abandoned association, and reports whether it is closed.
func (a *association) settled(limit time.Duration) bool {
	_, result := explained(func() syscall.Errno { return a.patiently(context.Background(), limit, a.connecting) })
	switch result {
	case syscall.EAGAIN:
		return false
	case 0: // the association is connected
		a.close()
	default:
		a.controller = nil
		a.forget()
	}
	return true
}

// forget releases the descriptors and the alias of an association.
func (a *association) forget() {
	devices.leave(&a.own)
	aliases.free(a.id, a.hostNQN, a.alias)
}

// unready has the drives that did not become ready in time.
var unready unreadyDrives

type unreadyDrives struct {
	mu     sync.Mutex
	drives map[string]*association // by address
}

func (u *unreadyDrives) take(id nvmf.TransportID) *association {
	if id.Transport != nvmf.PCIe {
		return nil
	}
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

// abandoned has the associations whose caller gave up before they were connected. They are
// closed when the target answers, or closes the connection.
var abandoned abandonedSet

type abandonedSet struct {
	mu  sync.Mutex
	all []*association
}

func (f *abandonedSet) add(a *association) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, a)
}

// visit polls each abandoned association for a moment.
func (f *abandonedSet) visit() {
	f.mu.Lock()
	all := f.all
	f.all = nil
	f.mu.Unlock()
	for _, a := range all {
		if !a.settled(turn) {
			f.add(a)
		}
	}
}

// allSteps returns the time limit for a connection whose steps may each take the given time.
// Over a fabric SPDK limits the time of each step, but not of all together. A drive has one step.
func (a *association) allSteps(each time.Duration) time.Duration {
	if a.id.Transport == nvmf.PCIe {
		return each
	}
	return 3 * each
}

// patiently calls goOn, which continues a connection, until goOn returns another result than
// EAGAIN, ctx ends, or limit is over.
func (a *association) patiently(ctx context.Context, limit time.Duration, goOn func(us C.uint32_t) syscall.Errno) syscall.Errno {
	if a.id.Transport == nvmf.TCP {
		return patiently(ctx, limit, turn, pause, goOn)
	}
	return patiently(ctx, limit, deviceTurn, devicePause, func(us C.uint32_t) (err syscall.Errno) {
		a.step(func() { err = goOn(us) })
		return err
	})
}

// patiently is the method of the same name, with the lengths of turns and pauses.
func patiently(ctx context.Context, limit, turn, pause time.Duration, goOn func(us C.uint32_t) syscall.Errno) syscall.Errno {
	for began := time.Now(); ; rest(-1, pause) {
		err := goOn(C.uint32_t(turn.Microseconds()))
		if err != syscall.EAGAIN || ctx.Err() != nil || time.Since(began) > limit {
			return err
		}
	}
}

// step runs a step of the connection. Over other transports than TCP the step may open and
// close descriptors of devices.
func (a *association) step(step func()) {
	if a.id.Transport == nvmf.TCP {
		step()
	} else {
		devices.around(&a.own, step)
	}
}

// addressOf copies the parameters of a connection to C's memory.
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

// refused matches SPDK's message about a Connect that a controller has refused.
var refused = regexp.MustCompile(`sct (\d+), sc (\d+)`)

// refusal converts SPDK's messages about a failed connection to an error. proved says
// that the authentication had begun.
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

// aliases give each association in this process a controller of its own in SPDK. SPDK
// reuses a controller for all connections to the same address by the same host NQN,
// whatever the host identifier. Therefore associations write the port with different
// numbers of leading zeros. A local device has only one controller.
var aliases = aliasTable{used: map[aliasKey]uint32{}}

type aliasKey struct {
	id      nvmf.TransportID
	hostNQN string
}

type aliasTable struct {
	mu   sync.Mutex
	used map[aliasKey]uint32 // a bit for each number of zeros in use
}

func (t *aliasTable) take(id nvmf.TransportID, hostNQN string) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id.NSID = 0
	limit := 24
	if id.Transport == nvmf.PCIe {
		limit, hostNQN = 1, ""
	}
	k := aliasKey{id, hostNQN}
	for n := range limit {
		if t.used[k]&(1<<n) == 0 {
			t.used[k] |= 1 << n
			return n, nil
		}
	}
	return 0, fmt.Errorf("this process has %d connections to it already: %w", limit, syscall.EBUSY)
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
