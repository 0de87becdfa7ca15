package mirror

import (
	"errors"
	"fmt"

	"nvmecr/nvmf"
)

// ErrOneSide means that the other side of the mirror is lost, or must not be used.
var ErrOneSide = fmt.Errorf("there is one side only: %w", nvmf.ErrUnsupported)

// Errors of opening and of restoring a mirror.
var (
	// ErrAway means that one side cannot be reached, and that the other one may lack the latest writes.
	ErrAway = errors.New("one side of the mirror cannot be reached, and the other one may lack what was written last: bring it back, or put another, empty namespace in its place")
	// ErrStale means that the only reachable side has a record that it lacks data.
	ErrStale = errors.New("this side of the mirror lacks what was written while it was away, and the other one is gone: bring that back, or start over with --fresh, which deletes the checkpoints")
	// ErrSplit means that each side was used alone, and has data that the other one lacks.
	ErrSplit = errors.New("both sides of the mirror were written to without the other one: put an empty namespace in the place of the one that is to be given up")
	// ErrSource means that Resync cannot read all data of the complete side.
	ErrSource = errors.New("what is to be copied is damaged")
	// ErrOther means that the sides belong to different mirrors.
	ErrOther = errors.New("the two sides are of different mirrors: name the targets in the order in which the store was made, or empty the one that is to be replaced")
)

// errElsewhere means that another process has lost a side.
var errElsewhere = errors.New("a process of the job could not reach it")

// errPatience ends the attempts to reach a side while the other one is there.
var errPatience = errors.New("not back in time")

// away reports whether an error means that a side cannot be reached now.
func away(err error) bool {
	for _, e := range []error{nvmf.ErrConnectionLost, nvmf.ErrUnreachable, nvmf.ErrHostRefused, nvmf.ErrNoSubsystem, nvmf.ErrNoNamespace, nvmf.ErrNamespaceChanged} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// damaged reports whether a command failed with a Media and Data Integrity Error.
func damaged(err error) bool {
	var s *nvmf.StatusError
	return errors.As(err, &s) && s.SCT == 2
}
