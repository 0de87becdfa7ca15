package mirror

import (
	"errors"
	"fmt"

	"nvmecr/nvmf"
)

// ErrOneSide: the other side of the mirror is lost, or not to be used.
var ErrOneSide = fmt.Errorf("there is one side only: %w", nvmf.ErrUnsupported)

// Errors of opening and of restoring a mirror.
var (
	// ErrAway: one side cannot be reached, and the other one may lack what was written last.
	ErrAway = errors.New("one side of the mirror cannot be reached, and the other one may lack what was written last: bring it back, or put another, empty namespace in its place")
	// ErrStale: the only side there is lacks what was written while it was away.
	ErrStale = errors.New("this side of the mirror lacks what was written while it was away, and the other one is gone: bring that back, or start over with --fresh, which deletes the checkpoints")
	// ErrSplit: each side has something that the other one lacks.
	ErrSplit = errors.New("both sides of the mirror were written to without the other one: put an empty namespace in the place of the one that is to be given up")
	// ErrSource means that Resync cannot read all data of the complete side.
	ErrSource = errors.New("what is to be copied is damaged")
	// ErrOther: the sides are of two mirrors.
	ErrOther = errors.New("the two sides are of different mirrors: name the targets in the order in which the store was made, or empty the one that is to be replaced")
)

// errElsewhere means that another process has lost a side.
var errElsewhere = errors.New("a process of the job could not reach it")

// errPatience ends the attempts to reach a side while the other one is there.
var errPatience = errors.New("not back in time")

// away reports whether a side cannot be reached, or not now.
func away(err error) bool {
	for _, e := range []error{nvmf.ErrConnectionLost, nvmf.ErrUnreachable, nvmf.ErrHostRefused, nvmf.ErrNoSubsystem, nvmf.ErrNoNamespace, nvmf.ErrNamespaceChanged} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// damaged reports whether the device says that data is damaged (Media and Data Integrity Errors).
func damaged(err error) bool {
	var s *nvmf.StatusError
	return errors.As(err, &s) && s.SCT == 2
}
