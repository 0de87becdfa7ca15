package checkpoint

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A File is a regular file of one rank.
type File struct {
	Rank     int    // negative: in the singleton partition, or in a tree written by several ranks or an unknown one
	Path     string // from the root of the rank's files: /melt.400.0
	Size     int64  // bytes
	Created  time.Time
	Modified time.Time // the last change of its content
	// Closed is true if the last writer has closed the file and nothing has changed it since.
	Closed bool
	// Lost is true if bytes of the file were on a target that was replaced.
	Lost bool
}

// A Job describes the job that has written the files.
type Job struct {
	Ranks int // number of ranks
	// Tree is true if all ranks share one tree: a path is one file, whichever rank has written it, and File.Rank is the
	// rank that has.
	Tree bool
	// Sizes are the numbers of ranks that the job has had one after the other, if it had several. Before the first
	// entry it had Ranks.
	Sizes []Size
	// Writers are the ranks that write a part of every checkpoint. If it is empty the package comment says which ranks
	// are expected to.
	Writers []int
}

// A Size is the number of ranks that a job has had since some time.
type Size struct {
	Since time.Time
	Ranks int
}

// size returns the number of ranks of the job that wrote a set.
func (j *Job) size(s *Set) int {
	if j.Tree && !slices.ContainsFunc(s.Files, File.ofRank) {
		return 1 // a single process uses the singleton partition
	}
	ranks := j.Ranks
	for _, size := range j.Sizes {
		if !s.Ended().Before(size.Since) {
			ranks = size.Ranks
		}
	}
	return ranks
}

func (f File) ofRank() bool { return f.Rank >= 0 }

// A Set is one checkpoint: files that belong together.
type Set struct {
	// Name is the text of the paths at {step} or {name}. Leading zeros of a number are kept, unless files differ in
	// them.
	Name  string
	Files []File // in order of rank and path
	// Missing lists the files for which the set is not complete, in the same order.
	Missing []Part

	parts []part // of Files
}

// A Part is a file that a set lacks.
type Part struct {
	Rank int    // negative: unknown
	Path string // "" if the rank has no file of the set, and the expected path is unknown
	Open bool   // the file is there, but its writer has not closed it
	Lost bool   // the file is there, but not all of its bytes
	Away bool   // the file is there, but a target with bytes of it cannot be reached
}

// String describes the missing file: "melt.400.0 of rank 0 was not closed".
func (p Part) String() string {
	path := strings.TrimPrefix(p.Path, "/")
	switch {
	case p.Path == "":
		return fmt.Sprintf("rank %d has no file of it", p.Rank)
	case p.Rank >= 0:
		path = fmt.Sprintf("%s of rank %d", path, p.Rank)
	}
	if p.Lost {
		return path + " has lost bytes"
	}
	if p.Away {
		return path + " is on a target that cannot be reached"
	}
	if p.Open {
		return path + " was not closed"
	}
	return path + " is not there"
}

// Complete reports whether nothing is missing.
func (s *Set) Complete() bool { return len(s.Missing) == 0 }

// Size returns the bytes of all files.
func (s *Set) Size() (bytes int64) {
	for _, f := range s.Files {
		bytes += f.Size
	}
	return bytes
}

// Ranks returns the ranks that have files of the set, in order.
func (s *Set) Ranks() (ranks []int) {
	for _, f := range s.Files {
		if len(ranks) == 0 || ranks[len(ranks)-1] != f.Rank {
			ranks = append(ranks, f.Rank)
		}
	}
	return ranks
}

// Begun returns the time at which the first of its files was created.
func (s *Set) Begun() (first time.Time) {
	for _, f := range s.Files {
		if first.IsZero() || f.Created.Before(first) {
			first = f.Created
		}
	}
	return first
}

// Ended returns the time of the last change of any of its files.
func (s *Set) Ended() (last time.Time) {
	for _, f := range s.Files {
		if f.Modified.After(last) {
			last = f.Modified
		}
	}
	return last
}

// Written returns when the set was written: the time at which the last changes of half of its bytes were done. So a
// small file that is added or changed later does not make the set newer.
func (s *Set) Written() time.Time {
	files := slices.SortedFunc(slices.Values(s.Files), func(a, b File) int { return a.Modified.Compare(b.Modified) })
	half := (s.Size() + 1) / 2
	for _, f := range files {
		if half -= f.Size; half <= 0 && f.Size > 0 {
			return f.Modified
		}
	}
	return s.Ended() // it has no bytes
}

// Newest returns the last complete set of sets, oldest first as a Series has
// them. ok is false if none is complete.
func Newest(sets []Set) (s *Set, ok bool) {
	for i := len(sets) - 1; i >= 0; i-- {
		if sets[i].Complete() {
			return &sets[i], true
		}
	}
	return nil, false
}
