package command

import (
	"fmt"
	"strconv"

	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
)

// singletonText is how the singleton partition is called in place of a rank, and indexText where it is that of the index of a tree. In
// JSON it has number -1.
const (
	singletonText = "singleton"
	indexText     = "index"
)

// jobTree stands for a rank where the files are those of the tree of the job. In JSON it has number -1, too.
const jobTree = -3

// allRanks is the value of --rank when it was not given.
const allRanks = store.AllRanks

// rankFlag is the value of --rank.
type rankFlag int

// String returns what Set takes.
func (r *rankFlag) String() string {
	if *r == allRanks {
		return ""
	}
	return rankColumn(int(*r))
}

// Set takes a number, "singleton", or "index".
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

// Type is what help calls it.
func (r *rankFlag) Type() string { return "rank" }

// rankColumn is a rank in a table, or in the name of a directory.
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

// rankColumn is a rank of this store, or its singleton partition, in a table, or in the name of a directory.
func (r *reader) rankColumn(rank int) string {
	if rank == parttable.Singleton && r.tree {
		return indexText
	}
	return rankColumn(rank)
}

// rankName is a rank in a message.
func (r *reader) rankName(rank int) string {
	if rank < 0 {
		return r.rankColumn(rank)
	}
	return fmt.Sprintf("rank %d", rank)
}
