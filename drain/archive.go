package drain

import (
	"context"
	"errors"
	"io"
	"slices"

	"nvmecr/microfs"
)

// An Archive is a second level: a [Level] of directories, or of objects ([OpenBucket]). The methods of Level have the
// contracts.
type Archive interface {
	Sets() ([]Set, error)
	Put(ctx context.Context, s *Set, src Source, o Options) (*Set, error)
	Get(ctx context.Context, s *Set, file int, w io.WriterAt, o Options) error
	Verify(ctx context.Context, s *Set, o Options) error
	Remove(s *Set) error
	CanShare() error
	Close() error
}

// A DamagedSet is an error about a set: its manifest is damaged, cannot be read, or is of a later version.
type DamagedSet struct {
	Dir string // see Set
	Err error
}

// Error names the set and the cause.
func (d *DamagedSet) Error() string { return d.Dir + ": " + d.Err.Error() }

// Unwrap returns the cause.
func (d *DamagedSet) Unwrap() error { return d.Err }

// DamagedSets is the error of Sets where single sets cannot be used: the others are returned.
type DamagedSets []*DamagedSet

func (d DamagedSets) err() error {
	if len(d) == 0 {
		return nil
	}
	return d
}

// Error has a line for each set.
func (d DamagedSets) Error() string { return errors.Join(d.Unwrap()...).Error() }

// Unwrap returns the errors about the sets.
func (d DamagedSets) Unwrap() (list []error) {
	for _, s := range d {
		list = append(list, s)
	}
	return list
}

// find returns the set that equals s, if there is one.
func find(a Archive, s *Set) (*Set, error) {
	sets, err := a.Sets()
	if i := slices.IndexFunc(sets, func(have Set) bool { return have.Same(s) }); i >= 0 {
		return &sets[i], nil
	}
	if errors.As(err, new(DamagedSets)) {
		return nil, nil // sets without damage are listed: at worst the set exists twice
	}
	return nil, err
}

// useless reports whether no data of the set can be read, now or later.
func (d *DamagedSet) useless() bool {
	return errors.Is(d.Err, ErrManifest) && !errors.Is(d.Err, errLater) || errors.As(d.Err, new(*microfs.DamageError))
}
