package command

import (
	"fmt"
	"strconv"

	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
)

// singletonText names the singleton partition where others have a rank. In a store with one tree it has the index,
// and indexText names it. In JSON its rank is -1.
const (
	singletonText = "singleton"
	indexText     = "index"
)

// jobTree is the rank of files in the tree of the job. In JSON it is -1, too.
const jobTree = -3

// allRanks is the value of --rank if it is not given.
const allRanks = store.AllRanks

// rankFlag is the value of --rank.
type rankFlag int

// String returns the value in a form that Set accepts.
func (r *rankFlag) String() string {
	if *r == allRanks {
		return ""
	}
	return rankColumn(int(*r))
}

// Set parses a number, "singleton", or "index".
func (r *rankFlag) Set(text string) error {
	if text == singletonText || text == indexText {
		*r = parttable.Singleton
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return fmt.Errorf("%q is not the number of a rank, nor %q or %q", text, singletonText, indexText)
	}
	*r = rankFlag(n)
	return nil
}

// Type is the name of the value in help texts.
func (r *rankFlag) Type() string { return "rank" }

// rankColumn formats a rank for a table, or for the name of a directory.
func rankColumn(rank int) string {
	switch rank {
	case parttable.Singleton:
		return singletonText
	case jobTree:
		return "job"
	case parttable.Copies:
		return "copies"
	}
	return strconv.Itoa(rank)
}

// rankColumn formats a rank of this store, whose singleton partition may have the index of a tree.
func (r *reader) rankColumn(rank int) string {
	if rank == parttable.Singleton && r.tree {
		return indexText
	}
	return rankColumn(rank)
}

// rankName formats a rank for a message.
func (r *reader) rankName(rank int) string {
	if rank < 0 {
		return r.rankColumn(rank)
	}
	return fmt.Sprintf("rank %d", rank)
}
