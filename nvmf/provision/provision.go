// Package provision manages the namespaces of jobs: it creates a namespace of a given
// size, exposes it only to the hosts of the job, limits its rate, and frees it.
//
// It supports three kinds of target: SPDK through its JSON-RPC (package spdk), Linux's
// nvmet through configfs (package nvmet), and nvmecr's own through its admin socket
// (package embedded). Package dial opens one by name.
//
// # Idempotence
//
// Every namespace is namespace 1 of its own subsystem. The subsystem is named BASE:JOB,
// the name of its storage contains JOB as well, and no JOB contains a ':'. So the
// configuration of the target is the only record. A call compares the target with the
// requested state, and makes the missing changes. So a call that was interrupted, here
// or at the target, is completed by the next call of the same kind, or undone by
// Delete.
//
// # Old data
//
// A new namespace reads as zeros, whatever its storage contained before. Delete begins
// with an atomic rename of the storage to a name that marks it as freed. From then on
// it is never served again: a Create of the same job first completes the Delete. The
// packages of the targets describe how the storage is cleared.
package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// Provisioner is the administrator's interface to a target. All methods are safe for
// concurrent use. Two programs must not change the same job at the same time.
type Provisioner interface {
	// Create creates the namespace of a job, or returns the existing one. If that has
	// another size, the error is a *SizeError. Sizes are rounded up to the target's
	// unit of allocation. No host sees the namespace before Expose.
	Create(ctx context.Context, job string, size nvmf.Bytes) (Namespace, error)
	// Expose sets the hosts that may connect, by their NQNs. Connected hosts that are
	// no longer listed are disconnected. An empty list hides the namespace.
	//
	// With keys, each host needs keys and must authenticate; keys of other hosts are
	// ignored. Without keys, hosts that were listed before keep their keys. Hosts with
	// keys and hosts without keys cannot be mixed. A namespace that was exposed with
	// keys can be exposed without keys only after it was hidden, even if the target was
	// restarted. A host whose keys change is disconnected.
	Expose(ctx context.Context, job string, hosts []string, keys map[string]dhchap.Keys) error
	// Limit sets the rate limit of the namespace in bytes per second, for reads and
	// writes of all hosts together. 0 removes the limit. A target without rate limits
	// returns ErrUnsupported.
	Limit(ctx context.Context, job string, rate nvmf.Bytes) error
	// Delete disconnects all hosts and frees the namespace with its data. It
	// succeeds if the job has no namespace.
	Delete(ctx context.Context, job string) error
	// List returns the namespaces of all jobs, sorted by name. It includes damaged
	// namespaces and those of interrupted calls.
	List(ctx context.Context) ([]Namespace, error)
	Close() error
}

// State is the state of a namespace.
type State string

// The states.
const (
	Ready      State = "ready"
	Incomplete State = "incomplete" // Create was interrupted, or the target was restarted: repeat it
	Freed      State = "freed"      // Delete was interrupted: repeat it
	Damaged    State = "damaged"    // its storage cannot be served: repair it or Delete it
)

// Namespace is the namespace of a job.
type Namespace struct {
	Job   string     `json:"job"`
	State State      `json:"state"`
	Size  nvmf.Bytes `json:"size"`
	// Targets are the addresses at which the namespace is served, in the form of
	// `nvmecr run --target`. All lead to the same namespace.
	Targets []nvmf.TransportID `json:"targets"`
	Hosts   []string           `json:"hosts"` // sorted
	// Authenticate says that hosts must authenticate.
	Authenticate bool       `json:"authenticate"`
	Rate         nvmf.Bytes `json:"rate"` // bytes per second; 0 means no limit
	// Problem is the reason why the namespace is Damaged.
	Problem string `json:"problem,omitempty"`
}

// Errors of a Provisioner. Returned errors wrap these, and name the job, the cause and
// the remedy.
var (
	ErrNoNamespace = errors.New("there is no namespace")
	ErrNoSpace     = errors.New("not enough space")
	ErrIncomplete  = errors.New("namespace is incomplete")
	ErrUnsupported = errors.New("target cannot do that")
	ErrInvalid     = errors.New("not valid")
)

// SizeError is the error for a job that has a namespace of another size.
type SizeError struct {
	Job        string
	Have, Want nvmf.Bytes
}

// Error names both sizes and the remedy.
func (e *SizeError) Error() string {
	return fmt.Sprintf("job %s has a namespace of %s already, not of %s: use it, or delete it first", e.Job, e.Have, e.Want)
}

// NoNamespace returns an ErrNoNamespace for a job.
func NoNamespace(job string) error {
	return fmt.Errorf("job %s: %w here: create it first", job, ErrNoNamespace)
}

// NotServed returns an ErrIncomplete for a job.
func NotServed(job string) error {
	return fmt.Errorf("job %s: %w: its storage is there, and the target does not serve it; it was started anew, or a create was interrupted: repeat the create", job, ErrIncomplete)
}

// MaxJob is the maximum length of a job's name. It keeps the names of storage within
// the limits of all targets.
const MaxJob = 48

// MinRate is the lowest rate limit of a namespace.
const MinRate = nvmf.MiB

// Base is the default beginning of the NQNs of jobs' subsystems.
const Base = "nqn.2014-08.org.nvmecr:job"

// CheckJob returns an error unless job is a valid name: a letter or digit, followed by
// letters, digits, dots, dashes and underscores, at most MaxJob characters in total.
func CheckJob(job string) error {
	alnum := func(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' }
	ok := len(job) >= 1 && len(job) <= MaxJob && alnum(job[0])
	for i := 0; ok && i < len(job); i++ {
		ok = alnum(job[i]) || strings.IndexByte("._-", job[i]) >= 0
	}
	if !ok {
		return fmt.Errorf("job %q: %w: a name is 1 to %d letters, digits, dots, dashes and underscores, a letter or digit first", job, ErrInvalid, MaxJob)
	}
	return nil
}

// CheckSize returns an error unless size is valid for a namespace: 1 MiB to 64 TiB.
func CheckSize(job string, size nvmf.Bytes) error {
	if size < nvmf.MiB || size > 64*nvmf.TiB {
		return fmt.Errorf("job %s: %w: a namespace of %s, it must have 1 MiB to 64 TiB", job, ErrInvalid, size)
	}
	return nil
}

// CheckRate returns an error unless rate is a valid limit: MinRate to 1 TiB per second,
// or 0 for no limit.
func CheckRate(job string, rate nvmf.Bytes) error {
	if rate != 0 && rate < MinRate {
		return fmt.Errorf("job %s: %w: a limit of %s per second, the least is %s: with less, hosts would take commands for lost", job, ErrInvalid, rate, MinRate)
	}
	if rate > nvmf.TiB {
		return fmt.Errorf("job %s: %w: a limit of %s per second, the most is %s: for no limit give off", job, ErrInvalid, rate, nvmf.TiB)
	}
	return nil
}

// CheckHosts returns the NQNs of hosts, sorted and without duplicates. It returns an
// error if one is invalid.
func CheckHosts(job string, hosts []string) ([]string, error) {
	sorted := slices.Compact(slices.Sorted(slices.Values(hosts)))
	for _, h := range sorted {
		if !ValidNQN(h) {
			return nil, fmt.Errorf("job %s: host %q: %w: an NQN is nqn.2014-08.org.nvmexpress:uuid:... or such", job, h, ErrInvalid)
		}
	}
	if sorted == nil {
		sorted = []string{}
	}
	return sorted, nil
}

// CheckKeys returns an error unless either all hosts have keys or none has. If keys is nil, hosts
// keep the keys that they were exposed with. If locked is set, the namespace was exposed with keys,
// and all hosts need keys.
func CheckKeys(job string, hosts []string, keys map[string]dhchap.Keys, before func(host string) bool, locked bool) error {
	var with, without string
	for _, h := range hosts {
		has := !keys[h].Host.IsZero()
		if keys == nil {
			has = before(h)
		}
		if has {
			with = h
		} else {
			without = h
		}
	}
	switch {
	case without == "" || with == "" && keys == nil && !locked:
		return nil
	case with == "" && keys == nil:
		return fmt.Errorf("job %s: %w: it was exposed with keys, and the target has none of host %s: give --dhchap-keys again, or to do without hide it first (nvmecr admin expose %s)",
			job, ErrInvalid, without, job)
	case keys == nil:
		return fmt.Errorf("job %s: %w: host %s has no key, and %s has one: give keys of all hosts of the job", job, ErrInvalid, without, with)
	}
	return fmt.Errorf("job %s: %w: host %s has no key: give keys of all hosts of the job", job, ErrInvalid, without)
}

// ValidNQN reports whether a name is a valid NQN, and can be part of a path.
func ValidNQN(nqn string) bool {
	bad := func(c rune) bool { return c <= ' ' || c == 0x7f || c == '/' || c == 0xfffd }
	return strings.HasPrefix(nqn, "nqn.") && len(nqn) >= 12 && len(nqn) <= 223 && !strings.ContainsFunc(nqn, bad)
}

// NQN returns the NQN of a job's subsystem.
func NQN(base, job string) string { return base + ":" + job }

// JobOf returns the job of a subsystem's NQN, or an empty string if the subsystem
// belongs to no job.
func JobOf(base, nqn string) string {
	job, ok := strings.CutPrefix(nqn, base+":")
	if !ok || CheckJob(job) != nil {
		return ""
	}
	return job
}
