// Package target is an NVMe/TCP target: subsystems of namespaces in memory or
// in files, for any host that speaks NVM Express over TCP.
//
// It implements the controller side of the Base Specification 2.0, the NVM
// Command Set 1.0 and the TCP Transport 1.0: header and data digests,
// in-capsule data, R2T, discovery, keep-alive, asynchronous events. It
// reports version 1.4.
//
// # Flow
//
// Every connection has a thread of its own, with an event loop that never blocks in
// the middle of a PDU or a command:
//
//	accept.go   sockets come in                          one goroutine per listener
//	conn.go     the loop: receive, send, spin, sleep     one thread per connection
//	receive.go  bytes to PDUs, data to its place
//	command.go  PDUs to commands
//	fabrics.go, auth.go, admin.go, identify.go, discovery.go, io.go    what commands do
//	send.go     completions and data to bytes
//	access.go   access control
//	registry.go, fence.go       reservations, and the commands that they forbid
//	limit.go                    rate limits
//
// Data is not copied: the kernel receives the data of a write directly into the memory
// of the namespace, and sends the data of a read directly from there. The memory may be
// a mapped file, of which a page may be missing (no space, file truncated). So only the
// kernel accesses the memory: it returns EFAULT where an access of the target itself
// would be a SIGBUS. With data digests, or where a Backing has no memory, data is copied
// through a buffer, and the data of a write reaches the namespace only after its digest
// was verified.
//
// # Resources of a host
//
// A connection has as many commands as its queue has entries and a fixed set
// of buffers, however much the host sends; no more commands are taken while
// the host has maxUnsent bytes of answers to fetch. Connections are limited by
// Config.MaxConnections. A host that violates the protocol loses its
// connection. A host that does not read, or stops in the middle of a PDU,
// holds up nobody else.
//
// An unauthenticated host has one command at a time, of 8 KiB at most, and
// connectTimeout to authenticate; its queues do not belong to a controller yet. The
// computations of all authentications take at most half of the cores.
//
// # Locks
//
//	Target.mu          subsystems, controllers, connections
//	  controller.mu    queues, features, events of one controller
//	fence.mu           reservations of one namespace
//	    conn.mu        that the socket is open, and what it resumes with, for
//	                   others than its thread
//
// Everything else of a connection belongs to its thread.
package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/tlspsk"
)

// Config is what a target starts with. Subsystems can be changed later.
type Config struct {
	Subsystems []Subsystem
	// MaxConnections limits connections; 0 means 1024. Each is a thread.
	MaxConnections int
	// InCapsule is the most data in bytes that a write may carry with its
	// command, which saves a round trip; 0 means 256 KiB. At most 1 MiB, a
	// multiple of 16.
	InCapsule nvmf.Bytes
	// Keys are the secrets of hosts for subsystems without keys of their own; see Subsystem.Keys.
	// SetKeys replaces them.
	Keys map[string]dhchap.Keys
	// PSKs are keys for TLS by the NQN of the host. If there are any, all connections use TLS,
	// those for discovery, too, and a host can only use the NQN whose key it has. SetPSKs replaces
	// them.
	PSKs map[string]tlspsk.Key
	// CutTimeout is how long SetHosts, and other calls that cut hosts off, wait for commands that
	// are being executed; 0 means 30 s. See ErrExecuting.
	CutTimeout time.Duration
	// NoReservations makes a target without reservations. It cannot keep any host from writing.
	NoReservations bool
	// Auth has the hashes and groups that hosts may authenticate with, best first. By default these
	// are all hashes, the groups up to ffdhe4096, and no group. Larger groups are left out, because
	// any host could make the target pay their cost.
	Auth dhchap.Offer
	// Log receives one line for each controller that comes and goes and for
	// each violation of the protocol; nil discards them.
	Log *slog.Logger
}

// Subsystem is a set of namespaces under one name.
type Subsystem struct {
	NQN string
	// Hosts are the host NQNs that may connect; empty lets any in, unless
	// Listed. An NQN is the host's own claim: it separates friends, not foes.
	Hosts []string
	// Listed admits only Hosts, even if that is empty.
	Listed bool
	// Keys are the secrets of hosts by their NQN; nil stands for those of the target. If there are
	// any, only hosts with a secret may connect. They have to prove on every queue that they know
	// the secret before the target executes anything else for them.
	Keys map[string]dhchap.Keys
	// Serial and Model identify the subsystem to hosts, up to 20 and 40 ASCII
	// characters. Serial defaults to a digest of the NQN.
	Serial, Model string
	Namespaces    []Namespace
}

// Namespace is one namespace of a subsystem.
type Namespace struct {
	// NSID is 1 to 1024; 0 takes the next free one.
	NSID uint32
	// Backing holds the data. The target owns it and closes it.
	Backing Backing
	// Hosts are the host NQNs that see this namespace; empty means all that
	// may connect to the subsystem.
	Hosts []string
	// Rate limits the bytes per second that all hosts together read and write; 0 is no limit. At
	// least MinRate.
	Rate nvmf.Bytes
}

// Host is the host of a controller, as Connect named it.
type Host struct {
	NQN string
	ID  [16]byte
}

// Limits of this implementation.
const (
	maxNSID     = 1024
	maxTransfer = 1 << 20 // bytes of one command; MDTS
	mdts        = 8       // 2^8 pages of 4 KiB
	maxQueue    = 1024    // entries of a queue; MQES is one less
	maxIOQueues = 128     // of one controller
	maxEvents   = 4       // Asynchronous Event Requests of one controller
)

// Target serves subsystems. All methods are safe for concurrent use.
type Target struct {
	log            *slog.Logger
	inCapsule      uint32
	maxConns       int
	cutTimeout     time.Duration
	patience       time.Duration // with a host that has not connected and authenticated
	exchanges      chan struct{} // its capacity is the number of computations at a time
	noReservations bool          // does not change
	auth           dhchap.Offer  // nor does this

	// running counts connections that are not asleep. They spin only while there are cores for all
	// of them and for the hosts, which may be on this machine.
	running atomic.Int32

	mu          sync.Mutex // guards what follows
	keys        map[string]dhchap.Keys
	psks        map[string]tlspsk.Key
	subsystems  map[string]*subsystem
	controllers map[uint16]*controller
	conns       map[*conn]struct{}
	listeners   []net.Listener
	accepted    uint64 // connections so far
	nextCNTLID  uint16
	generation  uint64 // of the discovery log
	closed      bool

	group sync.WaitGroup // connections
}

// subsystem is a Subsystem that is served.
type subsystem struct {
	nqn, serial, model string
	listed             bool
	// Target.mu guards these. inherits says that keys are the target's.
	hosts    []string
	keys     map[string]dhchap.Keys
	inherits bool
	// namespaces by id. The map is replaced as a whole, under Target.mu.
	namespaces atomic.Pointer[map[uint32]*namespace]
}

// New returns a target that serves nothing yet: call Listen. If it fails the
// backings still belong to the caller.
func New(c Config) (*Target, error) {
	t := &Target{
		log:            c.Log,
		inCapsule:      uint32(c.InCapsule),
		maxConns:       c.MaxConnections,
		cutTimeout:     c.CutTimeout,
		patience:       connectTimeout,
		exchanges:      make(chan struct{}, max(1, runtime.NumCPU()/2)),
		noReservations: c.NoReservations,
		auth:           c.Auth,
		keys:           maps.Clone(c.Keys),
		psks:           maps.Clone(c.PSKs),
		subsystems:     map[string]*subsystem{},
		controllers:    map[uint16]*controller{},
		conns:          map[*conn]struct{}{},
		generation:     1,
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if len(t.auth.Groups) == 0 {
		t.auth.Groups = []dhchap.Group{dhchap.FFDHE2048, dhchap.FFDHE3072, dhchap.FFDHE4096, dhchap.NullGroup}
	}
	if t.maxConns == 0 {
		t.maxConns = 1024
	}
	if t.cutTimeout == 0 {
		t.cutTimeout = 30 * time.Second
	}
	if t.inCapsule == 0 {
		t.inCapsule = 256 << 10
	}
	if err := checkKeys(c.Keys); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	if err := checkPSKs(c.PSKs); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	if t.inCapsule > maxTransfer || t.inCapsule%16 != 0 {
		return nil, fmt.Errorf("target: in-capsule data of %s: not a multiple of 16 up to 1 MiB", c.InCapsule)
	}
	for _, s := range c.Subsystems {
		if err := t.AddSubsystem(s); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// AddSubsystem starts to serve s. If it fails the backings still belong to
// the caller.
func (t *Target) AddSubsystem(s Subsystem) error {
	if err := checkNQN(s.NQN); err != nil {
		return fmt.Errorf("target: subsystem: %w", err)
	}
	sub := &subsystem{nqn: s.NQN, serial: s.Serial, model: s.Model, listed: s.Listed, hosts: slices.Clone(s.Hosts),
		keys: maps.Clone(s.Keys), inherits: s.Keys == nil}
	if err := checkKeys(s.Keys); err != nil {
		return fmt.Errorf("target: subsystem %s: %w", s.NQN, err)
	}
	if sub.serial == "" {
		sub.serial = serialOf(s.NQN)
	}
	if sub.model == "" {
		sub.model = "nvmecr target"
	}
	namespaces := map[uint32]*namespace{}
	for _, n := range s.Namespaces {
		if _, err := addNamespace(namespaces, n); err != nil {
			return fmt.Errorf("target: subsystem %s: %w", s.NQN, err)
		}
	}
	sub.namespaces.Store(&namespaces)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return net.ErrClosed
	case t.subsystems[s.NQN] != nil:
		return fmt.Errorf("target: subsystem %s is already served", s.NQN)
	}
	if sub.inherits {
		sub.keys = t.keys
	}
	t.subsystems[s.NQN] = sub
	t.generation++
	return nil
}

// RemoveSubsystem cuts off all hosts of a subsystem, flushes its namespaces and closes their
// backings. After ErrExecuting the removal completes when the command ends that is still being
// executed.
func (t *Target) RemoveSubsystem(nqn string) error {
	t.mu.Lock()
	sub := t.subsystems[nqn]
	delete(t.subsystems, nqn)
	t.generation++
	t.mu.Unlock()
	if sub == nil {
		return fmt.Errorf("target: no subsystem %s: %w", nqn, nvmf.ErrNoSubsystem)
	}
	if err := t.cutInTime(func(c *controller) bool { return c.sub == sub }); err != nil {
		sub.remove()
		return fmt.Errorf("target: subsystem %s: %w", nqn, err)
	}
	return sub.close()
}

// remove ends the namespaces. Their backings are closed when no connection uses them any more.
func (s *subsystem) remove() map[uint32]*namespace {
	namespaces := *s.namespaces.Swap(&map[uint32]*namespace{})
	for _, n := range namespaces {
		n.remove()
	}
	return namespaces
}

// close is remove, and waits until the backings are closed.
func (s *subsystem) close() error {
	var errs []error
	for _, n := range s.remove() {
		<-n.gone
		errs = append(errs, n.err)
	}
	return errors.Join(errs...)
}

// AddNamespace adds a namespace to a subsystem that may be in use, and
// returns its id. If it fails the backing still belongs to the caller.
func (t *Target) AddNamespace(nqn string, n Namespace) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.subsystems[nqn]
	if sub == nil {
		return 0, fmt.Errorf("target: no subsystem %s: %w", nqn, nvmf.ErrNoSubsystem)
	}
	namespaces := sub.clone()
	id, err := addNamespace(namespaces, n)
	if err != nil {
		return 0, fmt.Errorf("target: subsystem %s: %w", nqn, err)
	}
	sub.namespaces.Store(&namespaces)
	t.announce(sub, id)
	return id, nil
}

// RemoveNamespace ends a namespace: new commands to it fail at once. When those in flight have
// ended, it is flushed and its backing closed. RemoveNamespace waits for that until ctx ends; the
// removal completes in any case.
func (t *Target) RemoveNamespace(ctx context.Context, nqn string, nsid uint32) error {
	t.mu.Lock()
	sub := t.subsystems[nqn]
	var n *namespace
	if sub != nil {
		namespaces := sub.clone()
		n = namespaces[nsid]
		delete(namespaces, nsid)
		sub.namespaces.Store(&namespaces)
	}
	if n == nil {
		t.mu.Unlock()
		return fmt.Errorf("target: subsystem %s has no namespace %d: %w", nqn, nsid, nvmf.ErrNoNamespace)
	}
	n.remove()
	t.announce(sub, nsid)
	t.wakeAll()
	t.mu.Unlock()
	select {
	case <-n.gone:
		return n.err
	case <-ctx.Done():
		return fmt.Errorf("target: namespace %d of %s is still in use: %w", nsid, nqn, ctx.Err())
	}
}

// wakeAll makes all connections look at what has changed. Target.mu is held.
func (t *Target) wakeAll() {
	for c := range t.conns {
		c.wake()
	}
}

// announce tells the controllers of sub that a namespace has changed. Target.mu is held.
func (t *Target) announce(sub *subsystem, nsid uint32) {
	t.generation++
	for _, c := range t.controllers {
		if c.sub == sub {
			c.namespaceChanged(nsid)
		}
	}
}

func (s *subsystem) clone() map[uint32]*namespace {
	clone := map[uint32]*namespace{}
	for id, n := range *s.namespaces.Load() {
		clone[id] = n
	}
	return clone
}

func addNamespace(to map[uint32]*namespace, n Namespace) (uint32, error) {
	id := n.NSID
	for id == 0 || n.NSID == 0 && to[id] != nil {
		id++
	}
	switch {
	case n.Backing == nil:
		return 0, fmt.Errorf("namespace %d has no backing", id)
	case id > maxNSID:
		return 0, fmt.Errorf("namespace %d: ids go up to %d", id, maxNSID)
	case to[id] != nil:
		return 0, fmt.Errorf("namespace %d exists already", id)
	}
	if err := checkRate(n.Rate); err != nil {
		return 0, fmt.Errorf("namespace %d: %w", id, err)
	}
	to[id] = newNamespace(id, n)
	return id, nil
}

// Cut ends every controller of the hosts that match, in all subsystems, and returns their number.
// When it returns, no command of these hosts is being executed, and none that they have sent will
// be. The hosts may connect again unless SetHosts has changed that.
func (t *Target) Cut(match func(Host) bool) int {
	n, _ := t.cut(func(c *controller) bool { return match(c.host) }, nil)
	return n
}

// ErrExecuting says that hosts were cut off, but that a command of theirs was still being executed
// after Config.CutTimeout: its storage does not answer. The same call, repeated, waits for the
// command again.
var ErrExecuting = errors.New("a command of a host that was cut off is still being executed, its storage does not answer: repeat this when it does")

// cutInTime is cut with Config.CutTimeout.
func (t *Target) cutInTime(match func(*controller) bool) error {
	timer := time.NewTimer(t.cutTimeout)
	defer timer.Stop()
	_, err := t.cut(match, timer.C)
	return err
}

// cut is Cut that gives up when up delivers; nil never does.
func (t *Target) cut(match func(*controller) bool, up <-chan time.Time) (int, error) {
	t.mu.Lock()
	n := 0
	for _, c := range t.controllers {
		if match(c) {
			n++
			c.end()
		}
	}
	// A queue may outlive its controller by a command that takes long.
	var conns []*conn
	for c := range t.conns {
		if c.of != nil && match(c.of) {
			c.hangUp()
			conns = append(conns, c)
		}
	}
	t.mu.Unlock()
	for _, c := range conns {
		select {
		case <-c.done:
		case <-up:
			t.mu.Lock()
			defer t.mu.Unlock()
			return n, fmt.Errorf("host %s: %w", c.of.host.NQN, ErrExecuting)
		}
	}
	return n, nil
}

// Close stops listening and lets commands that have arrived finish until ctx ends. Then it cuts all
// connections, flushes all namespaces and closes their backings. The error joins the errors of
// these.
func (t *Target) Close(ctx context.Context) error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	for _, l := range t.listeners {
		_ = l.Close() // to wake the acceptor
	}
	for c := range t.conns {
		c.closing.Store(true)
		c.wake()
	}
	subsystems := t.subsystems
	t.subsystems = nil
	t.mu.Unlock()

	idle := make(chan struct{})
	go func() { t.group.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-ctx.Done():
		t.mu.Lock()
		for c := range t.conns {
			c.hangUp()
		}
		t.mu.Unlock()
		<-idle
	}
	var errs []error
	for _, s := range subsystems {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}
