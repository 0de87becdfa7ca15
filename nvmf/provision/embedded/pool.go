package embedded

import (
	"errors"
	"fmt"
	"strings"

	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/target"
)

// blockSize is the block size of namespaces. Their sizes are rounded up to it.
const blockSize = 4 * nvmf.KiB

// record describes a namespace in a pool.
type record struct {
	Job   string     `json:"job"`
	Size  nvmf.Bytes `json:"size"`
	Hosts []string   `json:"hosts"`
	Keys  hostKeys   `json:"keys,omitempty"`
	Rate  nvmf.Bytes `json:"rate"`
}

// Pool has the storage of namespaces. Its methods are called one at a time. Methods that return
// done may return it together with an error: then the change is made, but it may not survive a
// crash of the machine. Repeating the call repairs that.
type Pool interface {
	// jobs returns all jobs with their state: provision.Ready, or Freed after a free without a
	// purge.
	jobs() (map[string]provision.State, error)
	// load returns the record of a job that is Ready.
	load(job string) (record, error)
	// create makes a namespace of zeros. If it fails, jobs tells whether there is a namespace.
	create(r record) error
	// open returns the storage of a namespace. It survives a crash of the machine if the pool does.
	open(r record) (target.Backing, error)
	// save replaces the record.
	save(r record) (done bool, err error)
	// free makes a Ready namespace Freed. A Freed one stays so.
	free(job string) (done bool, err error)
	// purge removes Freed storage, and the remains of an interrupted create.
	purge(job string) error
	// Close releases the pool, whose namespaces must be closed.
	Close() error
}

// OpenPool opens "file:DIR", a directory, which is made if it does not exist, or "mem:SIZE".
func OpenPool(name string) (Pool, error) {
	kind, rest, _ := strings.Cut(name, ":")
	switch {
	case kind == "file" && rest != "":
		return openFilePool(rest)
	case kind == "mem":
		size, err := nvmf.ParseSize(rest)
		if err != nil {
			return nil, fmt.Errorf("pool %q: %w", name, errors.Join(err, provision.ErrInvalid))
		}
		return newMemPool(size), nil
	}
	return nil, fmt.Errorf("pool %q: %w: it is file:DIRECTORY or mem:SIZE", name, provision.ErrInvalid)
}
