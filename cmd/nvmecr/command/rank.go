package command

import (
	"fmt"
	"strconv"

	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
)

// soloText is how the solo partition is called in place of a rank. In JSON it has number -1.
const soloText = "solo"

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

// Set takes a number, or "solo".
func (r *rankFlag) Set(text string) error {
	if text == soloText {
		*r = parttable.Solo
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return fmt.Errorf("%q is not the number of a rank, nor %q", text, soloText)
	}
	*r = rankFlag(n)
	return nil
}

// Type is what help calls it.
func (r *rankFlag) Type() string { return "rank" }

// rankColumn is a rank in a table, or in the name of a directory.
func rankColumn(rank int) string {
	switch rank {
	case parttable.Solo:
		return soloText
	case jobTree:
		return "job"
	}
	return strconv.Itoa(rank)
}

// rankName is a rank in a message.
func rankName(rank int) string {
	if rank < 0 {
		return rankColumn(rank)
	}
	return fmt.Sprintf("rank %d", rank)
}
