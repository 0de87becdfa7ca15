package drain

import (
	"context"
	"errors"
	"io"
	"slices"
)

// An Archive is a second level: a [Level] of directories, or one of objects ([OpenBucket]). The methods of each say what they promise.
type Archive interface {
	Sets() ([]Set, error)
	Put(ctx context.Context, s *Set, src Source, o Options) (*Set, error)
	Get(ctx context.Context, s *Set, file int, w io.WriterAt, o Options) error
	Verify(ctx context.Context, s *Set, o Options) error
	Remove(s *Set) error
	Close() error
}

// find returns the set that is the same as s, if there is one.
func find(a Archive, s *Set) (*Set, error) {
	sets, err := a.Sets()
	if i := slices.IndexFunc(sets, func(have Set) bool { return have.Same(s) }); i >= 0 {
		return &sets[i], nil
	}
	if errors.Is(err, ErrManifest) {
		return nil, nil // of another set
	}
	return nil, err
}
