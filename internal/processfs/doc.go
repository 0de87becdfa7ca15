// Package processfs opens what a process of a job has under the mount: the partition of its rank, or where it
// is a singleton the singleton partition and below it the files of all ranks, read-only. The preloaded library does so for the
// process it is in, and `nvmecr serve` for others.
//
// An Opener serves one posixshim.Process. Its methods are safe for concurrent use.
package processfs

import (
	"sync"
	"sync/atomic"

	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// An Opener opens the file system of a process. All exported fields are set before the first call.
type Opener struct {
	Config *config.Config
	// Proc returns the rank of the process in the job.
	Proc func() (store.Proc, error)
	// Logf prints a message to the user, on one line.
	Logf func(format string, args ...any)
	// Formatted, if not nil, returns store.Options.Formatted for the thread that calls it.
	Formatted func() func() error
	// Process is the process that uses the file system.
	Process *posixshim.Process

	// A singleton's views of the ranks, shared by all its mounts.
	viewing sync.Once
	views   *store.Views
	noRanks atomic.Bool // the store is known to have none

	// compared is set once a mount for reading has been compared with the singleton partition.
	compared atomic.Bool

	looks, said atomic.Int32 // of hint
}
