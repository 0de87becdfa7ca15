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

// A copyReader reads files of a tree from their copies, while the job runs and the copies change.
type copyReader struct {
	cfg config.Config

	mu     sync.Mutex
	areas  *copyAreas // nil until they are needed
	files  map[copyKey]copiedFile
	looked time.Time
}

// A copyKey is a file as it was copied.
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

// copyPatience is the part of the time-out that a target with copies is waited for: the reader waits meanwhile.
const copyPatience = 2

func newCopyReader(cfg *config.Config) *copyReader {
	r := &copyReader{cfg: *cfg}
	r.cfg.Timeout /= copyPatience
	return r
}

// leastLookForCopies is between two looks for files of which there is no copy.
const leastLookForCopies = time.Second

// ReadAt is index.Options.Copy.
func (r *copyReader) ReadAt(name string, size int64, modified time.Time, b []byte, off int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := newCopyKey(name, size, modified)
	err := r.read(key, b, off)
	if err == nil || time.Since(r.looked) < leastLookForCopies {
		return err
	}
	if err := r.look(); err != nil { // the drainer writes there, and removes
		return err
	}
	return r.read(key, b, off)
}

func (r *copyReader) read(key copyKey, b []byte, off int64) error {
	c, ok := r.files[key]
	if !ok {
		return fmt.Errorf("there is no copy of %s as it is: %w", key.path, syscall.ENOENT)
	}
	return r.areas.ReadAt(c.set, c.file, b, off)
}

// look lists the present copies. Without checksums it could not be detected that the drainer has reused their space.
func (r *copyReader) look() error {
	if r.areas != nil {
		_ = r.areas.close() // they were only read
	}
	var away error
	r.areas = openCopies(context.Background(), &r.cfg, true, func(err error) { away = err })
	sets, err := r.areas.Sets()
	r.files, r.looked = map[copyKey]copiedFile{}, time.Now()
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
