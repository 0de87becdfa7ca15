package embedded

import (
	"errors"
	"fmt"
	"strings"

	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/target"
)

// blockSize is the block size of namespaces. Their sizes are multiples of it.
const blockSize = 4 * nvmf.KiB

// record describes a namespace in a pool.
type record struct {
	Job   string     `json:"job"`
	Size  nvmf.Bytes `json:"size"`
	Hosts []string   `json:"hosts"`
	Keys  hostKeys   `json:"keys,omitempty"`
	Rate  nvmf.Bytes `json:"rate"`
}

// A Pool stores namespaces. Its methods must not be called concurrently. Methods with
// the result done may return it together with an error. Then the change is made, but
// may not survive a crash of the machine. Repeating the call repairs that.
type Pool interface {
	// jobs returns all jobs with their state. It is provision.Ready, or provision.Freed
	// if free was not followed by purge.
	jobs() (map[string]provision.State, error)
	// load returns the record of a job that is Ready.
	load(job string) (record, error)
	// create creates a namespace of zeros. After a failure, jobs tells whether the
	// namespace exists.
	create(r record) error
	// open returns the storage of a namespace. Its data survives a crash of the machine
	// if the pool does.
	open(r record) (target.Backing, error)
	// save replaces the record.
	save(r record) (done bool, err error)
	// free changes the state of a Ready namespace to Freed. A Freed one does not
	// change.
	free(job string) (done bool, err error)
	// purge removes Freed storage, and the remains of an interrupted create.
	purge(job string) error
	// Close releases the pool, whose namespaces must be closed.
	Close() error
}

// OpenPool opens "file:DIR", a directory, which is created if it does not exist, or
// "mem:SIZE".
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
