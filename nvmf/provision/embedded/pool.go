package embedded

import (
	"errors"
	"fmt"
	"strings"

	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/target"
)

// blockSize is that of namespaces, and what their sizes are rounded up to.
const blockSize = 4 * nvmf.KiB

// record is what a pool keeps of a namespace.
type record struct {
	Job   string     `json:"job"`
	Size  nvmf.Bytes `json:"size"`
	Hosts []string   `json:"hosts"`
	Keys  hostKeys   `json:"keys,omitempty"`
	Rate  nvmf.Bytes `json:"rate"`
}

// Pool is where namespaces come from. Its methods are called one at a time.
// Those that say whether it is done do so also with an error, which then means
// that it may not outlast the machine; repeating the call mends that.
type Pool interface {
	// jobs returns what there is: provision.Ready, or Freed by a free that
	// no purge has followed.
	jobs() (map[string]provision.State, error)
	// load returns the record of a job that is Ready.
	load(job string) (record, error)
	// create makes a namespace of zeros. What it has made when it fails, jobs
	// says.
	create(r record) error
	// open returns its storage, of a namespace that outlasts the machine if
	// the pool does.
	open(r record) (target.Backing, error)
	// save replaces the record.
	save(r record) (done bool, err error)
	// free makes a Ready one Freed. One that is so already it leaves so.
	free(job string) (done bool, err error)
	// purge removes what is Freed, and what a create left that died.
	purge(job string) error
	// Close releases the pool, whose namespaces must be closed.
	Close() error
}

// OpenPool opens "file:DIR", a directory, which it makes if it is not there,
// or "mem:SIZE".
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
