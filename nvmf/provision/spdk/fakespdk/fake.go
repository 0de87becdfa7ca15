// Package fakespdk is a fake SPDK target for tests of its clients. It implements the
// JSON-RPC methods of nvmf_tgt for logical volumes and NVMe-oF subsystems, with SPDK's
// error codes, and keeps their state.
//
// Volumes are in memory, which is cleared only where SPDK clears storage. With
// clear_method write_zeroes, the blocks of a deleted volume are zeroed, unless the
// target dies meanwhile. Other methods leave the blocks unchanged, as a device may.
package fakespdk

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/google/uuid"

	"nvmecr/internal/jsonrpc"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// Cluster is the cluster size of the store, and Block the block size.
const (
	Cluster = nvmf.MiB
	Block   = 4096
)

// A Target is a target with one logical volume store, "lvs0".
type Target struct {
	mu         sync.Mutex
	medium     []byte
	used       []bool // by cluster
	volumes    []*volume
	subsystems []*subsystem
	keys       []key
	store      string
	deleting   []*volume
	// fail is called before each call. It returns whether to execute the call, and
	// whether to answer it.
	fail func() (execute, answer bool)
}

type volume struct {
	uuid, name string
	clusters   []int
	size       int // in clusters; a thin volume has fewer
	zeroes     bool
	limit      uint64
}

type subsystem struct {
	NQN       string    `json:"nqn"`
	Subtype   string    `json:"subtype"`
	Listen    []address `json:"listen_addresses"`
	AllowAny  bool      `json:"allow_any_host"`
	Hosts     []host    `json:"hosts"`
	Serial    string    `json:"serial_number"`
	Model     string    `json:"model_number"`
	Max       uint32    `json:"max_namespaces"`
	Spaces    []space   `json:"namespaces"`
	destroyed bool
}

type address struct {
	TRType  string `json:"trtype"`
	AdrFam  string `json:"adrfam"`
	TRAddr  string `json:"traddr"`
	TRSvcID string `json:"trsvcid"`
}

type host struct {
	NQN     string `json:"nqn"`
	Key     string `json:"dhchap_key,omitempty"`
	CtrlKey string `json:"dhchap_ctrlr_key,omitempty"`
}

// A key is a key of the keyring, stored in a file.
type key struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

type space struct {
	NSID uint32 `json:"nsid"`
	Bdev string `json:"bdev_name"`
	Name string `json:"name"`
	UUID string `json:"uuid"`
}

// New returns a target with a store of size bytes that reads as zeros.
func New(size nvmf.Bytes) *Target {
	t := &Target{medium: make([]byte, size), used: make([]bool, size/Cluster), store: uuid.NewString()}
	t.Restart()
	return t
}

// Serve answers calls until ctx ends.
func (t *Target) Serve(ctx context.Context, l net.Listener) error {
	return jsonrpc.Serve(ctx, l, func(_ context.Context, method string, params json.RawMessage) (any, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		execute, answer := true, true
		if t.fail != nil {
			execute, answer = t.fail()
		}
		var result any
		var err error
		if execute {
			result, err = t.call(method, params)
		} else if method == "bdev_lvol_delete" {
			var a arguments
			_ = jsonrpc.Unmarshal(params, &a) // a call without a name has no effect
			t.crash(a.Name)
		}
		if !answer {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "interrupted"}
		}
		return result, err
	})
}

// Fail sets a function that is called before each call. It returns whether to execute
// the call, and whether to answer it. A deletion that is not to be executed stops
// half-way: the target dies and restarts.
func (t *Target) Fail(f func() (execute, answer bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail = f
}

// crash simulates a restart during the deletion of a volume. SPDK first removes the
// volume's metadata, so that its clusters are free, and then zeroes the clusters.
func (t *Target) crash(name string) {
	if v := t.find(name); v != nil {
		v.zeroes = false
		t.begin(v)
		t.end(v)
	}
	t.restart()
}

// Begin begins the deletion of a volume. The volume is no longer a block device, but
// its name is still taken and its clusters are not free. end zeroes the clusters if
// required, and frees them.
func (t *Target) Begin(name string) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.find(name)
	t.begin(v)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.end(v)
	}
}

// Restart discards all state that a target keeps in memory.
func (t *Target) Restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.restart()
}

func (t *Target) restart() {
	for _, s := range t.subsystems {
		s.destroyed = true
	}
	t.subsystems = []*subsystem{{NQN: "nqn.2014-08.org.nvmexpress.discovery", Subtype: "Discovery", AllowAny: true}}
	t.keys = nil
	for _, v := range t.volumes {
		v.limit = 0
	}
}

// Names returns the names of all volumes, subsystems and keys of jobs.
func (t *Target) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for _, v := range t.volumes {
		names = append(names, v.name)
	}
	for _, s := range t.subsystems {
		if s.Subtype == "NVMe" {
			names = append(names, s.NQN)
		}
	}
	for _, k := range t.keys {
		names = append(names, k.Name)
	}
	return names
}

// A Namespace is a volume as a connected host sees it.
type Namespace struct {
	t      *Target
	sub    *subsystem
	volume *volume
	host   host // the host's entry when it connected
}

// Connect connects a host.
func (t *Target) Connect(id nvmf.TransportID, hostNQN string, keys dhchap.Keys) (*Namespace, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.subsystems {
		for _, a := range s.Listen {
			if s.NQN != id.SubNQN || a.TRAddr != id.Address || a.TRSvcID != id.Service || a.TRType != "TCP" {
				continue
			}
			if !s.allows(hostNQN) {
				return nil, nvmf.ErrHostRefused
			}
			if !t.authentic(s, hostNQN, keys) {
				return nil, nvmf.ErrAuthentication
			}
			for _, n := range s.Spaces {
				if n.NSID == id.NSID {
					return &Namespace{t, s, t.find(n.Bdev), s.host(hostNQN)}, nil
				}
			}
			return nil, nvmf.ErrNoNamespace
		}
	}
	return nil, nvmf.ErrNoSubsystem
}

// authentic reports whether the keys of a host are those in its entry.
func (t *Target) authentic(s *subsystem, nqn string, keys dhchap.Keys) bool {
	for _, h := range s.Hosts {
		if h.NQN == nqn {
			return t.holds(h.Key, keys.Host) && (keys.Controller.IsZero() || t.holds(h.CtrlKey, keys.Controller))
		}
	}
	return keys.Controller.IsZero()
}

// holds reports whether the file of a key contains this secret, and only its owner can
// read the file.
func (t *Target) holds(name string, s dhchap.Secret) bool {
	if name == "" || s.IsZero() {
		return name == "" && s.IsZero()
	}
	for _, k := range t.keys {
		info, err := os.Stat(k.Path)
		if k.Name == name && err == nil && info.Mode().Perm() == 0o600 {
			b, err := os.ReadFile(k.Path)
			return err == nil && string(b) == s.Reveal()
		}
	}
	return false
}

// host returns the entry of a host.
func (s *subsystem) host(nqn string) host {
	for _, h := range s.Hosts {
		if h.NQN == nqn {
			return h
		}
	}
	return host{NQN: nqn}
}

func (s *subsystem) allows(nqn string) bool {
	for _, h := range s.Hosts {
		if h.NQN == nqn {
			return true
		}
	}
	return s.AllowAny
}

// Size returns the size of the namespace.
func (n *Namespace) Size() nvmf.Bytes { return nvmf.Bytes(n.volume.size) * Cluster }

// Close ends the connection.
func (n *Namespace) Close() error { return nil }

// ReadAt reads. It fails if the host is no longer allowed.
func (n *Namespace) ReadAt(p []byte, offset int64) (int, error) {
	return n.move(p, offset, func(p, at []byte) int { return copy(p, at) })
}

// WriteAt writes. It fails if the host is no longer allowed.
func (n *Namespace) WriteAt(p []byte, offset int64) (int, error) {
	return n.move(p, offset, func(p, at []byte) int { return copy(at, p) })
}

func (n *Namespace) move(p []byte, offset int64, do func(p, at []byte) int) (int, error) {
	n.t.mu.Lock()
	defer n.t.mu.Unlock()
	if n.sub.destroyed || !n.sub.allows(n.host.NQN) || n.sub.host(n.host.NQN) != n.host {
		return 0, nvmf.ErrConnectionLost
	}
	done := 0
	for done < len(p) {
		i := int((offset + int64(done)) / int64(Cluster))
		if i >= len(n.volume.clusters) {
			return done, io.EOF
		}
		within := (offset + int64(done)) % int64(Cluster)
		start := int64(n.volume.clusters[i]) * int64(Cluster)
		done += do(p[done:], n.t.medium[start+within:start+int64(Cluster)])
	}
	return done, nil
}

// find returns a volume by its name or an alias.
func (t *Target) find(name string) *volume { return find(t.volumes, name) }

func find(volumes []*volume, name string) *volume {
	for _, v := range volumes {
		if name == v.uuid || name == "lvs0/"+v.name {
			return v
		}
	}
	return nil
}

// taken reports whether a volume has this name, or a volume of this name is being
// deleted.
func (t *Target) taken(name string) bool {
	return t.find("lvs0/"+name) != nil || find(t.deleting, "lvs0/"+name) != nil
}

func errno(e syscall.Errno) error {
	text := e.Error()
	return &jsonrpc.Error{Code: -int64(e), Message: strings.ToUpper(text[:1]) + text[1:]}
}

func invalid() error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid parameters"}
}

func internal(format string, args ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: fmt.Sprintf(format, args...)}
}
