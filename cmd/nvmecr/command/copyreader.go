package command

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"syscall"
	"time"

	"nvmecr/drain"
	"nvmecr/internal/config"
)

// A copyReader reads files of a tree from their copies while the job runs. The drainer adds and removes copies
// meanwhile.
type copyReader struct {
	cfg config.Config

	mu     sync.Mutex
	areas  *copyAreas // nil until first used
	files  map[copyKey]copiedFile
	listed time.Time
}

// A copyKey identifies a version of a file.
type copyKey struct {
	path     string
	size     int64
	modified int64 // in nanoseconds
}

func newCopyKey(name string, size int64, modified time.Time) copyKey {
	return copyKey{path.Clean("/" + name), size, modified.UnixNano()}
}

type copiedFile struct {
	set  *drain.Set
	file int
}

// copyTimeoutDivisor divides the time-out for targets with copies: a process of the job waits for the answer.
const copyTimeoutDivisor = 2

func newCopyReader(cfg *config.Config) *copyReader {
	r := &copyReader{cfg: *cfg}
	r.cfg.Timeout /= copyTimeoutDivisor
	return r
}

// minRelist is the least time between two listings of the copies.
const minRelist = time.Second

// ReadAt reads a version of a file from its copies. It implements index.Options.Copy.
func (r *copyReader) ReadAt(name string, size int64, modified time.Time, b []byte, off int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := newCopyKey(name, size, modified)
	err := r.read(key, b, off)
	if err == nil || time.Since(r.listed) < minRelist {
		return err
	}
	if err := r.list(); err != nil { // the drainer may have added or removed copies since
		return err
	}
	return r.read(key, b, off)
}

func (r *copyReader) read(key copyKey, b []byte, off int64) error {
	c, ok := r.files[key]
	if !ok {
		return fmt.Errorf("there is no copy of the present version of %s: %w", key.path, syscall.ENOENT)
	}
	return r.areas.ReadAt(c.set, c.file, b, off)
}

// list lists the present copies. Areas without checksums are refused: without them a reader cannot detect that the
// drainer has reused the space of a copy.
func (r *copyReader) list() error {
	if r.areas != nil {
		_ = r.areas.close() // only read
	}
	var away error
	r.areas = openCopies(context.Background(), &r.cfg, true, func(err error) { away = err })
	sets, err := r.areas.Sets()
	r.files, r.listed = map[copyKey]copiedFile{}, time.Now()
	if !r.areas.checked() {
		return fmt.Errorf("copies without checksums are not read while the job runs: %w", syscall.ENOTSUP)
	}
	for i := range sets {
		for j, f := range sets[i].Files {
			r.files[newCopyKey(f.Path, f.Size, f.Modified)] = copiedFile{&sets[i], j}
		}
	}
	if len(sets) == 0 {
		return errors.Join(err, away)
	}
	return nil
}
